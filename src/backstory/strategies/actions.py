"""What a plan decides: rows of the table that go, and rows that come, for one commit.

The mark of a cell that a change leaves as it is, which is something else than NULL.

Whether values differ, NULL and NaN included.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ROW_ID


class Unmodified(enum.Enum):
    """The type of the mark, so that `is UNMODIFIED` narrows and the mark survives pickling."""

    UNMODIFIED = "unmodified"


UNMODIFIED: Final = Unmodified.UNMODIFIED


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """For each row whether any column differs; NULL equals NULL, and floats compare by their bits."""
    differs = np.zeros(left.num_rows, bool)
    for name in left.column_names:
        differs |= _column_differs(left[name], right[name])
    return differs


def _column_differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    unlike = pc.not_equal(_comparable(left), _comparable(right))
    one_null = pc.xor(left.is_null(), right.is_null())
    return np.asarray(pc.or_(pc.fill_null(unlike, False), one_null))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
    if bits is None:
        return column
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], type=bits)


def take_or_null(column: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The values at these rows, NULL where the row is -1."""
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return whole.take(pa.array(rows, mask=rows < 0))


@dataclass(frozen=True, slots=True)
class Actions:
    """The difference that one commit makes.

    `disorder` tells that the table's versions of a key will not stand one after the other, as a
    sender's rows may bring it about: each active but the last, or ending after the next one's start.

    `removed` has the columns `_file` (text) and `_pos` (64-bit) of stored rows that end to exist,
    `added` the table's columns of rows that begin to; a row that changes is in both. With `_row_id`
    beside them, `added` tells which stored row a row succeeds, NULL for one that is new. `counts`
    are rows by outcome.
    """

    removed: pa.Table
    added: pa.Table
    counts: Mapping[str, int]
    disorder: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.removed.num_rows and not self.added.num_rows


def with_row_ids(added: pa.Table, stored: pa.Table, before: np.ndarray) -> pa.Table:
    """The rows with the `_row_id` of the stored rows that they succeed, at these places; -1 for a new row."""
    if ROW_ID not in stored.column_names:
        return added
    return added.append_column(ROW_ID, take_or_null(stored[ROW_ID], before))
