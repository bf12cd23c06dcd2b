"""Whether values are alike (V16): NULL is NULL, NaN is NaN, 0.0 is -0.0, and maps have no order.

Values as numbers: equal where Spark takes values as equal, and in the order in which Spark sorts them.
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
    """For each row whether the two values are one; both sides have one type and as many rows."""
    one, other = _one_array(left), _one_array(right)
    nothing = np.asarray(pc.and_(one.is_null(), other.is_null()))
    if pa.types.is_struct(one.type):
        fields = zip(one.flatten(), other.flatten(), strict=True)
        return nothing | _both(one, other) & reduce(np.logical_and, (alike(*each) for each in fields))
    if pa.types.is_map(one.type):
        return alike(entries(one), entries(other))
    if pa.types.is_list(one.type):
        return nothing | _both(one, other) & _lists_alike(one, other)
    same = pc.fill_null(pc.equal(one, other), False)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return nothing | np.asarray(same)


def rows_alike(pairs: Iterable[tuple[Values, Values]], count: int) -> np.ndarray:
    """For each of so many rows whether all the pairs of its values are one."""
    return reduce(np.logical_and, (alike(*each) for each in pairs), np.ones(count, bool))


def _one_array(values: Values) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _both(one: pa.Array, other: pa.Array) -> np.ndarray:
    return np.asarray(pc.and_(one.is_valid(), other.is_valid()))


def _lists_alike(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Whether lists are as long and their items alike; what is NULL on a side may be told either way."""
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(each), -1)) for each in (one, other)]
    same = lengths[0] == lengths[1]
    rows = np.flatnonzero(same & (lengths[0] > 0))
    if len(rows):
        items = (each.take(pa.array(rows)).flatten() for each in (one, other))
        owners = np.repeat(rows, lengths[0][rows])
        same[owners[~alike(*items)]] = False
    return same


def entries(maps: pa.MapArray) -> pa.ListArray:
    """The entries of each map as a list of structs, in one order of their keys."""
    whole = pa.concat_arrays([maps.drop_null()])  # its entries begin where its memory does
    lengths = np.zeros(len(maps), np.int64)
    lengths[np.asarray(maps.is_valid())] = np.diff(np.asarray(whole.offsets))
    entries = pa.StructArray.from_arrays([whole.keys, whole.items], ["key", "item"])
    owners = np.repeat(np.arange(len(maps)), lengths)
    order = np.lexsort((_ranks(whole.keys), owners))
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(ends, entries.take(pa.array(order)), mask=maps.is_null())


def _ranks(keys: pa.Array) -> np.ndarray:
    """Numbers in one order of the keys, whatever map they are of."""
    if pa.types.is_nested(keys.type):  # so rare that a loop over them will do
        keys = pa.array([repr(each) for each in keys.to_pylist()], pa.string())
    return rank_values(keys)


# The number of a NULL: it equals itself, and comes before all others.
LACKING: Final = np.iinfo(np.int64).min
WIDEST: Final = 1 << 62
# The bytes of a number, and the bit by which negative numbers come first where these are compared.
WORD: Final = 8
SIGN: Final = np.uint64(1 << 63)


def integers(column: pa.ChunkedArray) -> np.ndarray:
    """Whole numbers, days or instants as they count."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.asarray(pc.fill_null(column.cast(pa.int64()), int(LACKING)))


def identities(rows: pa.Table, names: Sequence[str], *more: np.ndarray) -> np.ndarray:
    """A number for each row, equal exactly where these columns are, and `more` numbers beside them."""
    parts = [_plain(rows[name]) for name in names]
    parts += [pa.chunked_array([pa.array(each)]) for each in more]
    if not parts:
        return np.zeros(rows.num_rows, np.int64)
    table = pa.table(parts, names=[str(place) for place in range(len(parts))])
    (codes,), _ = key_codes([table], table.column_names)
    return codes


def ranks(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each value in the order of the values: NULL first, NaN last, texts by their bytes."""
    if (
        pa.types.is_integer(column.type)
        or pa.types.is_date32(column.type)
        or pa.types.is_timestamp(column.type)
    ):
        return integers(column)
    return _ranks_in(_plain(column).combine_chunks())


def _ranks_in(values: pa.Array) -> np.ndarray:
    encoded = values.dictionary_encode()
    order = np.asarray(pc.sort_indices(encoded.dictionary))
    places = np.empty(len(order) + 1, np.int64)
    places[order] = np.arange(1, len(order) + 1)
    places[-1] = 0
    return places[np.asarray(pc.fill_null(encoded.indices, -1))]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values as ones that Arrow encodes and sorts, equal and in the order that Spark has for them.

    A struct becomes the ranks of its fields, a list those of its items: eight bytes each, the highest first.
    A map is a list of its entries in the order of their keys.
    """
    if not pa.types.is_nested(column.type):
        return normalize_floats(column)
    values = column.combine_chunks()
    if pa.types.is_map(values.type):
        values = entries(values)
    if pa.types.is_struct(values.type):
        parts = [ranks(pa.chunked_array([each])) for each in values.flatten()]
        words, lengths = np.array(parts, np.int64).T, np.full(len(values), len(parts))
    else:
        words = ranks(pa.chunked_array([values.flatten()]))
        lengths = np.asarray(pc.list_value_length(values).fill_null(0)).astype(np.int64)
    content = (np.ascontiguousarray(words).reshape(-1).view(np.uint64) ^ SIGN).astype(">u8")
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(WORD * lengths)])
    told = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content)]
    )
    return pa.chunked_array([pc.if_else(values.is_valid(), told, None)])


def sorted_by(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The places of rows in the order of these numbers of theirs, the first one first of all.

    One sort goes by all of them where one number can stand for them.
    """
    told = [(int(each.min()), int(each.max()), each) for each in numbers if size]
    packed, width = np.zeros(size, np.int64), 1
    for least, greatest, each in told:
        width *= greatest - least + 1
        if width > WIDEST:
            return np.lexsort([each for least, greatest, each in told if least < greatest][::-1])
        packed = packed * (greatest - least + 1) + (each - least)
    return np.argsort(packed, kind="stable")
