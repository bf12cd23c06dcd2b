"""The versions that a table keeps, as places of its rows and spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from backstory.model.history import History
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.remembered import END_BEFORE, ENDED_AT, ROLE, Role
from backstory.model.types import Kind
from backstory.model.values import alike
from backstory.reading.arrow.knowledge import KnownTable, instants, micros, within
from backstory.reading.frames.event_logs import system_columns
from backstory.reading.frames.versions import endless, history_of, warn_of_disorder
from backstory.reading.lives import TOLD_FROM, TOLD_TO, shown_name
from backstory.reading.rules import events as event_rules
from backstory.reading.rules import versions as rules
from backstory.reading.rules.events import LogKind, RecordEvent
from backstory.reading.rules.versions import Endless, RememberedRow, Sent, SpannedRow
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.values import integers
from backstory.stores.port import DISORDER
from backstory.strategies.events.terms import LETTERS, Op

_OPS = {letter: int(op) for op, letter in LETTERS.items() if op is not Op.CORRECT_TO}


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The user's columns of rows, under the source's names, and which of them are versions."""

    users: pa.Table
    found: Sequence[SpannedRow]

    def chosen(self, found: Sequence[SpannedRow], *, known: bool = False) -> pa.Table:
        """These versions with `valid_from` and `valid_to`; with `known` also while they were told."""
        table = self.users.take(integers([each.place for each in found]))
        columns = {VALID_FROM: [each.start for each in found], VALID_TO: [each.end for each in found]}
        if known:
            columns[TOLD_FROM] = [each.known_from for each in found]
            columns[TOLD_TO] = [each.known_to for each in found]
        for name, values in columns.items():
            table = table.append_column(name, instants(values))
        return table


def versions(known: KnownTable) -> VersionRows:
    """Every version, as it is known; UsageError for a table that keeps no history.

    Refused for a version that nothing tells the end of, Unreadable for what Spark alone reads.
    """
    history = history_of(known.table, known.shape)
    table = known.shape.table
    warn_of_disorder(table, disorderly=known.table.properties.get(DISORDER) == "true")
    rows = known.rows([*(each.name for each in history.user_columns), *_own(known)])
    return VersionRows(_users(rows, history), _spanned_rows(known, history, rows))


def statements(known: KnownTable) -> VersionRows:
    """What a native table or an event log told of its records, and while it did (native.md V97)."""
    history = history_of(known.table, known.shape)
    rows = known.rows([*(each.name for each in history.user_columns), *_own(known), *_memory(known)])
    if known.shape.layout is Layout.ODF:
        found = event_rules.statements(*_events(known, rows))
    else:
        found = [
            told
            for each in remembered(rows)
            if not each.is_fact
            for told in event_rules.unfolded(each.place, each.start, _steps(each))
        ]
    return VersionRows(_users(rows, history), found)


def _steps(row: RememberedRow) -> list[tuple[int | None, int | None]]:
    """A row tells two steps: its end before it was last moved, and its end since (V6)."""
    if row.moved is None:
        return [(row.end, row.recorded)]
    return [(row.end_before, row.recorded), (row.end, row.moved)]


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


def _spanned_rows(known: KnownTable, history: History, rows: pa.Table) -> list[SpannedRow]:
    """The rows that are versions, each with its start and end, by the rule of the table's layout."""
    shape, places = known.shape, range(rows.num_rows)
    if shape.layout is Layout.ODF:
        return event_rules.versions(*_events(known, rows))
    span = history.span
    if not shape.layout.adopted:
        _require_instants(known, (span.start, span.end))
    if shape.layout is Layout.VERSIONS:
        kept = remembered(rows)
        return rules.lasting(kept) if known.until is None else rules.lasting_then(kept, known.until)
    starts, ends = micros(rows, span.start), micros(rows, span.end)
    if shape.layout.adopted:
        gone = _tombstones(rows, shape.layout.tombstone)
        return rules.adopted(zip(places, starts, ends, gone, strict=True), span)
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return list(map(SpannedRow, places, starts, ends))
    keys = _keys(rows, shape.key)
    flags = rows[span.open].to_pylist()
    try:
        return rules.sent(map(Sent, places, keys, starts, ends, flags))
    except Endless:
        raise endless(shape, span) from None


def _require_instants(known: KnownTable, names: Sequence[str]) -> None:
    """Raise Unreadable for spans in naive times, which Spark shows as such."""
    columns = (known.shape.column(name) for name in names)
    if any(each is None or each.type.kind is not Kind.UTC_DATETIME for each in columns):
        raise Unreadable("spans in naive times")


def _tombstones(rows: pa.Table, tombstone: str) -> list[bool]:
    """Whether each row says that its record was deleted."""
    if tombstone not in rows.column_names:
        return [False] * rows.num_rows
    return [str(each).lower() == "true" for each in rows[tombstone].to_pylist()]


def _keys(rows: pa.Table, names: Sequence[str]) -> list[Any]:
    columns = [map(alike, rows[name].to_pylist()) for name in names]
    return list(zip(*columns, strict=True)) if names else [()] * rows.num_rows


def remembered(rows: pa.Table) -> list[RememberedRow]:
    """The rows of layout `versions`, with what they remember where that was read."""
    spans = [range(rows.num_rows), micros(rows, VALID_FROM), micros(rows, VALID_TO)]
    if MEMORY not in rows.column_names:
        return list(map(RememberedRow, *spans))
    memory = rows[MEMORY]
    facts = [role == Role.FACT for role in within(memory, ROLE).to_pylist()]
    moved, before = (micros(within(memory, name)) for name in (ENDED_AT, END_BEFORE))
    return list(map(RememberedRow, *spans, micros(rows, RECORDED_AT), facts, moved, before))


def _events(known: KnownTable, rows: pa.Table) -> tuple[LogKind, list[RecordEvent]]:
    """The events of a log that it was told of by the known time, and what kind of log it is."""
    names, shape = system_columns(known.table), known.shape
    in_key = names["event_time"] in shape.key
    log = LogKind(bool(names["events"]), names["op"] is not None, names["op"] is None and not in_key)
    identity = [*shape.key, *([names["event_time"]] if log.each_its_own and not in_key else [])]
    told = micros(rows, names["system_time"])
    events = map(
        RecordEvent,
        range(rows.num_rows),
        _keys(rows, identity),
        rows[names["offset"]].to_pylist(),
        ops(rows, names),
        micros(rows, names["event_time"]),
        told,
    )
    until = known.until
    return log, [each for each in events if until is None or (each.told is not None and each.told <= until)]


def ops(rows: pa.Table, names: Any) -> list[int | None]:
    """What each event of a log does, by its code."""
    if names["op"] is not None:
        found: list[int | None] = rows[names["op"]].to_pylist()
        return found
    if names["observed"] is None:
        return [int(Op.APPEND)] * rows.num_rows
    return [_OPS.get(letter, int(Op.CORRECT_TO)) for letter in rows[names["observed"]].to_pylist()]
