"""Two runs at once, of any processes of this machine, never take the same table; which of them go on."""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Final

from backstory.errors import TryAgain
from backstory.formats.wrapping.room import translate_disk_errors
from backstory.stores.iceberg.store import Store

FOLDER: Final = ".runs"  # in an embedded warehouse, beside its tables
RUN: Final = ".run"


@contextmanager
def holding(store: Store, tables: Iterable[str]) -> Iterator[None]:
    """Hold the tables; TryAgain `table-busy` where another run has one. The locks go with the process."""
    with ExitStack() as held:
        for table in sorted(tables):
            name = hashlib.sha256(f"{store.address} {table}".encode()).hexdigest()[:24]
            file = held.enter_context(_opened(_folder(store) / f"{name}.lock"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TryAgain(
                    "table-busy", f"Another run is writing {table}.", "Run it again once that has ended."
                ) from None
        yield


@contextmanager
def going_on(store: Store, run_id: str) -> Iterator[None]:
    """Hold what says that a run goes on; a process that is killed lets go of it."""
    path = _folder(store) / f"{run_id}{RUN}"
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def goes_on(store: Store, run_id: str) -> bool:
    """Whether a run of this machine has not ended yet."""
    try:
        with (_folder(store) / f"{run_id}{RUN}").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _opened(path: Path) -> IO[str]:
    """A file to lock, made where it is missing."""
    with translate_disk_errors(f"the folder {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")


def _folder(store: Store) -> Path:
    """Where the lock files lie: in an embedded warehouse itself, else among this user's temporary files."""
    home = store.home
    return Path(gettempdir()) / f"backstory-runs-{os.getuid()}" if home is None else home / FOLDER
