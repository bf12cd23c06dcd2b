"""Values as numbers: equal where Spark takes values as equal, and in the order in which Spark sorts them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.alike import entries
from backstory.strategies.keys import key_codes, settled

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
        return settled(column)
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
