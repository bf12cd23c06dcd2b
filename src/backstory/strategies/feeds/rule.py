"""What a feed does to a table of layout `versions`, in plain Python (native.md, sections 1 to 3).

The table is its stored rows. For each delivery the life of every record is folded anew from all facts that
the rows remember and those that come, and its rows are matched with the stored ones (V9). `copies` beside it
is the same for a copy among events.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from backstory.errors import Refused
from backstory.model.remembered import Role, Told
from backstory.model.values import alike, equal_in
from backstory.strategies.copies.stored import Instant, Key, StoredRow, StoredVersions, Values
from backstory.strategies.feeds.fold import Fact, Life, Step, folded, same
from backstory.strategies.feeds.remembering import (
    Window,
    facts_of,
    is_settled,
    mark_fact,
    mark_of,
    recorded_life,
    voids_of,
)

OUTCOMES = ("began", "ended", "silent", "duplicate", "too_late", "late", "partial", "mismatched")


@dataclass(frozen=True, slots=True)
class Event:
    """A delivered event (V45 to V50): an upsert of the columns that it asserts, a delete, or a truncate.

    `columns` None are all. `before` is what the source says the record was until then (V64).
    """

    key: Key | None
    at: Instant
    kind: Told = Told.UPSERT
    values: Values = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    sequence: tuple[Any, ...] = ()
    before: Values | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """A delivery of events.

    `drops`: events of settled instants are left out, else they are refused. A `window` takes back what was
    known in it of the keys of the delivery, or of all keys (V86).
    """

    events: tuple[Event, ...]
    drops: bool = False
    window: Window | None = None
    all_keys: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """The table after a delivery, the same one if nothing was committed, and the events by outcome (V58)."""

    table: StoredVersions
    counts: Mapping[str, int]


def apply(table: StoredVersions, feed: Feed, recorded: Instant) -> Applied:
    """The table after the events; Refused where it would not be right."""
    before, table = table, remembering(table)
    _refuse_nulls(feed.events)
    _refuse_outside(table, feed)
    timely = [each for each in feed.events if not is_settled(table, each.at)]
    if len(timely) < len(feed.events) and not feed.drops:
        raise Refused("settled", "The time is settled.")
    named = {each.key for each in timely if each.kind is not Told.TRUNCATE}
    known = _facts_before(table, feed, named)
    events = _distinct(table, feed, timely, known)
    steps: list[tuple[Event, Key, Life]] = []
    rows: list[StoredRow] = _marks(table, feed, events, recorded)
    silenced = _silenced(table, feed)
    spoken = {_mark(each) for each in events if each.kind is Told.TRUNCATE} | _restated(feed)
    for key in known:
        mine = [each for each in events if each.key == key or each.kind is Told.TRUNCATE]
        since = [*(each.at for each in mine), *([feed.window.start] if feed.window else [])]
        new = [_fact(table, each) for each in mine]
        life = folded(table, key, [*known[key], *new], min(since)) if since else None
        if life is None:  # nothing is said of the record
            rows += [row for row in table.rows if row.key == key]
            continue
        steps += ((each, key, life) for each in mine)
        rows += recorded_life(table, key, life, recorded)
        rows += voids_of(table, key, silenced if key in named else [], spoken, recorded)
    counts = Counter({"duplicate": len(timely) - len(events), "too_late": len(feed.events) - len(timely)})
    for event in events:
        told = [(key, life) for each, key, life in steps if each is event]
        counts.update(_outcomes(table, event, told, known))
    after = replace(table, rows=tuple(rows))
    changed = Counter(map(repr, rows)) != Counter(map(repr, table.rows))
    return Applied(after if changed else before, {name: counts[name] for name in OUTCOMES})


def remembering(table: StoredVersions) -> StoredVersions:
    """The table with a memory from now on: what copies made until then is settled (V28)."""
    if table.settled is not None:
        return table
    ends = [each for row in table.versions for each in (row.start, row.end) if each is not None]
    return replace(table, settled=(min(ends), max(ends)) if ends else ())


def _refuse_nulls(events: Iterable[Event]) -> None:
    """V47: NULL in the key or the sequence; NaN counts as NULL."""
    for event in events:
        if event.kind is not Told.TRUNCATE and event.key is None:
            raise Refused("null-key", "An event has no key.")
        if {None, "NaN"} & {None if each is None else alike(each) for each in (event.at, *event.sequence)}:
            raise Refused("null-sequence", "An event has no sequence.")


def _refuse_outside(table: StoredVersions, feed: Feed) -> None:
    if feed.window is None:
        return
    if not all(feed.window.has(each.at) for each in feed.events):
        raise Refused("outside-restatement", "An event is outside the window.")
    if table.settled:
        first, last = table.settled
        if feed.window.start <= last and (first is None or feed.window.end > first):
            raise Refused("settled", "The window meets what is settled.")


def _facts_before(table: StoredVersions, feed: Feed, named: set[Key | None]) -> dict[Key, list[Fact]]:
    """What stays known of each key of the table or the delivery; truncates that are restated come anew."""
    keys = dict.fromkeys([*(row.key for row in table.rows if row.key is not None), *sorted(named, key=repr)])
    restated = _restated(feed)
    found = {
        key: facts_of(table, key, feed.window if feed.all_keys or key in named else None) for key in keys
    }
    return {
        key: [each for each in facts if each.kind is not Told.TRUNCATE or _mark(each) not in restated]
        for key, facts in found.items()
    }


def _restated(feed: Feed) -> set[Any]:
    """The truncates that a restatement says again, of all keys."""
    truncates = (each for each in feed.events if each.kind is Told.TRUNCATE)
    return set() if feed.window is None else {_mark(each) for each in truncates}


def _mark(truncate: Event | Fact) -> Any:
    return (truncate.at, True, truncate.sequence, None)


def _distinct(
    table: StoredVersions, feed: Feed, events: Sequence[Event], known: Mapping[Key, Sequence[Fact]]
) -> list[Event]:
    """The events that are not known, each once (V52); Refused where two of one sequence differ (V53)."""
    restated = _restated(feed)
    marks = (row for row in table.rows if row.is_live and row.kind is Told.TRUNCATE)
    truncates = [mark_fact(table, None, row) for row in marks if mark_of(row) not in restated]
    kept: list[Event] = []
    for event in events:
        stored = known[event.key] if event.key is not None else [*chain(*known.values()), *truncates]
        rivals = [
            fact for fact in stored if fact.kind is not Told.COPY and fact.place == _fact(table, event).place
        ]
        rivals += [_fact(table, each) for each in kept if _meet(event, each)]
        if any(not _is_one(table, event, fact) for fact in rivals):
            raise Refused("sequence-conflict", "Events of one sequence differ.")
        if not rivals:
            kept.append(event)
    return kept


def _meet(one: Event, other: Event) -> bool:
    """Whether two events are of one instant and sequence, and of one record or of all."""
    everyone = Told.TRUNCATE in {one.kind, other.kind}
    return (one.at, one.sequence) == (other.at, other.sequence) and (everyone or one.key == other.key)


def _is_one(table: StoredVersions, event: Event, fact: Fact) -> bool:
    """Whether an event is this one: also a stored one with NULL in all columns that the event lacks (V60)."""
    told = _fact(table, event)
    if told.kind is not fact.kind or told.kind is not Told.UPSERT:
        return told.kind is fact.kind
    lacks = told.columns is not None and fact.columns is None and fact.row is not None
    if told.columns != fact.columns and not lacks:
        return False
    return equal_in(table.tracked, told.values or {}, fact.values or {})


def _fact(table: StoredVersions, event: Event) -> Fact:
    """An event as a fact; one that asserts every column names none (V2)."""
    if event.kind is not Told.UPSERT:
        return Fact(event.kind, event.at, sequence=event.sequence, new=True)
    names = table.columns if event.columns is None else event.columns
    columns = None if set(names) >= set(table.columns) else tuple(sorted(names, key=table.columns.index))
    values = {name: event.values.get(name) for name in names}
    return Fact(Told.UPSERT, event.at, values, columns, event.sequence, new=True)


def _marks(table: StoredVersions, feed: Feed, events: Sequence[Event], recorded: Instant) -> list[StoredRow]:
    """The marks of copies and truncates; with all keys those of a window go (V86)."""
    said = {_mark(each): each for each in events if each.kind is Told.TRUNCATE}
    kept = []
    for row in (row for row in table.rows if row.key is None):
        goes = row.is_live and feed.all_keys and feed.window is not None and feed.window.has(row.start)
        if row.is_live and mark_of(row) in said:
            said.pop(mark_of(row))
            goes = False
        kept.append(replace(row, ended_at=recorded) if goes else row)
    new = (
        StoredRow(None, {}, each.at, each.at, recorded, Role.FACT, kind=Told.TRUNCATE, sequence=each.sequence)
        for each in said.values()
    )
    return [*kept, *new]


def _silenced(table: StoredVersions, feed: Feed) -> list[StoredRow]:
    """The marks of the window, which say nothing any more of keys that the delivery names (V72)."""
    if feed.window is None or feed.all_keys:
        return []
    marks = (row for row in table.rows if row.key is None and row.is_live and feed.window.has(row.start))
    return [row for row in marks if mark_of(row) not in _restated(feed)]


def _outcomes(
    table: StoredVersions,
    event: Event,
    lives: Sequence[tuple[Key, Life]],
    known: Mapping[Key, Sequence[Fact]],
) -> dict[str, int]:
    """What an event counts as (V58), of a truncate whether it is so of any record."""
    fact = _fact(table, event)
    steps = [step for _, life in lives for step in life.steps if step.fact.new and step.fact == fact]
    marks = (row for row in table.rows if row.key is None and row.is_live)
    later = any(each.place > fact.place for key, _ in lives for each in known[key])
    if event.kind is Told.TRUNCATE:
        later = later or any(mark_fact(table, None, row).place > fact.place for row in marks)
    outcome = next(
        (name for name, is_so in (("began", _begins), ("ended", _ends)) if any(map(is_so, steps))), "silent"
    )
    return {
        outcome: 1,
        "late": later,
        "partial": any(_is_partial(step) for step in steps),
        "mismatched": event.before is not None and any(_mismatches(table, event, step) for step in steps),
    }


def _begins(step: Step) -> bool:
    return step.begins


def _ends(step: Step) -> bool:
    return step.ends


def _is_partial(step: Step) -> bool:
    """Whether a sparse event had no base (V25)."""
    return step.fact.kind is Told.UPSERT and step.fact.columns is not None and step.before is None


def _mismatches(table: StoredVersions, event: Event, step: Step) -> bool:
    """Whether the record was another one before than the source says (V64)."""
    names = [name for name in event.before or {} if name in table.tracked]
    return bool(names) and not same(table, event.before, step.before, names)
