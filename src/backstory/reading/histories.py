"""The meaning of a table's layout for readers: key, history, system columns, state at a recorded time.

Readers of files and readers in Spark share this module. It reads no rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from backstory.errors import Refused, UsageError
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import VALID_FROM, Layout, Span, layout_of
from backstory.model.table import History, Shape
from backstory.model.versions_layout import KNOWN_FROM, RECORDED
from backstory.reading.lifetimes import LogKind
from backstory.reading.timelines import shown_name
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.schema import columns_of_fields
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.port import DISORDER, TableLike, require_columns

log = structlog.get_logger()

# Layouts whose rows have lifetimes.
HISTORIES: Final = (Layout.ODF, *(each for each in Layout if each.span is not None))
# Layouts that store statements, each with the property of a commit that contains its recorded time.
RECORDING: Final = {Layout.VERSIONS: RECORDED, Layout.ODF: "backstory.odf.system-time"}
# Layouts that a change of the sync mode turns into each other.
CHANGING_LAYOUTS: Final = {Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY}
# The table property with the names of an event log's system columns. `events` is true for ledgers.
SYSTEM_COLUMNS: Final = "backstory.odf.columns"
# System columns that every event needs.
REQUIRED: Final = ("offset", "system_time", "event_time")


def system_columns(table: TableLike) -> Mapping[str, Any]:
    """The names of `offset`, `op`, `system_time`, `event_time` and `observed`. `events` is true for ledgers.

    Raises UsageError if the table does not have them.
    """
    text = table.properties.get(SYSTEM_COLUMNS)
    if text is None:
        raise UsageError(
            "no-columns",
            f"{table.shape.table} does not name its system columns.",
            "Add its manifest again with `backstory add`.",
        )
    names: dict[str, Any] = json.loads(text)
    if table.rows:
        require_columns(table, *(names[each] for each in REQUIRED if each in names))
    return names


def log_kind(names: Mapping[str, Any], shape: Shape) -> LogKind:
    """The kind of a log, from the names of its system columns."""
    in_key = names["event_time"] in shape.key
    return LogKind(bool(names["events"]), names["op"] is not None, names["op"] is None and not in_key)


def identity_names(names: Mapping[str, Any], shape: Shape) -> list[str]:
    """The columns that identify the record of an event. In a ledger, the event time is one of them."""
    extra = [names["event_time"]] if names["events"] and names["event_time"] not in shape.key else []
    return [*shape.key, *extra]


def require_knowledge(table: TableLike, known_at: datetime) -> None:
    """Raise UsageError if a table of layout `versions` was pruned and no longer records this time (V90)."""
    since = table.properties.get(KNOWN_FROM)
    if since and known_at < parse_instant(since):
        raise UsageError(
            "known-pruned",
            f"The recorded history of {table.shape.table} before {iso(parse_instant(since))} was pruned.",
            "Ask for a later known time.",
        )


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at a recorded time: its shape and fields, and the snapshot with its rows.

    `until` is the time in microseconds, if the rows themselves contain recorded times.
    """

    table: TableMetadata
    shape: Shape
    fields: Sequence[Mapping[str, Any]]
    snapshot: Mapping[str, Any] | None
    until: int | None


def state_at(table: TableMetadata, known_at: datetime | None) -> TableState:
    """The table as known at a recorded time, by default now.

    Layout `versions` and event logs contain recorded times in their rows, so all rows are read. For other
    layouts, the rows of the newest commit at or before that time are read, with the columns of that commit.
    Before the first commit, there are no rows. Raises UsageError (`known-pruned`) if layout `versions` no
    longer records the time, and Refused (`snapshots-expired`) if the commit has expired.
    """
    now = TableState(table, table.shape, table.fields, table.snapshot, None)
    if known_at is None:
        return now
    if table.shape.layout in RECORDING:
        if table.shape.layout is Layout.VERSIONS:
            require_knowledge(table, known_at)
        return replace(now, until=micros_of(known_at))
    oldest = None
    for oldest in table.ancestry:
        if _commit_time(oldest) <= known_at:
            return state_after(table, oldest)
    if oldest is not None and oldest.get("parent-snapshot-id") is not None:
        raise Refused(
            "snapshots-expired",
            f"The commits of {table.shape.table} before {iso(_commit_time(oldest))} have expired.",
            "Ask for a later known time; `backstory log` lists the commits that are kept.",
        )
    return replace(now, snapshot=None)


def _commit_time(snapshot: Mapping[str, Any]) -> datetime:
    return EPOCH + timedelta(milliseconds=snapshot["timestamp-ms"])


def state_after(table: TableMetadata, snapshot: Mapping[str, Any]) -> TableState:
    """The table as a commit left it, without regard to recorded times in its rows."""
    shape, fields = table.shape, table.fields_then(snapshot.get("schema-id"))
    columns = columns_of_fields(fields, {each.name: each.source_name for each in shape.columns})
    ids, names = (
        {each["name"]: each["id"] for each in table.fields},
        {each["id"]: each["name"] for each in fields},
    )
    key = (names.get(ids.get(name)) for name in shape.key)
    shape = replace(shape, columns=columns, key=tuple(name for name in key if name is not None))
    if shape.layout in CHANGING_LAYOUTS:  # the sync mode may have changed since
        then = layout_of(None, shape.table.name, frozenset(shape.names))
        shape = replace(shape, layout=Layout.FIVETRAN_LIVE if then is Layout.FOREIGN else then)
    return TableState(table, shape, fields, snapshot, None)


def commits_by_recorded_time(table: TableMetadata) -> dict[datetime, int]:
    """The snapshot ids of a table's kept commits, by the recorded time in their properties."""
    time_property = RECORDING.get(table.shape.layout)
    if time_property is None:
        return {}
    times = ((commit.properties.get(time_property), commit.id) for commit in table.commits)
    return {parse_instant(time): snapshot for time, snapshot in times if time}


def history_of(table: TableLike, shape: Shape | None = None) -> History:
    """The history of a table.

    Raises UsageError if it keeps no history. `shape` is its shape at another time.
    """
    shape = shape or table.shape
    if shape.layout not in HISTORIES:
        raise UsageError(
            "no-history",
            f"{shape.table} keeps no history (its layout is {shape.layout}).",
            "Read its rows with `current`.",
        )
    if shape.layout is not Layout.ODF:
        return History(shape)
    system = {name for name in system_columns(table).values() if isinstance(name, str)}
    return History(shape, own=frozenset(system - set(table.shape.key)))


def warn_of_disorder(table: TableLike) -> None:
    """Log a warning if a sender broke the history of the table."""
    if table.properties.get(DISORDER) == "true":
        log.warning(
            f"{table.shape.table} has versions that overlap; at any time the one that began last is used"
        )


def shown_key(shape: Shape) -> list[str]:
    """The names of the key's columns in answers, or none if one of them is not a user's column."""
    users = {each.name: each for each in shape.user_columns}
    columns = [users.get(name) for name in shape.key]
    return [shown_name(each.source) for each in columns if each] if all(columns) else []


def order_columns(shape: Shape, shown: Sequence[str]) -> list[str]:
    """The columns that answers are sorted by: the key and the start, if they are shown."""
    return [name for name in dict.fromkeys([*shown_key(shape), VALID_FROM]) if name in shown]


def no_end_error(shape: Shape, span: Span) -> Refused:
    """The error for a row of a history that has no end and is not open."""
    return Refused(
        "no-end",
        f"A version in {shape.table} has no {span.end} and no {span.open}, so its end is unknown.",
        "Give such rows an end, or delete them, in the program that wrote them.",
    )
