"""The rows of a table that are versions, and the start and end of each.

Instants are microseconds since 1970, or None if a row has none. An end of None is still open. A comparison
with None is false, as in SQL. A row is identified by its place among all rows.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from backstory.model.instant import EPOCH, MILLISECOND, TMAX
from backstory.model.layout import Span

_ENDLESS = (TMAX - EPOCH).days * 86_400_000_000 + (TMAX - EPOCH).seconds * 1_000_000 + 999_000
Instant = int | None


class SpannedRow(NamedTuple):
    """A row that was true from its start until its end.

    If it is a statement, it also has the times between which the table contained it.
    """

    place: int
    start: Instant
    end: Instant
    known_from: Instant = None
    known_to: Instant = None

    def holds(self, time: int) -> bool | None:
        """Whether the row was true at an instant (V99), or None if this is unknown."""
        if self.end is not None and self.end <= time:
            return False
        return None if self.start is None else self.start <= time


class RememberedRow(NamedTuple):
    """A row of layout `versions`: its start and end, when it was recorded, and its former end (V6)."""

    place: int
    start: Instant
    end: Instant
    recorded: Instant = None
    is_fact: bool = False
    moved: Instant = None
    end_before: Instant = None

    def end_at(self, known_at: int) -> Instant:
        """The end of the row as it was known at a recorded time."""
        return self.end_before if self.moved is not None and self.moved > known_at else self.end


class Sent(NamedTuple):
    """A row of a history that Fivetran delivers."""

    place: int
    key: Hashable
    start: Instant
    end: Instant
    active: bool | None


class Endless(Exception):
    """A row has no end, and is not marked as open."""


def lasting(rows: Iterable[RememberedRow]) -> list[SpannedRow]:
    """The native rows that are versions now, because their length is not zero (V3, V5)."""
    return [
        SpannedRow(each.place, each.start, each.end) for each in rows if _has_length(each.start, each.end)
    ]


def lasting_then(rows: Iterable[RememberedRow], known_at: int) -> list[SpannedRow]:
    """The native rows that were versions according to the knowledge at a recorded time (V93)."""
    versions = []
    for each in rows:
        end = each.end_at(known_at)
        is_known = each.recorded is not None and each.recorded <= known_at
        if is_known and not each.is_fact and _has_length(each.start, end):
            versions.append(SpannedRow(each.place, each.start, end))
    return versions


def _has_length(start: Instant, end: Instant) -> bool:
    return start is not None and (end is None or end > start)


def adopted(rows: Iterable[tuple[int, Instant, Instant, bool]], span: Span) -> list[SpannedRow]:
    """The versions that another tool wrote, except those that mark a record as missing."""
    far = span.far or 0
    return [
        SpannedRow(place, start, end if end is not None and end < far else None)
        for place, start, end, gone in rows
        if not gone
    ]


def sent(rows: Iterable[Sent]) -> list[SpannedRow]:
    """The versions that Fivetran delivered.

    If the successor of a version starts before its end, or within a millisecond after it, the version ends at
    that start. Raises Endless for a row with neither an end nor a flag.
    """
    lives: dict[Hashable, list[Sent]] = defaultdict(list)
    for each in rows:
        lives[each.key].append(each)
    versions = []
    for life in lives.values():
        life.sort(key=lambda each: (each.start is not None, each.start or 0))
        following = [*(each.start for each in life[1:]), None]
        versions += [
            SpannedRow(each.place, each.start, _reaching(_own_end(each), after))
            for each, after in zip(life, following, strict=True)
        ]
    return versions


def _own_end(row: Sent) -> Instant:
    if row.active or (row.end is not None and row.end >= _ENDLESS):
        return None
    if row.end is None:
        raise Endless
    return row.end


def _reaching(end: Instant, following: Instant) -> Instant:
    reaches = following is not None and (end is None or following <= end + MILLISECOND)
    return following if reaches else end
