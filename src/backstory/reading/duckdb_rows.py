"""Queries of Arrow rows by DuckDB, within the memory that a lease allows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.reading.lifetimes import DUCKDB
from backstory.stores.metadata.deletes import Unreadable
from backstory.strategies.fingerprints import duckdb_in_memory

# Rows are in memory twice while they are sorted.
SORT_MEMORY: Final = 2


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns that a query of DuckDB reads, numbered: there `a` and `A` are the same name."""

    numbers: dict[tuple[str, ...], str] = field(default_factory=dict)

    def __call__(self, *path: str) -> str:
        """The number of a column, or of a field of a struct."""
        return self.numbers.setdefault(path, f"c{len(self.numbers)}")

    @property
    def names(self) -> list[str]:
        """The columns of the table."""
        return [path[0] for path in self.numbers]

    def read(self, rows: pa.Table) -> dict[str, Any]:
        """The values by their numbers."""
        return {
            number: without_zone(reduce(pc.struct_field, fields, rows[name]))
            for (name, *fields), number in self.numbers.items()
        }


def without_zone(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as times in UTC without a zone, as DuckDB expects them."""
    return values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values


@contextmanager
def hold_memory(lease: MemoryLease, what: str, size: int) -> Iterator[None]:
    """Reserve bytes of the memory until the block ends; Unreadable if it has fewer."""
    try:
        lease.hold(what, size)
    except TooLarge:
        raise Unreadable("more than the memory may hold") from None
    try:
        yield
    finally:
        lease.hold(what, 0)


def query_rows(rows: pa.Table, query: str) -> pa.Table:
    """DuckDB's answer to a query of the relation `recorded`."""
    with _database().cursor() as connection:
        connection.register(DUCKDB.rows, rows)
        return connection.sql(query).to_arrow_table()


_database = cache(duckdb_in_memory)
