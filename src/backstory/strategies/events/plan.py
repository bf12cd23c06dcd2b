"""What a delivery adds to a log: the one plan, as arrays, of rows that are all of their records.

Records never meet in it, so it may be asked for all rows, or for the rows of some keys at a time, on the
driver and in Spark's tasks. Events get their order and their numbers when they are committed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.strategies.events.happened import COUNTED, LATE, NEWEST, ROWS, problem_code
from backstory.strategies.events.judged import JudgedSides, judge
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
from backstory.strategies.events.terms import PROBLEMS, EventTerms, Moment, Op, Strategy
from backstory.strategies.matching import take_rows
from backstory.strategies.part_plan import PartPlan
from backstory.strategies.values import LACKING, identities

DAY: Final = 86_400_000_000
EVENTS: Final = "events"


@dataclass(frozen=True, slots=True)
class _Made:
    """Events as places of rows; `leads` are the times that they sort by before their own."""

    ops: np.ndarray
    times: np.ndarray
    rows: Places
    leads: np.ndarray

    def at(self, places: Places) -> "_Made":
        return _Made(self.ops[places], self.times[places], self.rows[places], self.leads[places])


def plan_events(logged: pa.Table | None, delivered: pa.Table, terms: EventTerms, moment: Moment) -> PartPlan:
    """Compare delivered rows with the events of their records.

    `EVENTS` are rows with what they do, when, the time that they sort by before that, the place of the row
    that they were made of, and its data, in no order. Counted are rows that made no events, by their outcome
    (`COUNTED`), and by operation or problem the events (`ROWS`), those that are late, and the newest event
    time in microseconds. Samples have up to ten keys' rows of each problem, and of retractions.
    """
    type_ = delivered[TIME].type
    sides = lay_out(logged if terms.looks_back else None, delivered)
    fallback, watermark = (_number(each, type_) for each in (moment.fallback, moment.watermark))
    if terms.time_in_key and not terms.time_required and terms.strategy is Strategy.LEDGER:
        sides = fill_times(sides, terms, fallback)
    judged = judge(sides, terms, fallback)
    made = _joined(list(_events_of_rows(judged, terms, fallback)))
    counts = {name: len(judged.becomes.get(name, ())) for name in COUNTED}
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
            samples[str(op)] = _keys_of_few(made.rows[places], judged.sides, terms)
    events = _events(made.at(np.flatnonzero(made.ops >= 0)), judged.sides, type_)
    return PartPlan({EVENTS: events}, counts, samples, newest)


def events_schema(side: pa.Schema) -> pa.Schema:
    """The columns of events, for a side of these columns."""
    time = side.field(TIME).type
    own = [(OP, pa.int32()), (TIME, time), (LEAD, time), (PLACE, pa.int64())]
    return pa.schema([*own, *(side.field(name) for name in data_names(side))])


def _events(made: _Made, sides: EventSides, type_: pa.DataType) -> pa.Table:
    data = take_rows(sides.data, made.rows)
    own = {
        OP: pa.array(made.ops, pa.int32()),
        TIME: _times(made.times, type_),
        LEAD: _times(made.leads, type_),
        PLACE: pa.array(sides.places[made.rows]),
    }
    return pa.table([*own.values(), *data.columns], names=[*own, *data.column_names])


def _keys_of_few(rows: Places, sides: EventSides, terms: EventTerms) -> pa.Table:
    """Up to ten keys of the rows at these places."""
    keys = sides.data.select(list(terms.key)).take(pa.array(rows))
    firsts = np.sort(np.unique(identities(keys, terms.key), return_index=True)[1])
    return keys.take(pa.array(firsts[:MAX_KEYS]))


def _events_of_rows(judged: JudgedSides, terms: EventTerms, fallback: int) -> Iterator[_Made]:
    """The events of rows, by what becomes of these; a problem keeps its row."""
    sides, stored = judged.sides, judged.stored
    filled = np.where(sides.times == LACKING, fallback, sides.times)

    def events(op: int, rows: Places, told: Places, times: np.ndarray, leads: np.ndarray) -> _Made:
        return _Made(np.full(len(rows), op), times[told], told, leads)

    for name, rows in judged.becomes.items():
        own = filled[rows]
        if name in PROBLEMS:
            yield _Made(np.full(len(rows), problem_code(name)), own, rows, own)
        elif name == "told":
            yield _Made(sides.ops[rows], own, rows, own)
        elif name == "appended":
            yield events(Op.APPEND, rows, rows, filled, own)
        elif name == "corrected":
            if terms.pairs:
                yield events(Op.CORRECT_FROM, rows, stored[rows], sides.times, own)
            yield events(Op.CORRECT_TO, rows, rows, filled, own)
        elif name == "retracted":
            gone = stored[rows]
            times = sides.times[gone] if terms.retracts_in_place else np.full(len(rows), fallback)
            yield _Made(np.full(len(rows), int(Op.RETRACT)), times, gone, times)


def _joined(parts: list[_Made]) -> _Made:
    empty = np.zeros(0, np.int64)
    columns = zip(*((each.ops, each.times, each.rows, each.leads) for each in parts), strict=True)
    return _Made(*(np.concatenate(each) for each in columns)) if parts else _Made(*[empty] * 4)


def _number(time: Any, type_: pa.DataType) -> Any:
    """An instant or a day as the event times count; None stays None."""
    if time is None:
        return None
    value = pa.scalar(time, type_)
    return value.cast(pa.int32() if pa.types.is_date32(type_) else pa.int64()).as_py()


def _times(numbers: np.ndarray, type_: pa.DataType) -> pa.Array:
    days = pa.types.is_date32(type_)
    told = pa.array(numbers, mask=numbers == LACKING)
    return (told.cast(pa.int32()) if days else told).cast(type_)
