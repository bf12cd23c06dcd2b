"""The words of a feed of changes (native.md, V101): Spark's, for the columns behind those of the rows."""

from enum import StrEnum
from typing import Final


class ChangeType(StrEnum):
    """What became of a row, in Spark's words."""

    INSERT = "insert"
    DELETE = "delete"
    BEFORE = "update_preimage"
    AFTER = "update_postimage"


CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
CHANGE_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
