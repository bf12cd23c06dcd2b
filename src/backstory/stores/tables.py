"""The tables of any store: their existence, their rows, and their locks.

A table has one writer at a time in this process. Writers of different tables do not wait for each other.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import singledispatch
from typing import Any

import pyarrow as pa

from backstory.model.table import TableName
from backstory.stores.iceberg import frames
from backstory.stores.iceberg import store as iceberg
from backstory.stores.iceberg.slice import read_slice as read_iceberg
from backstory.stores.port import Store, StoredTable, no_table

_guard = threading.Lock()
_locks: dict[tuple[str, TableName], threading.Lock] = {}


def _reset_after_fork() -> None:
    """Drop all locks, because a forked process has none of the threads that hold them."""
    global _guard  # noqa: PLW0603 - a thread may hold it as well
    _guard = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def lock_tables(store: Store, *tables: TableName) -> Iterator[None]:
    """Hold the locks of tables, acquired in the order of their names to avoid deadlocks."""
    with ExitStack() as locks:
        for table in sorted(set(tables)):
            with _guard:
                lock = _locks.setdefault((store.catalog, table), threading.Lock())
            locks.enter_context(lock)
        yield


@singledispatch
def load(store: Store, table: TableName) -> StoredTable | None:
    """The current state of the table, or None if the table or schema does not exist."""
    raise NotImplementedError(store)


@singledispatch
def tables(store: Store, schema: str | None = None) -> list[TableName]:
    """Every table of the store or of one of its schemas, sorted."""
    raise NotImplementedError(store)


@singledispatch
def read_slice(store: Store, table: StoredTable, keys: pa.Table, since: int | None = None) -> pa.Table:
    """The rows of these keys, with `_file` and `_pos`.

    `keys` has the key's columns and may repeat keys. `since`, in microseconds, excludes versions that were
    closed before it.
    """
    raise NotImplementedError(store)


@singledispatch
def rows_of(store: Store, table: StoredTable) -> Any:
    """Every row of the table, as a frame or an Arrow table, whichever its store accepts as new rows."""
    raise NotImplementedError(store)


def existing(store: Store, table: TableName) -> StoredTable:
    """The current state of the table. Raises UsageError if it does not exist."""
    loaded = load(store, table)
    if loaded is None:
        raise no_table(table, searched=store.description)
    return loaded


load.register(iceberg.IcebergStore)(iceberg.load)
tables.register(iceberg.IcebergStore)(iceberg.tables)
read_slice.register(iceberg.IcebergStore)(read_iceberg)
rows_of.register(iceberg.IcebergStore)(frames.rows_of)
