"""What a delivery adds to a log, as reported: counts, and reasons to refuse it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS, Refused
from backstory.model.instant import EPOCH
from backstory.strategies.events.codes import identities
from backstory.strategies.events.sides import OP
from backstory.strategies.events.terms import PROBLEMS, EventTerms, Op

# What makes no events, and is counted.
COUNTED: Final = ("unchanged", "conflicts", "absent")


@dataclass(frozen=True, slots=True)
class SeenEvents:
    """Events of one operation: how many, the greatest event time, in microseconds, and how many are late."""

    rows: int = 0
    newest: int | None = None
    late: int = 0

    def __add__(self, other: "SeenEvents") -> "SeenEvents":
        newest = max((each for each in (self.newest, other.newest) if each is not None), default=None)
        return SeenEvents(self.rows + other.rows, newest, self.late + other.late)


@dataclass(frozen=True, slots=True)
class Happened:
    """What a delivery adds to a log.

    `events` are the events, where they are, in no order; `counts` are records by outcome, `problems` rows by
    what is wrong with them, `newest` is the greatest event time (a day's is its midnight, UTC). `samples` are
    a few rows with each problem, and of what is retracted, of records that `key` tells apart; `observed` is
    what was counted of the delivery's rows on their way.
    """

    events: Any
    counts: Counter[str]
    problems: Counter[str]
    rows: int
    newest: datetime | None
    samples: pa.Table
    key: Sequence[str]
    observed: Mapping[str, int]

    def keys(self, problem: str) -> list[dict[str, Any]]:
        """Up to ten keys of the rows that have a problem."""
        return self._keys(problem_code(problem))

    def retracted(self) -> list[dict[str, Any]]:
        """Up to ten keys of records that are retracted."""
        return self._keys(Op.RETRACT)

    def _keys(self, op: int) -> list[dict[str, Any]]:
        rows = self.samples.filter(pc.equal(self.samples[OP], int(op))).select(list(self.key))
        firsts = np.unique(identities(rows, self.key), return_index=True)[1]
        return rows.take(pa.array(np.sort(firsts)[:MAX_KEYS])).to_pylist()


def problem_code(problem: str) -> int:
    """The number that stands for a problem among the operations."""
    return -1 - PROBLEMS.index(problem)


def sum_parts(
    events: Any,
    parts: Iterable[tuple[Mapping[int, SeenEvents], Mapping[str, int]]],
    samples: pa.Table,
    terms: EventTerms,
    observed: Mapping[str, int],
) -> Happened:
    """What all parts of a delivery add.

    Each part tells of its events by operation, and how many rows made none, by what became of them.
    """
    seen: dict[int, SeenEvents] = {}
    told: Counter[str] = Counter()
    nothing = SeenEvents()
    for events_seen, counts in parts:
        told.update(counts)
        for op, each in events_seen.items():
            seen[op] = seen.get(op, nothing) + each
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
    return Happened(events, Counter(counts), Counter(problems), rows, newest, samples, terms.key, observed)


def _instant(microseconds: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Refused(
            "bad-event-time",
            f"An event time is in the year {1970 + microseconds // 31_556_952_000_000}.",
            "Nothing was written; the last year is 9999. Use timestamp_millis for milliseconds.",
        ) from None
