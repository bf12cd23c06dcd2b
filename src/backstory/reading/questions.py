"""The questions about a table.

Each question is one query for the table's layout, in any engine that reads rows.

Files are read as Arrow tables and queried by DuckDB (`files.py`). Spark answers with frames (`frames.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from backstory.model.history import History
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape
from backstory.reading.histories import (
    HISTORIES,
    RECORDING,
    commits_by_recorded_time,
    history_of,
    identity_names,
    log_kind,
    require_knowledge,
    shown_key,
    system_columns,
    warn_of_disorder,
)
from backstory.reading.lifetimes import (
    ENDED,
    SIDES,
    STARTED,
    STATED_FROM,
    STATED_TO,
    ColumnSql,
    LogKind,
    SqlSyntax,
    internal_name,
    moves_query,
    recorded_columns,
    revisions_query,
    statements_query,
    true_query,
    unstated_query,
    versions_query,
)
from backstory.reading.options import ENDS, EVERYTHING, Comparison, Selection, shown_key_of
from backstory.reading.timelines import Axis, Timeline, VersionRow, timeline_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.port import TableLike

if TYPE_CHECKING:
    import pyarrow as pa

Rows = TypeVar("Rows")
Differences = TypeVar("Differences")
# Columns of versions, by their names in queries and in answers.
TIMES: Final = {STARTED: VALID_FROM, ENDED: VALID_TO}
# The columns that record in which of two states a row was true.
SIDE_COLUMNS: Final = tuple(map(internal_name, SIDES))
# Returns the query for a layout, from the columns that identify a record and the kind of its log.
Query = Callable[[SqlSyntax, Sequence[str], LogKind | None], str]
# Restricts the query for versions to some versions.
Narrowing = Callable[[SqlSyntax, str], str]


def layout_query(
    known: "KnownTable[Any, Any]",
    syntax: SqlSyntax,
    column: ColumnSql,
    query: Query,
    key: Sequence[str] | None = None,
    *,
    remembered: bool = True,
) -> str:
    """A query of the rows in `syntax.rows`, with the values that the layout records (`recorded_columns`).

    `key` replaces the columns that identify a record.
    """
    table, shape = known.stored, known.shape
    names = system_columns(table) if shape.layout is Layout.ODF else {}
    log, own = (log_kind(names, shape), identity_names(names, shape)) if names else (None, shape.key)
    listed = recorded_columns(syntax, shape, column, names, remembered=remembered)
    rows = f"(SELECT *, {listed} FROM {syntax.rows}) AS recorded"
    return query(replace(syntax, rows=rows), own if key is None else key, log)


@dataclass(frozen=True, slots=True)
class KnownTable(ABC, Generic[Rows, Differences]):
    """A table as it was known at a recorded time, in an engine that reads its rows.

    `stored` is the table in its current state. `until` is the time in microseconds, if the rows themselves
    contain recorded times.
    """

    stored: TableLike
    shape: Shape
    until: int | None

    @property
    @abstractmethod
    def metadata(self) -> TableMetadata:
        """The metadata of the table."""

    @abstractmethod
    def at(self, known_at: datetime | None) -> Self:
        """The table as known at a recorded time. Raises the errors of `state_at`."""

    @abstractmethod
    def of_record(self, key: object) -> Self:
        """The table restricted to one record. Raises UsageError if the table has another key."""

    @abstractmethod
    def ask(self, query: Query, *more: str, timed: bool = True) -> Rows:
        """The answer to a query: the columns that readers show, the times if `timed`, and `more`.

        Raises UsageError if the table keeps no history, and Refused if the end of a version is unknown.
        """

    @abstractmethod
    def live_rows(self) -> Rows:
        """The rows of a table without a history, except rows that Fivetran marked as deleted."""

    @abstractmethod
    def select(self, rows: Rows, selection: Selection) -> Rows:
        """The selected columns of these rows."""

    @abstractmethod
    def unite(self, before: Rows, after: Rows) -> Rows:
        """The rows of two states, with `SIDE_COLUMNS`."""

    @abstractmethod
    def differences(self, rows: Rows, comparison: Comparison) -> Differences:
        """The records whose rows differ between the two states that `SIDE_COLUMNS` mark."""

    @abstractmethod
    def in_order(self, rows: Rows) -> "tuple[pa.Schema, Iterable[pa.RecordBatch]]":
        """The schema and batches of rows, sorted by their key and times."""

    @abstractmethod
    def values(self, rows: Rows) -> Sequence[VersionRow]:
        """The values of rows."""

    def near(self, between: tuple[int, int]) -> Self:
        """The table, perhaps restricted to records that change between two instants."""
        del between
        return self

    @property
    def history(self) -> History:
        """The history of the table. Raises UsageError if it keeps none."""
        return history_of(self.stored, self.shape)

    def versions(self, narrow: Narrowing | None = None, *more: str) -> Rows:
        """Every version: the user's columns, `valid_from`, and `valid_to`, which is NULL if it is open."""
        warn_of_disorder(self.stored)
        return self.ask(self.versions_query(narrow), *more)

    def versions_query(self, narrow: Narrowing | None = None) -> Query:
        """The query for the versions, which `narrow` may restrict."""

        def query(syntax: SqlSyntax, key: Sequence[str], log: LogKind | None) -> str:
            versions = versions_query(syntax, self.shape.layout, key, log, self.until)
            return narrow(syntax, versions) if narrow else versions

        return query

    def statements(self) -> Rows:
        """The statements of all records: versions with their recorded times, `STATED_FROM` and `STATED_TO`.

        Layout `versions` and event logs store these times (native.md V97). NULL in `STATED_TO` means that the
        statement still holds. For other layouts, both times are NULL, and the versions are those known now.
        """
        if self.shape.layout in RECORDING:
            return self.ask(statements_query, STATED_FROM, STATED_TO)
        return self.versions(unstated_query, STATED_FROM, STATED_TO)

    def rows_at(self, time: datetime | None = None, selection: Selection = EVERYTHING) -> Rows:
        """The rows that are true at an instant, by default now: the user's columns, and a history's times.

        Intervals are half-open (V99). Raises UsageError for an instant if the table keeps no history.
        """
        known = self if selection.key is None else self.of_record(selection.key)
        if time is None and self.shape.layout not in HISTORIES:
            return self.select(known.live_rows(), selection)
        instant = None if time is None else micros_of(time)
        return self.select(known.versions(partial(true_query, instant=instant)), selection)

    def names(self, selection: Selection, names: Sequence[str]) -> list[str]:
        """The selected columns among these. Raises UsageError for a missing column."""
        return selection.select(self.shape.table, shown_key(self.shape), names)


def life(
    table: KnownTable[Rows, Any],
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's history, as known now or at `known_at`, or, on `axis` both, all statements ever made.

    If `columns` are named, the history has only these columns and the key. Raises UsageError for another key
    and for a table that keeps no history, and the errors of `state_at`.
    """
    stated = table.shape.layout in RECORDING
    if stated and known_at is not None:
        require_knowledge(table.stored, known_at)
    known, selection = table.at(None if stated else known_at), Selection(key, columns)
    selection.require(known.shape)
    rows = known.values(known.select(known.of_record(key).statements(), selection))
    key_values, commits = shown_key_of(known.shape, key), commits_by_recorded_time(table.metadata)
    return timeline_of(table.shape.table, key_values, rows, commits, axis, known_at)


def diff(
    table: KnownTable[Rows, Differences], first: datetime, second: datetime, comparison: Comparison = ENDS
) -> Differences:
    """The records that differ between two instants, or between two recorded times (native.md V96).

    Raises the errors of `KnownTable.versions`.
    """
    if comparison.axis == "recorded":
        rows = _rows_of_two_times(table, first, second, comparison.time)
        return table.differences(rows, comparison)
    between = micros_of(first), micros_of(second)
    known = table.at(comparison.known_at)
    moves = partial(moves_query, between=between, through=comparison.through)
    return known.differences(known.near(between).versions(moves, *SIDE_COLUMNS), comparison)


def _rows_of_two_times(
    table: KnownTable[Rows, Any], first: datetime, second: datetime, time: datetime
) -> Rows:
    """The rows that were true at an instant, as known at either of two recorded times.

    For a table without a history, these are the rows at both recorded times.
    """
    if table.shape.layout is Layout.VERSIONS:
        for known_at in (first, second):
            require_knowledge(table.stored, known_at)
        between = micros_of(first), micros_of(second)

        def query(syntax: SqlSyntax, *_: object) -> str:
            return revisions_query(syntax, micros_of(time), between)

        return table.at(second).ask(query, *SIDE_COLUMNS, timed=False)
    before, after = (
        known.rows_at(time if known.shape.layout in HISTORIES else None)
        for known in map(table.at, (first, second))
    )
    return table.unite(before, after)
