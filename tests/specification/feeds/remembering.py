"""The facts that stored rows record, and the rows that result from a new life (native.md V2 to V9, V72)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backstory.model.versions_layout import FactKind, Role
from specification.feeds.fold import Fact, Life, lies_in
from specification.feeds.order import is_beyond, is_settled, settled_position
from specification.stored import (
    Instant,
    Key,
    Scope,
    StoredRow,
    StoredVersions,
    Values,
    move_end,
    take_back,
)
from specification.values import equal_in


@dataclass(frozen=True, slots=True)
class Window:
    """The interval of instants whose facts are withdrawn (V86), from `start` until `end`, which is excluded."""

    start: Instant
    end: Instant

    def has(self, instant: Instant) -> bool:
        """Whether an instant is in the window."""
        return bool(self.start <= instant < self.end)


def facts_of(table: StoredVersions, key: Key, window: Window | None = None) -> list[Fact]:
    """The facts of a record that the table stores, without those that a window withdraws."""
    rows = [row for row in table.rows if row.key == key and row.is_live]
    event_facts = [
        Fact(row.kind, row.start, asserted(row), row.columns, row.sequence, row=row, own=row.time)
        for row in rows
        if row.is_event and row.kind is not None and not is_settled(table, row.start)
    ]
    voided = {mark_of(row) for row in rows if row.kind is FactKind.VOID}
    marks = (row for row in table.rows if row.key is None and row.is_live and mark_of(row) not in voided)
    facts = [*event_facts, *(mark_fact(table, key, row) for row in marks)]
    last = settled_position(table, key)
    return [
        *_settled(table, key),
        *(fact for fact in facts if is_beyond(fact, last) and not (window and window.has(time_of(fact)))),
    ]


def time_of(fact: Fact) -> Instant:
    """The time by which a restatement decides whether to withdraw a fact: the fact's own time (V135)."""
    return fact.at if fact.own is None else fact.own


def asserted(row: StoredRow) -> Values:
    """The values that an event set. For a version, the row has all of them."""
    return row.values if row.columns is None else {name: row.values.get(name) for name in row.columns}


def mark_of(row: StoredRow) -> tuple[Instant | None, bool, tuple[Any, ...], Scope | None]:
    """The mark that a row stores or cancels.

    The void of a truncate lists no columns, while a copy's void has None for all columns (V72). A truncate of
    a log is identified by its position, whatever its time.
    """
    truncate = row.kind is FactKind.TRUNCATE or (row.kind is FactKind.VOID and row.columns == ())
    return (row.start if row.time is None else None, truncate, row.sequence, row.scope)


def voids_of(
    table: StoredVersions,
    key: Key,
    silenced: Sequence[StoredRow],
    spoken: Collection[Any],
    recorded: Instant,
) -> list[StoredRow]:
    """The voids of a key after some marks are silenced for it, and others apply to it again (V72)."""
    stored = [row for row in table.rows if row.key == key and row.kind is FactKind.VOID]
    there = {mark_of(row) for row in stored if row.is_live}
    old = [
        replace(row, ended_at=recorded) if row.is_live and mark_of(row) in spoken else row for row in stored
    ]
    new = [
        replace(
            mark,
            key=key,
            kind=FactKind.VOID,
            columns=() if mark.kind is FactKind.TRUNCATE else None,
            recorded=recorded,
        )
        for mark in silenced
        if mark_of(mark) not in there
    ]
    return [*old, *new]


def mark_fact(table: StoredVersions, key: Key | None, mark: StoredRow) -> Fact:
    """The fact of a mark for a record.

    For a copy, it is the state in the table at its instant and scope (V31).
    """
    assert mark.kind is not None
    if mark.kind is FactKind.TRUNCATE:
        return Fact(FactKind.TRUNCATE, mark.start, sequence=mark.sequence, own=mark.time)
    state = table.as_of(key, mark.start)
    listed = state if lies_in(table, mark.scope, key, state) else None
    return Fact(FactKind.COPY, mark.start, listed, mark.columns, scope=mark.scope)


def _settled(table: StoredVersions, key: Key) -> Iterator[Fact]:
    """The settled state as facts, like a copy at each settled instant at which the record changes (V30)."""
    if not table.settled:
        return
    life = table.life(key)
    instants = {table.settled[0], *(each for row in life for each in (row.start, row.end))} - {None}
    for instant in instants:
        if is_settled(table, instant):
            row = next((row for row in life if row.covers(instant)), None)
            begins = row if row is not None and row.start == instant else None
            yield Fact(FactKind.COPY, instant, None if row is None else row.values, row=begins)


def recorded_life(table: StoredVersions, key: Key, life: Life, recorded: Instant) -> list[StoredRow]:
    """The record's stored rows, matched with the rows of its new life (V9). Voids are kept separate."""
    left = {_identity(row): row for row in _rows_of(table, key, life, recorded)}
    rows: list[StoredRow] = []
    for row in (row for row in table.rows if row.key == key and row.kind is not FactKind.VOID):
        new = left.get(_identity(row))
        if not row.is_live:
            rows.append(row)
        elif new is not None and _tells_the_same(table, row, new):
            left.pop(_identity(row))
            stored_row = row if row.role is Role.FACT else replace(row, values=_renewed(table, row, new))
            rows += move_end(stored_row, new.end, recorded)
        elif row.role is Role.FACT:  # a settled fact of a log keeps the record's last position (V135)
            rows.append(row if is_settled(table, row.start) else replace(row, ended_at=recorded))
        else:
            rows += take_back(row, recorded)
    return [*rows, *left.values()]


def _rows_of(table: StoredVersions, key: Key, life: Life, recorded: Instant) -> Iterator[StoredRow]:
    """The rows of a life: its versions, and the events that begin no version (V4)."""
    for each in life.versions:
        fact, row = each.fact, each.fact.row
        settled_row = row if row is not None and fact.kind is FactKind.COPY else None  # settled: it stays
        kind = (
            FactKind.UPSERT if fact.kind is FactKind.UPSERT else (settled_row.kind if settled_row else None)
        )
        columns = (
            fact.columns if fact.kind is FactKind.UPSERT else (settled_row.columns if settled_row else None)
        )
        sequence = (
            fact.sequence if fact.kind is FactKind.UPSERT else (settled_row.sequence if settled_row else ())
        )
        time = fact.own if fact.kind is FactKind.UPSERT else (settled_row.time if settled_row else None)
        memory = {"kind": kind, "columns": columns, "sequence": sequence, "time": time}
        yield StoredRow(key, each.values, each.start, each.end, recorded, **memory)  # type: ignore[arg-type]
    for step in life.steps:
        fact = step.fact
        if fact.kind in {FactKind.UPSERT, FactKind.DELETE} and not step.begins:
            values = fact.values or {}
            yield StoredRow(
                key,
                {name: values.get(name) for name in table.columns},
                fact.at,
                fact.at,
                recorded,
                Role.FACT,
                kind=fact.kind,
                columns=fact.columns,
                sequence=fact.sequence,
                time=fact.own,
            )


def _identity(row: StoredRow) -> tuple[Any, ...]:
    """The values that distinguish facts of a record (V9)."""
    return (row.start, row.kind, row.sequence, row.scope)


def _tells_the_same(table: StoredVersions, row: StoredRow, new: StoredRow) -> bool:
    names = (name for name in table.columns if name not in table.overwritten)
    if (row.role, row.columns, row.time) != (new.role, new.columns, new.time):
        return False
    return equal_in(names, row.values, new.values)


def _renewed(table: StoredVersions, row: StoredRow, new: StoredRow) -> Mapping[str, Any]:
    """An open version's newest values in columns without history. Other versions keep their own (V18)."""
    if new.end is not None:
        return row.values
    return {**row.values, **{name: new.values.get(name) for name in table.overwritten}}
