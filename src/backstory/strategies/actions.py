"""What a plan decides: rows of the table that go, and rows that come, for one commit."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from backstory.model.places import ROW_ID
from backstory.strategies.compare import take_or_null


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


def succeeding(added: pa.Table, stored: pa.Table, before: np.ndarray) -> pa.Table:
    """The rows with the `_row_id` of the stored rows that they succeed, at these places; -1 for a new row."""
    if ROW_ID not in stored.column_names:
        return added
    return added.append_column(ROW_ID, take_or_null(stored[ROW_ID], before))
