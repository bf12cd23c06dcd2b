"""The rows that changed between two commits, by Spark, and the cursor that moves once they are read.

The rows are read from the files that the commits added or removed, or whose rows they hid. If the snapshots
of a table of layout `versions` have expired, the changes are derived from the recorded times in its rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from backstory.errors import Refused, UsageError, option
from backstory.model.change_feed import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    NUMBER,
    SIGN,
    TIME,
    VERSION,
    Start,
)
from backstory.model.history import History
from backstory.model.instant import EPOCH, instant_of, parse_instant
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_TO, Layout
from backstory.model.table import Shape, TableName, is_reserved
from backstory.model.versions_layout import ENDED_AT, RECORDED, ROLE, Role
from backstory.reading.changes.pairs import COMMIT, LAST, TYPE, changes_query, current_condition
from backstory.reading.changes.ranges import (
    CommitName,
    Lineage,
    Range,
    TaggedTable,
    bad_option,
    cursor_version,
    lineage_of,
    move_cursor,
    range_of,
)
from backstory.reading.frames.versions import lifetimes_sql, query_frame
from backstory.reading.histories import history_of, require_knowledge, system_columns
from backstory.reading.lifetimes import (
    ENDED,
    NO_FACT,
    SPARK,
    STATED_FROM,
    STATED_TO,
    ColumnSql,
    SqlSyntax,
    internal_name,
)
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.literals import column, micros_of, quote
from backstory.stores.iceberg.moved_rows import moved_rows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.port import TableLike
from backstory.strategies.frames import comparable, holds_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    is_version = _is_version if MEMORY in names else _is_any
    return FeedRows({name: name for name in names if name != MEMORY}, row_identity(table), is_version)


def _is_version(_: SqlSyntax, column: ColumnSql) -> str:
    return f"{column(MEMORY, ROLE)} IS NULL"


def _is_any(*_: object) -> str:
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


# The most rows of a feed with one sorted partition.
ROWS_IN_ORDER: Final = 1 << 19


def feed_frame(moved: "DataFrame", feed: FeedRows, rows: int, *, net: bool, only_added: bool) -> "DataFrame":
    """The feed of moved rows: the shown columns, then type, version and time of the change.

    `rows` is the greatest possible number of moved rows, and with `only_added` no row was removed. A
    partition is sorted by commit and identity, with removed rows before added rows. A small feed has one
    partition.
    """
    from pyspark.sql.functions import struct

    commit = struct(*map(column, (NUMBER, VERSION, TIME))).alias(COMMIT)
    shown = [column(name).alias(as_) for name, as_ in feed.columns.items()]
    changes = moved.where(feed.condition(SPARK, quote))
    changes = changes.select(*shown, *map(column, (SIGN, NUMBER)), commit)
    types = {name: changes.schema[name].dataType for name in feed.columns.values()}
    maps = {name: f"moved: {name}" for name, type_ in types.items() if holds_map(type_)}
    changes = changes.withColumns({maps[name]: comparable(column(name), types[name]) for name in maps})
    identity = [feed.columns[name] for name in feed.identity] or list(types)
    record = [maps.get(name, name) for name in identity]
    content = [maps.get(name, name) for name in types if name not in identity]
    changes = changes.repartition(1 + rows // ROWS_IN_ORDER, *map(column, record))
    query = changes_query(SPARK, record, content, net=net, only_added=only_added)
    order = [*([] if net else [NUMBER]), *record, SIGN]
    ordered = query_frame(changes, query).sortWithinPartitions(*map(column, order))
    of_commit = {CHANGE_TYPE: column(TYPE), COMMIT_VERSION: column(LAST)[VERSION]}
    of_commit |= {COMMIT_TIMESTAMP: column(LAST)[TIME]}
    return ordered.select(*map(column, types), *(each.alias(name) for name, each in of_commit.items()))


_FIRST: Final = "moved: first"
_MOVE: Final = "moved: move"


def recorded_changes(
    store: IcebergStore,
    table: IcebergTable,
    since: datetime | None,
    until: datetime | None,
    *,
    net: bool,
    current: bool,
) -> "DataFrame":
    """The changes recorded after one time and up to another, from the rows of a table of layout `versions`.

    A row has two steps of its end: `end_before` from `recorded_at`, `valid_to` from `ended_at` (V6). Each
    step was a commit. Commit versions are NULL if the snapshot has expired. Raises UsageError
    (`known-pruned`) if the table no longer records these times.
    """
    require_knowledge(table, since or EPOCH)
    feed = feed_rows(table, current=current)
    if not current:
        feed = replace(feed, condition=_is_any)  # a memory row was a version before
    steps = _steps(store, table, since)
    if since is not None:
        steps = steps.where(column(NUMBER) > micros_of(since))
    if until is not None:
        steps = steps.where(column(NUMBER) <= micros_of(until))
    return feed_frame(_with_commits(store, table, steps), feed, table.rows, net=net, only_added=False)


def _steps(store: IcebergStore, table: IcebergTable, since: datetime | None) -> "DataFrame":
    """The rows added and removed, with the recorded time, when each statement began and ended to hold.

    A row whose end moves again leaves a copy, and takes its former step as its recorded time (V7). With
    `since`, rows that were neither recorded nor ended after that time are left out, except such copies.
    """
    from pyspark.sql.functions import array, explode, lit, struct, unix_micros, when

    role, recorded, moved = quote(MEMORY, ROLE), quote(RECORDED_AT), quote(MEMORY, ENDED_AT)
    row = f"(PARTITION BY {', '.join(map(quote, row_identity(table)))} ORDER BY {recorded}, {moved})"
    goes_on = f"CASE WHEN LAG({moved}) OVER {row} = {recorded} THEN LAG({recorded}) OVER {row} END"
    condition = NO_FACT.format(role=role)
    if since is not None:
        time = SPARK.at(micros_of(since))
        condition += f" AND ({recorded} > {time} OR {moved} > {time} OR {role} = '{Role.PAST}')"
    source = (
        f"(SELECT *, COALESCE({goes_on}, {recorded}) AS {quote(_FIRST)}"  # noqa: S608 - quoted names
        f" FROM {store.sql_name(table.shape.table)} WHERE {condition})"
    )
    stated = store.spark.sql(lifetimes_sql(table, history_of(table), source, stated=True))
    moves = (
        struct(unix_micros(column(time)).alias(NUMBER), lit(sign).cast("tinyint").alias(SIGN))
        for time, sign in ((STATED_FROM, 1), (STATED_TO, -1))
    )
    stated = stated.withColumn(_MOVE, explode(array(*moves))).where(column(_MOVE)[NUMBER].isNotNull())
    own = {
        VALID_TO: column(ENDED),
        RECORDED_AT: when(column(internal_name("step")) == 1, column(_FIRST)).otherwise(column(RECORDED_AT)),
        IS_CURRENT: column(ENDED).isNull(),
        NUMBER: column(_MOVE)[NUMBER],
        SIGN: column(_MOVE)[SIGN],
    }
    names = (*table.shape.names, NUMBER, SIGN)
    return stated.select(*((own[name] if name in own else column(name)).alias(name) for name in names))


def _with_commits(store: IcebergStore, table: IcebergTable, steps: "DataFrame") -> "DataFrame":
    """Add the version and time of the commits; for an expired commit NULL and the recorded time."""
    from pyspark.sql.functions import broadcast, coalesce, timestamp_micros

    recorded_commits = [
        (micros_of(parse_instant(recorded)), int(each.java.sequenceNumber()), micros_of(each.committed_at))
        for each in snapshots.ancestry(table)
        if (recorded := each.get_property(RECORDED))
    ]
    schema = f"`{NUMBER}` bigint, `{VERSION}` bigint, `{TIME}` bigint"
    commits = store.spark.createDataFrame(recorded_commits, schema)
    joined = steps.join(broadcast(commits), NUMBER, "left")
    return joined.withColumn(TIME, timestamp_micros(coalesce(column(TIME), column(NUMBER))))


@dataclass(frozen=True)
class ChangeFeed:
    """The rows that changed after commit `since` up to commit `until`; both are versions, None if expired.

    `frame` has the rows' columns, then `_change_type`, `_commit_version` and `_commit_timestamp`. It is
    sorted by commit, each preimage before its postimage. A feed of more than half a million rows is sorted
    within each partition, and a partition has all rows of an identity. In a `with` block the cursor moves to
    `until` when the block succeeds; `frame` can then be read only within the block.
    """

    frame: "DataFrame"
    since: int | None
    until: int | None
    move: Callable[[], None]
    release: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.release()
        if kind is None:
            self.move()


@dataclass(frozen=True, slots=True)
class ChangesRequest:
    """The options of a feed: see `backstory changes`."""

    since: CommitName | None = None
    until: CommitName | None = None
    net: bool = False
    current: bool = False
    cursor: str | None = None
    start: Start | None = None


def changes(store: IcebergStore, table: TableName, request: ChangesRequest) -> ChangeFeed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused if snapshots of the range have expired or the cursor is lost or expired, and UsageError for
    options that exclude each other.
    """
    stored = existing(store, table)
    rows, lineage = feed_rows(stored, current=request.current), lineage_of(store, stored)
    try:
        commits = commit_range(stored, lineage, request)
    except Refused:
        if not rows_cover_range(stored, request):
            raise
        return _recorded_feed(store, stored, lineage, request)
    moved = moved_rows(store, stored, commits.before, commits.commits)
    frame = feed_frame(moved.frame(store), rows, moved.rows, net=request.net, only_added=moved.only_adds)

    def move() -> None:
        if request.cursor is not None:
            move_cursor(store, stored, request.cursor, commits.until)

    return ChangeFeed(frame, commits.since, commits.until, move, lambda: moved.release(store))


def commit_range(table: TaggedTable, lineage: Lineage, request: ChangesRequest) -> Range:
    """The commits that a feed reports; raises the errors of `changes`."""
    if request.cursor is None and request.start is not None:
        raise bad_option(f"{option('start', request.start)} needs a cursor.", "Name it with `cursor=`.")
    if request.cursor is not None and request.since is not None:
        raise bad_option("Both `since=` and `cursor=` set where the feed begins.", "Omit one of them.")
    since = request.since
    if request.cursor is not None:
        since = cursor_version(table, lineage, request.cursor, request.start)
    return range_of(lineage, since, request.until, net=request.net)


def rows_cover_range(table: TableLike, request: ChangesRequest) -> bool:
    """Whether the rows of a table can answer for an expired range: one by times, on layout `versions`."""
    ends = (request.since, request.until)
    by_time = not any(isinstance(end, int) or (isinstance(end, str) and end.isdecimal()) for end in ends)
    return table.shape.layout is Layout.VERSIONS and request.cursor is None and by_time


def _recorded_feed(
    store: IcebergStore, table: IcebergTable, lineage: Lineage, request: ChangesRequest
) -> ChangeFeed:
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    frame = recorded_changes(store, table, since, until, net=request.net, current=request.current)
    newest = lineage.newest if until is None else None
    return ChangeFeed(frame, None, newest, lambda: None, lambda: None)
