"""What a plan decides: rows of the table that go, and rows that come, for one commit."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

FILE = "_file"
POSITION = "_pos"


@dataclass(frozen=True, slots=True)
class Actions:
    """The difference that one commit makes.

    `disorder` tells that the table's versions of a key will not stand one after the other, as a
    sender's rows may bring it about: each active but the last, or ending after the next one's start.

    `removed` has the columns `_file` (text) and `_pos` (64-bit) of stored rows that end to exist,
    `added` the table's columns of rows that begin to; a row that changes is in both. `counts` are
    rows by outcome.
    """

    removed: pa.Table
    added: pa.Table
    counts: Mapping[str, int]
    disorder: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.removed.num_rows and not self.added.num_rows
