"""The rule for AUTO CDC's bitemporal histories, slow and obvious.

The tests compare their import with it. Source: Databricks' documentation of bitemporal AUTO CDC. An event has
a business time and a system time. The history of a record, as known at a system time, is a fold of the events
that the system has received by then.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class Event(NamedTuple):
    """A change of a record: its value from `business` on, or None if it is deleted, as known since `system`."""

    business: int
    system: int
    value: str | None


class Statement(NamedTuple):
    """A row: the value from `start` until `end`, as known from `since` until `until`. None means no end."""

    value: str
    start: int
    end: int | None
    since: int
    until: int | None


def history(events: Iterable[Event], known: int) -> set[tuple[str, int, int | None]]:
    """The versions of a record as they were known at `known`. An event is true until the next one."""
    by_time = {
        event.business: event.value
        for event in sorted(events, key=lambda event: event.system)
        if event.system <= known
    }
    times = sorted(by_time)
    ends = dict(pairwise([*times, None]))
    return {(value, time, ends[time]) for time, value in by_time.items() if value is not None}


def statements(events: Iterable[Event]) -> list[Statement]:
    """The rows of a record: each version, with the times from which and until which it was known."""
    events = list(events)
    rows: list[Statement] = []
    for now in sorted({event.system for event in events}):
        versions = history(events, now)
        rows = [
            row._replace(until=now) if row.until is None and row[:3] not in versions else row for row in rows
        ]
        standing = {row[:3] for row in rows if row.until is None}
        rows += [Statement(*version, now, None) for version in sorted(versions - standing, key=str)]
    return rows


def believed(rows: Iterable[Statement], valid: int, known: int) -> list[str]:
    """The values that were true at `valid`, as they were known at `known`."""
    return [
        row.value
        for row in rows
        if row.start <= valid < (valid + 1 if row.end is None else row.end)
        and row.since <= known < (known + 1 if row.until is None else row.until)
    ]
