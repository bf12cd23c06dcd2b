"""Two runs at once, of any processes of this machine, never take the same table at a time."""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from backstory.errors import TryAgain
from backstory.stores.iceberg.store import Store

FOLDER: Final = ".runs"  # in an embedded warehouse, beside its tables


@contextmanager
def holding(store: Store, tables: Iterable[str]) -> Iterator[None]:
    """Hold the tables; TryAgain `table-busy` where another run has one. The locks go with the process."""
    folder = _folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        for table in sorted(tables):
            name = hashlib.sha256(f"{store.address} {table}".encode()).hexdigest()[:24]
            file = held.enter_context((folder / f"{name}.lock").open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TryAgain(
                    "table-busy", f"Another run is writing {table}.", "Run it again once that has ended."
                ) from None
        yield


def _folder(store: Store) -> Path:
    """Where the lock files lie: in an embedded warehouse itself, else among this user's temporary files."""
    home = store.home
    return Path(gettempdir()) / f"backstory-runs-{os.getuid()}" if home is None else home / FOLDER
