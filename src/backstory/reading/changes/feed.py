"""The rows that changed between two commits, by Spark, and the cursor that moves once they are read.

The rows are read from the files that the commits added or removed, or whose rows they hid. If the snapshots
of a table of layout `versions` have expired, the changes are derived from the recorded times in its rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

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
from backstory.model.versions_layout import ENDED_AT, ROLE, Role
from backstory.reading.changes.pairs import COMMIT, LAST, TYPE, changes_query
from backstory.reading.changes.ranges import Lineage, Range, lineage_of, move_cursor
from backstory.reading.changes.request import (
    ChangesRequest,
    FeedRows,
    any_row,
    commit_range,
    feed_rows,
    row_identity,
)
from backstory.reading.frames.versions import lifetimes_sql, query_frame, query_frames
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
from backstory.stores.iceberg.literals import column, micros_of, quote
from backstory.stores.iceberg.moved_rows import MovedRows, moved_rows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.metadata.catalogs import metadata_of
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


# The rows added and removed when each statement began and ended to hold, with commit and recorded time.
_MOVES: Final = """
SELECT /*+ BROADCAST(kept_commits) */ {names}, {sign}, {number}, version AS {version},
  timestamp_micros(COALESCE(time, {number})) AS {time}
FROM (
  SELECT {columns}, {sign}, unix_micros(IF({sign} > 0, {stated_from}, {stated_to})) AS {number}
  FROM ({stated}) AS stated CROSS JOIN (VALUES (1Y), (-1Y)) AS signs ({sign})
) AS moves LEFT JOIN kept_commits ON recorded = {number}
WHERE {number} IS NOT NULL AND {within}
"""


def _recorded_feed(
    store: IcebergStore, table: IcebergTable, lineage: Lineage, request: ChangesRequest
) -> ChangeFeed:
    """The changes recorded after one time and up to another, from the rows of a table of layout `versions`.

    A row has two steps of its end: `end_before` from `recorded_at`, `valid_to` from `ended_at` (V6). Each
    step was a commit. A row whose end moves again leaves a copy, and takes its former step as its recorded
    time (V7). Commit versions are NULL if the snapshot has expired. Raises UsageError (`known-pruned`) if the
    table no longer records these times.
    """
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    require_knowledge(table, since or EPOCH)
    feed = feed_rows(table, current=request.current)
    if not request.current:
        feed = replace(feed, condition=any_row)  # a memory row was a version before
    role, recorded, moved = quote(MEMORY, ROLE), quote(RECORDED_AT), quote(MEMORY, ENDED_AT)
    row = f"(PARTITION BY {', '.join(map(quote, row_identity(table)))} ORDER BY {recorded}, {moved})"
    goes_on = f"CASE WHEN LAG({moved}) OVER {row} = {recorded} THEN LAG({recorded}) OVER {row} END"
    condition, within, number = NO_FACT.format(role=role), ["TRUE"], quote(NUMBER)
    if since is not None:  # rows neither recorded nor ended after that time do not count, except such copies
        time = SPARK.at(micros_of(since))
        condition += f" AND ({recorded} > {time} OR {moved} > {time} OR {role} = '{Role.PAST}')"
        within.append(f"{number} > {micros_of(since)}")
    if until is not None:
        within.append(f"{number} <= {micros_of(until)}")
    name, first, ended = store.sql_name(table.shape.table), quote("moved: first"), quote(ENDED)
    source = f"(SELECT *, COALESCE({goes_on}, {recorded}) AS {first} FROM {name} WHERE {condition})"  # noqa: S608
    own = {
        VALID_TO: ended,
        RECORDED_AT: f"IF({quote(internal_name('step'))} = 1, {first}, {recorded})",
        IS_CURRENT: f"{ended} IS NULL",
    }
    names = table.shape.names
    query = _MOVES.format(
        names=", ".join(map(quote, names)),
        columns=", ".join(f"{own.get(each, quote(each))} AS {quote(each)}" for each in names),
        stated=lifetimes_sql(table, history_of(table), source, stated=True),
        stated_from=quote(STATED_FROM),
        stated_to=quote(STATED_TO),
        within=" AND ".join(within),
        sign=quote(SIGN),
        number=number,
        version=quote(VERSION),
        time=quote(TIME),
    )
    commits = [
        (micros_of(parse_instant(each.recorded)), each.version, each.millis * 1000)
        for each in lineage.commits
        if each.recorded
    ]
    known = store.spark.createDataFrame(commits, "recorded bigint, version bigint, time bigint")
    moves = query_frames(query, kept_commits=known)
    frame = feed_frame(moves, feed, table.rows, net=request.net, only_added=False)
    newest = lineage.newest if until is None else None
    return ChangeFeed(frame, None, newest, lambda: None, lambda: None)


def changes(store: IcebergStore, table: TableName, request: ChangesRequest) -> ChangeFeed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused if snapshots of the range have expired or the cursor is lost or expired, and UsageError for
    options that exclude each other, and for a cursor without Java.
    """
    if request.cursor is not None and not store.has_java:
        raise needs_java("A cursor")
    stored = existing(store, table)
    rows, described = feed_rows(stored, current=request.current), metadata_of(store, stored)
    commits = commit_range(described, request)
    if commits is None:
        return _recorded_feed(store, stored, lineage_of(described), request)
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
