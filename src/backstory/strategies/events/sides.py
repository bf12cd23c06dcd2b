"""The rows of a log and of a delivery side by side, as arrays, and who stands beside whom.

A side is a table of rows: what each does, when and its place, then its data under their own names.

How the events of one commit are sorted, as names of columns, for Spark's rows and for arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.strategies.events.terms import EventTerms, Op, Strategy
from backstory.strategies.values import LACKING, identities, integers, ranks, sorted_by

# Columns of ours; none of a source is called so.
OP: Final = "backstory op"  # an integer: what an event did, or what a delivered row shall do
TIME: Final = "backstory time"  # the event time, NULL where the source has none
PLACE: Final = "backstory place"  # the offset of an event, the arrival of a delivered row
LEAD: Final = "backstory lead"  # what an event sorts by before its own time
ROW: Final = "backstory row"  # where Spark has the rows: a struct of the data columns
OWN: Final = (OP, TIME, PLACE, LEAD)
NO_ROW: Final = -1

Mask = np.ndarray
Places = np.ndarray


def data_names(rows: pa.Table | pa.Schema) -> list[str]:
    """The data columns of a side, or of events."""
    names = rows.names if isinstance(rows, pa.Schema) else rows.column_names
    return [name for name in names if name not in OWN]


def parted_by(terms: EventTerms) -> tuple[str, ...]:
    """The columns by whose values rows may be parted: all of a record are then in one part.

    Without the event time where a row that has none means one of any time (decision O13).
    """
    return (*terms.key, TIME) if terms.time_required else terms.key


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
    def is_delivered(self) -> Mask:
        """Which rows are delivered ones."""
        return np.arange(len(self.ops)) >= self.logged


def lay_out(logged: pa.Table | None, delivered: pa.Table) -> EventSides:
    """Both sides; they may differ in what can be NULL, and in how wide numbers are."""
    sides = [each for each in (logged, delivered) if each is not None]
    rows = pa.concat_tables(sides, promote_options="permissive").combine_chunks()
    ops, times, places = (integers(rows[name]) for name in (OP, TIME, PLACE))
    return EventSides(rows.select(data_names(rows)), ops, times, places, len(rows) - len(delivered))


def fill_times(sides: EventSides, terms: EventTerms, fallback: int) -> EventSides:
    """The sides, delivered rows without an event time with that of the event that they mean (decision O13).

    It is the newest event of the row's key, one of the same content before all others; else the fallback.
    """
    untimed = np.flatnonzero(sides.is_delivered & (sides.times == LACKING))
    if not len(untimed):
        return sides
    known = np.flatnonzero(~sides.is_delivered & (sides.ops != Op.CORRECT_FROM))
    known = known[np.argsort(sides.places[known], kind="stable")]
    keys = identities(sides.data, terms.key)
    contents = identities(sides.data, sides.data.column_names, keys)
    times = sides.times.copy()
    times[untimed] = fallback
    for codes in (keys, contents):
        newest = np.full(int(codes.max(initial=0)) + 1, NO_ROW)
        newest[codes[known]] = known
        meant = newest[codes[untimed]]
        times[untimed[meant != NO_ROW]] = sides.times[meant[meant != NO_ROW]]
    return replace(sides, times=times)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Of each delivered row the one before and the one after it of its record, and the record's last event.

    They are places of rows, `NO_ROW` where there is none. Events have the last one too; of who stands beside
    them counts only whether anybody comes after.
    """

    before: Places
    after: Places
    stored: Places


def neighbours(sides: EventSides, terms: EventTerms) -> Neighbours:
    """Who stands beside whom: events by their offsets, then delivered rows as they arrived."""
    if not terms.looks_back:
        return Neighbours(*[np.full(len(sides.ops), NO_ROW)] * 3)
    record = identities(sides.data, terms.key, *([sides.times] if terms.time_in_key else []))
    size = int(record.max(initial=-1)) + 1
    events, own = np.arange(sides.logged), np.arange(sides.logged, len(record))
    if (np.diff(sides.places[events]) < 0).any():
        events = np.argsort(sides.places[events], kind="stable")
    last, first = np.full((2, size), NO_ROW)
    last[record[events]] = events
    first[record[own]] = own
    stored = last[record]
    before, after = stored.copy(), np.full(len(record), NO_ROW)
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


def sort_columns(terms: EventTerms, data: Sequence[str]) -> list[str]:
    """The columns that events are sorted by, ascending, NULL first (section 2.1, step 7).

    `data` are the data columns that can be sorted by. They leave no tie open where events have no key;
    elsewhere no two events have one key and one operation.
    """
    if terms.strategy is Strategy.CHANGELOG:
        return [PLACE]
    if terms.strategy is Strategy.APPEND:
        return [LEAD, *data]
    key = list(terms.key)
    if terms.strategy is Strategy.LEDGER:
        key.insert(0, LEAD)
    elif terms.time_at is not None:
        key.insert(terms.time_at, LEAD)
    return [*key, OP, TIME]


def sorted_places(events: pa.Table, terms: EventTerms) -> np.ndarray:
    """The places of events in their order."""
    data = [name for name in data_names(events) if not holds_map(events[name].type)]
    return sorted_by([ranks(events[name]) for name in sort_columns(terms, data)], len(events))


def holds_map(type_: pa.DataType) -> bool:
    """Whether values of a type hold maps, which have no order."""
    inner = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_map(type_) or any(map(holds_map, inner))
