"""The versions that a table keeps, as places of its rows and spans.

The rows of one record.

When anything in a history began or ended: what a slider moves over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.history import History
from backstory.model.instant import EPOCH
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.model.values import comparison_key
from backstory.model.versions_layout import END_BEFORE, ENDED_AT, ROLE
from backstory.reading.arrow.knowledge import KnownTable, struct_field, table_at, times, utc_span
from backstory.reading.differences import SIDES, revisions_query
from backstory.reading.frames.versions import history_of, no_end_error, warn_of_disorder
from backstory.reading.histories import identity_names, log_kind, system_columns
from backstory.reading.lifetimes import (
    DUCKDB,
    ENDED,
    KNOWN_FROM,
    KNOWN_TO,
    STARTED,
    LogKind,
    internal_name,
    statements_query,
    versions_query,
)
from backstory.reading.lives import STATED_FROM, STATED_TO, shown_name
from backstory.reading.selection import shown_key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import booleans, integers, text_scalar, whole_numbers, without_nulls
from backstory.stores.port import DISORDER
from backstory.strategies.events.terms import LETTERS, Op
from backstory.strategies.values import identities


def is_record(users: pa.Table, shape: Shape, key: object) -> pa.Array:
    """Whether each row is of the record; UsageError for what is no key of the table."""
    found = np.ones(users.num_rows, bool)
    for name, value in shown_key_of(shape, key).items():
        if name not in users.column_names or pa.types.is_fixed_size_binary(users.schema.field(name).type):
            raise Unreadable("a key that is not read here")
        wanted = comparison_key(value)
        found &= np.array([comparison_key(each) == wanted for each in users[name].to_pylist()], bool)
    return booleans(found)


if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PLACE: Final = "place"
# A number for the record of a row.
_RECORD: Final = "record"
# Sorted rows are in memory beside those that are yet to be sorted.
SORT_MEMORY: Final = 2
INSTANT: Final = pa.timestamp("us", tz="UTC")
# Columns of answers, by the names that they have among `spans`.
TIMES: Final = {STARTED: VALID_FROM, ENDED: VALID_TO}
STATEMENT_TIMES: Final = {**TIMES, KNOWN_FROM: STATED_FROM, KNOWN_TO: STATED_TO}
SIDE_COLUMNS: Final = {internal_name(each): each for each in SIDES}
SIDED_TIMES: Final = {**TIMES, **SIDE_COLUMNS}

Narrowing = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The user's columns of rows, under the source's names, and which of them are versions.

    `spans` has for each version the `place` of its row, `valid_from`, `valid_to`, `TOLD_FROM` and `TOLD_TO`
    for statements, and `SIDES` if these were asked for.
    """

    users: pa.Table
    spans: pa.Table

    def where(self, chosen: pa.Array | pa.ChunkedArray) -> "VersionRows":
        """The versions that are chosen."""
        return replace(self, spans=self.spans.filter(chosen))

    @property
    def rows(self) -> pa.Table:
        """The versions: the user's columns, then the times."""
        table = self.users.take(self.spans[_PLACE])
        for name in self.spans.column_names[1:]:
            table = table.append_column(name, self.spans[name])
        return table

    @property
    def places(self) -> pa.ChunkedArray:
        """The places of their rows."""
        return self.spans[_PLACE]

    def of_places(self, chosen: pa.Array) -> "VersionRows":
        """The versions whose rows are at places that are chosen among all."""
        return self.where(chosen.take(self.spans[_PLACE]))

    def true_at(self, micros: int) -> pa.ChunkedArray:
        """Whether each was true at an instant (V99); NULL where nothing tells."""
        instant = integers([micros], INSTANT)[0]
        ended = without_nulls(pc.less_equal(self.spans[VALID_TO], instant))
        return pc.and_kleene(pc.less_equal(self.spans[VALID_FROM], instant), pc.invert(ended))


def read_versions(known: KnownTable, among: Narrowing | None = None) -> VersionRows:
    """Every version, as it is known; with `among` those of a query that narrows the query of versions.

    Raises UsageError for a table that keeps no history, Refused for a version whose end is unknown, and
    Unreadable for rows that only Spark reads.
    """
    history = history_of(known.table, known.shape)
    layout = known.shape.layout
    warn_of_disorder(known.shape.table, disorderly=known.table.properties.get(DISORDER) == "true")
    rows = known.rows([*(each.name for each in history.user_columns), *_layout_names(known)])
    if layout is Layout.ODF:
        relation, key, log = _event_relation(known, rows)
    else:
        (relation, key), log = _relation_of_spans(known, history, rows), None
    query = versions_query(DUCKDB, layout, key, log, known.until)
    spans = (
        _query_in_memory(known, relation, among(query), SIDED_TIMES)
        if among
        else _query_in_memory(known, relation, query)
    )
    return VersionRows(_user_columns(rows, history), spans)


def read_revisions(known: KnownTable, instant: int, between: tuple[int, int]) -> VersionRows:
    """The rows of a table of layout `versions` that were known of an instant at one of two times only."""
    rows, history, relation = _native_relation(known)
    query = revisions_query(DUCKDB, instant, between)
    return VersionRows(_user_columns(rows, history), _query_in_memory(known, relation, query, SIDE_COLUMNS))


def read_statements(known: KnownTable) -> VersionRows:
    """The statements of a native table or an event log, with their recorded times (native.md V97)."""
    if known.shape.layout is not Layout.ODF:
        rows, history, relation = _native_relation(known)
        query = statements_query(DUCKDB, ())
    else:
        history = history_of(known.table, known.shape)
        rows = known.rows([*(each.name for each in history.user_columns), *_layout_names(known)])
        relation, key, log = _event_relation(known, rows)
        query = statements_query(DUCKDB, key, log)
    return VersionRows(
        _user_columns(rows, history), _query_in_memory(known, relation, query, STATEMENT_TIMES)
    )


def _native_relation(known: KnownTable) -> tuple[pa.Table, History, dict[str, Any]]:
    """The rows of a table of layout `versions`, with all that they record."""
    history = history_of(known.table, known.shape)
    rows = known.rows(
        [*(each.name for each in history.user_columns), VALID_FROM, VALID_TO, *_memory_names(known)]
    )
    return rows, history, {**_span_relation(rows, VALID_FROM, VALID_TO), **_memory_relation(rows)}


def _event_relation(known: KnownTable, rows: pa.Table) -> tuple[dict[str, Any], list[str], LogKind]:
    """What the events of a log record, the names of the columns that tell records apart, and its kind."""
    names, shape = system_columns(known.table), known.shape
    identity = identity_names(names, shape)
    relation = {
        internal_name("offset"): rows[names["offset"]].cast(pa.int64()),
        internal_name("op"): ops(rows, names),
        internal_name("time"): _instants(rows, names["event_time"]),
        internal_name("recorded"): _instants(rows, names["system_time"]),
        **_record_numbers(rows, identity),
    }
    return relation, [_RECORD] if identity else [], log_kind(names, shape)


def _query_in_memory(
    known: KnownTable, relation: Mapping[str, Any], query: str, columns: Mapping[str, str] = TIMES
) -> pa.Table:
    """The answer to a query; Unreadable where the memory cannot hold what DuckDB sorts."""
    with hold_memory(
        known.files.lease, "lifetimes", SORT_MEMORY * sum(each.nbytes for each in relation.values())
    ):
        return query_spans(relation, query, columns)


@contextmanager
def hold_memory(lease: MemoryLease, what: str, size: int) -> Iterator[None]:
    """Hold so many bytes of the memory; Unreadable where it has not so many."""
    try:
        lease.hold(what, size)
    except TooLarge:
        raise Unreadable("more than the memory may hold") from None
    try:
        yield
    finally:
        lease.hold(what, 0)


def query_spans(relation: Mapping[str, Any], query: str, columns: Mapping[str, str] = TIMES) -> pa.Table:
    """The answer of DuckDB, in the order of the rows: their places, and columns of it under other names."""
    count = len(next(iter(relation.values())))
    rows = pa.table({_PLACE: integers(np.arange(count)), **relation})
    shown = ", ".join([_PLACE, *map(DUCKDB.name, columns)])
    order = ", ".join([_PLACE, *(DUCKDB.name(each) for each in columns if each == KNOWN_FROM)])
    found = query_rows(rows, f"SELECT {shown} FROM ({query}) AS answer ORDER BY {order}")  # noqa: S608
    return pa.table({_PLACE: found[_PLACE], **{name: _in_utc(found[each]) for each, name in columns.items()}})


def _in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in UTC as such."""
    return values.cast(pa.int64()).cast(INSTANT) if pa.types.is_timestamp(values.type) else values


def query_rows(rows: pa.Table, query: str) -> pa.Table:
    """The answer of DuckDB to a query of a relation."""
    with _database().cursor() as connection:
        connection.register(DUCKDB.rows, rows)
        return connection.sql(query).to_arrow_table()


@cache
def _database() -> "DuckDBPyConnection":
    """A database in memory, which writes no temporary files and fetches no extensions."""
    import duckdb

    never = ("autoinstall_known_extensions", "autoload_known_extensions")
    return duckdb.connect(config={"temp_directory": "", **dict.fromkeys(never, False)})


def _user_columns(rows: pa.Table, history: History) -> pa.Table:
    """The user's columns under the source's names; a table of rows even where there is none."""
    names = [shown_name(each.source) for each in history.user_columns]
    if not names or len(set(names)) < len(names):
        raise Unreadable("columns that share a name")
    return rows.select([each.name for each in history.user_columns]).rename_columns(names)


def _layout_names(known: KnownTable) -> list[str]:
    """The columns that tell which rows are versions."""
    shape = known.shape
    if shape.layout is Layout.ODF:
        names = system_columns(known.table)
        asked = ("offset", "op", "system_time", "event_time", "observed")
        return [*shape.key, *(names[name] for name in asked if names.get(name) is not None)]
    span = History(shape).span
    extra: list[str] = []
    if shape.layout is Layout.FIVETRAN_HISTORY:
        extra = [*shape.key, span.open]
    elif shape.layout.tombstone in shape.names:
        extra = [shape.layout.tombstone]
    return [span.start, span.end, *extra, *(_memory_names(known) if known.until is not None else ())]


def _memory_names(known: KnownTable) -> list[str]:
    return [RECORDED_AT, MEMORY] if known.shape.layout is Layout.VERSIONS else []


def _relation_of_spans(
    known: KnownTable, history: History, rows: pa.Table
) -> tuple[dict[str, Any], list[str]]:
    """What rows of a layout with spans record, and the names of the key's columns there where they count."""
    shape, span = known.shape, history.span
    if not shape.layout.is_adopted:
        _require_instants(known, (span.start, span.end))
    relation = _span_relation(rows, span.start, span.end)
    if shape.layout is Layout.VERSIONS:
        return {**relation, **(_memory_relation(rows) if known.until is not None else {})}, []
    if shape.layout.is_adopted:
        return {**relation, internal_name("gone"): _tombstones(rows, shape.layout.tombstone)}, []
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return relation, []
    flags = without_nulls(rows[span.open])
    if pc.any(pc.and_(pc.invert(flags), pc.is_null(rows[span.end]))).as_py():
        raise no_end_error(shape, span) from None
    key = [_RECORD] if shape.key else []
    return {**relation, internal_name("flag"): flags, **_record_numbers(rows, shape.key)}, key


def _span_relation(rows: pa.Table, start: str, end: str) -> dict[str, Any]:
    return {internal_name("start"): _instants(rows, start), internal_name("end"): _instants(rows, end)}


def _memory_relation(rows: pa.Table) -> dict[str, Any]:
    """What the rows of layout `versions` remember."""
    memory = rows[MEMORY]
    return {
        internal_name("recorded"): _instants(rows, RECORDED_AT),
        internal_name("role"): struct_field(memory, ROLE),
        internal_name("moved"): _instants(struct_field(memory, ENDED_AT)),
        internal_name("end_before"): _instants(struct_field(memory, END_BEFORE)),
    }


def _instants(values: pa.Table | pa.ChunkedArray, name: str = "") -> pa.ChunkedArray:
    """Times as DuckDB has them, in UTC."""
    return times(values, name).cast(pa.timestamp("us"))


def _require_instants(known: KnownTable, names: Sequence[str]) -> None:
    """Raise Unreadable for spans in naive times, which Spark shows as such."""
    columns = (known.shape.column(name) for name in names)
    if any(each is None or each.type.kind is not Kind.UTC_DATETIME for each in columns):
        raise Unreadable("spans in naive times")


def _tombstones(rows: pa.Table, tombstone: str) -> pa.Array | pa.ChunkedArray:
    """Whether each row says that its record was deleted."""
    if tombstone not in rows.column_names:
        return booleans(np.zeros(rows.num_rows, bool))
    return without_nulls(pc.equal(pc.utf8_lower(rows[tombstone].cast(pa.string())), text_scalar("true")))


def _record_numbers(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    """A number for the record of each row, by these columns; nothing without any."""
    return {_RECORD: integers(identities(rows, names))} if names else {}


def ops(rows: pa.Table, names: Any) -> pa.Array | pa.ChunkedArray:
    """What each event of a log does, by its code."""
    if names["op"] is not None:
        return rows[names["op"]].cast(pa.int64())
    if names["observed"] is None:
        return integers(np.full(rows.num_rows, int(Op.APPEND)))
    letters, codes = rows[names["observed"]], integers([int(Op.CORRECT_TO)])[0]
    for op in (Op.APPEND, Op.RETRACT):
        is_op = without_nulls(pc.equal(letters, text_scalar(LETTERS[op])))
        codes = pc.if_else(is_op, integers([int(op)])[0], codes)
    return codes


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """The instants at which versions began or ended, in microseconds since 1970, in their order.

    `begun` and `ended` say how many did at each.
    """

    instants: np.ndarray
    begun: np.ndarray
    ended: np.ndarray

    def before(self, time: datetime) -> datetime | None:
        """The last instant before a time; None if there is none."""
        place = int(np.searchsorted(self.instants, micros_of(time), side="left"))
        return self._instant(place - 1)

    def after(self, time: datetime) -> datetime | None:
        """The first instant after a time; None if there is none."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")))

    def until(self, time: datetime) -> datetime | None:
        """The last instant that is not after a time."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")) - 1)

    def some(self, most: int) -> list[datetime]:
        """At most so many of the instants, evenly chosen, the first and the last among them."""
        count = len(self.instants)
        places = np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))
        return [EPOCH + timedelta(microseconds=int(each)) for each in self.instants[places]]

    def _instant(self, place: int) -> datetime | None:
        if not 0 <= place < len(self.instants):
            return None
        return EPOCH + timedelta(microseconds=int(self.instants[place]))


def change_times(files: TableReader) -> ChangeTimes:
    """The instants of the table as it is; Unreadable for what Spark alone reads."""
    known = table_at(files, None)
    span = utc_span(known)
    if span is None:
        spans = read_versions(known).spans
        return _count_changes(*(spans[name].cast(pa.int64()) for name in (VALID_FROM, VALID_TO)))
    rows = files.rows(known.snapshot, known.fields, [span.start, span.end], MOST_VALUES)
    starts, ends = rows[span.start], rows[span.end]
    if known.shape.layout is Layout.VERSIONS:
        rows = rows.filter(_lasting(starts, ends))
        starts, ends = rows[span.start], rows[span.end]
    if span.far is not None:
        ends = ends.filter(pc.less(ends.cast(pa.int64()), span.far))
    return _count_changes(starts.cast(pa.int64()), ends.cast(pa.int64()), span.grain)


def _lasting(starts: pa.ChunkedArray, ends: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which rows of layout `versions` are versions: those that have length."""
    return pc.or_kleene(pc.is_null(ends), pc.greater(ends, starts))


def _count_changes(starts: pa.ChunkedArray, ends: pa.ChunkedArray, grain: int = 0) -> ChangeTimes:
    """How many begin and end at each instant; an end lies a grain before the successor's beginning."""
    (began, begun), (stopped, ended) = _count_values(starts), _count_values(ends)
    if grain:
        stopped = np.where(np.isin(stopped + grain, began), stopped + grain, stopped)
    instants, places = np.unique(np.concatenate([began, stopped]), return_inverse=True)
    counts = np.zeros((2, len(instants)), np.int64)
    np.add.at(counts[0], places[: len(began)], begun)
    np.add.at(counts[1], places[len(began) :], ended)
    return ChangeTimes(instants, counts[0], counts[1])


def _count_values(values: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    found = pc.value_counts(values.drop_null())
    values, counts = (whole_numbers(pa.chunked_array([found.field(name)])) for name in ("values", "counts"))
    return values, counts
