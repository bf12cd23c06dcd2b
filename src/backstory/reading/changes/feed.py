"""The rows that changed between two commits, by Spark, and the cursor that moves once they are read.

The rows are read from the files that the commits added or removed, or whose rows they hid. If the snapshots
of a table of layout `versions` have expired, the changes are derived from the recorded times in its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    array,
    broadcast,
    coalesce,
    col,
    count_if,
    explode,
    expr,
    lag,
    lit,
    row_number,
    struct,
    timestamp_micros,
    unix_micros,
    when,
)
from pyspark.sql.functions import max as greatest

from backstory.errors import Refused
from backstory.model.change_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeType,
)
from backstory.model.instant import EPOCH, TMAX, instant_of, parse_instant
from backstory.model.layout import DELETED, IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName
from backstory.model.versions_layout import END_BEFORE, ENDED_AT, RECORDED, ROLE, Role
from backstory.reading.changes.ranges import (
    Lineage,
    lineage_of,
    move_cursor,
)
from backstory.reading.changes.request import (
    ChangesRequest,
    FeedColumns,
    commit_range,
    feed_columns,
    row_identity,
    rows_cover_range,
)
from backstory.reading.histories import require_knowledge
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.moved_rows import MOVE_COLUMNS, NUMBER, SIGN, TIME, VERSION, moved_rows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.strategies.frames import comparable


def _rows_of_feed(moved: DataFrame, shape: Shape, *, current: bool) -> DataFrame:
    """The moved rows that are versions; with `current` open versions, or live rows that are not deleted."""
    if not current:
        return moved.where(column(MEMORY)[ROLE].isNull()) if MEMORY in shape.names else moved
    span = shape.layout.span
    if shape.layout is Layout.FIVETRAN_HISTORY and span:
        is_open = column(span.end) >= instant(micros_of(TMAX))
        return moved.where(coalesce(column(span.open), is_open, lit(False)))
    if span:
        return moved.where(expr(span.open))
    if shape.column(DELETED) is not None:
        return moved.where(~column(DELETED).eqNullSafe(lit(True)))
    return moved


# The most rows of a feed with one sorted partition.
ROWS_IN_ORDER: Final = 1 << 19
_RANK = "moved: rank"


def feed_frame(moved: DataFrame, feed: FeedColumns, rows: int, *, net: bool, only_added: bool) -> DataFrame:
    """The feed of moved rows: the shown columns, then type, version and time of the change.

    `rows` is the greatest possible number of moved rows, and with `only_added` no row was removed. A
    partition is sorted by commit and identity, with removed rows before added rows. A small feed has one
    partition.
    """
    shown = [column(name).alias(as_) for name, as_ in feed.columns.items()]
    changes = moved.select(*shown, *map(column, MOVE_COLUMNS))
    names = {feed.columns[name] for name in feed.identity}
    values = {field.name: comparable(column(field.name), field.dataType) for field in changes.schema}
    content = [value for name, value in values.items() if name not in {*names, *MOVE_COLUMNS}]
    by = [value for name, value in values.items() if name in names] or content
    changes = changes.repartition(1 + rows // ROWS_IN_ORDER, *by)
    if only_added and not net:
        return _sort_changes(_with_types(changes, paired=None), by, feed, each=True)
    number = column(NUMBER)
    changes = _cancel_equal_rows(changes, [*by, *content, number])
    if net:
        changes = _cancel_equal_rows(_with_last_commit(changes, by), [*by, *content])
    removed, added = _count_sides([*by] if net else [*by, number])
    changes = _with_types(changes, (removed == 1) & (added == 1))
    return _sort_changes(changes, by, feed, each=not net)


def _with_types(moved: DataFrame, paired: Column | None) -> DataFrame:
    """Add the type of each change; `paired` marks the two rows of an update."""
    is_removed = column(SIGN) < 0
    single = when(is_removed, ChangeType.DELETE.value).otherwise(ChangeType.INSERT.value)
    pair = when(is_removed, ChangeType.BEFORE.value).otherwise(ChangeType.AFTER.value)
    return moved.withColumn(CHANGE_TYPE, single if paired is None else when(paired, pair).otherwise(single))


def _sort_changes(typed: DataFrame, by: Sequence[Column], feed: FeedColumns, *, each: bool) -> DataFrame:
    ordered = typed.sortWithinPartitions(*([NUMBER] if each else []), *by, SIGN)
    shown = [column(as_) for as_ in feed.columns.values()]
    version, time = column(VERSION).alias(COMMIT_VERSION), column(TIME).alias(COMMIT_TIMESTAMP)
    return ordered.select(*shown, CHANGE_TYPE, version, time)


def _count_sides(of: Sequence[Column]) -> tuple[Column, Column]:
    """The numbers of removed and of added rows with the same values in these columns."""
    group = Window.partitionBy(*of)
    return count_if(column(SIGN) < 0).over(group), count_if(column(SIGN) > 0).over(group)


def _cancel_equal_rows(moved: DataFrame, same: Sequence[Column]) -> DataFrame:
    """Cancel removed against added rows that have equal values, as bags, and return the rest."""
    removed, added = _count_sides(same)
    rank = row_number().over(Window.partitionBy(*same, column(SIGN)).orderBy(lit(0)))
    surplus = when(column(SIGN) < 0, removed - added).otherwise(added - removed)
    return moved.withColumn(_RANK, rank <= surplus).where(column(_RANK)).drop(_RANK)


def _with_last_commit(moved: DataFrame, by: Sequence[Column]) -> DataFrame:
    """Replace the commit of each row by the last commit that touched its identity."""
    about = struct(*map(column, (NUMBER, VERSION, TIME)))
    last = greatest(about).over(Window.partitionBy(*by))
    return moved.withColumns({name: last[name] for name in (VERSION, TIME)})


_FIRST: Final = "moved: first"
_STEP: Final = "moved: step"
_LAST: Final = "moved: last"


def recorded_changes(
    store: IcebergStore,
    table: IcebergTable,
    since: datetime | None,
    until: datetime | None,
    *,
    net: bool,
    current: bool,
) -> DataFrame:
    """The changes recorded after one time and up to another, from the rows of a table of layout `versions`.

    A row has two steps of its end: `end_before` from `recorded_at`, `valid_to` from `ended_at` (V6). Each
    step was a commit. Commit versions are NULL if the snapshot has expired. Raises UsageError
    (`known-pruned`) if the table no longer records these times.
    """
    require_knowledge(table, since or EPOCH)
    feed = feed_columns(table, current=current)
    rows = store.spark.table(store.sql_name(table.shape.table))
    if since is not None:
        rows = rows.where(_recorded_after(since))
    steps = _steps(_statements(rows, row_identity(table)), table.shape.names)
    if since is not None:
        steps = steps.where(column(NUMBER) > micros_of(since))
    if until is not None:
        steps = steps.where(column(NUMBER) <= micros_of(until))
    moved = _with_commits(store, table, steps)
    if current:  # else all: a memory row was a version before
        moved = _rows_of_feed(moved, table.shape, current=True)
    return feed_frame(moved, feed, table.rows, net=net, only_added=False)


def _recorded_after(since: datetime) -> Column:
    """Whether a row was recorded or ended after a time, or is a copy that a row left when its end moved."""
    time = instant(micros_of(since))
    is_later = (column(RECORDED_AT) > time) | (col(f"{MEMORY}.{ENDED_AT}") > time)
    return is_later | (col(f"{MEMORY}.{ROLE}") == Role.PAST.value)


def _statements(rows: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    """The rows that are statements, each with the recorded time of its first step.

    A row whose end moves again leaves a copy, and takes its former step as its recorded time (V7).
    """
    moved = col(f"{MEMORY}.{ENDED_AT}")
    rows = rows.where(~col(f"{MEMORY}.{ROLE}").eqNullSafe(lit(Role.FACT.value)))
    row = Window.partitionBy(*map(column, identity)).orderBy(column(RECORDED_AT), moved)
    last = struct(column(RECORDED_AT).alias("recorded"), moved.alias("moved"))
    rows = rows.withColumn(_LAST, lag(last).over(row))
    goes_on = column(_LAST)["moved"] == column(RECORDED_AT)
    first = coalesce(when(goes_on, column(_LAST)["recorded"]), column(RECORDED_AT))
    return rows.withColumn(_FIRST, first)


def _steps(rows: DataFrame, names: list[str]) -> DataFrame:
    """The rows added and removed, with the recorded time, for each step of the end of each statement."""
    moved, recorded = col(f"{MEMORY}.{ENDED_AT}"), column(RECORDED_AT)
    first = when(moved.isNull(), column(VALID_TO)).otherwise(col(f"{MEMORY}.{END_BEFORE}"))

    def step(time: Column, sign: int, end: Column, then: Column) -> Column:
        return struct(
            unix_micros(time).alias(NUMBER),
            lit(sign).cast("tinyint").alias(SIGN),
            end.alias(VALID_TO),
            then.alias(RECORDED_AT),
            end.isNull().alias(IS_CURRENT),
        )

    steps = array(
        step(recorded, 1, first, column(_FIRST)),
        step(moved, -1, first, column(_FIRST)),
        step(moved, 1, column(VALID_TO), recorded),
    )
    moves = rows.withColumn(_STEP, explode(steps))
    end_then = column(_STEP)[VALID_TO]
    lasts = end_then.isNull() | (end_then > column(VALID_FROM))
    moves = moves.where(column(_STEP)[NUMBER].isNotNull() & lasts)
    of_step = {VALID_TO, RECORDED_AT, IS_CURRENT, NUMBER, SIGN}
    shown = (
        column(_STEP)[name].alias(name) if name in of_step else column(name)
        for name in (*names, NUMBER, SIGN)
    )
    return moves.select(*shown)


def _with_commits(store: IcebergStore, table: IcebergTable, steps: DataFrame) -> DataFrame:
    """Add the version and time of the commits; for an expired commit NULL and the recorded time."""
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

    frame: DataFrame
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


def changes(store: IcebergStore, table: TableName, request: ChangesRequest) -> ChangeFeed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused if snapshots of the range have expired or the cursor is lost or expired, and UsageError for
    options that exclude each other.
    """
    stored = existing(store, table)
    feed, lineage = feed_columns(stored, current=request.current), lineage_of(store, stored)
    try:
        commits = commit_range(stored, lineage, request)
    except Refused:
        if not rows_cover_range(stored, request):
            raise
        return _recorded_feed(store, stored, lineage, request)
    moved = moved_rows(store, stored, commits.before, commits.commits)
    reported = _rows_of_feed(moved.frame(store), stored.shape, current=request.current)
    frame = feed_frame(reported, feed, moved.rows, net=request.net, only_added=moved.only_adds)

    def move() -> None:
        if request.cursor is not None:
            move_cursor(store, stored, request.cursor, commits.until)

    return ChangeFeed(frame, commits.since, commits.until, move, lambda: moved.release(store))


def _recorded_feed(
    store: IcebergStore, table: IcebergTable, lineage: Lineage, request: ChangesRequest
) -> ChangeFeed:
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    frame = recorded_changes(store, table, since, until, net=request.net, current=request.current)
    newest = lineage.newest if until is None else None
    return ChangeFeed(frame, None, newest, lambda: None, lambda: None)
