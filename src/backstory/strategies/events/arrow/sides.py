"""The rows of a log and of a delivery side by side, as arrays, and what is known of each."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.strategies.events.arrow.codes import LACKING, identities, integers, ranks
from backstory.strategies.events.columns import OP, PLACE, ROW, TIME
from backstory.strategies.events.terms import EventTerms, Op

NOBODY: Final = -1

Truths = np.ndarray
Places = np.ndarray


@dataclass(frozen=True, slots=True)
class EventSides:
    """The rows of the log, so many as are `logged`, and behind them the delivered ones, in their order.

    `data` are their columns; `ops`, `times` and `places` are numbers, of which `LACKING` stands for NULL.
    """

    data: pa.Table
    ops: np.ndarray
    times: np.ndarray
    places: np.ndarray
    logged: int

    @property
    def delivered(self) -> Truths:
        """Which rows are delivered ones."""
        return np.arange(len(self.ops)) >= self.logged


def lay_out(logged: pa.Table | None, delivered: pa.Table) -> EventSides:
    """Both sides; of each the columns are `op`, `time`, `row` (a struct of the data) and `place`.

    They may differ in what can be NULL, and in how wide numbers are.
    """
    sides = [each for each in (logged, delivered) if each is not None]
    data = pa.concat_tables([_data(each) for each in sides], promote_options="permissive")
    ops, times, places = (
        np.concatenate([integers(each[name]) for each in sides]) for name in (OP, TIME, PLACE)
    )
    return EventSides(data, ops, times, places, len(data) - len(delivered))


def _data(side: pa.Table) -> pa.Table:
    struct = side[ROW].combine_chunks()
    return pa.table(struct.flatten(), names=[field.name for field in struct.type])


def fill_times(sides: EventSides, terms: EventTerms, fallback: int) -> EventSides:
    """The sides, delivered rows without an event time with that of the event that they mean (decision O13).

    It is the newest event of the row's key, one of the same content before all others; else the fallback.
    """
    untimed = np.flatnonzero(sides.delivered & (sides.times == LACKING))
    known = np.flatnonzero(~sides.delivered & (sides.ops != Op.CORRECT_FROM))
    known = known[np.argsort(sides.places[known], kind="stable")]
    keys = identities(sides.data, terms.key)
    contents = identities(sides.data, sides.data.column_names, keys)
    times = sides.times.copy()
    times[untimed] = fallback
    for codes in (keys, contents):
        newest = np.full(int(codes.max(initial=0)) + 1, NOBODY)
        newest[codes[known]] = known
        meant = newest[codes[untimed]]
        times[untimed[meant != NOBODY]] = sides.times[meant[meant != NOBODY]]
    return replace(sides, times=times)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each row the one before it and the one after it of the same record, and the record's last event.

    They are places of rows, `NOBODY` where there is none.
    """

    before: Places
    after: Places
    stored: Places


def neighbours(sides: EventSides, terms: EventTerms) -> Neighbours:
    """Who stands beside whom: events by their offsets, then delivered rows as they arrived."""
    record = identities(sides.data, terms.key, *([sides.times] if terms.time_in_key else []))
    by = [sides.places, sides.delivered, record]
    if terms.sequence:
        by.insert(1, np.where(sides.delivered, ranks(sides.data[terms.sequence]), 0))
    order = np.lexsort(by)
    joined = record[order][1:] == record[order][:-1]
    before, after = np.full((2, len(order)), NOBODY)
    before[order[1:]] = np.where(joined, order[:-1], NOBODY)
    after[order[:-1]] = np.where(joined, order[1:], NOBODY)
    last = np.full(int(record.max(initial=0)) + 1, NOBODY)
    events = order[order < sides.logged]
    last[record[events]] = events
    return Neighbours(before, after, last[record])
