"""The versions that a table keeps, as places of its rows and spans."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.history import History
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.remembered import END_BEFORE, ENDED_AT, ROLE
from backstory.model.types import Kind
from backstory.reading.arrow.knowledge import KnownTable, times, within
from backstory.reading.differences import SIDES, revisions_query
from backstory.reading.frames.event_logs import identity_names, log_kind, system_columns
from backstory.reading.frames.versions import endless, history_of, warn_of_disorder
from backstory.reading.lifetimes import (
    DUCKDB,
    ENDED,
    KNOWN_FROM,
    KNOWN_TO,
    STARTED,
    LogKind,
    named,
    statements_query,
    versions_query,
)
from backstory.reading.lives import TOLD_FROM, TOLD_TO, shown_name
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.values import booleans, integers, text, without_nulls
from backstory.stores.port import DISORDER
from backstory.strategies.codes import identities
from backstory.strategies.events.terms import LETTERS, Op

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PLACE: Final = "place"
# A number for the record of a row.
_RECORD: Final = "record"
# Sorted rows are in memory beside those that are yet to be sorted.
SORTED: Final = 2
INSTANT: Final = pa.timestamp("us", tz="UTC")
# Columns of answers, by the names that they have among `spans`.
TIMES: Final = {STARTED: VALID_FROM, ENDED: VALID_TO}
STATED: Final = {**TIMES, KNOWN_FROM: TOLD_FROM, KNOWN_TO: TOLD_TO}
SIDES_ALONE: Final = {named(each): each for each in SIDES}
SIDED: Final = {**TIMES, **SIDES_ALONE}

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

    def hold(self, micros: int) -> pa.ChunkedArray:
        """Whether each was true at an instant (V99); NULL where nothing tells."""
        instant = integers([micros], INSTANT)[0]
        ended = without_nulls(pc.less_equal(self.spans[VALID_TO], instant))
        return pc.and_kleene(pc.less_equal(self.spans[VALID_FROM], instant), pc.invert(ended))


def versions(known: KnownTable, among: Narrowing | None = None) -> VersionRows:
    """Every version, as it is known; with `among` those of a query that narrows the query of versions.

    Raises UsageError for a table that keeps no history, Refused for a version whose end is unknown, and
    Unreadable for rows that only Spark reads.
    """
    history = history_of(known.table, known.shape)
    layout = known.shape.layout
    warn_of_disorder(known.shape.table, disorderly=known.table.properties.get(DISORDER) == "true")
    rows = known.rows([*(each.name for each in history.user_columns), *_own(known)])
    if layout is Layout.ODF:
        relation, key, log = _events(known, rows)
    else:
        (relation, key), log = _spans(known, history, rows), None
    query = versions_query(DUCKDB, layout, key, log, known.until)
    spans = _lives(known, relation, among(query), SIDED) if among else _lives(known, relation, query)
    return VersionRows(_users(rows, history), spans)


def revisions(known: KnownTable, instant: int, between: tuple[int, int]) -> VersionRows:
    """The rows of a table of layout `versions` that were known of an instant at one of two times only."""
    rows, history, relation = _native(known)
    query = revisions_query(DUCKDB, instant, between)
    return VersionRows(_users(rows, history), _lives(known, relation, query, SIDES_ALONE))


def statements(known: KnownTable) -> VersionRows:
    """The statements of a native table or an event log, with their recorded times (native.md V97)."""
    if known.shape.layout is not Layout.ODF:
        rows, history, relation = _native(known)
        query = statements_query(DUCKDB, ())
    else:
        history = history_of(known.table, known.shape)
        rows = known.rows([*(each.name for each in history.user_columns), *_own(known)])
        relation, key, log = _events(known, rows)
        query = statements_query(DUCKDB, key, log)
    return VersionRows(_users(rows, history), _lives(known, relation, query, STATED))


def _native(known: KnownTable) -> tuple[pa.Table, History, dict[str, Any]]:
    """The rows of a table of layout `versions`, with all that they record."""
    history = history_of(known.table, known.shape)
    rows = known.rows([*(each.name for each in history.user_columns), VALID_FROM, VALID_TO, *_memory(known)])
    return rows, history, {**_span(rows, VALID_FROM, VALID_TO), **_remembered(rows)}


def _events(known: KnownTable, rows: pa.Table) -> tuple[dict[str, Any], list[str], LogKind]:
    """What the events of a log record, the names of the columns that tell records apart, and its kind."""
    names, shape = system_columns(known.table), known.shape
    identity = identity_names(names, shape)
    relation = {
        named("offset"): rows[names["offset"]].cast(pa.int64()),
        named("op"): ops(rows, names),
        named("time"): _instants(rows, names["event_time"]),
        named("recorded"): _instants(rows, names["system_time"]),
        **_record(rows, identity),
    }
    return relation, [_RECORD] if identity else [], log_kind(names, shape)


def _lives(
    known: KnownTable, relation: Mapping[str, Any], query: str, columns: Mapping[str, str] = TIMES
) -> pa.Table:
    """The answer to a query; Unreadable where the memory cannot hold what DuckDB sorts."""
    with held(known.files.lease, "lifetimes", SORTED * sum(each.nbytes for each in relation.values())):
        return ask(relation, query, columns)


@contextmanager
def held(lease: MemoryLease, what: str, size: int) -> Iterator[None]:
    """Hold so many bytes of the memory; Unreadable where it has not so many."""
    try:
        lease.hold(what, size)
    except TooLarge:
        raise Unreadable("more than the memory may hold") from None
    try:
        yield
    finally:
        lease.hold(what, 0)


def ask(relation: Mapping[str, Any], query: str, columns: Mapping[str, str] = TIMES) -> pa.Table:
    """The answer of DuckDB, in the order of the rows: their places, and columns of it under other names."""
    count = len(next(iter(relation.values())))
    rows = pa.table({_PLACE: integers(np.arange(count)), **relation})
    shown = ", ".join([_PLACE, *map(DUCKDB.name, columns)])
    order = ", ".join([_PLACE, *(DUCKDB.name(each) for each in columns if each == KNOWN_FROM)])
    found = answer(rows, f"SELECT {shown} FROM ({query}) AS answer ORDER BY {order}")  # noqa: S608
    return pa.table({_PLACE: found[_PLACE], **{name: _aware(found[each]) for each, name in columns.items()}})


def _aware(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in UTC as such."""
    return values.cast(pa.int64()).cast(INSTANT) if pa.types.is_timestamp(values.type) else values


def answer(rows: pa.Table, query: str) -> pa.Table:
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


def _users(rows: pa.Table, history: History) -> pa.Table:
    """The user's columns under the source's names; a table of rows even where there is none."""
    names = [shown_name(each.source) for each in history.user_columns]
    if not names or len(set(names)) < len(names):
        raise Unreadable("columns that share a name")
    return rows.select([each.name for each in history.user_columns]).rename_columns(names)


def _own(known: KnownTable) -> list[str]:
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
    return [span.start, span.end, *extra, *(_memory(known) if known.until is not None else ())]


def _memory(known: KnownTable) -> list[str]:
    return [RECORDED_AT, MEMORY] if known.shape.layout is Layout.VERSIONS else []


def _spans(known: KnownTable, history: History, rows: pa.Table) -> tuple[dict[str, Any], list[str]]:
    """What rows of a layout with spans record, and the names of the key's columns there where they count."""
    shape, span = known.shape, history.span
    if not shape.layout.adopted:
        _require_instants(known, (span.start, span.end))
    relation = _span(rows, span.start, span.end)
    if shape.layout is Layout.VERSIONS:
        return {**relation, **(_remembered(rows) if known.until is not None else {})}, []
    if shape.layout.adopted:
        return {**relation, named("gone"): _tombstones(rows, shape.layout.tombstone)}, []
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return relation, []
    flags = without_nulls(rows[span.open])
    if pc.any(pc.and_(pc.invert(flags), pc.is_null(rows[span.end]))).as_py():
        raise endless(shape, span) from None
    key = [_RECORD] if shape.key else []
    return {**relation, named("flag"): flags, **_record(rows, shape.key)}, key


def _span(rows: pa.Table, start: str, end: str) -> dict[str, Any]:
    return {named("start"): _instants(rows, start), named("end"): _instants(rows, end)}


def _remembered(rows: pa.Table) -> dict[str, Any]:
    """What the rows of layout `versions` remember."""
    memory = rows[MEMORY]
    return {
        named("recorded"): _instants(rows, RECORDED_AT),
        named("role"): within(memory, ROLE),
        named("moved"): _instants(within(memory, ENDED_AT)),
        named("end_before"): _instants(within(memory, END_BEFORE)),
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
    return without_nulls(pc.equal(pc.utf8_lower(rows[tombstone].cast(pa.string())), text("true")))


def _record(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
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
        is_op = without_nulls(pc.equal(letters, text(LETTERS[op])))
        codes = pc.if_else(is_op, integers([int(op)])[0], codes)
    return codes
