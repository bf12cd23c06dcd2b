"""The columns of a feed of changes, named as in Spark (native.md, V101), and its cursors (V108)."""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final, Literal

from backstory.model.receipt import Receipt


class ChangeType(StrEnum):
    """The kind of a row's change, named as in Spark."""

    INSERT = "insert"
    DELETE = "delete"
    BEFORE = "update_preimage"
    AFTER = "update_postimage"


CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
CHANGE_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
# Columns of moved rows in addition to the table's own, with names that no table uses: -1 or 1, and the
# commit.
SIGN, NUMBER, VERSION, TIME = (f"moved: {name}" for name in ("sign", "number", "version", "time"))


# A commit's version or snapshot id, or a time, which selects the newest commit at or before it.
CommitName = int | str | date
# The position at which a new cursor begins: before the first commit, or at the newest one.
Start = Literal["first", "now"]
# The tag that keeps the cursor's snapshot, and the table property that stores the cursor without it.
CURSOR_TAG: Final = "backstory-cursor-"
CURSOR_MARK: Final = "backstory.cursor."


@dataclass(frozen=True, slots=True, repr=False)
class Cursor(Receipt):
    """A consumer's cursor. `version` is the last commit that it has read, or None if it was dropped."""

    table: str
    cursor: str
    version: int | None
