"""The meaning of a table's rows by layout. Only this module names the columns of layouts.

The table property `backstory.layout` holds the layout. The layout determines the door that writes the table,
the columns that are not the user's, the columns with a row's times, and the partitions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from backstory.errors import UsageError
from backstory.model.instant import EPOCH, MILLISECOND, TMAX

FILE: Final = "_file"
POSITION: Final = "_pos"
# Iceberg's id of a row, which a changed row keeps; NULL or missing in tables without row ids.
ROW_ID: Final = "_row_id"
# Tables that Fivetran writes.
PREFIX: Final = "_fivetran_"
SYNCED: Final = "_fivetran_synced"
DELETED: Final = "_fivetran_deleted"
FIVETRAN_ID: Final = "_fivetran_id"
START: Final = "_fivetran_start"
END: Final = "_fivetran_end"
ACTIVE: Final = "_fivetran_active"
HISTORY_COLUMNS: Final = (START, END, ACTIVE)
SYSTEM_COLUMNS: Final = (SYNCED, DELETED, FIVETRAN_ID, "_fivetran_index", *HISTORY_COLUMNS)

# Bases and histories of a model.
STARTED: Final = "version_started_at"
ENDED: Final = "version_ended_at"
STATE: Final = "version_state"
ROW_HASH: Final = "row_hash"
LOAD_RUN_ID: Final = "load_run_id"
LOADED_AT: Final = "loaded_at"
HIST_SUFFIX: Final = "_hist"
KEY_SUFFIX: Final = "_key"

# Native versions (native.md V1); every reader of a history shows the first two.
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"
RECORDED_AT: Final = "recorded_at"
MEMORY: Final = "_memory"
VERSIONS_OWN: Final = (VALID_FROM, VALID_TO, IS_CURRENT, RECORDED_AT, MEMORY)

# Histories that other tools write, and that are adopted.
_DBT_FROM, _DBT_TO = "dbt_valid_from", "dbt_valid_to"
_DBT_UPDATED: Final = "dbt_updated_at"
_DBT_DELETED: Final = "dbt_is_deleted"
_DLT_FROM, _DLT_TO = "_dlt_valid_from", "_dlt_valid_to"
_CDC_FROM, _CDC_TO = "__START_AT", "__END_AT"
# AUTO CDC stored as bitemporal has recorded times and valid times. Such a history is imported.
BITEMPORAL: Final = "autocdc-bitemporal"
VALID_TIMES: Final = (_CDC_FROM, _CDC_TO)
SYSTEM_TIMES: Final = ("__SYSTEM_START_AT", "__SYSTEM_END_AT")
# If a version has no end, such a tool may write this time or a later one.
_LATE: Final = datetime(2200, 1, 1, tzinfo=UTC)

IDENTITY, YEAR = "identity", "year"
_OPEN_END: Final = (TMAX - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """The columns that contain the start and the end of a version. `open` is SQL of any dialect.

    The column `flag` is true for an open version, `state` contains a version's state, and `written` contains
    the time of writing. A closed version ends `grain` microseconds before the next version begins. An end at
    `far` or later, in microseconds since 1970, means no end.
    """

    start: str
    end: str
    open: str
    flag: str = ""
    state: str = ""
    written: str = ""
    grain: int = 0
    far: int | None = None


class Layout(StrEnum):
    """The meaning of a table's rows."""

    FIVETRAN_LIVE = "fivetran-live"
    FIVETRAN_HISTORY = "fivetran-history"
    BASE = "base"
    HIST = "hist"
    RUN_LOG = "run-log"
    ODF = "odf"
    ODF_LOG = "odf-log"
    VERSIONS = "versions"
    DBT = "dbt"
    SQLMESH = "sqlmesh"
    DLT = "dlt"
    AUTOCDC = "autocdc"
    # Any other table. It is read unchanged, and no door writes it.
    FOREIGN = "foreign"

    @property
    def door(self) -> str:
        """The only door that writes tables of this layout."""
        return _DOORS.get(self, self.value)

    @property
    def span(self) -> Span | None:
        """The columns with the start and the end of a row's validity, or None if rows do not contain them."""
        return _SPANS.get(self)

    @property
    def is_adopted(self) -> bool:
        """Whether another tool, instead of a door, writes tables of this layout."""
        return self in _ADOPTED

    @property
    def tombstone(self) -> str:
        """The column that marks versions in which the record did not exist, or an empty string."""
        return _DBT_DELETED if self is Layout.DBT else ""

    @property
    def partitioning(self) -> tuple[tuple[str, str], ...]:
        """The partition transforms and their columns."""
        return _PARTITIONS.get(self, ())

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of partition folders, which precede `=` and a value."""
        return tuple(
            f"{name}_{transform}" if transform == YEAR else name for transform, name in self.partitioning
        )

    @property
    def is_sorted(self) -> bool:
        """Whether rows are sorted by their key. Rows of an event log are sorted by their offset."""
        return self is not Layout.ODF

    @property
    def required_columns(self) -> tuple[str, ...]:
        """The layout's own columns that every table of this layout needs."""
        if self in _NEEDED:
            return _NEEDED[self]
        return () if self.span is None else (self.span.start, self.span.end)

    def owns(self, column: str, table: str) -> bool:
        """Whether a column belongs to the layout, not to the user, in a table with this name."""
        if self in {Layout.BASE, Layout.HIST}:
            keys = {f"{table}{KEY_SUFFIX}", f"{table.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"}
            return column in _MODELS_OWN or column in keys
        if self is Layout.VERSIONS:
            return column in VERSIONS_OWN
        if self.is_adopted:
            return column in _ADOPTED[self]
        return column.startswith(PREFIX)


_MODELS_OWN: Final = frozenset({STARTED, ENDED, STATE, ROW_HASH, LOAD_RUN_ID, LOADED_AT})
# The doors of layouts. Any other layout has the name of its door or tool.
_DOORS: Final[Mapping[Layout, str]] = {
    Layout.FIVETRAN_LIVE: "fivetran",
    Layout.FIVETRAN_HISTORY: "fivetran",
    Layout.BASE: "historize",
    Layout.HIST: "historize",
    Layout.RUN_LOG: "historize",
    Layout.ODF_LOG: "odf",
    Layout.VERSIONS: "native",
}
_ADOPTED: Final[Mapping[Layout, frozenset[str]]] = {
    Layout.DBT: frozenset({_DBT_FROM, _DBT_TO, "dbt_scd_id", _DBT_UPDATED, _DBT_DELETED}),
    Layout.SQLMESH: frozenset({VALID_FROM, VALID_TO}),
    Layout.DLT: frozenset({_DLT_FROM, _DLT_TO, "_dlt_id", "_dlt_load_id"}),
    Layout.AUTOCDC: frozenset({_CDC_FROM, _CDC_TO}),
}


def _adopted_span(start: str, end: str, written: str = "") -> Span:
    open_ = f"({end} IS NULL OR {end} >= TIMESTAMP '{_LATE:%Y-%m-%d} 00:00:00')"
    return Span(start, end, open_, written=written, far=(_LATE - EPOCH) // timedelta(microseconds=1))


_SPANS: Final[Mapping[Layout, Span]] = {
    Layout.FIVETRAN_HISTORY: Span(
        START, END, ACTIVE, flag=ACTIVE, written=SYNCED, grain=MILLISECOND, far=_OPEN_END
    ),
    Layout.HIST: Span(STARTED, ENDED, f"{ENDED} IS NULL", state=STATE, written=LOADED_AT),
    Layout.VERSIONS: Span(VALID_FROM, VALID_TO, f"{VALID_TO} IS NULL", flag=IS_CURRENT, written=RECORDED_AT),
    Layout.DBT: _adopted_span(_DBT_FROM, _DBT_TO, _DBT_UPDATED),
    Layout.SQLMESH: _adopted_span(VALID_FROM, VALID_TO),
    Layout.DLT: _adopted_span(_DLT_FROM, _DLT_TO),
    Layout.AUTOCDC: _adopted_span(_CDC_FROM, _CDC_TO),
}
_PARTITIONS: Final[Mapping[Layout, tuple[tuple[str, str], ...]]] = {
    Layout.FIVETRAN_HISTORY: ((IDENTITY, ACTIVE),),
    # Open versions have no year; deleted versions, whose records may return, are separate from changed ones.
    Layout.HIST: ((YEAR, ENDED), (IDENTITY, STATE)),
    Layout.VERSIONS: ((YEAR, VALID_TO),),
}
_NEEDED: Final[Mapping[Layout, tuple[str, ...]]] = {
    Layout.FIVETRAN_HISTORY: HISTORY_COLUMNS,
    Layout.HIST: (ENDED, STATE),
    Layout.VERSIONS: VERSIONS_OWN,
}


def layout_of(property_: str | None, table: str, names: frozenset[str]) -> Layout:
    """The layout in a table's property, or else the layout that its column names imply.

    Raises UsageError for an unknown layout in the property.
    """
    if property_:
        if property_ not in set(Layout):
            raise UsageError(
                "unknown-layout",
                f"{table} has the layout {property_!r}, which this version of backstory does not support.",
                "Upgrade backstory, or remove the property if no version supports it.",
            )
        return Layout(property_)
    if names.issuperset(HISTORY_COLUMNS):
        return Layout.FIVETRAN_HISTORY
    if SYNCED in names:
        return Layout.FIVETRAN_LIVE
    if not names.issuperset({f"{table}{KEY_SUFFIX}", ROW_HASH}):
        return Layout.FOREIGN
    return Layout.HIST if names.issuperset({STARTED, ENDED, STATE}) else Layout.BASE
