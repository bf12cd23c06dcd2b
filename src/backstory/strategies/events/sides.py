"""The rows of a log and of a delivery as arrays: their columns and their order.

A side is a table with one row for each event: operation, event time and place, then the data columns under
their own names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.strategies.events.terms import EventTerms, Op, Strategy
from backstory.strategies.values import LACKING, identities, integers, ranks, sorted_by

# System columns of a side; no source has columns with these names.
OP: Final = "backstory op"  # an integer: the operation of an event, or requested by a delivered row
TIME: Final = "backstory time"  # the event time, or NULL if the source has none
PLACE: Final = "backstory place"  # the offset of an event, or the arrival number of a delivered row
LEAD: Final = "backstory lead"  # a sort key of an event, which precedes its own time in the order
OWN: Final = (OP, TIME, PLACE, LEAD)
NO_ROW: Final = -1

Mask = np.ndarray
Places = np.ndarray


def data_names(rows: pa.Table | pa.Schema) -> list[str]:
    """The names of the data columns of a side, or of events."""
    names = rows.names if isinstance(rows, pa.Schema) else rows.column_names
    return [name for name in names if name not in OWN]


def parted_by(terms: EventTerms) -> tuple[str, ...]:
    """The columns for dividing rows into parts, so that all rows of a record are in one part.

    The event time is left out if a row without a time can match an event of any time (decision O13).
    """
    return (*terms.key, TIME) if terms.time_required else terms.key


@dataclass(frozen=True, slots=True)
class EventSides:
    """The rows of the log, followed by the delivered rows; `logged` is the number of log rows.

    `data` has the data columns. `ops`, `times` and `places` are integers; `LACKING` represents NULL.
    """

    data: pa.Table
    ops: np.ndarray
    times: np.ndarray
    places: np.ndarray
    logged: int

    @property
    def is_delivered(self) -> Mask:
        """A mask of the delivered rows."""
        return np.arange(len(self.ops)) >= self.logged


def lay_out(logged: pa.Table | None, delivered: pa.Table) -> EventSides:
    """Join both sides into one table. They may differ in nullability and in the width of numbers."""
    sides = [side for side in (logged, delivered) if side is not None]
    rows = pa.concat_tables(sides, promote_options="permissive").combine_chunks()
    ops, times, places = (integers(rows[name]) for name in (OP, TIME, PLACE))
    return EventSides(rows.select(data_names(rows)), ops, times, places, len(rows) - len(delivered))


def fill_times(sides: EventSides, terms: EventTerms, fallback: int) -> EventSides:
    """Fill in missing event times of delivered rows, from the events that they match (decision O13).

    A row takes the time of its key's newest event; events with the same content are preferred. If no event
    matches, the row takes the fallback.
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
        matches = newest[codes[untimed]]
        times[untimed[matches != NO_ROW]] = sides.times[matches[matches != NO_ROW]]
    return replace(sides, times=times)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each row, the previous and the next row of its record, and the record's last event.

    Values are row numbers, or `NO_ROW` if the neighbour does not exist. For events, `after` shows only
    whether a row follows.
    """

    before: Places
    after: Places
    stored: Places


def neighbours(sides: EventSides, terms: EventTerms) -> Neighbours:
    """The neighbours of each row.

    Events are ordered by offset. Delivered rows follow the events, by sequence and arrival.
    """
    if not terms.looks_back:
        return Neighbours(*[np.full(len(sides.ops), NO_ROW)] * 3)
    record = identities(sides.data, terms.key, *([sides.times] if terms.time_in_key else []))
    size = int(record.max(initial=-1)) + 1
    events, delivered = np.arange(sides.logged), np.arange(sides.logged, len(record))
    if (np.diff(sides.places[events]) < 0).any():
        events = np.argsort(sides.places[events], kind="stable")
    last, first = np.full((2, size), NO_ROW)
    last[record[events]] = events
    first[record[delivered]] = delivered
    stored = last[record]
    before, after = stored.copy(), np.full(len(record), NO_ROW)
    later = stored[: sides.logged]
    after[: sides.logged] = np.where(later == np.arange(sides.logged), first[record[: sides.logged]], later)
    # Most records have one delivered row. Only the other records need a sort order.
    repeated = delivered[np.bincount(record[delivered], minlength=size)[record[delivered]] > 1]
    by = [sides.places[repeated], record[repeated]]
    if terms.sequence:
        by.insert(1, ranks(sides.data[terms.sequence].take(pa.array(repeated))))
    order = repeated[np.lexsort(by)]
    same_record = record[order][1:] == record[order][:-1]
    before[order[1:][same_record]] = order[:-1][same_record]
    after[order[:-1][same_record]] = order[1:][same_record]
    return Neighbours(before, after, stored)


def sort_columns(terms: EventTerms, data: Sequence[str]) -> list[str]:
    """The columns by which events are sorted, ascending with NULL first (section 2.1, step 7).

    `data` are the sortable data columns. They break all ties if events have no key. With a key, no two events
    share both key and operation.
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
    """The row numbers of events in sort order."""
    data = [name for name in data_names(events) if not holds_map(events[name].type)]
    return sorted_by([ranks(events[name]) for name in sort_columns(terms, data)], len(events))


def holds_map(type_: pa.DataType) -> bool:
    """Whether a type contains maps, which have no order."""
    inner = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_map(type_) or any(map(holds_map, inner))
