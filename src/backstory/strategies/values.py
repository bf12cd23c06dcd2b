"""Compare Arrow values by equality (V16), rank them in Spark's order, and match rows by key.

NULL equals NULL, NaN equals NaN, 0.0 equals -0.0, and maps have no order.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ROW_ID
from backstory.strategies.keys import (
    flags_of,
    key_codes,
    keys_by_value,
    last_of,
    normalize_floats,
    rank_values,
)

Values: TypeAlias = pa.Array | pa.ChunkedArray


def alike(left: Values, right: Values) -> np.ndarray:
    """For each row, whether the two values are equal. Both sides have the same type and number of rows."""
    one, other = one_array(left), one_array(right)
    both_null = pc.and_(one.is_null(), other.is_null())
    if pa.types.is_struct(one.type):
        fields = zip(one.flatten(), other.flatten(), strict=True)
        same = reduce(np.logical_and, (alike(*field) for field in fields))
        return np.asarray(both_null) | _both(one, other) & same
    if pa.types.is_map(one.type):
        return alike(entries(one), entries(other))
    if pa.types.is_list(one.type):
        return np.asarray(both_null) | _both(one, other) & _lists_alike(one, other)
    same = pc.fill_null(pc.equal(one, other), False)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return np.asarray(pc.or_(both_null, same))


def equal_to(values: Values, value: object) -> np.ndarray:
    """A mask of the rows that have this value: a Python value of the column's type, or a string.

    The scopes of marks are JSON, in which days, times and decimals are strings.
    """
    wanted = pa.array([value]).cast(values.type)[0]
    return alike(values, pa.repeat(wanted, len(values)))


def rows_alike(pairs: Iterable[tuple[Values, Values]], count: int) -> np.ndarray:
    """For each of `count` rows, whether all pairs of values are equal."""
    return reduce(np.logical_and, (alike(*pair) for pair in pairs), np.ones(count, bool))


def one_array(values: Values) -> pa.Array:
    """The values as one array, without chunks. A single chunk is not copied."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def _both(one: pa.Array, other: pa.Array) -> np.ndarray:
    return np.asarray(pc.and_(one.is_valid(), other.is_valid()))


def _lists_alike(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Whether lists have the same length and equal items. The result for NULL is undefined."""
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(each), -1)) for each in (one, other)]
    same = lengths[0] == lengths[1]
    rows = np.flatnonzero(same & (lengths[0] > 0))
    if len(rows):
        items = (each.take(pa.array(rows)).flatten() for each in (one, other))
        owners = np.repeat(rows, lengths[0][rows])
        same[owners[~alike(*items)]] = False
    return same


def entries(maps: pa.MapArray) -> pa.ListArray:
    """The entries of each map as a list of structs, sorted by key."""
    whole = pa.concat_arrays([maps.drop_null()])  # a copy, whose offsets begin at 0
    lengths = np.zeros(len(maps), np.int64)
    lengths[np.asarray(maps.is_valid())] = np.diff(np.asarray(whole.offsets))
    entries = pa.StructArray.from_arrays([whole.keys, whole.items], ["key", "item"])
    owners = np.repeat(np.arange(len(maps)), lengths)
    order = np.lexsort((ranks(pa.chunked_array([whole.keys])), owners))
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(ends, entries.take(pa.array(order)), mask=maps.is_null())


# The number for NULL. It equals itself and sorts before all other numbers.
LACKING: Final = np.iinfo(np.int64).min
WIDEST: Final = 1 << 62
# The number of bytes of a number, and the bit to flip so that negative numbers sort first by their bytes.
WORD: Final = 8
SIGN: Final = np.uint64(1 << 63)


def integers(column: pa.ChunkedArray) -> np.ndarray:
    """Integers, days or instants as 64-bit numbers."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.asarray(pc.fill_null(column.cast(pa.int64()), int(LACKING)))


def identities(rows: pa.Table, names: Sequence[str], *more: np.ndarray) -> np.ndarray:
    """A number for each row.

    Two numbers are equal exactly if these columns and the numbers in `more` are equal.
    """
    parts = [_plain(rows[name]) for name in names]
    parts += [pa.chunked_array([pa.array(each)]) for each in more]
    if not parts:
        return np.zeros(rows.num_rows, np.int64)
    table = pa.table(parts, names=[str(place) for place in range(len(parts))])
    (codes,), _ = key_codes([table], table.column_names)
    return codes


def ranks(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each value in the order of the values: NULL first, NaN last, strings by their bytes."""
    if (
        pa.types.is_integer(column.type)
        or pa.types.is_date32(column.type)
        or pa.types.is_timestamp(column.type)
    ):
        return integers(column)
    return rank_values(_plain(column).combine_chunks()) + 1


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values in a form that Arrow can encode and sort, with Spark's equality and order.

    A struct becomes the ranks of its fields, and a list the ranks of its items: eight bytes each, most
    significant byte first. A map is a list of its entries sorted by key.
    """
    if not pa.types.is_nested(column.type):
        return normalize_floats(column)
    values = column.combine_chunks()
    if pa.types.is_map(values.type):
        values = entries(values)
    if pa.types.is_struct(values.type):
        parts = [ranks(pa.chunked_array([part])) for part in values.flatten()]
        words, lengths = np.array(parts, np.int64).T, np.full(len(values), len(parts))
    else:
        words = ranks(pa.chunked_array([values.flatten()]))
        lengths = np.asarray(pc.list_value_length(values).fill_null(0)).astype(np.int64)
    content = (np.ascontiguousarray(words).reshape(-1).view(np.uint64) ^ SIGN).astype(">u8")
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(WORD * lengths)])
    content_by_row = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content)]
    )
    return pa.chunked_array([pc.if_else(values.is_valid(), content_by_row, None)])


def sorted_by(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The row numbers, sorted by `numbers`. The first of these arrays is the most significant.

    If the numbers fit into 64 bits together, one sort is enough.
    """
    ranges = [(int(number.min()), int(number.max()), number) for number in numbers if size]
    packed, width = np.zeros(size, np.int64), 1
    for least, greatest, each in ranges:
        width *= greatest - least + 1
        if width > WIDEST:
            return np.lexsort([each for least, greatest, each in ranges if least < greatest][::-1])
        packed = packed * (greatest - least + 1) + (each - least)
    return np.argsort(packed, kind="stable")


ColumnOf: TypeAlias = Callable[[str], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Matches:
    """The outcome of a match, as row numbers in the two tables.

    `appeared` are delivered rows without a stored row. `vanished` and `kept` are stored rows without a
    delivered row; `kept` rows are outside the scope of deletes. `changed` and `same` each have the numbers of
    the delivered rows and of the stored rows.
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


def side_codes(delivered: pa.Table, stored: pa.Table, key: Sequence[str]) -> SideCodes:
    """Number the keys of both sides. Equal keys have equal numbers."""
    (left, right), count = key_codes([keys_by_value(each, key) for each in (delivered, stored)], key)
    return SideCodes(left, right, count)


def pair_rows(
    delivered: pa.Table, stored: pa.Table, codes: SideCodes, compared: Sequence[str], scope: pa.ChunkedArray
) -> Matches:
    """Match two sides without repeated keys.

    A record changed if one of the `compared` columns differs. `scope` is a mask of the stored rows that count
    as deleted if they are not delivered. All delivered rows must have a key. Stored rows without a key have
    no match.
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


def distinct(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The first row of each key, and one conflicting row of each key whose rows differ."""
    (codes,), count = key_codes([keys_by_value(rows, key)], key)
    if len(rows) == 0 or np.bincount(codes, minlength=count).max() <= 1:
        return rows, rows.slice(0, 0)
    firsts = np.full(count, -1, np.int64)
    firsts[codes[::-1]] = np.arange(len(rows))[::-1]
    others = np.flatnonzero(firsts[codes] != np.arange(len(rows)))
    repeated, first_rows = rows.take(pa.array(others)), rows.take(pa.array(firsts[codes[others]]))
    pairs = ((repeated[name], first_rows[name]) for name in rows.column_names if name not in key)
    conflicts = others[~rows_alike(pairs, len(others))]
    one_each = np.unique(codes[conflicts], return_index=True)[1]
    return rows.take(pa.array(np.sort(firsts[firsts >= 0]))), rows.take(pa.array(conflicts[one_each]))


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """For each row, whether any column differs. NULL equals NULL, and floats are compared by their bits."""
    pairs = ((_comparable(left[name]), _comparable(right[name])) for name in left.column_names)
    return ~rows_alike(pairs, len(left))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
    if bits is None:
        return column
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], type=bits)


def take_or_null(column: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The values at these row numbers, with NULL for the row number -1."""
    return one_array(column).take(pa.array(rows, mask=rows < 0))


def with_row_ids(added: pa.Table, stored: pa.Table, before: np.ndarray) -> pa.Table:
    """Add the `_row_id` of the stored rows that the added rows replace.

    `before` has the indexes of the stored rows, or -1 for a new row.
    """
    if ROW_ID not in stored.column_names:
        return added
    return added.append_column(ROW_ID, take_or_null(stored[ROW_ID], before))
