"""The feed of changes: the rows that commits removed and added, paired by one query (native.md V101 to V113).

DuckDB runs the query on the files of small tables, and Spark runs it for all others. If the snapshots of a
table of layout `versions` have expired, the changes are derived from the recorded times in its rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from backstory.errors import Refused, UsageError, bad_option, option
from backstory.model.change import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    NUMBER,
    SIGN,
    TIME,
    VERSION,
    ChangeType,
)
from backstory.model.instant import EPOCH, instant_of
from backstory.model.layout import DELETED, IS_CURRENT, MEMORY, RECORDED_AT, VALID_TO, Layout
from backstory.model.table import History, Shape, TableName, is_reserved
from backstory.model.versions_layout import ENDED_AT, RECORDED, ROLE, Role
from backstory.reading import lifetimes
from backstory.reading.commit_ranges import Lineage, Range, cursor_version, lineage_of, move_cursor, range_of
from backstory.reading.files import StoredColumns, query_rows
from backstory.reading.frames import query_frame, query_frames, table_in_session
from backstory.reading.lifetimes import (
    DUCKDB,
    ENDED,
    NO_FACT,
    SPARK,
    STATED_FROM,
    STATED_TO,
    SqlSyntax,
)
from backstory.reading.options import ChangesRequest
from backstory.reading.questions import require_knowledge, system_columns
from backstory.spark.connect import needs_java
from backstory.stores.connect.moved_rows import MovedStates
from backstory.stores.iceberg.literals import column, micros_of, quote
from backstory.stores.iceberg.positions import MovedRows, moved_rows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.metadata.moves import GAP
from backstory.stores.metadata.parquet_files import arrow_type_of
from backstory.stores.metadata.table_metadata import TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import TableReader, read_moved_rows
from backstory.stores.metadata.values import rows_of, whole_numbers
from backstory.stores.port import TableLike
from backstory.strategies.values import identities, ranks, sorted_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A column of moved rows, in addition to sign and number: the commit, which sorts like its number.
COMMIT: Final = "moved: commit"
# Columns of a change: its type and its commit.
TYPE, LAST = "moved: type", "moved: last"


def changes_query(
    syntax: SqlSyntax, record: Sequence[str], content: Sequence[str], *, net: bool, only_added: bool = False
) -> str:
    """The query for the changes among moved rows, which are rows that commits removed or added.

    `record` are the identity columns, and `content` are the others. One removed and one added row of a record
    are an update. If there are more rows, they are deletes and inserts. With `net`, a change covers all
    commits together. It has the last commit that touched its record, even if that commit restored a former
    row (V106). `only_added` means that no row was removed.
    """
    sign, number, commit, type_, last = map(syntax.name, (SIGN, NUMBER, COMMIT, TYPE, LAST))
    single = f"CASE WHEN {sign} < 0 THEN '{ChangeType.DELETE}' ELSE '{ChangeType.INSERT}' END"
    pair = f"CASE WHEN {sign} < 0 THEN '{ChangeType.BEFORE}' ELSE '{ChangeType.AFTER}' END"
    if only_added and not net:
        return f"SELECT *, {single} AS {type_}, {commit} AS {last} FROM {syntax.rows}"

    def cancel(moved: str, names: Sequence[str], step: int) -> str:
        """The moved rows, in which each removed row cancels one added row with the same values."""
        nth, surplus = (syntax.name(f"moved: {each} {step}") for each in ("nth", "surplus"))
        same = ", ".join(names)
        return f"""(
  SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY {same}, {sign} ORDER BY {sign}) AS {nth},
      SUM({sign}) OVER (PARTITION BY {same}) AS {surplus}
    FROM {moved}
  ) AS counted WHERE {nth} <= {surplus} * {sign}
) AS moved"""

    records, values = [*map(syntax.name, record)], [*map(syntax.name, content)]
    moved = cancel(syntax.rows, [*records, *values, number], 1)
    touched = f"MAX({commit}) OVER (PARTITION BY {', '.join(records)})" if net else commit
    moved = f"(SELECT *, {touched} AS {last} FROM {moved}) AS moved"
    if net:
        moved = cancel(moved, [*records, *values], 2)
    record_of = f"OVER (PARTITION BY {', '.join(records if net else [*records, number])})"
    paired = f"COUNT(*) {record_of} = 2 AND SUM({sign}) {record_of} = 0"
    return f"SELECT *, CASE WHEN {paired} THEN {pair} ELSE {single} END AS {type_} FROM {moved}"


def current_condition(shape: Shape, syntax: SqlSyntax) -> str:
    """SQL for whether a row is an open version, or a live row that is not deleted."""
    span, column = shape.layout.span, syntax.column
    if span is None:
        return "TRUE" if shape.column(DELETED) is None else f"NOT COALESCE({column(DELETED)}, FALSE)"
    if span.far is None:
        return f"{column(span.end)} IS NULL"
    end = syntax.instant_in(shape, span.end)
    late = f"{end} >= {syntax.at(span.far)}"
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return f"COALESCE({column(span.flag)}, {late}, FALSE)"
    return f"({end} IS NULL OR {late})"


@dataclass(frozen=True, slots=True)
class FeedRows:
    """A feed's columns by their names in the table, its identity columns, and a condition on its rows."""

    columns: dict[str, str]
    identity: tuple[str, ...]
    condition: Callable[[SqlSyntax], str]


def feed_rows(table: TableLike, request: ChangesRequest) -> FeedRows:
    """The rows that a feed reports: versions with all columns, or current rows with the user's columns.

    Raises UsageError for `current` on an event log, and Refused for columns with the same names as the feed's
    own columns.
    """
    shape = table.shape

    def is_version(syntax: SqlSyntax) -> str:
        return f"{syntax.column(MEMORY, ROLE)} IS NULL"

    if request.current:
        if shape.layout is Layout.ODF:
            raise UsageError(
                "no-current",
                f"The rows of {shape.table} are events, which are never current.",
                f"Omit {option('current', value=True)}.",
            )
        columns = {each.name: each.source for each in shape.user_columns}
        rows = FeedRows(columns, shape.key, partial(current_condition, shape))
    else:
        columns = {name: name for name in shape.names if name != MEMORY}
        rows = FeedRows(columns, row_identity(table), is_version if MEMORY in shape.names else any_row)
    for name in rows.columns.values():
        if is_reserved(name, CHANGE_COLUMNS):
            raise Refused(
                "reserved-column",
                f"A column of {shape.table} has the name {name}, which the feed uses itself.",
                "Rename the column.",
            )
    return rows


def row_identity(table: TableLike) -> tuple[str, ...]:
    """The columns that identify a row, or none if only all values together identify it (native.md, V105)."""
    shape = table.shape
    if shape.layout is Layout.ODF:
        return (system_columns(table)["offset"],)
    span = shape.layout.span
    of_version = History(shape).version_key
    if shape.layout is Layout.HIST and of_version in shape.names:
        return (of_version,)
    return (*shape.key, span.start) if span and shape.key else shape.key


def any_row(*_: object) -> str:
    return "TRUE"


def commit_range(table: TableMetadata, request: ChangesRequest) -> Range | None:
    """The commits that a feed reports. Raises the errors of `changes`.

    Returns None if snapshots have expired, but the table's rows contain the recorded times of the range.
    """
    since, until = request.since, request.until
    cursor, start = request.cursor, request.start
    if cursor is None and start is not None:
        raise bad_option(f"{option('start', start)} needs a cursor.", "Name it with `cursor=`.")
    if cursor is not None and since is not None:
        raise bad_option("Both `since=` and `cursor=` set where the feed begins.", "Omit one of them.")
    lineage, ends = lineage_of(table), (since, until)
    by_time = not any(isinstance(end, int) or (isinstance(end, str) and end.isdecimal()) for end in ends)
    try:
        if cursor is not None:
            since = cursor_version(table, lineage, cursor, start)
        return range_of(lineage, since, until, net=request.net)
    except Refused:
        if table.shape.layout is Layout.VERSIONS and cursor is None and by_time:
            return None
        raise


_PLACE, _RECORD, _CONTENT = "place", "record", "content"


@dataclass(frozen=True, slots=True)
class SmallFeed:
    """The rows of a table's feed in order, its columns, and the versions at which it begins and ends."""

    table: TableName
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    since: int
    until: int


def read_changes(files: TableReader, request: ChangesRequest) -> SmallFeed:
    """The rows that changed, as `changes` returns them. Raises Unreadable if only Spark can read them."""
    table = files.table
    feed, range_ = feed_rows(table, request), commit_range(table, request)
    if range_ is None or any(each.operation == GAP for each in range_.commits):
        raise Unreadable("snapshots that have expired")
    types = {each["name"]: arrow_type_of(each["type"]) for each in table.fields}
    unsorted = (pa.types.is_floating, pa.types.is_nested)
    if not feed.identity or any(is_(types[name]) for name in feed.identity for is_ in unsorted):
        raise Unreadable("rows whose keys are not plain")
    stored = StoredColumns()
    feed.condition(replace(DUCKDB, stored=stored))  # it names the columns that are read
    columns = list(dict.fromkeys([*feed.columns, *stored.names]))
    moved = read_moved_rows(files, columns, range_.before, range_.commits)
    changes = _changes(moved, feed, stored, net=request.net) if len(moved) else ()
    marks = [(each.version, each.committed_at) for each in range_.commits]
    rows = [
        {**row, **dict(zip(CHANGE_COLUMNS, (type_, *marks[commit]), strict=True))}
        for row, type_, commit in changes
    ]
    columns = [*feed.columns.values(), *CHANGE_COLUMNS]
    return SmallFeed(table.shape.table, rows, columns, range_.since, range_.until)


def _changes(
    moved: pa.Table, feed: FeedRows, stored: StoredColumns, *, net: bool
) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Each change among moved rows: its row, its type, and the number of its commit."""
    names = [feed.columns[name] for name in feed.identity]
    shown = moved.select(list(feed.columns)).rename_columns(list(feed.columns.values()))
    numbers = {
        _PLACE: pa.array(np.arange(len(moved))),
        _RECORD: pa.array(identities(shown, names)),
        _CONTENT: pa.array(identities(shown, shown.column_names)),
        SIGN: moved[SIGN],
        NUMBER: moved[NUMBER],
        COMMIT: moved[NUMBER],
    }
    relation = pa.table(numbers | stored.read(moved))
    condition = feed.condition(replace(DUCKDB, stored=stored))
    source = replace(DUCKDB, rows=f"(SELECT * FROM {DUCKDB.rows} WHERE {condition}) AS moved")
    answer = query_rows(relation, changes_query(source, [_RECORD], [_CONTENT], net=net))
    rows = shown.take(answer[_PLACE])
    signs, last, places = (whole_numbers(answer[name]) for name in (SIGN, LAST, _PLACE))
    order = [*([] if net else [last]), *(ranks(rows[name]) for name in names), signs, places]
    ordered = sorted_by(order, len(rows))
    types, commits = (answer[name].take(ordered).to_pylist() for name in (TYPE, LAST))
    yield from zip(rows_of(rows.take(ordered)), types, commits, strict=True)


# A feed of up to this many rows has one sorted partition.
ROWS_IN_ORDER: Final = 1 << 19


def feed_frame(moved: "DataFrame", feed: FeedRows, rows: int, *, net: bool, only_added: bool) -> "DataFrame":
    """The feed of moved rows: the shown columns, then type, version and time of the change.

    `rows` is the greatest possible number of moved rows. `only_added` means that no row was removed. A
    partition is sorted by commit and identity, with removed rows before added rows. A small feed has one
    partition.
    """
    from pyspark.sql.functions import struct

    from backstory.strategies.frames import comparable, holds_map

    commit = struct(*map(column, (NUMBER, VERSION, TIME))).alias(COMMIT)
    shown = [column(name).alias(as_) for name, as_ in feed.columns.items()]
    changes = moved.where(feed.condition(SPARK))
    changes = changes.select(*shown, *map(column, (SIGN, NUMBER)), commit)
    types = {name: changes.schema[name].dataType for name in feed.columns.values()}
    maps = {name: f"moved: {name}" for name, type_ in types.items() if holds_map(type_)}
    if maps:  # Spark Connect accepts no empty mapping
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
    """The rows that changed after commit `since`, up to and including commit `until`.

    Both are versions, or None if the commit has expired.

    `frame` has the rows' columns, then `_change_type`, `_commit_version` and `_commit_timestamp`. It is
    sorted by commit, each preimage before its postimage. A feed with more than half a million rows is sorted
    within each partition, and all rows with the same identity are in one partition. In a `with` block, the
    cursor moves to `until` if the block succeeds, and `frame` can only be read within the block.
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


def _recorded_feed(
    store: IcebergStore, table: IcebergTable, lineage: Lineage, request: ChangesRequest
) -> ChangeFeed:
    """The changes recorded after one time, up to and including another, from a table of layout `versions`.

    Raises UsageError (`known-pruned`) if the table no longer records these times.
    """
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    require_knowledge(table, since or EPOCH)
    feed = feed_rows(table, request)
    if not request.current:
        feed = replace(feed, condition=any_row)  # a memory row was a version before
    moves = _recorded_moves(store, table, lineage, since, until)
    frame = feed_frame(moves, feed, table.rows, net=request.net, only_added=False)
    newest = lineage.newest if until is None else None
    return ChangeFeed(frame, None, newest, lambda: None, lambda: None)


def _recorded_moves(
    store: IcebergStore, table: IcebergTable, lineage: Lineage, since: datetime | None, until: datetime | None
) -> "DataFrame":
    """The rows that were recorded or ended in a range of times, with the columns of moved rows.

    A row can have two ends: `end_before`, recorded at `recorded_at`, and `valid_to`, recorded at `ended_at`
    (V6). Each was recorded by a commit. If the end moves again, a copy of the row keeps these times, and the
    row itself counts as recorded at the former `ended_at` (V7). Commit versions are NULL if the snapshot has
    expired.
    """
    role, recorded, moved = quote(MEMORY, ROLE), quote(RECORDED_AT), quote(MEMORY, ENDED_AT)
    sign, number, version, time = map(quote, (SIGN, NUMBER, VERSION, TIME))
    row = f"(PARTITION BY {', '.join(map(quote, row_identity(table)))} ORDER BY {recorded}, {moved})"
    goes_on = f"CASE WHEN LAG({moved}) OVER {row} = {recorded} THEN LAG({recorded}) OVER {row} END"
    condition, within = NO_FACT.format(role=role), ""
    if since is not None:  # rows neither recorded nor ended after that time do not count, except such copies
        after = SPARK.at(micros_of(since))
        condition += f" AND ({recorded} > {after} OR {moved} > {after} OR {role} = '{Role.PAST}')"
        within += f" AND {number} > {micros_of(since)}"
    if until is not None:
        within += f" AND {number} <= {micros_of(until)}"
    name, first, ended = store.sql_name(table.shape.table), quote("moved: first"), quote(ENDED)
    source = f"(SELECT *, COALESCE({goes_on}, {recorded}) AS {first} FROM {name} WHERE {condition})"
    own = {
        VALID_TO: ended,
        RECORDED_AT: f"IF({quote(lifetimes.internal_name('step'))} = 1, {first}, {recorded})",
        IS_CURRENT: f"{ended} IS NULL",
    }
    names = [quote(each) for each in table.shape.names]
    columns = (f"{own[each]} AS {quote(each)}" if each in own else quote(each) for each in table.shape.names)
    stated = replace(table_in_session(store, table), source=source).spark_rows.statements()
    # Rows are added when a statement began to hold, and removed when it ceased to.
    query = f"""
SELECT /*+ BROADCAST(kept_commits) */ {", ".join(names)}, {sign}, {number}, version AS {version},
  timestamp_micros(COALESCE(time, {number})) AS {time}
FROM (
  SELECT {", ".join(columns)}, {sign},
    unix_micros(IF({sign} > 0, {quote(STATED_FROM)}, {quote(STATED_TO)})) AS {number}
  FROM ({stated}) AS stated CROSS JOIN (VALUES (1Y), (-1Y)) AS signs ({sign})
) AS moves LEFT JOIN kept_commits ON recorded = {number}
WHERE {number} IS NOT NULL{within}
"""
    commits = [
        (micros_of(each.recorded_at), each.version, micros_of(each.committed_at))
        for each in lineage.commits
        if RECORDED in each.properties
    ]
    known = store.spark.createDataFrame(commits, "recorded bigint, version bigint, time bigint")
    return query_frames(query, kept_commits=known)


def changes(store: IcebergStore, table: TableName, request: ChangesRequest) -> ChangeFeed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused if snapshots of the range have expired, or if the cursor is lost or expired. Raises
    UsageError for options that exclude each other, and for a cursor without Java.
    """
    cursor = request.cursor
    if cursor is not None and not store.has_java:
        raise needs_java("A cursor")
    stored = existing(store, table)
    rows, commits = feed_rows(stored, request), commit_range(stored, request)
    if commits is None:
        return _recorded_feed(store, stored, lineage_of(stored), request)
    read: Callable[..., MovedRows | MovedStates] = (
        partial(moved_rows, store) if store.has_java else MovedStates
    )
    moved = read(stored, commits.before, commits.commits)
    frame = feed_frame(moved.frame(store), rows, moved.rows, net=request.net, only_added=moved.only_adds)

    def move() -> None:
        if cursor is not None:
            move_cursor(store, stored, cursor, commits.until)

    return ChangeFeed(frame, commits.since, commits.until, move, lambda: moved.release(store))
