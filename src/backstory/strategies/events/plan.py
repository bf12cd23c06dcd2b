"""The plan of a delivery to an event log: its events, counts and problems, computed on arrays.

Records are independent, so all rows or only the rows of some keys can be planned, on the driver or in Spark's
tasks. The commit sorts and numbers the events.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backstory.errors import MAX_KEYS, Refused
from backstory.model.instant import EPOCH
from backstory.strategies.events.outcomes import AS_DELIVERED, JudgedSides, judge
from backstory.strategies.events.sides import (
    LEAD,
    OP,
    PLACE,
    TIME,
    EventSides,
    Places,
    data_names,
    fill_times,
    lay_out,
)
from backstory.strategies.events.terms import EventTerms, Moment, Op, RowProblem, Strategy
from backstory.strategies.keys import ParallelArrays
from backstory.strategies.part_plan import PartPlan, PlanSums
from backstory.strategies.values import LACKING, identities, take_rows

# Outcomes that make no events.
COUNTED: Final = ("unchanged", "conflicts", "absent")
# Prefixes of counts: all rows, late rows, and the newest event time. The number of an operation or a problem
# follows.
ROWS, LATE, NEWEST = "rows ", "late ", "newest "

DAY: Final = 86_400_000_000
EVENTS: Final = "events"


@dataclass(frozen=True, slots=True)
class EventSummary:
    """The totals of the events that a delivery adds to a log.

    `counts` are the numbers of records by outcome, `problems` the numbers of rows by problem, and `rows` is
    the number of events. `newest` is the greatest event time; a day counts as its midnight in UTC. `samples`
    are a few keys for each problem, and for retractions.
    """

    counts: Counter[str]
    problems: Counter[str]
    rows: int
    newest: datetime | None
    samples: Mapping[str, pa.Table]

    @classmethod
    def of(cls, sums: PlanSums) -> "EventSummary":
        """The totals of the events of all parts."""

        def rows(op: int) -> int:
            return sums.counts[f"{ROWS}{int(op)}"]

        counts = {
            "appended": rows(Op.APPEND),
            "retracted": rows(Op.RETRACT),
            "corrected": rows(Op.CORRECT_TO),
            **{name: sums.counts[name] for name in COUNTED},
            "late": sums.counts[f"{LATE}{int(Op.APPEND)}"],
        }
        problems = {problem: rows(problem_code(problem)) for problem in RowProblem}
        times = [time for name, time in sums.greatest.items() if name.startswith(NEWEST)]
        newest = _instant(max(times)) if times else None
        return cls(Counter(counts), Counter(problems), sum(map(rows, Op)), newest, sums.samples)

    def keys(self, problem: RowProblem) -> list[dict[str, Any]]:
        """Up to ten keys of rows with this problem."""
        return self._keys(problem_code(problem))

    def retracted_keys(self) -> list[dict[str, Any]]:
        """Up to ten keys of retracted records."""
        return self._keys(Op.RETRACT)

    def _keys(self, op: int) -> list[dict[str, Any]]:
        rows = self.samples.get(str(int(op)))
        return [] if rows is None else _distinct(rows).to_pylist()


def problem_code(problem: RowProblem) -> int:
    """The negative number that represents a problem in place of an operation."""
    return -1 - [*RowProblem].index(problem)


def _instant(microseconds: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Refused(
            "bad-event-time",
            f"An event time is in the year {1970 + microseconds // 31_556_952_000_000}.",
            "Nothing was written; the last year is 9999. Use timestamp_millis for milliseconds.",
        ) from None


@dataclass(frozen=True)
class _EventPlaces(ParallelArrays):
    """Events as row numbers. `leads` are times that precede the event times in the sort order."""

    ops: np.ndarray
    times: np.ndarray
    rows: Places
    leads: np.ndarray


def plan_events(logged: pa.Table | None, delivered: pa.Table, terms: EventTerms, moment: Moment) -> PartPlan:
    """Compare delivered rows with the events of their records.

    The rows `EVENTS` have the columns of `events_schema`, in no particular order. There are counts of rows
    that make no event, by outcome (`COUNTED`). Each operation or problem has the counts of its events
    (`ROWS`) and of its late events (`LATE`). The newest event time (`NEWEST`) is in microseconds. Samples are
    up to ten keys for each problem, and for retractions.
    """
    type_ = delivered[TIME].type
    sides = lay_out(logged if terms.looks_back else None, delivered)
    fallback, watermark = (_number(time, type_) for time in (moment.fallback, moment.watermark))
    if terms.time_in_key and not terms.time_required and terms.strategy is Strategy.LEDGER:
        sides = fill_times(sides, terms, fallback)
    judged = judge(sides, terms, fallback)
    none = _EventPlaces(*[np.zeros(0, np.int64)] * 4)
    made = _EventPlaces.join(none, *_events_of_rows(judged, terms, fallback))
    counts = {name: len(judged.outcomes.get(name, ())) for name in COUNTED}
    samples, newest = {}, {}
    for op in np.unique(made.ops).tolist():
        places = np.flatnonzero(made.ops == op)
        times = made.times[places]
        times = times[times != LACKING]
        counts[f"{ROWS}{op}"] = len(places)
        if watermark is not None:
            counts[f"{LATE}{op}"] = int(np.count_nonzero(times < watermark))
        if len(times):
            newest[f"{NEWEST}{op}"] = int(times.max()) * (DAY if pa.types.is_date32(type_) else 1)
        if op < 0 or op == Op.RETRACT:
            keys = judged.sides.data.select(list(terms.key)).take(pa.array(made.rows[places]))
            samples[str(op)] = _distinct(keys).slice(0, MAX_KEYS)
    events = _events(made.take(np.flatnonzero(made.ops >= 0)), judged.sides, type_)
    return PartPlan({EVENTS: events}, counts, samples, newest)


def events_schema(side: pa.Schema) -> pa.Schema:
    """The schema of the events of a side: operation, time, lead and place, then the data columns."""
    time = side.field(TIME).type
    system = [(OP, pa.int32()), (TIME, time), (LEAD, time), (PLACE, pa.int64())]
    return pa.schema([*system, *(side.field(name) for name in data_names(side))])


def _events(made: _EventPlaces, sides: EventSides, type_: pa.DataType) -> pa.Table:
    data = take_rows(sides.data, made.rows)
    system = {
        OP: pa.array(made.ops, pa.int32()),
        TIME: _times(made.times, type_),
        LEAD: _times(made.leads, type_),
        PLACE: pa.array(sides.places[made.rows]),
    }
    return pa.table([*system.values(), *data.columns], names=[*system, *data.column_names])


def _distinct(rows: pa.Table) -> pa.Table:
    """The first row of each group of equal rows, in the original order."""
    firsts = np.unique(identities(rows, rows.column_names), return_index=True)[1]
    return rows.take(pa.array(np.sort(firsts)))


def _events_of_rows(judged: JudgedSides, terms: EventTerms, fallback: int) -> Iterator[_EventPlaces]:
    """The events that rows cause, by outcome. For a problem, the row itself is kept."""
    sides, stored = judged.sides, judged.stored
    filled = np.where(sides.times == LACKING, fallback, sides.times)

    def events(op: int, rows: Places, chosen: Places, times: np.ndarray, leads: np.ndarray) -> _EventPlaces:
        return _EventPlaces(np.full(len(rows), op), times[chosen], chosen, leads)

    for name, rows in judged.outcomes.items():
        own = filled[rows]
        if isinstance(name, RowProblem):
            yield _EventPlaces(np.full(len(rows), problem_code(name)), own, rows, own)
        elif name == AS_DELIVERED:
            yield _EventPlaces(sides.ops[rows], own, rows, own)
        elif name == "appended":
            yield events(Op.APPEND, rows, rows, filled, own)
        elif name == "corrected":
            if terms.pairs:
                yield events(Op.CORRECT_FROM, rows, stored[rows], sides.times, own)
            yield events(Op.CORRECT_TO, rows, rows, filled, own)
        elif name == "retracted":
            removed = stored[rows]
            times = sides.times[removed] if terms.retracts_in_place else np.full(len(rows), fallback)
            yield _EventPlaces(np.full(len(rows), int(Op.RETRACT)), times, removed, times)


def _number(time: Any, type_: pa.DataType) -> Any:
    """An instant in microseconds, or a day as its number. None stays None."""
    if time is None:
        return None
    value = pa.scalar(time, type_)
    return value.cast(pa.int32() if pa.types.is_date32(type_) else pa.int64()).as_py()


def _times(numbers: np.ndarray, type_: pa.DataType) -> pa.Array:
    days = pa.types.is_date32(type_)
    values = pa.array(numbers, mask=numbers == LACKING)
    return (values.cast(pa.int32()) if days else values).cast(type_)
