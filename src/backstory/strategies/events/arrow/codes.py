"""Values as numbers: equal where Spark takes values as equal, and in the order in which Spark sorts them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.keys import key_codes, settled

# The number of a NULL: it equals itself, and comes before all others.
LACKING: Final = np.iinfo(np.int64).min
WIDEST: Final = 1 << 62


def integers(column: pa.ChunkedArray) -> np.ndarray:
    """Whole numbers, days or instants as they count."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.asarray(pc.fill_null(column.cast(pa.int64()), int(LACKING)))


def identities(rows: pa.Table, names: Sequence[str], *more: np.ndarray) -> np.ndarray:
    """A number for each row, equal exactly where these columns are, and `more` numbers beside them."""
    parts = {name: settled(rows[name]) for name in names}
    parts |= {f"more {place}": pa.chunked_array([pa.array(each)]) for place, each in enumerate(more)}
    if not parts:
        return np.zeros(rows.num_rows, np.int64)
    table = pa.table(list(parts.values()), names=[str(place) for place in range(len(parts))])
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
    encoded = settled(column).combine_chunks().dictionary_encode()
    order = np.asarray(pc.sort_indices(encoded.dictionary))
    places = np.empty(len(order) + 1, np.int64)
    places[order] = np.arange(1, len(order) + 1)
    places[-1] = 0
    return places[np.asarray(pc.fill_null(encoded.indices, -1))]


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
