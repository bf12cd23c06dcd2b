"""The versions of a table as it was known at a time, from its files: places of rows and times, by DuckDB."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.instant import EPOCH
from backstory.model.layout import VALID_FROM, VALID_TO, Layout, Span
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.model.values import comparison_key
from backstory.reading.differences import SIDES, revisions_query
from backstory.reading.histories import (
    RECORDING,
    TableState,
    history_of,
    identity_names,
    log_kind,
    no_end_error,
    state_at,
    system_columns,
    warn_of_disorder,
)
from backstory.reading.lifetimes import (
    DUCKDB,
    ENDED,
    STARTED,
    STATED_FROM,
    STATED_TO,
    TIMELY,
    LogKind,
    SqlSyntax,
    internal_name,
    recorded_columns,
    statements_query,
    versions_query,
)
from backstory.reading.lives import shown_name
from backstory.reading.selection import key_of, shown_key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata import table_rows
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import AnyOf, Between, EqualTo, OneOf, Search, Searches
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import booleans, integers, whole_numbers, without_nulls
from backstory.stores.port import DISORDER
from backstory.strategies.fingerprints import duckdb_in_memory
from backstory.strategies.values import identities


@dataclass(frozen=True, slots=True)
class KnownTable(TableState):
    """A table at a recorded time, and its reader. `searches` restricts the rows that are read."""

    files: TableReader
    searches: Searches | None = None

    def rows(self, names: Sequence[str]) -> pa.Table:
        """The rows, with these columns; Unreadable if only Spark can read them."""
        distinct = list(dict.fromkeys(names))
        return self.files.rows(self.snapshot, self.fields, distinct, table_rows.MOST_IN_ARROW, self.searches)

    def of_record(self, key: object) -> "KnownTable":
        """The table restricted to one record, if a key is given; UsageError if the table has another key."""
        if key is None:
            return self
        values = key_of(self.shape, key)
        return replace(self, searches={name: EqualTo(value) for name, value in values.items()})


def table_at(files: TableReader, known_at: datetime | None) -> KnownTable:
    """The table as known at a recorded time, by default now; raises the errors of `state_at`."""
    return read_state(files, state_at(files.table, known_at))


def read_state(files: TableReader, state: TableState) -> KnownTable:
    """A state of a table with the reader of its rows."""
    return KnownTable(state.table, state.shape, state.fields, state.snapshot, state.until, files)


_LEAST: Final = timedelta(microseconds=1)


def searches_at(known: KnownTable, micros: int) -> Mapping[str, Search]:
    """Searches that all rows true at an instant pass, and few others; empty if the rows cannot show it."""
    span = utc_span(known)
    if span is None:
        return {}
    instant, grain = EPOCH + timedelta(microseconds=micros), timedelta(microseconds=span.grain)
    started = {span.start: Between(greatest=instant)}
    if known.until is not None:  # another end may have been known then
        return started
    return {**started, span.end: Between(least=_least_end(instant, grain), null=True)}


def _least_end(instant: datetime, grain: timedelta) -> datetime:
    """The least end that counts as after an instant, by the grain of ends."""
    try:
        return instant - (grain - _LEAST)
    except OverflowError:
        return instant


def narrow_to_changes(known: KnownTable, micros: tuple[int, int]) -> KnownTable:
    """Restrict a table to the rows that begin or end after one instant and up to another.

    In a Fivetran history the end of a version depends on its successor, so all rows of such records are read.
    """
    span = utc_span(known)
    if span is None or known.until is not None or known.searches:
        return known
    first, last = (EPOCH + timedelta(microseconds=each) for each in sorted(micros))
    grain = timedelta(microseconds=span.grain)
    moved = Between(_least_end(first, grain), last)
    moving = AnyOf({span.start: moved, span.end: moved})
    if known.shape.layout is not Layout.FIVETRAN_HISTORY:
        return replace(known, searches=moving)
    if not known.shape.key:
        return known
    name = known.shape.key[0]
    keys = known.files.rows(known.snapshot, known.fields, [name], MOST_VALUES, moving)[name]
    if keys.null_count:
        raise Unreadable("NULL in a key")
    return replace(known, searches={name: OneOf(keys)})


def utc_span(known: KnownTable) -> Span | None:
    """The columns with the start and the end of each row, if they are instants in UTC; else None."""
    span = known.shape.layout.span
    if span is None or known.snapshot is None:
        return None
    kinds = {each.name: each.type.kind for each in known.shape.columns}
    return span if all(kinds.get(name) is Kind.UTC_DATETIME for name in (span.start, span.end)) else None


def is_record(users: pa.Table, shape: Shape, key: object) -> pa.Array:
    """Whether each row belongs to the record; UsageError if it is not a key of the table."""
    matches = np.ones(users.num_rows, bool)
    for name, value in shown_key_of(shape, key).items():
        if name not in users.column_names or pa.types.is_fixed_size_binary(users.schema.field(name).type):
            raise Unreadable("a key that is not read here")
        comparable = comparison_key(value)
        matches &= np.array([comparison_key(each) == comparable for each in users[name].to_pylist()], bool)
    return booleans(matches)


_PLACE: Final = "place"
# The number of a row's record.
_RECORD: Final = "record"
# Rows are in memory twice while they are sorted.
SORT_MEMORY: Final = 2
INSTANT: Final = pa.timestamp("us", tz="UTC")
# Columns of answers, and their names in `VersionRows.spans`.
TIMES: Final = {STARTED: VALID_FROM, ENDED: VALID_TO}
STATEMENT_TIMES: Final = {**TIMES, STATED_FROM: STATED_FROM, STATED_TO: STATED_TO}
SIDE_COLUMNS: Final = {internal_name(each): each for each in SIDES}
SIDED_TIMES: Final = {**TIMES, **SIDE_COLUMNS}

Narrowing = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The user's columns of all rows, under the source's names, and the rows that are versions.

    `spans` has for each version the `place` of its row, `valid_from` and `valid_to`. Statements also have
    `STATED_FROM` and `STATED_TO`, and versions on two sides have `SIDES`.
    """

    users: pa.Table
    spans: pa.Table

    def where(self, mask: pa.Array | pa.ChunkedArray) -> "VersionRows":
        """The versions for which the mask is true."""
        return replace(self, spans=self.spans.filter(mask))

    @property
    def rows(self) -> pa.Table:
        """The versions: the user's columns, then the times."""
        table = self.users.take(self.spans[_PLACE])
        for name in self.spans.column_names[1:]:
            table = table.append_column(name, self.spans[name])
        return table

    @property
    def places(self) -> pa.ChunkedArray:
        """The places of the rows of the versions."""
        return self.spans[_PLACE]

    def of_rows(self, mask: pa.Array) -> "VersionRows":
        """The versions whose rows pass a mask of all rows."""
        return self.where(mask.take(self.spans[_PLACE]))


def read_versions(
    known: KnownTable, narrow: Narrowing | None = None, columns: Mapping[str, str] = TIMES
) -> VersionRows:
    """The versions of a table, with these columns; `narrow` maps the query for them to a narrower one.

    Raises UsageError if the table keeps no history, Refused if the end of a version is unknown, and
    Unreadable if only Spark can read the rows.
    """

    def query(syntax: SqlSyntax, key: Sequence[str], log: LogKind | None) -> str:
        versions = versions_query(syntax, known.shape.layout, key, log, known.until)
        return narrow(versions) if narrow else versions

    warn_of_disorder(known.shape.table, disorderly=known.table.properties.get(DISORDER) == "true")
    return _run_query(known, query, columns, remembered=known.until is not None)


def read_revisions(known: KnownTable, instant: int, between: tuple[int, int]) -> VersionRows:
    """The rows of layout `versions` that held at an instant as known at only one of two recorded times."""
    return _run_query(known, lambda syntax, *_: revisions_query(syntax, instant, between), SIDE_COLUMNS)


def read_statements(known: KnownTable) -> VersionRows:
    """The statements of a table, with their recorded times (native.md V97).

    Only layout `versions` and event logs store these; for other layouts they are NULL.
    """
    if known.shape.layout in RECORDING:
        return _run_query(known, statements_query, STATEMENT_TIMES)
    versions = read_versions(known)
    unknown = pa.nulls(versions.spans.num_rows, INSTANT)
    spans = versions.spans.append_column(STATED_FROM, unknown).append_column(STATED_TO, unknown)
    return replace(versions, spans=spans)


def _run_query(
    known: KnownTable,
    query: Callable[[SqlSyntax, Sequence[str], LogKind | None], str],
    columns: Mapping[str, str],
    *,
    remembered: bool = True,
) -> VersionRows:
    """DuckDB's answer to a query of a table's rows, by the key of its records and the kind of its log."""
    shape, history = known.shape, history_of(known.table, known.shape)
    users = [each.name for each in history.user_columns]
    names = system_columns(known.table) if shape.layout is Layout.ODF else {}
    log, key = (log_kind(names, shape), identity_names(names, shape)) if names else (None, shape.key)
    stored = StoredColumns()
    listed = recorded_columns(DUCKDB, shape, stored, names, remembered=remembered)
    identity = key if shape.layout in {Layout.ODF, Layout.FIVETRAN_HISTORY} else ()
    _require_times(known, names)
    rows = known.rows([*users, *stored.names, *identity])
    _require_ends(shape, rows)
    relation = stored.read(rows)
    if identity:
        relation[_RECORD] = integers(identities(rows, identity))
    recorded = replace(DUCKDB, rows=f"(SELECT *, {listed} FROM {DUCKDB.rows}) AS recorded")  # noqa: S608 - numbered columns
    with hold_memory(
        known.files.lease, "lifetimes", SORT_MEMORY * sum(each.nbytes for each in relation.values())
    ):
        spans = query_spans(relation, query(recorded, [_RECORD] if identity else [], log), columns)
    shown = [shown_name(each.source) for each in history.user_columns]
    if not shown or len(set(shown)) < len(shown):
        raise Unreadable("columns that share a name")
    return VersionRows(rows.select(users).rename_columns(shown), spans)


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns that a query of DuckDB reads, numbered: there `a` and `A` are the same name."""

    numbers: dict[tuple[str, ...], str] = field(default_factory=dict)

    def __call__(self, *path: str) -> str:
        """The number of a column, or of a field of a struct."""
        return self.numbers.setdefault(path, f"c{len(self.numbers)}")

    @property
    def names(self) -> list[str]:
        """The columns of the table."""
        return [path[0] for path in self.numbers]

    def read(self, rows: pa.Table) -> dict[str, Any]:
        """The values by their numbers."""
        return {
            number: without_zone(reduce(pc.struct_field, fields, rows[name]))
            for (name, *fields), number in self.numbers.items()
        }


def without_zone(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as times in UTC without a zone, as DuckDB expects them."""
    return values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values


def _require_times(known: KnownTable, names: Mapping[str, Any]) -> None:
    """Raise Unreadable for columns that have no times, or naive times that Spark shows unchanged."""
    span, layout = known.shape.layout.span, known.shape.layout
    times = [span.start, span.end] if span else [names["event_time"], names["system_time"]]
    fitting = TIMELY if layout.is_adopted or layout is Layout.ODF else {Kind.UTC_DATETIME}
    columns = (known.shape.column(name) for name in times)
    if any(each is None or each.type.kind not in fitting for each in columns):
        raise Unreadable("spans in other times")


def _require_ends(shape: Shape, rows: pa.Table) -> None:
    """Raise Refused if a version of a Fivetran history has no end and is not open."""
    span = shape.layout.span
    if shape.layout is not Layout.FIVETRAN_HISTORY or span is None:
        return
    flags = without_nulls(rows[span.open])
    if pc.any(pc.and_(pc.invert(flags), pc.is_null(rows[span.end]))).as_py():
        raise no_end_error(shape, span)


@contextmanager
def hold_memory(lease: MemoryLease, what: str, size: int) -> Iterator[None]:
    """Reserve bytes of the memory until the block ends; Unreadable if it has fewer."""
    try:
        lease.hold(what, size)
    except TooLarge:
        raise Unreadable("more than the memory may hold") from None
    try:
        yield
    finally:
        lease.hold(what, 0)


def query_spans(relation: Mapping[str, Any], query: str, columns: Mapping[str, str] = TIMES) -> pa.Table:
    """DuckDB's answer, sorted by the places of rows: `place`, and the columns of the answer, renamed."""
    count = len(next(iter(relation.values())))
    rows = pa.table({_PLACE: integers(np.arange(count)), **relation})
    shown = ", ".join([_PLACE, *map(DUCKDB.name, columns)])
    order = ", ".join([_PLACE, *(DUCKDB.name(each) for each in columns if each == STATED_FROM)])
    answer = query_rows(rows, f"SELECT {shown} FROM ({query}) AS answer ORDER BY {order}")  # noqa: S608
    return pa.table(
        {_PLACE: answer[_PLACE], **{name: _in_utc(answer[each]) for each, name in columns.items()}}
    )


def _in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark times as times in UTC; other values are unchanged."""
    return values.cast(pa.int64()).cast(INSTANT) if pa.types.is_timestamp(values.type) else values


def query_rows(rows: pa.Table, query: str) -> pa.Table:
    """DuckDB's answer to a query of the relation `recorded`."""
    with _database().cursor() as connection:
        connection.register(DUCKDB.rows, rows)
        return connection.sql(query).to_arrow_table()


_database = cache(duckdb_in_memory)


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """The instants at which versions began or ended, sorted, in microseconds since 1970.

    `starts` and `ends` count the versions that began and ended at each.
    """

    instants: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def before(self, time: datetime) -> datetime | None:
        """The last instant before a time, or None."""
        place = int(np.searchsorted(self.instants, micros_of(time), side="left"))
        return self._instant(place - 1)

    def after(self, time: datetime) -> datetime | None:
        """The first instant after a time, or None."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")))

    def until(self, time: datetime) -> datetime | None:
        """The last instant not after a time, or None."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")) - 1)

    def some(self, most: int) -> list[datetime]:
        """At most `most` of the instants, at even places, including the first and the last."""
        count = len(self.instants)
        places = np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))
        return [EPOCH + timedelta(microseconds=int(each)) for each in self.instants[places]]

    def _instant(self, place: int) -> datetime | None:
        if not 0 <= place < len(self.instants):
            return None
        return EPOCH + timedelta(microseconds=int(self.instants[place]))


# When versions began or ended, from their starts and ends in microseconds. An end a grain before a start
# counts at that start.
_CHANGES: Final = """
WITH lives AS (SELECT started, CASE WHEN ended < {far} THEN ended END AS ended FROM recorded WHERE {lasting})
SELECT instant, CAST(SUM(starts) AS BIGINT) AS starts, CAST(SUM(1 - starts) AS BIGINT) AS ends FROM (
  SELECT started AS instant, 1 AS starts FROM lives UNION ALL
  SELECT CASE WHEN ended + {grain} IN (SELECT started FROM lives) THEN ended + {grain} ELSE ended END, 0
  FROM lives
) AS changes WHERE instant IS NOT NULL GROUP BY instant ORDER BY instant
"""


def change_times(files: TableReader) -> ChangeTimes:
    """The instants at which versions of a table begin or end; Unreadable if only Spark can read it."""
    known, lasting = table_at(files, None), "TRUE"
    span = utc_span(known)
    if span is None:
        spans = read_versions(known).spans
        starts, ends, far, grain = spans[VALID_FROM], spans[VALID_TO], None, 0
    else:
        rows = files.rows(known.snapshot, known.fields, [span.start, span.end], MOST_VALUES)
        starts, ends, far, grain = rows[span.start], rows[span.end], span.far, span.grain
        if known.shape.layout is Layout.VERSIONS:  # a row without a length is no version
            lasting = "ended IS NULL OR ended > started"
    relation = pa.table({"started": starts.cast(pa.int64()), "ended": ends.cast(pa.int64())})
    query = _CHANGES.format(far=sys.maxsize if far is None else far, grain=grain, lasting=lasting)
    return ChangeTimes(*map(whole_numbers, query_rows(relation, query).columns))
