"""The rows that changed between two commits, and the cursor that moves once they are read.

Which rows of a layout the feed reports, and which columns identify a row (native.md, V104 and V105).

The rule of the feed on Spark: rows that moved become inserts, deletes and pairs (`rule.py`).

The feed of a table of layout `versions` out of its own rows, for commits whose snapshots are gone (V111).

A row tells two steps of its end: from `recorded_at` it was `end_before`, from `ended_at` on it is `valid_to`
(V6). A step is what a commit did, and the recorded time is that commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

from backstory.errors import Refused, UsageError, option
from backstory.model.change_feed import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeType,
    Start,
)
from backstory.model.history import History
from backstory.model.instant import EPOCH, TMAX, instant_of, parse_instant
from backstory.model.layout import DELETED, IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName, is_reserved
from backstory.model.versions_layout import END_BEFORE, ENDED_AT, RECORDED, ROLE, Role
from backstory.reading.changes import ranges
from backstory.reading.changes.ranges import CommitName, Lineage, Range, bad_option, lineage_of, range_of
from backstory.reading.histories import require_knowledge, system_columns
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.moved_rows import MOVE_COLUMNS, NUMBER, SIGN, TIME, VERSION, moved_rows
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.port import TableLike
from backstory.strategies.frames import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, slots=True)
class FeedRows:
    """The columns that are shown, by the names of the table; those that identify a row; which rows count.

    The condition is made where a session runs.
    """

    columns: dict[str, str]
    identity: tuple[str, ...]
    condition: "Callable[[], Column] | None"


def feed_rows(table: TableLike, *, current: bool) -> FeedRows:
    """The rows that the feed reports: those without a role, or the current ones without technical columns.

    Raises UsageError for `current` on an event log, and Refused for columns named like the feed's own.
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
    """The columns that tell the rows of a table apart; none where nothing but their values does."""
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
    condition = _is_version if MEMORY in names else None
    return FeedRows({name: name for name in names if name != MEMORY}, row_identity(table), condition)


def _is_version() -> "Column":
    return column(MEMORY)[ROLE].isNull()


def _current(shape: Shape) -> FeedRows:
    if shape.layout is Layout.ODF:
        raise UsageError(
            "no-current",
            f"The rows of {shape.table} are events, and no event is current or not.",
            f"Omit {option('current', value=True)}.",
        )
    columns = {each.name: each.source for each in shape.user_columns}
    return FeedRows(columns, shape.key, _is_current(shape))


def _is_current(shape: Shape) -> "Callable[[], Column] | None":
    """The condition for open versions of a history, or live rows that are not deleted; None if all are."""
    marked = shape.layout.span is not None or shape.column(DELETED) is not None
    return (lambda: _current_condition(shape)) if marked else None


def _current_condition(shape: Shape) -> "Column":
    from pyspark.sql.functions import coalesce, expr, lit

    span = shape.layout.span
    if shape.layout is Layout.FIVETRAN_HISTORY and span:
        return coalesce(column(span.open), column(span.end) >= instant(micros_of(TMAX)), lit(False))
    if span:
        return expr(span.open)
    return ~column(DELETED).eqNullSafe(lit(True))


if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

# A feed of up to so many rows is one partition, which is in order as a whole.
ROWS_IN_ORDER: Final = 1 << 19
_RANK = "moved: rank"


def feed_frame(moved: "DataFrame", told: FeedRows, rows: int, *, net: bool, only_come: bool) -> "DataFrame":
    """The feed: the shown columns, then type, version and time of the change.

    `rows` says how many moved at most, `only_come` that none went. Within a partition commits stand in their
    order, and of each identity what goes before what comes; without many rows there is but one partition.
    """
    found = moved if told.condition is None else moved.where(told.condition())
    shown = [column(name).alias(as_) for name, as_ in told.columns.items()]
    found = found.select(*shown, *map(column, MOVE_COLUMNS))
    names = {told.columns[name] for name in told.identity}
    values = {field.name: comparable(column(field.name), field.dataType) for field in found.schema}
    content = [value for name, value in values.items() if name not in {*names, *MOVE_COLUMNS}]
    by = [value for name, value in values.items() if name in names] or content
    found = found.repartition(1 + rows // ROWS_IN_ORDER, *by)
    if only_come and not net:
        return _sort_changes(_with_types(found, paired=None), by, told, each=True)
    number = column(NUMBER)
    found = _cancel_equal_rows(found, [*by, *content, number])
    if net:
        found = _cancel_equal_rows(_with_last_commit(found, by), [*by, *content])
    sides = _count_sides([*by] if net else [*by, number])
    found = _with_types(found, (sides[0] == 1) & (sides[1] == 1))
    return _sort_changes(found, by, told, each=not net)


def _with_types(moved: "DataFrame", paired: "Column | None") -> "DataFrame":
    """With the type of each change."""
    from pyspark.sql.functions import when

    goes = column(SIGN) < 0
    alone = when(goes, ChangeType.DELETE.value).otherwise(ChangeType.INSERT.value)
    pair = when(goes, ChangeType.BEFORE.value).otherwise(ChangeType.AFTER.value)
    return moved.withColumn(CHANGE_TYPE, alone if paired is None else when(paired, pair).otherwise(alone))


def _sort_changes(typed: "DataFrame", by: "Sequence[Column]", told: FeedRows, *, each: bool) -> "DataFrame":
    ordered = typed.sortWithinPartitions(*([NUMBER] if each else []), *by, SIGN)
    shown = [column(as_) for as_ in told.columns.values()]
    version, time = column(VERSION).alias(COMMIT_VERSION), column(TIME).alias(COMMIT_TIMESTAMP)
    return ordered.select(*shown, CHANGE_TYPE, version, time)


def _count_sides(of: "Sequence[Column]") -> "tuple[Column, Column]":
    """How many rows go and how many come beside a row."""
    from pyspark.sql import Window
    from pyspark.sql.functions import count_if

    beside = Window.partitionBy(*of)
    return count_if(column(SIGN) < 0).over(beside), count_if(column(SIGN) > 0).over(beside)


def _cancel_equal_rows(moved: "DataFrame", same: "Sequence[Column]") -> "DataFrame":
    """What is left once rows that go and rows that come, and are the same, have cancelled out as a bag."""
    from pyspark.sql import Window
    from pyspark.sql.functions import lit, row_number, when

    gone, come = _count_sides(same)
    ranked = row_number().over(Window.partitionBy(*same, column(SIGN)).orderBy(lit(0)))
    more = when(column(SIGN) < 0, gone - come).otherwise(come - gone)
    return moved.withColumn(_RANK, ranked <= more).where(column(_RANK)).drop(_RANK)


def _with_last_commit(moved: "DataFrame", by: "Sequence[Column]") -> "DataFrame":
    """Each row with the last commit that touched its identity."""
    from pyspark.sql import Window
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import struct

    about = struct(*map(column, (NUMBER, VERSION, TIME)))
    last = greatest(about).over(Window.partitionBy(*by))
    return moved.withColumns({name: last[name] for name in (VERSION, TIME)})


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FIRST: Final = "moved: first"
_STEP: Final = "moved: step"
_LAST: Final = "moved: last"


def recorded_changes(
    store: Store,
    table: StoredTable,
    since: datetime | None,
    until: datetime | None,
    *,
    net: bool,
    current: bool,
) -> "DataFrame":
    """The changes that were recorded after one time up to another.

    Versions are NULL where snapshots are gone. Raises UsageError (`known-pruned`) where the table no longer
    tells what it knew then.
    """
    require_knowledge(table, since or EPOCH)
    told = feed_rows(table, current=current)
    if not current:
        told = replace(told, condition=None)  # what a memory row told before it was one is told
    rows = store.spark.table(store.sql_name(table.shape.table))
    if since is not None:
        rows = rows.where(_recorded_after(since))
    steps = _steps(_statements(rows, row_identity(table)), table.shape.names)
    if since is not None:
        steps = steps.where(column(NUMBER) > micros_of(since))
    if until is not None:
        steps = steps.where(column(NUMBER) <= micros_of(until))
    return feed_frame(_with_commits(store, table, steps), told, table.rows, net=net, only_come=False)


def _recorded_after(since: datetime) -> "Column":
    """The rows that tell of it, and all copies that rows left when their ends moved again."""
    from pyspark.sql.functions import col

    time = instant(micros_of(since))
    learnt = (column(RECORDED_AT) > time) | (col(f"{MEMORY}.{ENDED_AT}") > time)
    return learnt | (col(f"{MEMORY}.{ROLE}") == Role.PAST.value)


def _statements(rows: "DataFrame", identity: tuple[str, ...]) -> "DataFrame":
    """The rows that tell statements, each with the recorded time that it had at its first step.

    A row whose end moves again leaves a copy, and is itself recorded at its former step from then on (V7).
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, col, lag, lit, struct, when

    moved = col(f"{MEMORY}.{ENDED_AT}")
    rows = rows.where(~col(f"{MEMORY}.{ROLE}").eqNullSafe(lit(Role.FACT.value)))
    beside = Window.partitionBy(*map(column, identity)).orderBy(column(RECORDED_AT), moved)
    last = struct(column(RECORDED_AT).alias("recorded"), moved.alias("moved"))
    rows = rows.withColumn(_LAST, lag(last).over(beside))
    goes_on = column(_LAST)["moved"] == column(RECORDED_AT)
    first = coalesce(when(goes_on, column(_LAST)["recorded"]), column(RECORDED_AT))
    return rows.withColumn(_FIRST, first)


def _steps(rows: "DataFrame", names: list[str]) -> "DataFrame":
    """What came and went, and at which recorded time, for each statement and each step of its end."""
    from pyspark.sql.functions import array, col, explode, lit, struct, unix_micros, when

    moved, recorded = col(f"{MEMORY}.{ENDED_AT}"), column(RECORDED_AT)
    first = when(moved.isNull(), column(VALID_TO)).otherwise(col(f"{MEMORY}.{END_BEFORE}"))

    def step(time: "Column", sign: int, end: "Column", then: "Column") -> "Column":
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
    found = rows.withColumn(_STEP, explode(steps))
    ended = column(_STEP)[VALID_TO]
    found = found.where(column(_STEP)[NUMBER].isNotNull() & (ended.isNull() | (ended > column(VALID_FROM))))
    of_step = {VALID_TO, RECORDED_AT, IS_CURRENT, NUMBER, SIGN}
    shown = (
        column(_STEP)[name].alias(name) if name in of_step else column(name)
        for name in (*names, NUMBER, SIGN)
    )
    return found.select(*shown)


def _with_commits(store: Store, table: StoredTable, steps: "DataFrame") -> "DataFrame":
    """The version and time of each recorded time's commit; where it is gone NULL, and the recorded time."""
    from pyspark.sql.functions import broadcast, coalesce, timestamp_micros

    found = [
        (micros_of(parse_instant(recorded)), int(each.java.sequenceNumber()), micros_of(each.committed_at))
        for each in snapshots.ancestry(table)
        if (recorded := each.get_property(RECORDED))
    ]
    schema = f"`{NUMBER}` bigint, `{VERSION}` bigint, `{TIME}` bigint"
    commits = store.spark.createDataFrame(found, schema)
    joined = steps.join(broadcast(commits), NUMBER, "left")
    return joined.withColumn(TIME, timestamp_micros(coalesce(column(TIME), column(NUMBER))))


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ChangeFeed:
    """The rows that changed after commit `since` up to commit `until`, both versions, None where expired.

    `frame` has the rows' columns, then `_change_type`, `_commit_version` and `_commit_timestamp`. Commits
    are in their order, each preimage before its postimage; of more than half a million rows they are so in
    each partition, which has all rows of an identity. Used in a `with` block, the cursor that was named moves
    to `until` when the block ends well; `frame` can be read within the block alone then.
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
    """What a feed shall tell: see `backstory changes`."""

    since: CommitName | None = None
    until: CommitName | None = None
    net: bool = False
    current: bool = False
    cursor: str | None = None
    start: Start | None = None


def changes(store: Store, table: TableName, request: ChangesRequest) -> ChangeFeed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused for a range whose snapshots have expired and for a cursor that is lost or expired,
    UsageError for options that do not go together.
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
    frame = feed_frame(moved.frame(store), rows, moved.rows, net=request.net, only_come=moved.only_adds)

    def move() -> None:
        if request.cursor is not None:
            ranges.move_cursor(store, stored, request.cursor, commits.until)

    return ChangeFeed(frame, commits.since, commits.until, move, lambda: moved.release(store))


def commit_range(table: ranges.TaggedTable, lineage: Lineage, request: ChangesRequest) -> Range:
    """The commits that a feed reports on; raises what `changes` raises."""
    if request.cursor is None and request.start is not None:
        raise bad_option(f"{option('start', request.start)} needs a cursor.", "Name it with `cursor=`.")
    if request.cursor is not None and request.since is not None:
        raise bad_option("Both `since=` and `cursor=` say where to begin.", "Omit one of them.")
    since = request.since
    if request.cursor is not None:
        since = ranges.cursor_version(table, lineage, request.cursor, request.start)
    return range_of(lineage, since, request.until, net=request.net)


def rows_cover_range(table: TableLike, request: ChangesRequest) -> bool:
    """Whether the table's rows alone answer for an expired range: one by time, on layout `versions`."""
    ends = (request.since, request.until)
    timely = not any(isinstance(end, int) or (isinstance(end, str) and end.isdecimal()) for end in ends)
    return table.shape.layout is Layout.VERSIONS and request.cursor is None and timely


def _recorded_feed(store: Store, table: StoredTable, lineage: Lineage, request: ChangesRequest) -> ChangeFeed:
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    frame = recorded_changes(store, table, since, until, net=request.net, current=request.current)
    newest = lineage.newest if until is None else None
    return ChangeFeed(frame, None, newest, lambda: None, lambda: None)
