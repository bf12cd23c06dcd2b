"""Comparison of values in Arrow columns (V16), and numbers that have Spark's equality and order.

NULL equals NULL, NaN equals NaN, 0.0 equals -0.0, and maps have no order.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.keys import key_codes, normalize_floats, rank_values

Values: TypeAlias = pa.Array | pa.ChunkedArray


def alike(left: Values, right: Values) -> np.ndarray:
    """For each row, whether the two values are equal. Both sides have the same type and number of rows."""
    one, other = one_array(left), one_array(right)
    both_null = np.asarray(pc.and_(one.is_null(), other.is_null()))
    if pa.types.is_struct(one.type):
        fields = zip(one.flatten(), other.flatten(), strict=True)
        return both_null | _both(one, other) & reduce(np.logical_and, (alike(*field) for field in fields))
    if pa.types.is_map(one.type):
        return alike(entries(one), entries(other))
    if pa.types.is_list(one.type):
        return both_null | _both(one, other) & _lists_alike(one, other)
    same = pc.fill_null(pc.equal(one, other), False)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return both_null | np.asarray(same)


def equal_to(values: Values, value: object) -> np.ndarray:
    """For each row, whether it has this value: a Python value of the type, or its string in JSON.

    JSON has no days, times and decimals, so the scopes of marks hold them as strings.
    """
    wanted = pa.array([value]).cast(values.type)[0]
    return alike(values, pa.repeat(wanted, len(values)))


def rows_alike(pairs: Iterable[tuple[Values, Values]], count: int) -> np.ndarray:
    """For each of `count` rows, whether all pairs of values are equal."""
    return reduce(np.logical_and, (alike(*pair) for pair in pairs), np.ones(count, bool))


def one_array(values: Values) -> pa.Array:
    """The values without chunks."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


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
    """The row numbers in the order of several numbers for each row, the first number first.

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
