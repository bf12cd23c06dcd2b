"""What a delivery adds to a log, as reported: counts, and reasons to refuse it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from backstory.errors import Refused
from backstory.model.instant import EPOCH
from backstory.strategies.events.terms import PROBLEMS, Op

# What makes no events, and is counted.
COUNTED: Final = ("unchanged", "conflicts", "absent")


@dataclass(frozen=True, slots=True)
class SeenEvents:
    """Events of one operation: how many, the greatest event time, in microseconds, and how many are late."""

    rows: int
    newest: int | None
    late: int


@dataclass(frozen=True, slots=True)
class Happened:
    """What a delivery adds to a log.

    `events` are the events, for the plan that made them; `counts` are records by outcome, `problems` rows by
    what is wrong with them, `newest` is the greatest event time (a day's is its midnight, UTC). `keys_of`
    gives up to ten keys of the rows with an operation, of which problems have numbers of their own; `seen` is
    what observations on the way counted.
    """

    events: Any
    counts: Counter[str]
    problems: Counter[str]
    rows: int
    newest: datetime | None
    keys_of: Callable[[int], list[dict[str, Any]]]
    seen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def keys(self, problem: str) -> list[dict[str, Any]]:
        """Up to ten keys of the rows that have a problem."""
        return self.keys_of(problem_code(problem))

    def retracted(self) -> list[dict[str, Any]]:
        """Up to ten keys of records that are retracted."""
        return self.keys_of(Op.RETRACT)


def problem_code(problem: str) -> int:
    """The number that stands for a problem among the operations."""
    return -1 - PROBLEMS.index(problem)


def summed(
    events: Any,
    seen: Mapping[int, SeenEvents],
    told: Mapping[str, int],
    keys_of: Callable[[int], list[dict[str, Any]]],
    observed: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> Happened:
    """The events, `seen` by operation; `told` are rows by what became of them that made no events."""
    nothing = SeenEvents(0, None, 0)
    counts = {
        "appended": seen.get(Op.APPEND, nothing).rows,
        "retracted": seen.get(Op.RETRACT, nothing).rows,
        "corrected": seen.get(Op.CORRECT_TO, nothing).rows,
        **{name: told.get(name, 0) for name in COUNTED},
        "late": seen.get(Op.APPEND, nothing).late,
    }
    problems = {problem: seen.get(problem_code(problem), nothing).rows for problem in PROBLEMS}
    times = [each.newest for each in seen.values() if each.newest is not None]
    rows = sum(each.rows for each in seen.values()) - sum(problems.values())
    newest = _instant(max(times)) if times else None
    return Happened(events, Counter(counts), Counter(problems), rows, newest, keys_of, observed)


def _instant(microseconds: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Refused(
            "bad-event-time",
            f"An event time is in the year {1970 + microseconds // 31_556_952_000_000}.",
            "Nothing was written; the last year is 9999. Use timestamp_millis for milliseconds.",
        ) from None
