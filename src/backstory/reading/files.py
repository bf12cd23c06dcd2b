"""A table at a recorded time from its files, in which DuckDB finds the positions and times of versions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.instant import EPOCH
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout, Span
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.reading.arrow_rows import SORT_MEMORY, StoredColumns, hold_memory, query_rows, sort_rows
from backstory.reading.file_differences import Differences, differences
from backstory.reading.histories import (
    TableState,
    identity_names,
    no_end_error,
    order_columns,
    shown_key,
    state_at,
    system_columns,
)
from backstory.reading.lifetimes import DUCKDB, STATED_FROM, TIMELY
from backstory.reading.options import Comparison
from backstory.reading.questions import SIDE_COLUMNS, TIMES, KnownTable, Query, layout_query
from backstory.reading.selection import Selection, key_of
from backstory.reading.timelines import VersionRow, shown_name
from backstory.stores.metadata import table_rows
from backstory.stores.metadata.parquet_files import arrow_type_of
from backstory.stores.metadata.searches import AnyOf, Between, EqualTo, OneOf, Search, Searches
from backstory.stores.metadata.table_metadata import TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import booleans, integers, rows_of, without_nulls
from backstory.strategies.values import identities

_PLACE: Final = "place"
# The number of a row's record.
_RECORD: Final = "record"
_LEAST: Final = timedelta(microseconds=1)
INSTANT: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class KnownFiles(KnownTable[pa.Table, Differences]):
    """A table at a recorded time, and the reader of its files. `searches` restricts the rows that are read.

    Every answer raises Unreadable if only Spark can read the rows.
    """

    files: TableReader
    fields: Sequence[Mapping[str, Any]]
    snapshot: Mapping[str, Any] | None
    searches: Searches | None = None

    @property
    def metadata(self) -> TableMetadata:
        """The metadata of the table."""
        return self.files.table

    def at(self, known_at: datetime | None) -> "KnownFiles":
        """The table as known at a recorded time."""
        return table_in_files(self.files, state_at(self.files.table, known_at))

    def unite(self, before: pa.Table, after: pa.Table) -> pa.Table:
        """The rows of two states, with `SIDE_COLUMNS`."""
        try:
            rows = pa.concat_tables([before, after], promote_options="default")
        except pa.ArrowException:
            raise Unreadable("columns of other types then") from None
        is_after = np.arange(rows.num_rows) >= before.num_rows
        for name, side in zip(SIDE_COLUMNS, (~is_after, is_after), strict=True):
            rows = rows.append_column(name, booleans(side))
        return rows

    def differences(self, rows: pa.Table, comparison: Comparison) -> Differences:
        """The records whose rows differ in two states, as positions of rows, in the order of their keys."""
        shape, key, hidden = self.shape, shown_key(self.shape), {VALID_FROM, VALID_TO, *SIDE_COLUMNS}
        names = comparison.names(shape.table, key, [each for each in rows.column_names if each not in hidden])
        if any(pa.types.is_map(each.type) for each in rows.schema if each.name in (key or names)):
            raise Unreadable("maps in a key")
        if not set(key) <= set(names):
            raise Unreadable("a key of other columns then")
        timed = shape.layout is Layout.ODF and bool(system_columns(self.stored)["events"])
        with hold_memory(self.files.lease, "differences", SORT_MEMORY * len(names) * rows.num_rows * 8):
            return differences(rows.select(names), key, rows, comparison, timed=timed)

    def in_order(self, rows: pa.Table) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        """The schema and batches of rows, sorted by their key and times, then by all other columns."""
        first = [*order_columns(self.shape, rows.column_names), STATED_FROM]
        return rows.schema, sort_rows(rows, first).to_batches()

    def values(self, rows: pa.Table) -> Sequence[VersionRow]:
        """The values of rows."""
        return rows_of(rows)

    def read(self, names: Sequence[str]) -> pa.Table:
        """The rows, with these columns."""
        distinct = list(dict.fromkeys(names))
        return self.files.rows(self.snapshot, self.fields, distinct, table_rows.MOST_IN_ARROW, self.searches)

    def ask(self, query: Query, *more: str, timed: bool = True) -> pa.Table:
        """DuckDB's answer to a query."""
        shape, users = self.shape, self.history.user_columns
        names = system_columns(self.stored) if shape.layout is Layout.ODF else {}
        key = identity_names(names, shape) if names else shape.key
        identity = key if shape.layout in {Layout.ODF, Layout.FIVETRAN_HISTORY} else ()
        remembered = self.until is not None or STATED_FROM in more
        stored, record = StoredColumns(), [_RECORD] if identity else []
        text = layout_query(self, DUCKDB, stored, query, record, remembered=remembered)
        _require_times(shape, names)
        rows = self.read([*(each.name for each in users), *stored.names, *identity])
        _require_ends(shape, rows)
        relation = {_PLACE: integers(np.arange(rows.num_rows)), **stored.read(rows)}
        if identity:
            relation[_RECORD] = integers(identities(rows, identity))
        columns = [*(TIMES if timed else ()), *more]
        with hold_memory(
            self.files.lease, "lifetimes", SORT_MEMORY * sum(each.nbytes for each in relation.values())
        ):
            found = query_rows(pa.table(relation), _in_order(text, columns))
        shown = [shown_name(each.source) for each in users]
        answer = rows.select([each.name for each in users]).rename_columns(_distinct(shown))
        answer = answer.take(found[_PLACE])
        for name in columns:
            answer = answer.append_column(TIMES.get(name, name), _in_utc(found[name]))
        return answer

    def live_rows(self) -> pa.Table:
        """The rows of a table without a history, except rows that Fivetran marked as deleted."""
        shape, users = self.shape, self.shape.user_columns
        shown = _distinct([each.source for each in users])
        marked = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
        rows = self.read([*(each.name for each in users), *([DELETED] if marked else [])])
        if marked:
            rows = rows.filter(pc.invert(without_nulls(rows[DELETED])))
        return rows.select([each.name for each in users]).rename_columns(shown)

    def select(self, rows: pa.Table, selection: Selection) -> pa.Table:
        """The selected columns of rows."""
        return rows.select(self.names(selection, rows.column_names))

    def of_record(self, key: object) -> "KnownFiles":
        """The table restricted to one record. Raises UsageError if the table has another key."""
        values = key_of(self.shape, key)
        types = {each["name"]: arrow_type_of(each["type"]) for each in self.fields}
        if any(pa.types.is_fixed_size_binary(types[name]) for name in values):
            raise Unreadable("a key that is not read here")
        return replace(self, searches={name: EqualTo(value) for name, value in values.items()})

    def near(self, between: tuple[int, int]) -> "KnownFiles":
        """The table restricted to the rows that begin or end after one instant and up to another.

        In a Fivetran history the end of a version depends on its successor, so all rows of such records are
        read.
        """
        span = self.utc_span
        if span is None or self.until is not None or self.searches:
            return self
        first, last = (EPOCH + timedelta(microseconds=each) for each in sorted(between))
        moved = Between(_least_end(first, span), last)
        moving = AnyOf({span.start: moved, span.end: moved})
        if self.shape.layout is not Layout.FIVETRAN_HISTORY:
            return replace(self, searches=moving)
        if not self.shape.key:
            return self
        name = self.shape.key[0]
        keys = self.files.rows(self.snapshot, self.fields, [name], MOST_VALUES, moving)[name]
        if keys.null_count:
            raise Unreadable("NULL in a key")
        return replace(self, searches={name: OneOf(keys)})

    @property
    def utc_span(self) -> Span | None:
        """The columns with the start and the end of each row, if they are instants in UTC; else None."""
        span = self.shape.layout.span
        if span is None or self.snapshot is None:
            return None
        kinds = {each.name: each.type.kind for each in self.shape.columns}
        return span if all(kinds.get(name) is Kind.UTC_DATETIME for name in (span.start, span.end)) else None

    def searches_at(self, time: datetime) -> Mapping[str, Search]:
        """Searches that all rows true at an instant pass, and few others; empty if rows cannot show it."""
        span = self.utc_span
        if span is None:
            return {}
        started = {span.start: Between(greatest=time)}
        if self.until is not None:  # another end may have been known then
            return started
        return {**started, span.end: Between(least=_least_end(time, span), null=True)}


def _least_end(instant: datetime, span: Span) -> datetime:
    """The least end that counts as after an instant, by the grain of ends."""
    try:
        return instant - (timedelta(microseconds=span.grain) - _LEAST)
    except OverflowError:
        return instant


def _in_order(query: str, columns: Sequence[str]) -> str:
    """The query for these columns, in the order of the rows' places."""
    shown = ", ".join([_PLACE, *map(DUCKDB.name, columns)])
    order = ", ".join([_PLACE, *(DUCKDB.name(each) for each in columns if each == STATED_FROM)])
    return f"SELECT {shown} FROM ({query}) AS answer ORDER BY {order}"  # noqa: S608 - names in quotes


def _distinct(names: list[str]) -> list[str]:
    """The names; Unreadable if there are none, or if columns share a name."""
    if not names or len(set(names)) < len(names):
        raise Unreadable("columns that share a name")
    return names


def _in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark times as times in UTC; other values are unchanged."""
    return values.cast(pa.int64()).cast(INSTANT) if pa.types.is_timestamp(values.type) else values


def _require_times(shape: Shape, names: Mapping[str, Any]) -> None:
    """Raise Unreadable for columns that have no times, or naive times that Spark shows unchanged."""
    span, layout = shape.layout.span, shape.layout
    times = [span.start, span.end] if span else [names["event_time"], names["system_time"]]
    fitting = TIMELY if layout.is_adopted or layout is Layout.ODF else {Kind.UTC_DATETIME}
    columns = (shape.column(name) for name in times)
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


def table_in_files(files: TableReader, state: TableState | None = None) -> KnownFiles:
    """A table in a state, by default now."""
    state = state or state_at(files.table, None)
    return KnownFiles(files.table, state.shape, state.until, files, state.fields, state.snapshot)
