"""A request for the changes of a table: its rows, columns and commits, for Spark and for files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from backstory.errors import Refused, UsageError, bad_option, option
from backstory.model.change_feed import CHANGE_COLUMNS, CommitName, Start
from backstory.model.history import History
from backstory.model.layout import MEMORY, Layout
from backstory.model.table import Shape, is_reserved
from backstory.model.versions_layout import ROLE
from backstory.reading.changes.pairs import current_condition
from backstory.reading.changes.ranges import (
    Range,
    cursor_version,
    lineage_of,
    range_of,
)
from backstory.reading.histories import system_columns
from backstory.reading.lifetimes import ColumnSql, SqlSyntax
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.port import TableLike


@dataclass(frozen=True, slots=True)
class ChangesRequest:
    """The options of a feed: see `backstory changes`."""

    since: CommitName | None = None
    until: CommitName | None = None
    net: bool = False
    current: bool = False
    cursor: str | None = None
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class FeedRows:
    """A feed's columns by the table's names, the columns that identify a row, and a condition for rows."""

    columns: dict[str, str]
    identity: tuple[str, ...]
    condition: Callable[[SqlSyntax, ColumnSql], str]


def feed_rows(table: TableLike, *, current: bool) -> FeedRows:
    """The rows that a feed reports: versions with all columns, or current rows with the user's columns.

    Raises UsageError for `current` on an event log, and Refused for columns with the names of the feed's own.
    """
    shape = table.shape
    rows = _current(shape) if current else _all(table)
    for name in rows.columns.values():
        if is_reserved(name, CHANGE_COLUMNS):
            raise Refused(
                "reserved-column",
                f"A column of {shape.table} has the name {name}, which the feed uses itself.",
                "Rename the column.",
            )
    return rows


def row_identity(table: TableLike) -> tuple[str, ...]:
    """The columns that identify a row of a table; empty if only all its values do (native.md, V105)."""
    shape = table.shape
    if shape.layout is Layout.ODF:
        return (system_columns(table)["offset"],)
    span = shape.layout.span
    of_version = History(shape).version_key
    if shape.layout is Layout.HIST and of_version in shape.names:
        return (of_version,)
    return (*shape.key, span.start) if span and shape.key else shape.key


def _all(table: TableLike) -> FeedRows:
    names = table.shape.names
    is_version = _is_version if MEMORY in names else any_row
    return FeedRows({name: name for name in names if name != MEMORY}, row_identity(table), is_version)


def _is_version(_: SqlSyntax, column: ColumnSql) -> str:
    return f"{column(MEMORY, ROLE)} IS NULL"


def any_row(*_: object) -> str:
    return "TRUE"


def _current(shape: Shape) -> FeedRows:
    if shape.layout is Layout.ODF:
        raise UsageError(
            "no-current",
            f"The rows of {shape.table} are events, which are never current.",
            f"Omit {option('current', value=True)}.",
        )
    columns = {each.name: each.source for each in shape.user_columns}
    return FeedRows(columns, shape.key, partial(current_condition, shape))


def commit_range(table: TableMetadata, request: ChangesRequest) -> Range | None:
    """The commits that a feed reports; raises the errors of `changes`.

    None if snapshots have expired, but the rows of the table contain the recorded times of the range.
    """
    if request.cursor is None and request.start is not None:
        raise bad_option(f"{option('start', request.start)} needs a cursor.", "Name it with `cursor=`.")
    if request.cursor is not None and request.since is not None:
        raise bad_option("Both `since=` and `cursor=` set where the feed begins.", "Omit one of them.")
    lineage, since, ends = lineage_of(table), request.since, (request.since, request.until)
    by_time = not any(isinstance(end, int) or (isinstance(end, str) and end.isdecimal()) for end in ends)
    try:
        if request.cursor is not None:
            since = cursor_version(table, lineage, request.cursor, request.start)
        return range_of(lineage, since, request.until, net=request.net)
    except Refused:
        if table.shape.layout is Layout.VERSIONS and request.cursor is None and by_time:
            return None
        raise
