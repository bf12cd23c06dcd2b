"""The lives of records in an event log: from event to event, by event time (odf-ingest.md 2.10)."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from backstory.reading.lifetimes import LogKind
from backstory.strategies.events.terms import Op
from specification.lifetimes import Instant, SpannedRow

_ADDITIONS = {Op.APPEND, Op.CORRECT_TO}


class RecordEvent(NamedTuple):
    """An event of a record: its number, its operation, its event time, and when it was logged."""

    place: int
    record: Hashable
    offset: int
    op: int | None
    time: Instant
    known_at: Instant


class Begun(NamedTuple):
    """An event, and the instant from which it counts."""

    event: RecordEvent
    start: Instant


def versions(log: LogKind, events: Iterable[RecordEvent]) -> list[SpannedRow]:
    """The events that are versions, with the start and end of each.

    An event of a ledger or an append is true from its time on without an end, unless it was corrected. In
    other logs a version ends when any later event of its record begins. A version that was true at no instant
    is left out.
    """
    if log.each_its_own:
        return [
            SpannedRow(event.place, event.time, None)
            for event, corrected in _own(log, events)
            if corrected is None
        ]
    rows = []
    for life in _lives(log, events):
        for number, (event, start) in enumerate(life):
            ends = [after.start for after in life[number + 1 :] if after.start is not None]
            end = min(ends, default=None)
            if event.op in _ADDITIONS and (end is None or start is None or end > start):
                rows.append(SpannedRow(event.place, start, end))
    return rows


def statements(log: LogKind, events: Iterable[RecordEvent]) -> list[SpannedRow]:
    """Each version as it was recorded.

    An event is one row until a later one ends it, with a new row after each late event.
    """
    if log.each_its_own:
        own = ((event, corrected and corrected.known_at) for event, corrected in _own(log, events))
        return [
            SpannedRow(event.place, event.time, None, event.known_at, until)
            for event, until in own
            if until is None or (event.known_at is not None and until > event.known_at)
        ]
    rows = []
    for life in _lives(log, events):
        for number, (event, start) in enumerate(life):
            if event.op in _ADDITIONS:
                rows += unfolded(event.place, start, _shortened(event, life[number + 1 :]))
    return rows


def _shortened(event: RecordEvent, later: Iterable[Begun]) -> list[tuple[Instant, Instant]]:
    """The ends that an event was recorded to have, each with the time since which it was known."""
    steps: list[tuple[Instant, Instant]] = [(None, event.known_at)]
    for after in later:
        end = steps[-1][0]
        if end is None or (after.start is not None and after.start < end):
            steps.append((after.start, after.event.known_at))
    return steps


def unfolded(place: int, start: Instant, steps: list[tuple[Instant, Instant]]) -> list[SpannedRow]:
    """One statement for each end that a row had since a known time, without statements of zero length."""
    rows = []
    following = [*(known for _, known in steps[1:]), None]
    for (end, known), until in zip(steps, following, strict=True):
        lasts = end is None or (start is not None and end > start)
        if lasts and (until is None or (known is not None and until > known)):
            rows.append(SpannedRow(place, start, end, known, until))
    return rows


def _own(log: LogKind, events: Iterable[RecordEvent]) -> list[tuple[RecordEvent, RecordEvent | None]]:
    """The events of a ledger that add rows, each with the correction that withdrew it, or None."""
    if not log.corrects:
        return [(event, None) for event in events]
    return [
        (event, after if after is not None and after.op == Op.CORRECT_FROM else None)
        for life in _by_record(events)
        for event, after in zip(life, [*life[1:], None], strict=True)
        if event.op in _ADDITIONS
    ]


def _lives(log: LogKind, events: Iterable[RecordEvent]) -> list[list[Begun]]:
    """The events of each record in the order of the log, with the instants at which they begin."""
    states = (event for event in events if event.op is not None and event.op != Op.CORRECT_FROM)
    return [
        [
            Begun(event, event.time if log.timely else _begun(life, number))
            for number, event in enumerate(life)
        ]
        for life in _by_record(states)
    ]


def _begun(life: list[RecordEvent], number: int) -> Instant:
    """The instant from which an event counts, if a retraction has no time of its own: when it became known.

    A record that returns at or before the time of its predecessor begins when its deletion became known.
    """
    event = life[number]
    if event.op == Op.RETRACT:
        return event.known_at
    if number > 1:
        gone, there = life[number - 1], life[number - 2]
        both = event.time is not None and there.time is not None
        if gone.op == Op.RETRACT and both and event.time <= there.time:  # type: ignore[operator]
            return max(time for time in (event.time, gone.known_at) if time is not None)
    return event.time


def _by_record(events: Iterable[RecordEvent]) -> list[list[RecordEvent]]:
    lives: dict[Hashable, list[RecordEvent]] = defaultdict(list)
    for event in events:
        lives[event.record].append(event)
    return [sorted(life, key=lambda event: event.offset) for life in lives.values()]
