"""The feed of changes of a small table, from its files, by DuckDB."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from backstory.model.change_feed import CHANGE_COLUMNS, NUMBER, SIGN
from backstory.model.instant import EPOCH
from backstory.model.table import TableName
from backstory.reading.arrow.versions import StoredColumns, query_rows
from backstory.reading.changes.request import (
    COMMIT,
    LAST,
    TYPE,
    ChangesRequest,
    FeedRows,
    changes_query,
    commit_range,
    feed_rows,
)
from backstory.reading.lifetimes import DUCKDB
from backstory.stores.iceberg.moved_rows import GAP
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import arrow_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.table_rows import CommitMoves, TableReader
from backstory.stores.metadata.values import integers, rows_of, whole_numbers
from backstory.strategies.values import identities, ranks, sorted_by

_PLACE, _RECORD, _CONTENT = "place", "record", "content"


@dataclass(frozen=True, slots=True)
class SmallFeed:
    """The rows of a table's feed in their order, its columns, and the versions of its two commits."""

    table: TableName
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    since: int
    until: int


def read_changes(files: TableReader, request: ChangesRequest) -> SmallFeed:
    """The rows that changed, as by `changes` of `feed.py`; Unreadable if only Spark can read them."""
    table = files.table
    feed, range_ = feed_rows(table, current=request.current), commit_range(table, request)
    if range_ is None or any(each.operation == GAP for each in range_.commits):
        raise Unreadable("snapshots that have expired")
    names, stored = _identity(table, feed), StoredColumns()
    feed.condition(DUCKDB, stored)  # it names the columns that are read
    moves = CommitMoves(files, list(dict.fromkeys([*feed.columns, *stored.names])))
    commits = [(each.id, each.operation) for each in range_.commits]
    sides = [side for pair in moves.of_commits(range_.before, commits) for side in pair]
    changes = _changes(sides, feed, names, stored, net=request.net) if any(map(len, sides)) else ()
    marks = [(each.version, EPOCH + timedelta(milliseconds=each.millis)) for each in range_.commits]
    rows = [
        {**row, **dict(zip(CHANGE_COLUMNS, (type_, *marks[commit]), strict=True))}
        for row, type_, commit in changes
    ]
    columns = [*feed.columns.values(), *CHANGE_COLUMNS]
    return SmallFeed(table.shape.table, rows, columns, range_.since, range_.until)


def _identity(table: TableMetadata, feed: FeedRows) -> list[str]:
    """The shown columns that identify a row."""
    types = {each["name"]: arrow_of(each["type"]) for each in table.fields}
    unsorted = (pa.types.is_floating, pa.types.is_nested)
    if not feed.identity or any(is_(types[name]) for name in feed.identity for is_ in unsorted):
        raise Unreadable("rows whose keys are not plain")
    return [feed.columns[name] for name in feed.identity]


def _changes(
    sides: Sequence[pa.Table], feed: FeedRows, names: Sequence[str], stored: StoredColumns, *, net: bool
) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Each change among removed and added rows: its row, its type, and the place of its commit."""
    moved = pa.concat_tables(sides, promote_options="default")
    sizes, places = [len(side) for side in sides], np.arange(len(sides))
    shown = moved.select(list(feed.columns)).rename_columns(list(feed.columns.values()))
    commits = np.repeat(places // 2, sizes)
    numbers = {
        _PLACE: np.arange(len(moved)),
        _RECORD: identities(shown, names),
        _CONTENT: identities(shown, shown.column_names),
        SIGN: np.repeat(np.where(places % 2, 1, -1), sizes),
        NUMBER: commits,
        COMMIT: commits,
    }
    relation = pa.table({name: integers(each) for name, each in numbers.items()} | stored.read(moved))
    condition = feed.condition(DUCKDB, stored)
    source = replace(DUCKDB, rows=f"(SELECT * FROM {DUCKDB.rows} WHERE {condition}) AS moved")  # noqa: S608
    answer = query_rows(relation, changes_query(source, [_RECORD], [_CONTENT], net=net))
    rows = shown.take(answer[_PLACE])
    signs, last, places = (whole_numbers(answer[name]) for name in (SIGN, LAST, _PLACE))
    order = [*([] if net else [last]), *(ranks(rows[name]) for name in names), signs, places]
    ordered = integers(sorted_by(order, len(rows)))
    types, commits = (answer[name].take(ordered).to_pylist() for name in (TYPE, LAST))
    yield from zip(rows_of(rows.take(ordered)), types, commits, strict=True)
