"""Match a delivered state with the stored one, both Arrow tables, by key."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ROW_ID
from backstory.strategies.keys import flags_of, key_codes, keys_by_value, last_of
from backstory.strategies.values import alike

ColumnOf: TypeAlias = Callable[[str], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Matches:
    """The outcome of a match, as row numbers in the two tables.

    `appeared` are the numbers of delivered rows without a stored row. `vanished` and `kept` are the numbers
    of stored rows without a delivered row; `kept` rows are outside the scope of deletes. `changed` and `same`
    each have the numbers of the delivered rows and of the stored rows.
    """

    appeared: pa.Array
    changed: tuple[pa.Array, pa.Array]
    vanished: pa.Array
    kept: pa.Array
    same: tuple[pa.Array, pa.Array]

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """The numbers of records by outcome: appeared, changed, vanished, vanished out of scope, or same."""
        both, alone = (self.changed[0], self.same[0]), (self.vanished, self.kept)
        return len(self.appeared), len(both[0]), len(alone[0]), len(alone[1]), len(both[1])


@dataclass(frozen=True, slots=True)
class SideCodes:
    """A number below `count` for the key of each row, on two sides."""

    delivered: np.ndarray
    stored: np.ndarray
    count: int

    @property
    def repeats(self) -> tuple[np.ndarray, np.ndarray]:
        """For each side, whether a row shares its key with another row. NULL counts as a key."""
        return _repeats(self.delivered, self.count), _repeats(self.stored, self.count)


def _repeats(codes: np.ndarray, count: int) -> np.ndarray:
    numbers = np.bincount(codes, minlength=count)
    return numbers[codes] > 1 if len(codes) and numbers.max() > 1 else np.zeros(len(codes), bool)


def match(
    delivered: pa.Table, stored: pa.Table, key: Sequence[str], compared: Sequence[str], scope: pa.ChunkedArray
) -> Matches | None:
    """Match two tables by the key's columns.

    A record changed if one of the `compared` columns differs. `scope` has for each stored row whether it is
    deleted if it vanished. Returns None if a side has a row without a key, or several rows with the same key.
    """
    if any(each[name].null_count for each in (delivered, stored) for name in key):
        return None
    codes = side_codes(delivered, stored, key)
    if any(flags.any() for flags in codes.repeats):
        return None
    return pair_rows(delivered, stored, codes, compared, scope)


def side_codes(delivered: pa.Table, stored: pa.Table, key: Sequence[str]) -> SideCodes:
    """Number the keys of both sides. Equal keys have equal numbers."""
    (left, right), count = key_codes([keys_by_value(each, key) for each in (delivered, stored)], key)
    return SideCodes(left, right, count)


def pair_rows(
    delivered: pa.Table, stored: pa.Table, codes: SideCodes, compared: Sequence[str], scope: pa.ChunkedArray
) -> Matches:
    """Match two sides without repeated keys.

    All delivered rows must have a key. Stored rows without a key have no match.
    """
    left, right, count = codes.delivered, codes.stored, codes.count
    place = last_of(right, count)[left]
    is_stored, has_vanished = place >= 0, ~flags_of(left, count)[right]
    mine, theirs = np.flatnonzero(is_stored), place[is_stored]
    changed = np.zeros(len(mine), bool)
    if compared:
        changed = _find_changes(_columns_at(delivered, mine), _columns_at(stored, theirs), compared)
    in_scope = np.asarray(pc.fill_null(scope.combine_chunks(), False))
    return Matches(
        pa.array(np.flatnonzero(~is_stored)),
        (pa.array(mine[changed]), pa.array(theirs[changed])),
        pa.array(np.flatnonzero(has_vanished & in_scope)),
        pa.array(np.flatnonzero(has_vanished & ~in_scope)),
        (pa.array(mine[~changed]), pa.array(theirs[~changed])),
    )


def _find_changes(mine: ColumnOf, theirs: ColumnOf, names: Sequence[str]) -> np.ndarray:
    """Whether each pair of rows differs in one of the columns. Each thread compares one column."""
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        same = pool.map(lambda name: alike(mine(name), theirs(name)), names)
    return ~reduce(np.logical_and, same)


def _columns_at(rows: pa.Table, places: np.ndarray) -> ColumnOf:
    """A function that returns a column of the rows with these numbers."""
    if _all(rows, places):
        return rows.column
    chosen = pa.array(places)
    return lambda name: rows[name].take(chosen)


def take_rows(rows: pa.Table, places: np.ndarray | pa.Array) -> pa.Table:
    """The rows with these numbers. The call is fast if these are all rows in order, or no rows."""
    if _all(rows, places):
        return rows
    return rows.take(pa.array(places)) if len(places) else rows.schema.empty_table()


def _all(rows: pa.Table, places: np.ndarray | pa.Array) -> bool:
    return len(places) == len(rows) and bool((np.diff(np.asarray(places)) == 1).all())


def differ(pairs: Iterable[tuple[pa.ChunkedArray, pa.ChunkedArray]]) -> pa.Array | None:
    """For each row, whether any pair of values differs, or None if there are no pairs."""
    same = [alike(left, right) for left, right in pairs]
    return pa.array(~reduce(np.logical_and, same)) if same else None


def distinct(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The first row of each key, and one more row of each key whose rows differ."""
    (codes,), count = key_codes([keys_by_value(rows, key)], key)
    if len(rows) == 0 or np.bincount(codes, minlength=count).max() <= 1:
        return rows, rows.slice(0, 0)
    firsts = np.full(count, -1, np.int64)
    firsts[codes[::-1]] = np.arange(len(rows))[::-1]
    others = np.flatnonzero(firsts[codes] != np.arange(len(rows)))
    names = [name for name in rows.column_names if name not in key]
    repeated, first_rows = rows.take(pa.array(others)), rows.take(pa.array(firsts[codes[others]]))
    unlike = np.zeros(len(others), bool)
    for name in names:
        unlike |= ~alike(repeated[name], first_rows[name])
    conflicts = others[unlike]
    one_each = np.unique(codes[conflicts], return_index=True)[1]
    return rows.take(pa.array(np.sort(firsts[firsts >= 0]))), rows.take(pa.array(conflicts[one_each]))


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """For each row, whether any column differs. NULL equals NULL, and floats are compared by their bits."""
    differs = np.zeros(left.num_rows, bool)
    for name in left.column_names:
        unlike = pc.fill_null(pc.not_equal(_comparable(left[name]), _comparable(right[name])), False)
        differs |= np.asarray(pc.or_(unlike, pc.xor(left[name].is_null(), right[name].is_null())))
    return differs


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
    if bits is None:
        return column
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], type=bits)


def take_or_null(column: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The values at these row numbers, with NULL for the row number -1."""
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return whole.take(pa.array(rows, mask=rows < 0))


def with_row_ids(added: pa.Table, stored: pa.Table, before: np.ndarray) -> pa.Table:
    """Add the `_row_id` of the stored rows that the added rows replace.

    `before` has the indexes of the stored rows, or -1 for a new row.
    """
    if ROW_ID not in stored.column_names:
        return added
    return added.append_column(ROW_ID, take_or_null(stored[ROW_ID], before))
