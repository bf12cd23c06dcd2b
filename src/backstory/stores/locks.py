"""One writer a table in this process; writers of different tables do not wait for each other."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from backstory.model.table import TableName
from backstory.stores.port import Store

_guard = threading.Lock()
_locks: dict[tuple[str, TableName], threading.Lock] = {}


def _reset_after_fork() -> None:
    """Forget all locks: no thread that holds one lives on in a forked process."""
    global _guard  # noqa: PLW0603 - it may be held, too
    _guard = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def writing(store: Store, *tables: TableName) -> Iterator[None]:
    """Hold the tables' locks, taken in the order of their names so that nobody waits in a ring."""
    with ExitStack() as held:
        for table in sorted(set(tables)):
            with _guard:
                lock = _locks.setdefault((store.catalog, table), threading.Lock())
            held.enter_context(lock)
        yield
