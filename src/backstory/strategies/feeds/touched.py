"""Delivered events beside the live stored rows of their records, and the lives of both (native.md V78)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from backstory.model.remembered import Told
from backstory.strategies.copies.rows import OPEN, micros
from backstory.strategies.feeds.arrival import Arrival, further, in_interval, in_window, of_kind
from backstory.strategies.feeds.conditions import Conditions, effects_of
from backstory.strategies.feeds.gathering import (
    CLEAR,
    NONE,
    UPSERT,
    Facts,
    beside_all,
    copied,
    facts,
    first_facts,
    in_order,
    settled_facts,
)
from backstory.strategies.feeds.marks import Marks, marks_of, of_truncates
from backstory.strategies.feeds.records import Pool, StoredRecords, pool_of, sequence_codes, sequences
from backstory.strategies.feeds.states import States
from backstory.strategies.feeds.terms import ASSERTED, AT, FeedTerms, Scope
from backstory.strategies.feeds.ties import Sequenced, Ties, ties_of
from backstory.strategies.keys import flagged, key_codes, keys_by_value, pair_codes


@dataclass(frozen=True)
class Records:
    """Delivered events and live stored rows of the same records."""

    terms: FeedTerms
    arrival: Arrival
    events: pa.Table
    rows: pa.Table

    @cached_property
    def codes(self) -> tuple[list[np.ndarray], int]:
        """Numbers of the records of events and of stored rows, and how many records there are."""
        sides = [keys_by_value(each, self.terms.key) for each in (self.events, self.rows)]
        return key_codes(sides, self.terms.key)

    @cached_property
    def stored(self) -> StoredRecords:
        """The stored rows, with a number of its record for each."""
        return StoredRecords(self.rows, self.codes[0][1])

    @cached_property
    def pool(self) -> Pool:
        """The values of stored rows, and then of events."""
        asserted = self.events[ASSERTED].combine_chunks()
        return pool_of(self.terms, self.rows, self.events, asserted, self.arrival.standing)

    @cached_property
    def further(self) -> pa.Array | None:
        """The further sequence of each place of the pool."""
        mine = further(self.terms, self.events)
        if mine is None:
            return None
        theirs = sequences(self.rows)
        return pa.concat_arrays(
            [pa.nulls(len(self.rows), mine.type) if theirs is None else theirs.cast(mine.type), mine]
        )

    @cached_property
    def _orders(self) -> list[np.ndarray]:
        """Numbers in the order of the further sequences: of stored rows, events, truncates and marks."""
        arrival = self.arrival
        sides = [
            (sequences(self.rows), len(self.rows)),
            (further(self.terms, self.events), len(self.events)),
            (further(self.terms, arrival.truncates), len(arrival.truncates)),
            (sequences(arrival.standing), len(arrival.standing)),
        ]
        return sequence_codes(self.terms, sides)

    @cached_property
    def marks(self) -> Marks:
        """The marks that speak, beside the voids of these records."""
        return marks_of(self.arrival.standing, self._orders[3], self.stored, self._orders[0])

    @cached_property
    def named(self) -> np.ndarray:
        """Whether the delivery names a record."""
        codes, count = self.codes
        return flagged(codes[0], count)

    @cached_property
    def _stored_events(self) -> np.ndarray:
        """Places of stored rows that stand for events, settled and restated ones left out (V29, V86)."""
        stored, terms = self.stored, self.terms
        said = (stored.upsert | stored.delete) & ~in_interval(stored.start, terms.settled)
        if terms.window is not None:
            goes = in_window(stored.start, terms.window) & (self.named[stored.record] | terms.all_keys)
            said &= ~goes
        return np.flatnonzero(said)

    @cached_property
    def delivered(self) -> Sequenced:
        """The delivered events."""
        count = len(self.events)
        delete = of_kind(self.events, Told.DELETE)
        place = len(self.rows) + np.arange(count)
        return Sequenced(self.codes[0][0], micros(self.events[AT]), self._orders[1], place, delete)

    def _sequenced(self, places: np.ndarray) -> Sequenced:
        stored = self.stored
        return Sequenced(
            stored.record[places],
            stored.start[places],
            self._orders[0][places],
            places,
            stored.delete[places],
        )

    @cached_property
    def ties(self) -> Ties:
        """Which events are known, or were delivered before, and which conflict."""
        return ties_of(self.terms, self.pool, self.delivered, self._sequenced(self._stored_events))

    @cached_property
    def kept(self) -> np.ndarray:
        """Places of the events that are new."""
        return np.flatnonzero(~self.ties.again)

    @cached_property
    def clashes(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of events, and of stored rows, that have the instant and sequence of a truncate (V53)."""
        truncates, mark = self._delivered_truncates, np.flatnonzero(self.marks.truncate)
        said = self._stored_events
        if not len(truncates) and not len(mark):
            return np.zeros(0, int), said[:0]
        sides = [
            (self.delivered.at, self._orders[1]),
            (self.stored.start[said], self._orders[0][said]),
            (truncates, self._orders[2]),
            (self.marks.at[mark], self._orders[3][mark]),
        ]
        codes, size = pair_codes(*(np.concatenate(each) for each in zip(*sides, strict=True)))
        mine, theirs, new, known = np.split(codes, np.cumsum([len(each) for each, _ in sides])[:-1])
        of_mark = np.full(size, NONE)
        of_mark[known] = mark
        found = of_mark[mine]
        meets = (found >= 0) & self._speaks(self.delivered.record, found)
        return np.flatnonzero(meets | np.isin(mine, new)), said[np.isin(theirs, new)]

    def _speaks(self, record: np.ndarray, mark: np.ndarray) -> np.ndarray:
        """For pairs of a record and a mark whether it says something of it, after a restatement too (V72)."""
        speaks = self.marks.speaks(record, mark)
        if self.terms.window is None or self.terms.all_keys or not len(self.marks):
            return speaks
        return speaks & ~(in_window(self.marks.at[mark], self.terms.window) & self.named[record])

    @property
    def _delivered_truncates(self) -> np.ndarray:
        return micros(self.arrival.truncates[AT])

    @cached_property
    def since(self) -> np.ndarray:
        """For each record the first instant at which it may move; `OPEN` for one that does not."""
        since = np.full(self.codes[1], OPEN)
        np.minimum.at(since, self.delivered.record[self.kept], self.delivered.at[self.kept])
        since = np.minimum(since, self._delivered_truncates.min(initial=OPEN))
        if self.terms.window is not None:
            goes = self.named | self.terms.all_keys
            since = np.where(goes, np.minimum(since, self.terms.window[0]), since)
        return since

    @cached_property
    def states(self) -> States:
        """What is known of the touched records after each of their facts."""
        ordered = in_order([*self._stored_facts(), *self.new_facts(), *self._marked()])
        conditions = Conditions(ordered, self.pool, self.terms, self.scopes, self.row_of)
        return States(effects_of(conditions))

    @property
    def scopes(self) -> Sequence[Scope | None]:
        """The scopes of the marks that facts are of."""
        return self.marks.scopes

    @cached_property
    def row_of(self) -> np.ndarray:
        """For each record a place in the pool that has its key."""
        rows = np.full(self.codes[1], NONE)
        rows[self.stored.record] = np.arange(len(self.rows))
        rows[self.delivered.record] = self.delivered.place
        return rows

    @cached_property
    def speaks_again(self) -> np.ndarray:
        """Whether a stored row silences a truncate that is delivered again (V72)."""
        void = np.flatnonzero(self.stored.void & of_truncates(self.rows))
        codes, _ = pair_codes(
            np.concatenate([self._delivered_truncates, self.stored.start[void]]),
            np.concatenate([self._orders[2], self._orders[0][void]]),
        )
        count = len(self._delivered_truncates)
        found = np.zeros(len(self.rows), bool)
        found[void] = np.isin(codes[count:], codes[:count])
        return found

    @cached_property
    def touched(self) -> np.ndarray:
        """The records that may move."""
        return np.flatnonzero(self.since < OPEN)

    def _stored_facts(self) -> list[Facts]:
        stored, touched, since = self.stored, self.touched, self.since[self.touched]
        said = self._stored_events[
            stored.start[self._stored_events] >= self.since[stored.record[self._stored_events]]
        ]
        events = self._sequenced(said)
        return [
            first_facts(stored, touched, since),
            settled_facts(self.terms, stored, touched, since),
            _events(events, stored=said),
        ]

    def new_facts(self) -> list[Facts]:
        """What is delivered."""
        kept, touched, at = self.kept, self.touched, self._delivered_truncates
        events = Sequenced(
            *(getattr(self.delivered, name)[kept] for name in ("record", "at", "code", "place", "delete"))
        )
        owner, truncate = beside_all(touched, self.since[touched], at)
        return [
            _events(events, stored=self._restated[kept], event=kept),
            facts(touched[owner], at[truncate], CLEAR, order=self._orders[2][truncate], truncate=truncate),
        ]

    @cached_property
    def _restated(self) -> np.ndarray:
        """For each event the place of the row of its fact that a window takes back (V9), or `NONE`."""
        found = np.full(len(self.events), NONE)
        if self.terms.window is None:
            return found
        stored = self.stored
        rows = np.flatnonzero((stored.upsert | stored.delete) & in_window(stored.start, self.terms.window))
        mine, theirs = self.delivered, self._sequenced(rows)
        names = ("record", "at", "code", "delete")
        codes = np.concatenate([mine.record, theirs.record])
        for name in names[1:]:
            codes, size = pair_codes(
                codes, np.concatenate([getattr(mine, name), getattr(theirs, name)]).astype(np.int64)
            )
        row = np.full(size, NONE)
        row[codes[len(found) :]] = rows
        return row[codes[: len(found)]]

    def _marked(self) -> list[Facts]:
        """What marks say of each touched record."""
        marks, touched = self.marks, self.touched
        owner, mark = beside_all(touched, self.since[touched], marks.at)
        record = touched[owner]
        speaks = self._speaks(record, mark)
        clears, copies = speaks & marks.truncate[mark], speaks & ~marks.truncate[mark]
        cleared = mark[clears]
        return [
            facts(record[clears], marks.at[cleared], CLEAR, order=marks.order[cleared], mark=cleared),
            self._copies(record[copies], mark[copies]),
        ]

    def _copies(self, record: np.ndarray, mark: np.ndarray) -> Facts:
        """What copies say: a record that is not in the scope of one at its instant is not listed by it."""
        marks, told = self.marks, len(self.rows) + len(self.events) + mark
        found = copied(self.stored, record, marks.at[mark], order=marks.order[mark], told=told, mark=mark)
        for rows in np.split(
            np.argsort(mark, kind="stable"), np.cumsum(np.bincount(mark))[:-1] if len(mark) else []
        ):
            scope = marks.scopes[mark[rows[0]]] if len(rows) else None
            if scope is not None:
                source = found.source[rows]
                inside = self.pool.within(scope, {name: source for name, _ in scope}, len(rows))
                outside = rows[(source < 0) | ~inside]
                found.source[outside] = found.stored[outside] = NONE
        return found


def _events(events: Sequenced, **more: np.ndarray) -> Facts:
    """Events as facts; their values and columns are at their place in the pool."""
    said = np.where(events.delete, CLEAR, UPSERT)
    return facts(
        events.record, events.at, said, order=events.code, source=events.place, told=events.place, **more
    )
