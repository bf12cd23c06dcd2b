"""The actions of a plan (rows to remove and rows to add in one commit), and comparisons of rows and cells."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ROW_ID


class Unmodified(enum.Enum):
    """The type of `UNMODIFIED`.

    It is an enum, so that `is UNMODIFIED` narrows types and works after pickling.
    """

    UNMODIFIED = "unmodified"


UNMODIFIED: Final = Unmodified.UNMODIFIED


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """For each row, whether any column differs. NULL equals NULL, and floats are compared by their bits."""
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
    """The values at these row numbers, with NULL for the row number -1."""
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return whole.take(pa.array(rows, mask=rows < 0))


@dataclass(frozen=True, slots=True)
class Actions:
    """The changes to a table's rows that one commit makes.

    `removed` has the columns `_file` (text) and `_pos` (64-bit integer) of stored rows to delete. `added` has
    the table's columns of rows to write; a changed row is in both. The optional column `_row_id` of `added`
    is the id of the stored row that a row replaces, or NULL for a new row. `counts` are the numbers of rows
    by outcome. `disorder` is true if versions of a key will overlap because the sender delivered overlapping
    rows.
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
    """Add the `_row_id` of the stored rows that the added rows replace.

    `before` has the indexes of the stored rows, or -1 for a new row.
    """
    if ROW_ID not in stored.column_names:
        return added
    return added.append_column(ROW_ID, take_or_null(stored[ROW_ID], before))
