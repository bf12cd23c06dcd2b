"""The order of a log decides, and not the clock: the instants of a record's facts (native.md V130 to V132).

Where the specification leaves something open:

* Kinds that differ at one position are a conflict (V53): nothing says which of them is later.
* A new message is settled if its instant is, or if a settled one of its record has its position or a later
  one (V135). One that is left out raises nothing.
* A message from before a new log is a former log's if that is known up to its time, or if its position is
  behind the last one there (V136). Another one has a clock that was set back, and is of the new log.
* Something known may come to a settled instant where a restatement takes back what raised it: refused.
* A truncate is settled by its own time as a whole, and says nothing of a record that is settled beyond it.
  It settles every new message before it in its log: one of these might raise it out of what is settled.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backstory.model.versions_layout import FactKind
from specification.feeds.fold import Fact
from specification.stored import Instant, Key, StoredVersions


def placed(table: StoredVersions, facts: Sequence[Fact]) -> tuple[list[Fact], list[Fact]]:
    """The facts of a record, each at its instant; and those of a log that come to be settled there.

    What has no place in a log neither raises nor is raised. A read never raises a change: its time is that of
    the change at the latest.
    """
    log = sorted((fact for fact in facts if fact.own is not None), key=lambda fact: fact.sequence)
    others = [fact for fact in facts if fact.own is None]
    for reads in (False, True):
        settled = {id(fact) for fact, at in _raised(table, log, reads=reads) if is_settled(table, at)}
        if not reads:
            log, left = (
                [fact for fact in log if id(fact) not in settled],
                [fact for fact in log if id(fact) in settled],
            )
    every = _raised(table, log, reads=True)
    there = [replace(fact, at=instant) for fact, instant in every if id(fact) not in settled]
    return [*others, *there], [*left, *(fact for fact in log if id(fact) in settled)]


def _raised(table: StoredVersions, log: Sequence[Fact], *, reads: bool) -> list[tuple[Fact, Instant]]:
    """Each with the greatest time up to it, of changes or of reads too; what is settled raises nothing."""
    found, greatest = [], None
    for place, fact in enumerate(log):
        if fact.is_read and not reads:
            continue
        time = fact.own
        following = next((each.own for each in log[place + 1 :] if not each.is_read), None)
        if fact.is_read and following is not None:
            time = min(time, following)
        instant = time if greatest is None else max(time, greatest)
        if not is_settled(table, instant):
            greatest = instant
        found.append((fact, instant))
    return found


def is_settled(table: StoredVersions, instant: Instant) -> bool:
    """Whether nothing moves any more at an instant; bounds are included (V29)."""
    if not table.settled:
        return False
    first, last = table.settled
    return bool((first is None or first <= instant) and instant <= last)


def is_of_former(table: StoredVersions, own: Instant, position: tuple[Any, ...]) -> bool:
    """Whether a message is of a log before the one that began anew, which is settled (V136)."""
    former = table.former
    if former is None or own > former.until:
        return False
    return own <= former.latest or (former.last is not None and position > former.last)


def settled_position(table: StoredVersions, key: Key) -> tuple[Any, ...] | None:
    """The last position of a record in its log that is settled; None for none (V135)."""
    rows = (row for row in table.rows if row.key == key and row.is_event and row.time is not None)
    return max((row.sequence for row in rows if is_settled(table, row.start)), default=None)


def is_before_settled_truncate(table: StoredVersions, position: tuple[Any, ...]) -> bool:
    """Whether a new message is before a truncate of its log that is settled (V135)."""
    marks = (row for row in table.rows if row.key is None and row.is_live and row.kind is FactKind.TRUNCATE)
    return any(
        row.time is not None and is_settled(table, row.time) and position < row.sequence for row in marks
    )


def is_beyond(fact: Fact, position: tuple[Any, ...] | None) -> bool:
    """Whether a fact is not settled by a position of its record's log."""
    return fact.own is None or position is None or fact.sequence > position


def first_instant(
    table: StoredVersions, facts: Sequence[Fact], since: Sequence[Instant], low: tuple[Any, ...] | None
) -> Instant:
    """From when on a record may move: from new times on, and those of what is at or behind `low` in its log.

    Nothing comes to a settled instant; instants are whole numbers here.
    """
    behind = [fact for fact in facts if fact.own is not None and low is not None and fact.sequence >= low]
    times = [*since, *(time for fact in behind for time in (fact.at, fact.own))]
    *_, last = table.settled or (0,)
    return min(last + 1 if is_settled(table, time) else time for time in times)


def first_position(facts: Sequence[Fact]) -> tuple[Any, ...] | None:
    """The first position of facts in their log; None for facts of none."""
    return min((fact.sequence for fact in facts if fact.own is not None), default=None)


def is_truncate(fact: Fact) -> bool:
    """Whether it is of every record."""
    return fact.kind is FactKind.TRUNCATE
