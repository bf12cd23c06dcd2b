"""The live stored rows of records, the values of stored and delivered rows, and the rows to write.

All are Arrow tables or arrays (V2 to V9, V31, V72).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import arrow_schema, in_schema, shape_rows
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.versions_layout import COLUMNS, KIND, OWN_TIME, ROLE, SCOPE, SEQUENCE, FactKind
from backstory.strategies.copies.version_rows import INSTANT, OPEN, instants, memory_field, memory_of, micros
from backstory.strategies.feeds.terms import FIRST, FeedTerms, Scope
from backstory.strategies.keys import latest_at, rank_values
from backstory.strategies.values import alike, equal_to


def own_times(rows: pa.Table) -> np.ndarray:
    """The own times of stored messages, or `FIRST` for rows without a position in a log."""
    times = micros(memory_field(rows, OWN_TIME))
    return np.where(times == OPEN, FIRST, times)


def is_of(rows: pa.Table, *kinds: FactKind) -> np.ndarray:
    """A mask of the rows that store facts of these kinds."""
    words = pa.array([kind.value for kind in kinds], pa.string())
    return np.asarray(pc.is_in(memory_field(rows, KIND), value_set=words))


def sequences(rows: pa.Table) -> pa.Array | None:
    """The further sequence of stored rows, or None if the table has none yet."""
    has = rows.schema.field(MEMORY).type.get_field_index(SEQUENCE) >= 0
    return memory_field(rows, SEQUENCE) if has else None


def sequence_codes(terms: FeedTerms, sides: Sequence[tuple[pa.Array | None, int]]) -> list[np.ndarray]:
    """For each row of each side, the rank of its further sequence, with NULL first (V21)."""
    sizes = [count for _, count in sides]
    codes = np.zeros(sum(sizes), np.int64)
    for name in terms.sequence:
        parts = [
            pa.nulls(count) if side is None else pc.struct_field(side, side.type.get_field_index(name))
            for side, count in sides
        ]
        type_ = next((part.type for part in parts if not pa.types.is_null(part.type)), pa.null())
        order = rank_values(pa.concat_arrays([part.cast(type_) for part in parts])) + 1
        codes = codes * (int(order.max(initial=0)) + 1) + order
        if len(terms.sequence) > 1:
            codes = np.unique(codes, return_inverse=True)[1]
    return np.split(codes, np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class StoredRecords:
    """Live stored rows with their positions. `record` has the number of each row's record."""

    rows: pa.Table
    record: np.ndarray

    @cached_property
    def start(self) -> np.ndarray:
        """The start instants of versions, and the instants of facts."""
        return micros(self.rows[VALID_FROM])

    @cached_property
    def end(self) -> np.ndarray:
        """The ends of versions, or `OPEN` for open versions."""
        return micros(self.rows[VALID_TO])

    @cached_property
    def own_times(self) -> np.ndarray:
        """The own times of messages of a log, or `FIRST` for other rows."""
        return own_times(self.rows)

    @cached_property
    def version(self) -> np.ndarray:
        """A mask of the rows that are versions."""
        return np.asarray(memory_field(self.rows, ROLE).is_null())

    @cached_property
    def upsert(self) -> np.ndarray:
        """A mask of the rows that store an upsert."""
        return is_of(self.rows, FactKind.UPSERT)

    @cached_property
    def delete(self) -> np.ndarray:
        """A mask of the rows that store a delete."""
        return is_of(self.rows, FactKind.DELETE)

    @cached_property
    def void(self) -> np.ndarray:
        """A mask of the rows that cancel a mark for their record (V72)."""
        return is_of(self.rows, FactKind.VOID)

    @cached_property
    def scope(self) -> pa.Array:
        """The scopes of marks, and of the marks that voids cancel."""
        return memory_field(self.rows, SCOPE)

    def covering(self, record: np.ndarray, at: np.ndarray) -> np.ndarray:
        """For each pair of a record and an instant, the index of the version that is true then, or -1."""
        versions = np.flatnonzero(self.version)
        latest = latest_at(self.record[versions], self.start[versions], record, at)
        covering, there = np.full(len(record), -1), np.flatnonzero(latest >= 0)
        covering[there] = versions[latest[there]]
        covering[there[self.end[covering[there]] <= at[there]]] = -1
        return covering

    def spoilt(self) -> np.ndarray:
        """The indexes of versions that overlap their predecessor, or that never began (V119)."""
        versions = np.flatnonzero(self.version)
        order = versions[np.lexsort((self.start[versions], self.record[versions]))]
        one, other = order[:-1], order[1:]
        beside = self.record[one] == self.record[other]
        wrong = beside & ((self.end[one] > self.start[other]) | (self.start[one] == self.start[other]))
        never = np.flatnonzero(self.version & np.asarray(self.rows[VALID_FROM].is_null()))
        return np.concatenate([other[wrong], never])


@dataclass(frozen=True)
class Pool:
    """The values of stored rows, followed by the values of delivered rows, and the column lists of both."""

    values: Mapping[str, pa.Array]
    lists: pa.Array
    numbers: dict[str, int]

    def at(self, name: str, places: np.ndarray) -> pa.Array:
        """The values of a column at these indexes, or NULL at -1."""
        return self.values[name].take(pa.array(places, mask=places < 0))

    @cached_property
    def whole(self) -> np.ndarray:
        """A mask of the lists that include all columns."""
        return np.asarray(self.lists.is_null())

    @cached_property
    def _has(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def _listed_numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """All entries of the lists, as two arrays: the index of an entry's list, and its field id."""
        filled = self.lists.drop_null()
        owners = np.flatnonzero(~self.whole)
        return np.repeat(owners, np.asarray(pc.list_value_length(filled))), np.asarray(filled.flatten())

    def has(self, name: str) -> np.ndarray:
        """A mask of the lists that include a column."""
        if name not in self._has:
            owners, numbers = self._listed_numbers
            self._has[name] = self.whole.copy()
            self._has[name][owners[numbers == self.numbers[name]]] = True
        return self._has[name]

    def names(self, name: str, lists: np.ndarray) -> np.ndarray:
        """For each index of a list, whether the list includes a column. The index -1 means all columns."""
        return (lists < 0) | self.has(name)[lists] if len(self.lists) else lists < 0

    def within(self, scope: Scope, places: Mapping[str, np.ndarray], count: int) -> np.ndarray:
        """A mask of the records in a scope (V41). `places` are the indexes of their values, by column."""
        inside = np.ones(count, bool)
        for name, value in scope:
            inside &= equal_to(self.at(name, places[name]), value)
        return inside

    def alike(self, name: str, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """For each pair of indexes, whether their values are equal. The index -1 means NULL."""
        same = one == other
        differ = np.flatnonzero(~same)
        if len(differ):
            same[differ] = alike(self.at(name, one[differ]), self.at(name, other[differ]))
        return same


def pool_of(
    terms: FeedTerms, stored: pa.Table, delivered: pa.Table, asserted: pa.Array, marks: pa.Table
) -> Pool:
    """Pool the values of stored and delivered rows, and the lists of columns.

    The lists of stored rows precede the lists of delivered rows, and the lists of marks are last. A list with
    all columns of the data becomes NULL (V2).
    """
    names = {*terms.key, *terms.data}
    schema = arrow_schema({column.name: column.type for column in terms.columns if column.name in names})
    joined = pa.concat_tables([in_schema(side, schema) for side in (stored, delivered)])
    values = {name: joined[name].combine_chunks() for name in schema.names}
    parts = [memory_field(stored, COLUMNS), asserted, memory_field(marks, COLUMNS)]
    type_ = pa.list_(pa.int32())
    lists = pa.concat_arrays([part.cast(type_) for part in parts])
    return Pool(values, _sparse(lists, terms), dict(terms.numbers))


def _sparse(lists: pa.ListArray, terms: FeedTerms) -> pa.ListArray:
    filled = lists.drop_null()
    owners = np.repeat(np.flatnonzero(np.asarray(lists.is_valid())), np.asarray(pc.list_value_length(filled)))
    of_data = np.isin(np.asarray(filled.flatten()), list(terms.numbers.values()))
    full = np.bincount(owners[of_data], minlength=len(lists)) >= len(terms.numbers)
    return pc.if_else(pa.array(full), pa.scalar(None, lists.type), lists)


def values_at(pool: Pool, names: tuple[str, ...], places: np.ndarray) -> dict[str, pa.Array]:
    """The values of these columns at the given indexes of the pool, by column."""
    return {name: pool.at(name, places) for name in names}


def make_rows(
    terms: FeedTerms,
    values: Mapping[str, pa.Array],
    start: np.ndarray,
    end: np.ndarray,
    memory: Mapping[str, pa.Array | None],
) -> pa.Table:
    """New versions or facts with these values and fields of `_memory`. The end of a fact is its start."""
    own = {
        VALID_FROM: instants(start),
        VALID_TO: instants(end),
        IS_CURRENT: pa.array(end == OPEN),
        RECORDED_AT: pa.repeat(pa.scalar(terms.recorded, INSTANT), len(start)),
        MEMORY: memory_of(terms.memory, memory, len(start)),
    }
    return shape_rows(pa.table({**values, **own}), terms.columns, ids=terms.ids)
