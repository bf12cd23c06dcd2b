"""Event logs on the driver: the plan of a delivery that it can hold, by the outcomes of Spark's plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.strategies.events.arrow.codes import LACKING, ranks, sorted_by
from backstory.strategies.events.arrow.judged import JudgedSides, judge
from backstory.strategies.events.arrow.sides import ArrowSide, EventSides, Places, fill_times, lay_out
from backstory.strategies.events.happened import COUNTED, Happened, SeenEvents, problem_code, summed
from backstory.strategies.events.terms import PROBLEMS, EventTerms, Moment, Op, Strategy

DAY: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Events:
    """Events in their order: what each does, when, and the values of its row."""

    ops: pa.Array
    times: pa.Array
    data: pa.Table


@dataclass(frozen=True, slots=True)
class _Made:
    """Events as places of rows; `leads` are the times that they sort by before their own."""

    ops: np.ndarray
    times: np.ndarray
    rows: Places
    leads: np.ndarray

    def at(self, places: Places) -> "_Made":
        return _Made(self.ops[places], self.times[places], self.rows[places], self.leads[places])


def merge_tables(
    logged: ArrowSide | None, delivered: ArrowSide, terms: EventTerms, moment: Moment
) -> Happened:
    """Compare a delivery with the events of its records.

    The events of what happened are `Events`, sorted as they get their offsets.
    """
    type_ = delivered.times.type
    sides = lay_out(logged if terms.looks_back else None, delivered)
    fallback, watermark = (_number(each, type_) for each in (moment.fallback, moment.watermark))
    if terms.time_in_key and not terms.time_required and terms.strategy is Strategy.LEDGER:
        sides = fill_times(sides, terms, fallback)
    judged = judge(sides, terms, fallback)
    made = _joined(list(_made(judged, terms, fallback)))
    seen = {int(op): _seen(made.times[made.ops == op], type_, watermark) for op in np.unique(made.ops)}
    told = {name: len(judged.becomes.get(name, ())) for name in COUNTED}
    placed = made.at(np.flatnonzero(made.ops >= 0))
    placed = placed.at(_order(placed, judged.sides, terms))
    events = Events(
        pa.array(placed.ops, pa.int32()), _times(placed.times, type_), judged.sides.data.take(placed.rows)
    )

    def keys_of(op: int) -> list[dict[str, Any]]:
        rows = judged.sides.data.select(list(terms.key)).take(made.rows[made.ops == op])
        return rows.group_by(list(terms.key)).aggregate([]).slice(0, MAX_KEYS).to_pylist()

    return summed(events, seen, told, keys_of)


def _made(judged: JudgedSides, terms: EventTerms, fallback: int) -> Iterator[_Made]:
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


def _order(made: _Made, sides: EventSides, terms: EventTerms) -> Places:
    """How events of one commit are sorted (section 2.1, step 7): in full, so that no tie is left open."""
    if terms.strategy is Strategy.CHANGELOG:
        return np.argsort(sides.places[made.rows], kind="stable")
    data = sides.data.take(made.rows)
    by = [ranks(data[name]) for name in terms.key]
    if terms.strategy in {Strategy.APPEND, Strategy.LEDGER}:
        by.insert(0, made.leads)
    elif terms.time_at is not None:
        by.insert(terms.time_at, made.leads)
    by += [made.ops, made.times]
    if terms.strategy is Strategy.APPEND:  # elsewhere no two events have one key and one operation
        by += [ranks(column) for column in data.columns]
    return sorted_by(by, len(made.rows))


def _seen(times: np.ndarray, type_: pa.DataType, watermark: int | None) -> SeenEvents:
    told = times[times != LACKING]
    unit = DAY if pa.types.is_date32(type_) else 1
    late = 0 if watermark is None else int(np.count_nonzero(told < watermark))
    return SeenEvents(len(times), int(told.max()) * unit if len(told) else None, late)


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
