"""The feed of changes of a small table, from its files, by the rule."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from backstory.errors import Refused
from backstory.model.change_feed import CHANGE_COLUMNS
from backstory.model.instant import EPOCH, TMAX
from backstory.model.layout import DELETED, MEMORY, Layout
from backstory.model.table import Shape, TableName
from backstory.model.versions_layout import ROLE
from backstory.reading.changes.ranges import lineage_of_metadata
from backstory.reading.changes.request import (
    ChangesRequest,
    FeedColumns,
    commit_range,
    feed_columns,
    rows_cover_range,
)
from backstory.reading.changes.rule import Changed, Row, changes_between, net
from backstory.stores.iceberg.moved_rows import GAP
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import arrow_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.table_rows import CommitMoves, TableReader
from backstory.stores.metadata.values import rows_of


@dataclass(frozen=True, slots=True)
class SmallFeed:
    """The rows of a table's feed in their order, its columns, and the versions of its two commits."""

    table: TableName
    rows: Sequence[Row]
    columns: Sequence[str]
    since: int
    until: int


def read_changes(files: TableReader, request: ChangesRequest) -> SmallFeed:
    """The rows that changed, as by `changes` of `feed.py`; Unreadable if only Spark can read them."""
    table = files.table
    feed, lineage = feed_columns(table, current=request.current), lineage_of_metadata(table)
    try:
        range_ = commit_range(table, lineage, request)
    except Refused:
        if not rows_cover_range(table, request):
            raise
        raise Unreadable("snapshots that have expired") from None
    if any(each.operation == GAP for each in range_.commits):
        raise Unreadable("snapshots that have expired")
    identity = _identity(table, feed)
    counts, needed = _feed_condition(table.shape, current=request.current)
    moved = CommitMoves(files, list(dict.fromkeys([*feed.columns, *needed])))
    every: list[Changed] = []
    commits = [(each.id, each.operation) for each in range_.commits]
    pairs = moved.of_commits(range_.before, commits)
    for commit, sides in zip(range_.commits, pairs, strict=True):
        before, after = (_feed_rows(each, feed, counts) for each in sides)
        every += _sort_changes(changes_between(before, after, commit.version, identity), identity)
    if request.net:
        every = _sort_changes(net(every, identity), identity)
    times = {each.version: EPOCH + timedelta(milliseconds=each.millis) for each in range_.commits}
    rows = [{**each.row, **_marks(each, times)} for each in every]
    return SmallFeed(
        table.shape.table, rows, [*feed.columns.values(), *CHANGE_COLUMNS], range_.since, range_.until
    )


def _marks(each: Changed, times: Mapping[int, Any]) -> dict[str, Any]:
    values = (each.type.value, each.version, times[each.version])
    return dict(zip(CHANGE_COLUMNS, values, strict=True))


def _identity(table: TableMetadata, feed: FeedColumns) -> Callable[[Row], Hashable]:
    """The identity of a shown row, which sorts in Spark's order, NULL first."""
    types = {each["name"]: arrow_of(each["type"]) for each in table.fields}
    names = [feed.columns[name] for name in feed.identity]
    unsorted = (pa.types.is_floating, pa.types.is_nested)
    if not names or any(is_(types[name]) for name in feed.identity for is_ in unsorted):
        raise Unreadable("rows whose keys are not plain")
    return lambda row: tuple((row[name] is not None, row[name]) for name in names)


def _sort_changes(changes: Iterable[Changed], identity: Callable[[Row], Any]) -> list[Changed]:
    def place(each: Changed) -> tuple[Any, int]:
        return [(there, value if there else 0) for there, value in identity(each.row)], each.sign

    return sorted(changes, key=place)


def _feed_rows(rows: pa.Table, feed: FeedColumns, counts: Callable[[Row], bool]) -> list[Row]:
    return [{as_: row[name] for name, as_ in feed.columns.items()} for row in rows_of(rows) if counts(row)]


def _feed_condition(shape: Shape, *, current: bool) -> tuple[Callable[[Row], bool], Sequence[str]]:
    """The condition of `feed.py` in Python, and the columns that it reads."""
    span, names = shape.layout.span, shape.names
    if not current:
        if MEMORY not in names:
            return lambda _: True, ()
        return lambda row: row[MEMORY] is None or row[MEMORY][ROLE] is None, (MEMORY,)
    if span is None:
        return lambda row: row.get(DELETED) is not True, [name for name in (DELETED,) if name in names]
    if shape.layout.is_adopted:
        raise Unreadable("ends in the far future")
    start, end = span.open, span.end
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return lambda row: _is_open(row[start], row[end]), (start, end)
    return lambda row: row[end] is None, (end,)


def _is_open(flag: bool | None, end: Any) -> bool:  # noqa: FBT001 - a value of a row
    return flag if flag is not None else end is not None and end >= TMAX
