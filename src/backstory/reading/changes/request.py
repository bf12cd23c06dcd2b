"""The rows and commits of a feed of changes, and the query that pairs the rows, in DuckDB and in Spark."""

# ruff: noqa: S608 - all names in these queries are our own

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from backstory.errors import Refused, UsageError, bad_option, option
from backstory.model.change_feed import CHANGE_COLUMNS, NUMBER, SIGN, ChangeType, CommitName, Start
from backstory.model.history import History
from backstory.model.layout import DELETED, MEMORY, Layout
from backstory.model.table import Shape, is_reserved
from backstory.model.versions_layout import ROLE
from backstory.reading.changes.ranges import Range, cursor_version, lineage_of, range_of
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


# A column of moved rows beside their sign and number: the commit, which sorts as its number.
COMMIT: Final = "moved: commit"
# Columns of a change: its type and its commit.
TYPE, LAST = "moved: type", "moved: last"
_NTH, _SURPLUS = "moved: nth {}", "moved: surplus {}"
# The types of removed and added rows, without and with the other row of an update.
_SINGLE: Final = f"CASE WHEN {{sign}} < 0 THEN '{ChangeType.DELETE}' ELSE '{ChangeType.INSERT}' END"
_PAIR: Final = f"CASE WHEN {{sign}} < 0 THEN '{ChangeType.BEFORE}' ELSE '{ChangeType.AFTER}' END"
# Equal rows cancel as bags.
_CANCELED: Final = """(
  SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY {same}, {sign} ORDER BY {sign}) AS {nth},
      SUM({sign}) OVER (PARTITION BY {same}) AS {surplus}
    FROM {moved}
  ) AS counted WHERE {nth} <= {surplus} * {sign}
) AS moved"""


def changes_query(
    syntax: SqlSyntax, record: Sequence[str], content: Sequence[str], *, net: bool, only_added: bool = False
) -> str:
    """The query for the changes among moved rows, by the columns of a record and of its other values.

    One removed and one added row of a record are an update; more rows are deletes and inserts. With `net`,
    the changes are those of all commits together, each with the last commit that touched its record, even if
    that commit restored a former row (V106). With `only_added`, no row was removed.
    """
    names = {"sign": SIGN, "number": NUMBER, "commit": COMMIT, "type": TYPE, "last": LAST}
    words = {word: syntax.name(name) for word, name in names.items()}
    records, values = ([syntax.name(each) for each in names] for names in (record, content))
    single, pair = (text.format(**words) for text in (_SINGLE, _PAIR))
    number, commit, type_, last = (words[word] for word in ("number", "commit", "type", "last"))
    if only_added and not net:
        return f"SELECT *, {single} AS {type_}, {commit} AS {last} FROM {syntax.rows}"

    def cancel(moved: str, same: Sequence[str], step: int) -> str:
        own = {"nth": syntax.name(_NTH.format(step)), "surplus": syntax.name(_SURPLUS.format(step))}
        return _CANCELED.format(moved=moved, same=", ".join(same), **own, **words)

    moved = cancel(syntax.rows, [*records, *values, number], 1)
    touched = f"MAX({commit}) OVER (PARTITION BY {', '.join(records)})" if net else commit
    moved = f"(SELECT *, {touched} AS {last} FROM {moved}) AS moved"
    if net:
        moved = cancel(moved, [*records, *values], 2)
    record_of = f"OVER (PARTITION BY {', '.join(records if net else [*records, number])})"
    paired = f"COUNT(*) {record_of} = 2 AND SUM({words['sign']}) {record_of} = 0"
    return f"SELECT *, CASE WHEN {paired} THEN {pair} ELSE {single} END AS {type_} FROM {moved}"


def current_condition(shape: Shape, syntax: SqlSyntax, column: ColumnSql) -> str:
    """Whether a row is an open version, or a live row that is not deleted."""
    span = shape.layout.span
    if span is None:
        return "TRUE" if shape.column(DELETED) is None else f"NOT COALESCE({column(DELETED)}, FALSE)"
    end = column(span.end)
    if span.far is None:
        return f"{end} IS NULL"
    stored = shape.column(span.end)
    end = syntax.read_instant(end, None if stored is None else stored.type.kind)
    late = f"{end} >= {syntax.at(span.far)}"
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return f"COALESCE({column(span.flag)}, {late}, FALSE)"
    return f"({end} IS NULL OR {late})"
