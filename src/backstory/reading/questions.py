"""The questions about a table, and the state of the table at a recorded time.

Each question is one query for the table's layout, which any engine that reads the rows can answer. Files are
read as Arrow tables and queried by DuckDB (`files.py`). Spark answers with frames (`frames.py`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import structlog

from backstory.errors import Refused, UsageError
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import VALID_FROM, VALID_TO, Layout, Span, layout_of
from backstory.model.table import Column, Shape
from backstory.model.versions_layout import KNOWN_FROM, RECORDED
from backstory.reading import lifetimes
from backstory.reading.lifetimes import RecordedRows
from backstory.reading.options import (
    EVERYTHING,
    Comparison,
    DiffRequest,
    Selection,
    TimelineRequest,
    select_columns,
    shown_key_of,
)
from backstory.reading.timelines import Timeline, VersionRow, shown_name, timeline_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.port import DISORDER, TableLike, require_columns

if TYPE_CHECKING:
    import pyarrow as pa

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
    """The names of an event log's `offset`, `op`, `system_time`, `event_time` and `observed` columns.

    `events` is true for ledgers. Raises UsageError if the table does not have these columns.
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


def identity_names(names: Mapping[str, Any], shape: Shape) -> list[str]:
    """The columns that identify a record, given an event log's system columns, or none for other layouts.

    In a ledger, the event time is one of these columns.
    """
    extra = [names["event_time"]] if names.get("events") and names["event_time"] not in shape.key else []
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
    now = TableState(table.shape, table.fields, table.snapshot, None)
    if known_at is None:
        return now
    if table.shape.layout in RECORDING:
        if table.shape.layout is Layout.VERSIONS:
            require_knowledge(table, known_at)
        return replace(now, until=micros_of(known_at))
    oldest, committed_at = None, EPOCH
    for oldest in table.ancestry:
        committed_at = EPOCH + timedelta(milliseconds=oldest["timestamp-ms"])
        if committed_at <= known_at:
            return state_after(table, oldest)
    if oldest is not None and oldest.get("parent-snapshot-id") is not None:
        raise Refused(
            "snapshots-expired",
            f"The commits of {table.shape.table} before {iso(committed_at)} have expired.",
            "Ask for a later known time; `backstory log` lists the commits that are kept.",
        )
    return replace(now, snapshot=None)


def state_after(table: TableMetadata, snapshot: Mapping[str, Any]) -> TableState:
    """The table as a commit left it, without regard to recorded times in its rows."""
    schema_id = snapshot.get("schema-id")
    shape = table.shape_then(schema_id)
    if shape.layout in CHANGING_LAYOUTS:  # the sync mode may have changed since
        then = layout_of(None, shape.table.name, frozenset(shape.names))
        shape = replace(shape, layout=Layout.FIVETRAN_LIVE if then is Layout.FOREIGN else then)
    return TableState(shape, table.fields_then(schema_id), snapshot, None)


def commits_by_recorded_time(table: TableMetadata) -> dict[datetime, int]:
    """The snapshot ids of a table's kept commits, by the recorded time in their properties."""
    time_property = RECORDING.get(table.shape.layout)
    if time_property is None:
        return {}
    times = ((commit.properties.get(time_property), commit.id) for commit in table.commits)
    return {parse_instant(time): snapshot for time, snapshot in times if time}


def shown_key(shape: Shape) -> list[str]:
    """The names of the key's columns in answers, or none if one of them is not a user's column."""
    users = {each.name: each for each in shape.user_columns}
    columns = [users.get(name) for name in shape.key]
    return [shown_name(each.source) for each in columns if each] if all(columns) else []


def order_columns(shape: Shape, shown: Sequence[str]) -> list[str]:
    """The columns that answers are sorted by: the key and the starts, if they are shown."""
    first = dict.fromkeys([*shown_key(shape), VALID_FROM, lifetimes.STATED_FROM])
    return [name for name in first if name in shown]


def no_end_error(shape: Shape, span: Span) -> Refused:
    """The error for a row of a history that has no end and is not open."""
    return Refused(
        "no-end",
        f"A version in {shape.table} has no {span.end} and no {span.open}, so its end is unknown.",
        "Give such rows an end, or delete them, in the program that wrote them.",
    )


Rows = TypeVar("Rows")
Differences = TypeVar("Differences")
# Columns of versions, by their names in queries and in answers.
TIMES: Final = {lifetimes.STARTED: VALID_FROM, lifetimes.ENDED: VALID_TO}
# The columns that record in which of two states a row was true.
SIDE_COLUMNS: Final = tuple(map(lifetimes.internal_name, lifetimes.SIDES))
# Returns the SQL of a question about recorded rows.
Query = Callable[[RecordedRows], str]


@dataclass(frozen=True, slots=True)
class KnownTable(ABC, Generic[Rows, Differences]):
    """A table as it was known at a recorded time, in an engine that reads its rows.

    `stored` is the table in its current state. `until` is the time in microseconds, if the rows themselves
    contain recorded times. `selection` restricts the rows and columns of answers.
    """

    stored: TableMetadata
    shape: Shape
    until: int | None
    selection: Selection = field(default=EVERYTHING, kw_only=True)

    @abstractmethod
    def at(self, known_at: datetime | None) -> Self:
        """The table as known at a recorded time. Raises the errors of `state_at`."""

    @abstractmethod
    def ask(self, query: Query, *more: str) -> Rows:
        """The answer to a query: the selected columns, and `more`, which are columns of the query.

        Raises Refused if the end of a version is unknown.
        """

    @abstractmethod
    def unite(self, before: Rows, after: Rows) -> Rows:
        """The rows of two states together, marked by `SIDE_COLUMNS`."""

    @abstractmethod
    def differences(self, rows: Rows, comparison: Comparison) -> Differences:
        """The records whose rows differ between the two states that `SIDE_COLUMNS` mark."""

    @abstractmethod
    def in_order(self, rows: Rows) -> "tuple[pa.Schema, Iterable[pa.RecordBatch]]":
        """The schema and batches of rows, sorted by their key and times."""

    @abstractmethod
    def values(self, rows: Rows) -> Sequence[VersionRow]:
        """The rows as mappings from column names to values."""

    def of(self, selection: Selection) -> Self:
        """The table restricted to a record and to columns. Raises UsageError if the table has another key."""
        if selection.key is not None:
            shown_key_of(self.shape, selection.key)
        return replace(self, selection=selection)

    def near(self, between: tuple[int, int]) -> Self:
        """The table, perhaps restricted to records that change between two instants."""
        del between
        return self

    @property
    def columns(self) -> list[tuple[str, Column]]:
        """The columns of users, each with the name that readers see."""
        shape, users = self.shape, self.shape.user_columns
        if shape.layout not in HISTORIES:
            return [(each.source, each) for each in users]
        if shape.layout is Layout.ODF:
            own = {*self.system.values()} - {*self.stored.shape.key}
            users = [each for each in shape.columns if each.name not in own]
        return [(shown_name(each.source), each) for each in users]

    def shown_names(self, *more: str) -> dict[str, str]:
        """The selected columns: each name that readers see, and the name in queries.

        `more` are columns of queries. Raises UsageError if the table lacks a selected column.
        """
        names = {shown: each.name for shown, each in self.columns}
        names |= {TIMES.get(name, name): name for name in more}
        key, columns = shown_key(self.shape), self.selection.columns
        return {name: names[name] for name in select_columns(columns, self.shape.table, key, names)}

    @property
    def system(self) -> Mapping[str, Any]:
        """The names of the system columns of an event log, or none for other layouts."""
        return system_columns(self.stored) if self.shape.layout is Layout.ODF else {}

    def recorded_rows(
        self, syntax: lifetimes.SqlSyntax, key: Sequence[str] | None = None, *, remembered: bool = True
    ) -> RecordedRows:
        """The rows in `syntax.rows`. `key` replaces the columns that identify a record."""
        names, shape, kind = self.system, self.shape, None
        if names:
            has_op, in_key = names["op"] is not None, names["event_time"] in shape.key
            kind = lifetimes.LogKind(bool(names["events"]), has_op, not has_op and not in_key)
        listed = lifetimes.recorded_columns(syntax, shape, names, remembered=remembered)
        syntax = replace(syntax, rows=f"(SELECT *, {listed} FROM {syntax.rows}) AS recorded")
        identity = identity_names(names, shape) if key is None else key
        return RecordedRows(syntax, shape.layout, identity, kind, self.until)

    def versions(self, query: Query = RecordedRows.versions, *more: str) -> Rows:
        """Every version: the user's columns, `valid_from`, and `valid_to`, which is NULL if it is open.

        A `query` may restrict the versions. Raises the error of `require_history`. Logs a warning if a sender
        broke the history.
        """
        self.require_history()
        if self.stored.properties.get(DISORDER) == "true":
            name = self.stored.shape.table
            log.warning(f"{name} has versions that overlap; at any time the one that began last is used")
        return self.ask(query, *TIMES, *more)

    def require_history(self) -> None:
        """Raise UsageError if the table keeps no history."""
        if self.shape.layout not in HISTORIES:
            raise UsageError(
                "no-history",
                f"{self.shape.table} keeps no history (its layout is {self.shape.layout}).",
                "Read its rows with `current`.",
            )

    def live_rows(self) -> Rows:
        """The rows of a table without a history, except rows that Fivetran marked as deleted."""
        return self.ask(RecordedRows.live_rows)

    def statements(self) -> Rows:
        """The statements of all records: versions with their recorded times, `STATED_FROM` and `STATED_TO`.

        Layout `versions` and event logs store these times (native.md V97). NULL in `STATED_TO` means that the
        statement still holds. For other layouts, both times are NULL, and each version is a statement.
        """
        return self.versions(RecordedRows.statements, lifetimes.STATED_FROM, lifetimes.STATED_TO)

    def rows_at(self, time: datetime | None = None) -> Rows:
        """The rows that are true at an instant, by default now: the user's columns, and a history's times.

        Intervals are half-open (V99). Raises UsageError for an instant if the table keeps no history.
        """
        if time is None and self.shape.layout not in HISTORIES:
            return self.live_rows()
        instant = None if time is None else micros_of(time)
        return self.versions(lambda rows: rows.true_versions(instant))


def life(table: KnownTable[Rows, Any], request: TimelineRequest) -> Timeline:
    """One record's history as known now or at a time. On axis `both`, it has all statements ever made.

    Raises UsageError for another key or column and for a table that keeps no history, and the errors of
    `state_at`.
    """
    known_at, stated = request.known_at, table.shape.layout in RECORDING
    if stated and known_at is not None:
        require_knowledge(table.stored, known_at)
    known = table.at(None if stated else known_at).of(request)
    rows = known.values(known.statements())
    key, commits = shown_key_of(known.shape, request.key), commits_by_recorded_time(table.stored)
    return timeline_of(table.shape.table, key, rows, commits, request.axis, known_at)


def diff(table: KnownTable[Rows, Differences], request: DiffRequest) -> Differences:
    """The records that differ between two instants, or between two recorded times (native.md V96).

    Raises the errors of `KnownTable.versions`.
    """
    if request.axis == "recorded":
        return table.differences(_rows_of_two_times(table, request), request)
    between = micros_of(request.first), micros_of(request.second)
    known = table.at(request.known_at)
    moves = partial(RecordedRows.moves, between=between, through=request.through)
    return known.differences(known.near(between).versions(moves, *SIDE_COLUMNS), request)


def _rows_of_two_times(table: KnownTable[Rows, Any], request: DiffRequest) -> Rows:
    """The rows that were true at an instant, as known at either of two recorded times.

    For a table without a history, these are the rows at both recorded times.
    """
    time, times = request.time, (request.first, request.second)
    if table.shape.layout is Layout.VERSIONS:
        for known_at in times:
            require_knowledge(table.stored, known_at)
        at, between = micros_of(time), (micros_of(request.first), micros_of(request.second))
        return table.at(request.second).ask(lambda rows: rows.revisions(at, between), *SIDE_COLUMNS)
    before, after = (
        known.rows_at(time if known.shape.layout in HISTORIES else None) for known in map(table.at, times)
    )
    return table.unite(before, after)
