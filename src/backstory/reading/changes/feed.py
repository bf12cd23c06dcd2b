"""The rows that changed between two commits, by Spark, and the cursor that moves once they are read.

The rows are read from the files that the commits added or removed, or whose rows they hid. If the snapshots
of a table of layout `versions` have expired, the changes are derived from the recorded times in its rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

from backstory.errors import Refused
from backstory.model.change_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    NUMBER,
    SIGN,
    TIME,
    VERSION,
)
from backstory.model.instant import EPOCH, instant_of, parse_instant
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_TO
from backstory.model.table import TableName
from backstory.model.versions_layout import ENDED_AT, RECORDED, ROLE, Role
from backstory.reading.changes.pairs import COMMIT, LAST, TYPE, changes_query
from backstory.reading.changes.ranges import Lineage, Range, lineage_of, move_cursor
from backstory.reading.changes.request import (
    ChangesRequest,
    FeedRows,
    any_row,
    commit_range,
    feed_rows,
    row_identity,
    rows_cover_range,
)
from backstory.reading.frames.versions import lifetimes_sql, query_frame
from backstory.reading.histories import history_of, require_knowledge
from backstory.reading.lifetimes import (
    ENDED,
    NO_FACT,
    SPARK,
    STATED_FROM,
    STATED_TO,
    internal_name,
)
from backstory.spark.connect import needs_java
from backstory.stores.connect.moved_rows import MovedStates
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.literals import column, micros_of, quote
from backstory.stores.iceberg.moved_rows import MovedRows, moved_rows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.strategies.frames import comparable, holds_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    if maps:  # Spark Connect takes no empty mapping
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
        feed = replace(feed, condition=any_row)  # a memory row was a version before
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


def changes(store: IcebergStore, table: TableName, request: ChangesRequest) -> ChangeFeed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused if snapshots of the range have expired or the cursor is lost or expired, and UsageError for
    options that exclude each other, and for a cursor without Java.
    """
    if request.cursor is not None and not store.has_java:
        raise needs_java("A cursor")
    stored = existing(store, table)
    rows, lineage = feed_rows(stored, current=request.current), lineage_of(store, stored)
    try:
        commits = commit_range(stored, lineage, request)
    except Refused:
        if not rows_cover_range(stored, request):
            raise
        return _recorded_feed(store, stored, lineage, request)
    moved = _moved_rows(store, stored, commits)
    frame = feed_frame(moved.frame(store), rows, moved.rows, net=request.net, only_added=moved.only_adds)

    def move() -> None:
        if request.cursor is not None:
            move_cursor(store, stored, request.cursor, commits.until)

    return ChangeFeed(frame, commits.since, commits.until, move, lambda: moved.release(store))


def _moved_rows(store: IcebergStore, table: IcebergTable, commits: Range) -> "MovedRows | MovedStates":
    if store.has_java:
        return moved_rows(store, table, commits.before, commits.commits)
    return MovedStates(table, commits.before, commits.commits)


def _recorded_feed(
    store: IcebergStore, table: IcebergTable, lineage: Lineage, request: ChangesRequest
) -> ChangeFeed:
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    frame = recorded_changes(store, table, since, until, net=request.net, current=request.current)
    newest = lineage.newest if until is None else None
    return ChangeFeed(frame, None, newest, lambda: None, lambda: None)
