"""The plan of a delivery to an event log: its events, counts and problems, computed on arrays.

Records are independent, so all rows or only the rows of some keys can be planned, on the driver or in Spark's
tasks. The commit sorts and numbers the events.
"""

from collections.abc import Iterator
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

# The outcomes by the operation of their events, and the outcomes that make no events.
MADE: Final = {"appended": Op.APPEND, "retracted": Op.RETRACT, "corrected": Op.CORRECT_TO}
COUNTED: Final = ("unchanged", "conflicts", "absent")
# Additions before the watermark, and the newest event time.
LATE, NEWEST = "late", "newest"

DAY: Final = 86_400_000_000
EVENTS: Final = "events"


def outcomes_of(sums: PlanSums) -> dict[str, int]:
    """The numbers of records by outcome, without zeros."""
    return {name: count for name in (*MADE, *COUNTED, LATE) if (count := sums.counts[name])}


def newest_time(sums: PlanSums) -> datetime | None:
    """The greatest event time, or None if no row has one. A day counts as its midnight in UTC."""
    microseconds = sums.greatest.get(NEWEST)
    if microseconds is None:
        return None
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Refused(
            "bad-event-time",
            f"An event time is in the year {1970 + microseconds // 31_556_952_000_000}.",
            "Nothing was written; the last year is 9999. Use timestamp_millis for milliseconds.",
        ) from None


def sample_keys(sums: PlanSums, name: str) -> list[dict[str, Any]]:
    """Up to ten keys of rows with a problem, or of retracted records."""
    rows = sums.samples.get(name)
    return [] if rows is None else _distinct(rows).to_pylist()


@dataclass(frozen=True)
class _EventPlaces(ParallelArrays):
    """Events as row numbers. `leads` are times that precede the event times in the sort order."""

    ops: np.ndarray
    times: np.ndarray
    rows: Places
    leads: np.ndarray


def plan_events(logged: pa.Table | None, delivered: pa.Table, terms: EventTerms, moment: Moment) -> PartPlan:
    """Compare delivered rows with the events of their records.

    The rows `EVENTS` have the columns of `events_schema`, in no particular order. Counts are the numbers of
    events, of their outcomes (`MADE`), of rows that make no event (`COUNTED`), of late additions, and of
    problems. The newest event time (`NEWEST`) is in microseconds. Samples are up to ten keys for each
    problem, and for retractions.
    """
    type_ = delivered[TIME].type
    sides = lay_out(logged if terms.looks_back else None, delivered)
    fallback, watermark = (_number(time, type_) for time in (moment.fallback, moment.watermark))
    if terms.time_in_key and not terms.time_required and terms.strategy is Strategy.LEDGER:
        sides = fill_times(sides, terms, fallback)
    judged = judge(sides, terms, fallback)
    none = _EventPlaces(*[np.zeros(0, np.int64)] * 4)
    made = _EventPlaces.join(none, *_events_of_rows(judged, terms, fallback))
    rows = {name: judged.outcomes.get(name, np.zeros(0, np.int64)) for name in (*COUNTED, *RowProblem)}
    counts = {str(name): len(places) for name, places in rows.items()} | {EVENTS: len(made.ops)}
    counts |= {name: int(np.count_nonzero(made.ops == op)) for name, op in MADE.items()}
    late = made.times[made.ops == Op.APPEND] < watermark if watermark is not None else ()
    times, unit = made.times[made.times != LACKING], DAY if pa.types.is_date32(type_) else 1
    sampled = {problem.value: rows[problem] for problem in RowProblem}
    sampled["retracted"] = made.rows[made.ops == Op.RETRACT]
    keys = judged.sides.data.select(list(terms.key))
    samples = {
        name: _distinct(keys.take(pa.array(places))).slice(0, MAX_KEYS)
        for name, places in sampled.items()
        if len(places)
    }
    counts[LATE] = int(np.count_nonzero(late))
    newest = {NEWEST: int(times.max()) * unit} if len(times) else {}
    return PartPlan({EVENTS: _events(made, judged.sides, type_)}, counts, samples, newest)


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
    """The events that rows cause, by outcome."""
    sides, stored = judged.sides, judged.stored
    filled = np.where(sides.times == LACKING, fallback, sides.times)

    def events(op: int, rows: Places, chosen: Places, times: np.ndarray, leads: np.ndarray) -> _EventPlaces:
        return _EventPlaces(np.full(len(rows), op), times[chosen], chosen, leads)

    for name, rows in judged.outcomes.items():
        own = filled[rows]
        if name == AS_DELIVERED:
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
