"""Rows as Arrow tables: their order, and queries by DuckDB within the memory that a lease allows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.reading.lifetimes import DUCKDB
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.values import booleans, integers, scalar
from backstory.strategies.fingerprints import duckdb_in_memory
from backstory.strategies.values import ranks, sorted_by

# Rows are in memory twice while they are sorted.
SORT_MEMORY: Final = 2


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns that a DuckDB query reads.

    They are numbered, because `a` and `A` are the same name there.
    """

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


def sort_rows(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """Sort rows by the columns of `first` that they have, then by all others."""
    names = [name for name in first if name in rows.column_names]
    others = (ranks(rows[name]) for name in rows.column_names if name not in names)
    places = sort_places([ranks(rows[name]) for name in names], rows.num_rows, lambda: others)
    return rows.take(integers(places))


def sort_places(
    numbers: Sequence[np.ndarray], size: int, others: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The positions of `size` rows in the order of `numbers`, and of `others` if these have equal rows."""
    order = sorted_by(numbers, size)
    if equals_next([each[order] for each in numbers], size).any():
        order = sorted_by([*numbers, *others()], size)
    return order


def equals_next(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Whether each of `size` rows, except the last, has the same numbers as the next row."""
    same = np.ones(max(size - 1, 0), bool)
    for each in numbers:
        same &= each[1:] == each[:-1]
    return same


def are_after(rows: pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """Whether each row sorts after the row with these values."""
    behind, same = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name, value in values.items():
        type_ = rows.schema.field(name).type
        border = pa.repeat(scalar(value, type_), 1)
        numbers = ranks(pa.chunked_array([*rows[name].chunks, border], type_))
        behind |= same & (numbers[:-1] > numbers[-1])
        same &= numbers[:-1] == numbers[-1]
    return booleans(behind)
