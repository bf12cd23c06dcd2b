"""A consumer's cursor: how far it has read a table's changes (native.md, V108)."""

from dataclasses import dataclass
from typing import Final, Literal

from backstory.model.receipt import Receipt

# Where a new cursor begins: before the first commit, or at the newest.
Start = Literal["first", "now"]
# The tag that keeps the cursor's snapshot, and the table property that remembers the cursor without it.
TAG: Final = "backstory-cursor-"
MARK: Final = "backstory.cursor."


@dataclass(frozen=True, slots=True, repr=False)
class Cursor(Receipt):
    """A cursor and the version of the commit up to which it has read; None for one that is dropped."""

    table: str
    cursor: str
    version: int | None
