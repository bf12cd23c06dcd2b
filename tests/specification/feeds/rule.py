"""The effect of a feed on a table of layout `versions`, in plain Python (native.md, sections 1 to 3).

The table is its stored rows. For each delivery, the life of every record is folded again, from all facts in
stored rows and in the delivery. Its rows are matched with the stored rows (V9). The module `copies` does the
same for a copy in a table of events.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from backstory.errors import Refused
from backstory.model.values import comparison_key
from backstory.model.versions_layout import FactKind, Role
from specification.feeds.fold import Fact, Life, Step, folded, same
from specification.feeds.order import (
    first_instant,
    first_position,
    is_before_settled_truncate,
    is_beyond,
    is_of_former,
    is_settled,
    is_truncate,
    placed,
    settled_position,
)
from specification.feeds.remembering import (
    Window,
    facts_of,
    mark_fact,
    mark_of,
    recorded_life,
    time_of,
    voids_of,
)
from specification.stored import Instant, Key, StoredRow, StoredVersions, Values
from specification.values import equal_in

OUTCOMES = ("began", "ended", "silent", "duplicate", "too_late", "late", "partial", "mismatched", "raised")


@dataclass(frozen=True, slots=True)
class Event:
    """A delivered event (V45 to V50): an upsert of the columns that it sets, a delete, or a truncate.

    `columns` are None for all columns. `before` is the record's former state according to the source (V64).
    For a `logged` event, `at` is its own time, and `sequence` is its position, which ends with whether it is
    a change (V130).
    """

    key: Key | None
    at: Instant
    kind: FactKind = FactKind.UPSERT
    values: Values = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    sequence: tuple[Any, ...] = ()
    before: Values | None = None
    logged: bool = False


@dataclass(frozen=True, slots=True)
class Feed:
    """A delivery of events.

    With `drops`, events of settled instants are left out; otherwise they are refused. A `window` withdraws
    the known facts in it, for the keys of the delivery or for all keys (V86).
    """

    events: tuple[Event, ...]
    drops: bool = False
    window: Window | None = None
    all_keys: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """The table after a delivery, and the number of events by outcome (V58).

    The table is unchanged if nothing was committed.
    """

    table: StoredVersions
    counts: Mapping[str, int]


def apply(table: StoredVersions, feed: Feed, recorded: Instant) -> Applied:
    """The table after the events. Raises Refused if the result would be wrong."""
    before, table = table, remembering(table)
    _refuse_nulls(feed.events)
    _refuse_outside(table, feed)
    timely = [each for each in feed.events if not _is_too_late(table, each)]
    _refuse_settled(feed, len(feed.events) - len(timely))
    named = {each.key for each in timely if each.kind is not FactKind.TRUNCATE}
    known = _facts_before(table, feed, named)
    events, known = _distinct(table, feed, timely, known)
    steps: list[tuple[Event, Key, Life]] = []
    rows: list[StoredRow] = _marks(table, feed, events, recorded)
    silenced = _silenced(table, feed)
    spoken = {_mark(each) for each in events if each.kind is FactKind.TRUNCATE} | _restated(table, feed)
    late: list[Event] = []
    for key, facts in known.items():
        mine, since = _new_facts(table, feed, key, events, facts, restates=feed.all_keys or key in named)
        if since is None:  # no fact of the record is new
            rows += [row for row in table.rows if row.key == key]
            continue
        there, settled = placed(table, [*facts, *mine])
        late += [fact.event for fact in settled if fact.new and not is_truncate(fact)]  # type: ignore[misc]
        if any(fact.row is not None for fact in settled):
            raise Refused("settled", "A stored change would move to a settled time.")
        life = folded(table, key, there, since)
        steps += ((each.event, key, life) for each in mine)  # type: ignore[misc]
        rows += recorded_life(table, key, life, recorded)
        rows += voids_of(table, key, silenced if key in named else [], spoken, recorded)
    _refuse_settled(feed, len(late))
    too_late = len(feed.events) - len(timely) + len(late)
    counts = Counter({"duplicate": len(timely) - len(events), "too_late": too_late})
    for event in (each for each in events if not any(each is one for one in late)):
        counts.update(_outcomes(table, event, [life for each, _, life in steps if each is event]))
    after = replace(table, rows=tuple(rows))
    changed = Counter(map(repr, rows)) != Counter(map(repr, table.rows))
    return Applied(after if changed else before, {name: counts[name] for name in OUTCOMES})


def _is_too_late(table: StoredVersions, event: Event) -> bool:
    """Whether an event is settled on its own, regardless of the rest of the delivery (V29, V135, V136)."""
    if event.logged and is_of_former(table, event.at, event.sequence):
        return True
    if event.logged and is_before_settled_truncate(table, event.sequence):
        return True
    if event.logged and event.kind is not FactKind.TRUNCATE:
        return not is_beyond(_fact(table, event), settled_position(table, event.key))
    return is_settled(table, event.at)


def _refuse_settled(feed: Feed, number: int) -> None:
    if number and not feed.drops:
        raise Refused("settled", "The time is settled.")


def _new_facts(
    table: StoredVersions,
    feed: Feed,
    key: Key,
    events: Sequence[Event],
    known: Sequence[Fact],
    *,
    restates: bool,
) -> tuple[list[Fact], Instant | None]:
    """The new facts of a record, and the instant from which it may change.

    The instant is None for a record that does not change.
    """
    last = settled_position(table, key)
    mine = [_fact(table, each) for each in events if each.key == key or each.kind is FactKind.TRUNCATE]
    beyond = [fact for fact in mine if is_beyond(fact, last)]
    _refuse_settled(feed, len(mine) - len(beyond))
    there = [fact for fact in known if fact.own is not None and fact.row is not None]
    renewed = [fact for fact in there if fact.row is not None and fact.own != fact.row.time]
    since = [fact.at for fact in beyond] + [fact.own for fact in renewed]
    marks = (
        mark_fact(table, key, row) for row in table.rows if row.is_live and row.kind is FactKind.TRUNCATE
    )
    stored = [*(fact for fact in facts_of(table, key) if not is_truncate(fact)), *marks]
    gone: list[Fact] = []
    if feed.window is not None and restates:
        since.append(feed.window.start)
        gone = [fact for fact in stored if feed.window.has(time_of(fact))]
    low = first_position([*beyond, *renewed, *gone])
    return beyond, first_instant(table, stored, since, low) if since else None


def remembering(table: StoredVersions) -> StoredVersions:
    """The table with a memory from now on. The effects of all earlier copies are settled (V28)."""
    if table.settled is not None:
        return table
    ends = [each for row in table.versions for each in (row.start, row.end) if each is not None]
    return replace(table, settled=(min(ends), max(ends)) if ends else ())


def _refuse_nulls(events: Iterable[Event]) -> None:
    """V47: raise Refused if the key or the sequence has a NULL. NaN counts as NULL."""
    for event in events:
        if event.kind is not FactKind.TRUNCATE and event.key is None:
            raise Refused("null-key", "An event has no key.")
        if {None, "NaN"} & {
            None if each is None else comparison_key(each) for each in (event.at, *event.sequence)
        }:
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
    """The facts that remain known for each key of the table or the delivery.

    Restated truncates are left out, because the delivery contains them.
    """
    keys = dict.fromkeys([*(row.key for row in table.rows if row.key is not None), *sorted(named, key=repr)])
    restated = _restated(table, feed)
    facts_by_key = {
        key: facts_of(table, key, feed.window if feed.all_keys or key in named else None) for key in keys
    }
    return {
        key: [each for each in facts if each.kind is not FactKind.TRUNCATE or _mark(each) not in restated]
        for key, facts in facts_by_key.items()
    }


def _restated(table: StoredVersions, feed: Feed) -> set[Any]:
    """The known truncates in the window that a restatement repeats."""
    if feed.window is None:
        return set()
    marks = (row for row in table.rows if row.is_live and row.kind is FactKind.TRUNCATE)
    inside = {mark_of(row) for row in marks if feed.window.has(row.start)}
    return inside & {_mark(each) for each in feed.events if each.kind is FactKind.TRUNCATE}


def _mark(truncate: Event | Fact) -> Any:
    logged = truncate.logged if isinstance(truncate, Event) else truncate.own is not None
    return (None if logged else truncate.at, True, truncate.sequence, None)


def _distinct(
    table: StoredVersions, feed: Feed, events: Sequence[Event], known: Mapping[Key, Sequence[Fact]]
) -> tuple[list[Event], dict[Key, list[Fact]]]:
    """The events that are not known yet, each once (V52).

    Raises Refused if two of one sequence differ (V53). If an event is known or delivered with several own
    times, it has the earliest of them (V133). A truncate with an earlier own time replaces its mark.
    """
    restated = _restated(table, feed)
    facts = {key: list(mine) for key, mine in known.items()}
    marks = (row for row in table.rows if row.is_live and row.kind is FactKind.TRUNCATE)
    truncates = [mark_fact(table, None, row) for row in marks if mark_of(row) not in restated]
    new_events: list[Event] = []
    for event in events:
        fact = _fact(table, event)
        stored = known[event.key] if event.key is not None else [*chain(*known.values()), *truncates]
        rivals = [each for each in stored if each.kind is not FactKind.COPY and _is_at_one(each, fact)]
        again = [each for each in new_events if _meet(event, each)]
        if any(not _is_one(table, event, each) for each in [*rivals, *(_fact(table, one) for one in again)]):
            raise Refused("sequence-conflict", "Events of one sequence differ.")
        if is_truncate(fact) and fact.own is not None and all(event.at < each.at for each in rivals):
            rivals = []
            facts = {
                key: [each for each in mine if not _is_at_one(each, fact)] for key, mine in facts.items()
            }
        if event.logged and event.kind is not FactKind.TRUNCATE:
            facts[event.key] = [
                replace(each, own=min(each.own, event.at)) if _is_at_one(each, fact) else each
                for each in facts[event.key]
            ]
        if again:
            new_events = [event if each is again[0] and event.at < each.at else each for each in new_events]
        elif not rivals:
            new_events.append(event)
    return new_events, facts


def _is_at_one(one: Fact, other: Fact) -> bool:
    """Whether two facts have the same position in their log or, without a log, the same place in the order.

    Both are facts of one record, or of all records.
    """
    if one.kind is FactKind.COPY or other.own is None or one.own is None:
        return one.place == other.place
    return one.sequence == other.sequence


def _meet(one: Event, other: Event) -> bool:
    """Whether two events have the same instant and sequence, or the same position in a log.

    Both are events of one record, or of all records.
    """
    everyone = FactKind.TRUNCATE in {one.kind, other.kind}
    same = one.logged is other.logged and one.sequence == other.sequence
    return same and (one.logged or one.at == other.at) and (everyone or one.key == other.key)


def _is_one(table: StoredVersions, event: Event, fact: Fact) -> bool:
    """Whether an event equals the fact: it sets the same columns and the same tracked values (V52)."""
    new_fact = _fact(table, event)
    if new_fact.kind is not fact.kind or new_fact.kind is not FactKind.UPSERT:
        return new_fact.kind is fact.kind
    if new_fact.columns != fact.columns:
        return False
    return equal_in(table.tracked, new_fact.values or {}, fact.values or {})


def _fact(table: StoredVersions, event: Event) -> Fact:
    """An event as a fact, with a list of the columns that it sets (V138)."""
    own = event.at if event.logged else None
    if event.kind is not FactKind.UPSERT:
        return Fact(event.kind, event.at, sequence=event.sequence, event=event, own=own)
    names = table.columns if event.columns is None else event.columns
    columns = tuple(sorted(names, key=table.columns.index))
    values = {name: event.values.get(name) for name in names}
    return Fact(FactKind.UPSERT, event.at, values, columns, event.sequence, event=event, own=own)


def _marks(table: StoredVersions, feed: Feed, events: Sequence[Event], recorded: Instant) -> list[StoredRow]:
    """The marks of copies and truncates. If a window is for all keys, its marks are removed (V86)."""
    truncates = {_mark(each): each for each in events if each.kind is FactKind.TRUNCATE}
    marks = []
    for row in (row for row in table.rows if row.key is None):
        goes = row.is_live and feed.all_keys and feed.window is not None and feed.window.has(row.start)
        if row.is_live and mark_of(row) in truncates:
            goes = row.start != truncates[mark_of(row)].at
            if not goes:
                truncates.pop(mark_of(row))
        marks.append(replace(row, ended_at=recorded) if goes else row)
    marks += [
        StoredRow(
            None,
            {},
            each.at,
            each.at,
            recorded,
            Role.FACT,
            kind=FactKind.TRUNCATE,
            sequence=each.sequence,
            time=each.at if each.logged else None,
        )
        for each in truncates.values()
    ]
    return marks


def _silenced(table: StoredVersions, feed: Feed) -> list[StoredRow]:
    """The marks in the window, which no longer apply to the keys in the delivery (V72)."""
    if feed.window is None or feed.all_keys:
        return []
    marks = (row for row in table.rows if row.key is None and row.is_live and feed.window.has(row.start))
    return [row for row in marks if mark_of(row) not in _restated(table, feed)]


def _outcomes(table: StoredVersions, event: Event, lives: Sequence[Life]) -> dict[str, int]:
    """The outcomes of an event (V58, V137). For a truncate, an outcome counts if any record has it."""
    fact = _fact(table, event)
    steps = [(life, step) for life in lives for step in life.steps if step.fact.event is event]
    mine = [step for _, step in steps]
    marks = (row for row in table.rows if row.key is None and row.is_live)
    later = any(
        not each.fact.new and each.fact.place > step.fact.place for life, step in steps for each in life.steps
    )
    if event.kind is FactKind.TRUNCATE:
        later = later or any(mark_fact(table, None, row).place > fact.place for row in marks)
    outcome = next(
        (name for name, is_so in (("began", _begins), ("ended", _ends)) if any(map(is_so, mine))), "silent"
    )
    return {
        outcome: 1,
        "late": later,
        "partial": any(_is_partial(table, step) for step in mine),
        "mismatched": event.before is not None and any(_mismatches(table, event, step) for step in mine),
        "raised": any(step.fact.at != event.at for step in mine),
    }


def _begins(step: Step) -> bool:
    return step.begins


def _ends(step: Step) -> bool:
    return step.ends


def _is_partial(table: StoredVersions, step: Step) -> bool:
    """Whether a sparse event had no earlier state to build on (V25)."""
    sparse = step.fact.kind is FactKind.UPSERT and set(step.fact.columns or ()) < set(table.columns)
    return sparse and step.before is None


def _mismatches(table: StoredVersions, event: Event, step: Step) -> bool:
    """Whether the record's former state differs from the event's before image (V64)."""
    names = [name for name in event.before or {} if name in table.tracked]
    return bool(names) and not same(table, event.before, step.before, names)
