"""The instants of a record's facts: in a log, positions decide the order, not times (native.md V130 to V132).

The specification leaves some cases open. The rule decides them as follows:

* Facts of different kinds at one position are a conflict (V53), because neither is known to be later.
* A new message is settled if its instant is settled. It is also settled if a settled message of its record
  has its position or a later one (V135). A message that is left out raises no other fact.
* A message from before a new log belongs to a former log in two cases: that log is known up to the message's
  time, or the message's position is after the last one there (V136). Any other message has a clock that was
  set back, and belongs to the new log.
* A known fact may move to a settled instant if a restatement withdraws the fact that raised it. This is
  refused.
* A truncate is settled by its own time for all records. It does not affect a record that is settled beyond
  it. It settles every new message before it in its log, because such a message might raise it out of the
  settled interval.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backstory.model.versions_layout import FactKind
from specification.feeds.fold import Fact
from specification.stored import Instant, Key, StoredVersions


def placed(table: StoredVersions, facts: Sequence[Fact]) -> tuple[list[Fact], list[Fact]]:
    """The facts of a record, each at its instant, and the facts of a log that become settled there.

    A fact without a position in a log neither raises other facts nor is raised. A read never raises a change:
    its time is at most the time of the next change.
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
    """Each fact with the greatest time up to it, of changes or also of reads. Settled facts raise nothing."""
    facts, greatest = [], None
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
        facts.append((fact, instant))
    return facts


def is_settled(table: StoredVersions, instant: Instant) -> bool:
    """Whether nothing can change at an instant. The bounds are included (V29)."""
    if not table.settled:
        return False
    first, last = table.settled
    return bool((first is None or first <= instant) and instant <= last)


def is_of_former(table: StoredVersions, own: Instant, position: tuple[Any, ...]) -> bool:
    """Whether a message belongs to a log before the one that started again, and so is settled (V136)."""
    former = table.former
    if former is None or own > former.until:
        return False
    return own <= former.latest or (former.last is not None and position > former.last)


def settled_position(table: StoredVersions, key: Key) -> tuple[Any, ...] | None:
    """The last settled position of a record in its log, or None if there is none (V135)."""
    rows = (row for row in table.rows if row.key == key and row.is_event and row.time is not None)
    return max((row.sequence for row in rows if is_settled(table, row.start)), default=None)


def is_before_settled_truncate(table: StoredVersions, position: tuple[Any, ...]) -> bool:
    """Whether a new message is before a settled truncate of its log (V135)."""
    marks = (row for row in table.rows if row.key is None and row.is_live and row.kind is FactKind.TRUNCATE)
    return any(
        row.time is not None and is_settled(table, row.time) and position < row.sequence for row in marks
    )


def is_beyond(fact: Fact, position: tuple[Any, ...] | None) -> bool:
    """Whether a fact is after the settled position of its record's log."""
    return fact.own is None or position is None or fact.sequence > position


def first_instant(
    table: StoredVersions, facts: Sequence[Fact], since: Sequence[Instant], low: tuple[Any, ...] | None
) -> Instant:
    """The instant from which a record may change: new times, and times of facts at or after `low` in its log.

    No fact moves to a settled instant. Instants are whole numbers here.
    """
    behind = [fact for fact in facts if fact.own is not None and low is not None and fact.sequence >= low]
    times = [*since, *(time for fact in behind for time in (fact.at, fact.own))]
    *_, last = table.settled or (0,)
    return min(last + 1 if is_settled(table, time) else time for time in times)


def first_position(facts: Sequence[Fact]) -> tuple[Any, ...] | None:
    """The first position of the facts in their log, or None if they have no log."""
    return min((fact.sequence for fact in facts if fact.own is not None), default=None)


def is_truncate(fact: Fact) -> bool:
    """Whether the fact applies to every record."""
    return fact.kind is FactKind.TRUNCATE
