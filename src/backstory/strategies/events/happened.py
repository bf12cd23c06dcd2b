"""The outcome of a delivery for a log: its events, counts, and reasons to refuse it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backstory.errors import Refused
from backstory.model.instant import EPOCH
from backstory.strategies.events.terms import PROBLEMS, Op
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.values import identities

# Outcomes of rows that make no events.
COUNTED: Final = ("unchanged", "conflicts", "absent")
# By the number of an operation or a problem: its events or rows, those that are late, the newest event time.
ROWS, LATE, NEWEST = "rows ", "late ", "newest "


@dataclass(frozen=True, slots=True)
class Happened:
    """The events that a delivery adds to a log.

    `counts` are records by outcome, `problems` rows by problem, `rows` is the number of events. `newest` is
    the greatest event time (of a day its midnight, UTC). `samples` are a few keys by operation or problem.
    """

    counts: Counter[str]
    problems: Counter[str]
    rows: int
    newest: datetime | None
    samples: Mapping[str, pa.Table]

    @classmethod
    def of(cls, sums: PlanSums) -> "Happened":
        """The outcome of all parts."""

        def rows(op: int) -> int:
            return sums.counts[f"{ROWS}{int(op)}"]

        counts = {
            "appended": rows(Op.APPEND),
            "retracted": rows(Op.RETRACT),
            "corrected": rows(Op.CORRECT_TO),
            **{name: sums.counts[name] for name in COUNTED},
            "late": sums.counts[f"{LATE}{int(Op.APPEND)}"],
        }
        problems = {problem: rows(problem_code(problem)) for problem in PROBLEMS}
        times = [time for name, time in sums.greatest.items() if name.startswith(NEWEST)]
        newest = _instant(max(times)) if times else None
        return cls(Counter(counts), Counter(problems), sum(map(rows, Op)), newest, sums.samples)

    def keys(self, problem: str) -> list[dict[str, Any]]:
        """Up to ten keys of the rows that have a problem."""
        return self._keys(problem_code(problem))

    def retracted(self) -> list[dict[str, Any]]:
        """Up to ten keys of records that are retracted."""
        return self._keys(Op.RETRACT)

    def _keys(self, op: int) -> list[dict[str, Any]]:
        rows = self.samples.get(str(int(op)))
        if rows is None:
            return []
        firsts = np.unique(identities(rows, rows.column_names), return_index=True)[1]
        return rows.take(pa.array(np.sort(firsts))).to_pylist()


def problem_code(problem: str) -> int:
    """The number that stands for a problem among the operations."""
    return -1 - PROBLEMS.index(problem)


def _instant(microseconds: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Refused(
            "bad-event-time",
            f"An event time is in the year {1970 + microseconds // 31_556_952_000_000}.",
            "Nothing was written; the last year is 9999. Use timestamp_millis for milliseconds.",
        ) from None
