"""The layout `versions`: its own columns, the memory of a row, and its properties (native.md, section 1)."""

from enum import StrEnum
from typing import Final

from backstory.model.change import CHANGE_COLUMNS
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind


class Role(StrEnum):
    """The role of a row that is not a version. A version has no role."""

    FACT = "fact"
    PAST = "past"


class FactKind(StrEnum):
    """The kind of a remembered fact. A version that began with a full copy has no kind."""

    UPSERT = "upsert"
    DELETE = "delete"
    TRUNCATE = "truncate"
    COPY = "copy"
    VOID = "void"


ROLE: Final = "role"
ENDED_AT: Final = "ended_at"
END_BEFORE: Final = "end_before"
KIND: Final = "kind"
SEQUENCE: Final = "sequence"
COLUMNS: Final = "columns"
SCOPE: Final = "scope"
# The time of a change according to its message in a log; NULL for facts without a place in a log (V133).
OWN_TIME: Final = "time"

_TEXT: Final = ColumnType(Kind.STRING)
_INSTANT: Final = ColumnType(Kind.UTC_DATETIME)
# The fields of the struct (V2); `sequence` is added by the first feed.
MEMORY_TYPE: Final = ColumnType(
    Kind.STRUCT,
    parts=(
        (ROLE, _TEXT),
        (ENDED_AT, _INSTANT),
        (END_BEFORE, _INSTANT),
        (KIND, _TEXT),
        (COLUMNS, ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.INT)),))),
        (SCOPE, _TEXT),
        (OWN_TIME, _INSTANT),
    ),
)
# The columns after the user's columns (V1).
OWN_COLUMNS: Final = (
    Column(VALID_FROM, _INSTANT),
    Column(VALID_TO, _INSTANT),
    Column(IS_CURRENT, ColumnType(Kind.BOOLEAN)),
    Column(RECORDED_AT, _INSTANT),
    Column(MEMORY, MEMORY_TYPE),
)
# The names that Iceberg reserves for its own columns.
OF_ICEBERG: Final = frozenset(
    {"_row_id", "_last_updated_sequence_number", "_file", "_pos", "_deleted", "_partition", "_spec_id"}
)
# Names that no column of a source may have (V15).
RESERVED: Final = frozenset({*(column.name for column in OWN_COLUMNS), *CHANGE_COLUMNS, *OF_ICEBERG})

# The properties of the table (V13) and of its commits (V14).
SETTLED: Final = "backstory.settled"
MEMORY_SINCE: Final = "backstory.memory-since"
TRACK: Final = "backstory.track"
IGNORE: Final = "backstory.ignore"
OVERWRITE: Final = "backstory.overwrite"
# Set for a table that refuses copies and feeds without all of its columns (N8).
ON_SCHEMA_CHANGE: Final = "backstory.on-schema-change"
# Set for a table whose key is the whole row.
WHOLE_ROWS: Final = "backstory.whole-rows"
ORDERED_BY: Final = "backstory.sequence"
# The log that the messages belong to, and the position up to which it is known (V136).
LOG: Final = "backstory.log"
SETTLE_AFTER: Final = "backstory.settle-after"
KNOWN_FROM: Final = "backstory.known-from"
# The memories that rewinds ended, each with its start and end: a later rewind may restore one.
FORMER_MEMORIES: Final = "backstory.former-memories"
CURSOR_MAX_AGE: Final = "backstory.cursor-max-age"
RECORDED: Final = "backstory.recorded-at"
COPIED_AT: Final = "backstory.at"
# The columns that the last copy and the last feed lacked: names by kind of delivery, as JSON.
LACKS: Final = "backstory.lacks"
