"""The rows of a log and of a delivery side by side, as arrays, and who stands beside whom."""

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


@dataclass(frozen=True, slots=True)
class ArrowSide:
    """The rows of a log or of a delivery: their data, what each does, when, and its place."""

    data: pa.Table
    ops: pa.ChunkedArray
    times: pa.ChunkedArray
    places: pa.ChunkedArray


def side_of(rows: pa.Table) -> ArrowSide:
    """Rows as Spark gives them: the columns `op`, `time`, `row` (a struct of the data) and `place`."""
    struct = rows[ROW].combine_chunks()
    data = pa.table(struct.flatten(), names=[field.name for field in struct.type])
    return ArrowSide(data, rows[OP], rows[TIME], rows[PLACE])


def lay_out(logged: ArrowSide | None, delivered: ArrowSide) -> EventSides:
    """Both sides; they may differ in what can be NULL, and in how wide numbers are."""
    sides = [each for each in (logged, delivered) if each is not None]
    data = pa.concat_tables([each.data for each in sides], promote_options="permissive").combine_chunks()
    ops, times, places = (
        np.concatenate([integers(column) for column in columns])
        for columns in zip(*((each.ops, each.times, each.places) for each in sides), strict=True)
    )
    return EventSides(data, ops, times, places, len(ops) - len(delivered.ops))


def fill_times(sides: EventSides, terms: EventTerms, fallback: int) -> EventSides:
    """The sides, delivered rows without an event time with that of the event that they mean (decision O13).

    It is the newest event of the row's key, one of the same content before all others; else the fallback.
    """
    untimed = np.flatnonzero(sides.delivered & (sides.times == LACKING))
    if not len(untimed):
        return sides
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
    """Of each delivered row the one before and the one after it of its record, and the record's last event.

    They are places of rows, `NOBODY` where there is none. Events have the last one too; of who stands beside
    them counts only whether anybody comes after.
    """

    before: Places
    after: Places
    stored: Places


def neighbours(sides: EventSides, terms: EventTerms) -> Neighbours:
    """Who stands beside whom: events by their offsets, then delivered rows as they arrived."""
    record = identities(sides.data, terms.key, *([sides.times] if terms.time_in_key else []))
    size = int(record.max(initial=-1)) + 1
    events, own = np.arange(sides.logged), np.arange(sides.logged, len(record))
    if (np.diff(sides.places[events]) < 0).any():
        events = np.argsort(sides.places[events], kind="stable")
    last, first = np.full((2, size), NOBODY)
    last[record[events]] = events
    first[record[own]] = own
    stored = last[record]
    before, after = stored.copy(), np.full(len(record), NOBODY)
    later = stored[: sides.logged]
    after[: sides.logged] = np.where(later == np.arange(sides.logged), first[record[: sides.logged]], later)
    # Of most records one row is delivered: only the others need an order.
    several = own[np.bincount(record[own], minlength=size)[record[own]] > 1]
    by = [sides.places[several], record[several]]
    if terms.sequence:
        by.insert(1, ranks(sides.data[terms.sequence].take(pa.array(several))))
    order = several[np.lexsort(by)]
    joined = record[order][1:] == record[order][:-1]
    before[order[1:][joined]] = order[:-1][joined]
    after[order[:-1][joined]] = order[1:][joined]
    return Neighbours(before, after, stored)
