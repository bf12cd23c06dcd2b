"""The fold of records: events and live rows become ordered facts, and facts become states (V52, V53, V78)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from backstory.model.versions_layout import FactKind
from backstory.strategies.copies.version_rows import OPEN, micros
from backstory.strategies.feeds.arrival import Arrival, further_sequence, in_window, of_kind
from backstory.strategies.feeds.facts import (
    CLEAR,
    NONE,
    UPSERT,
    Marks,
    RecordFacts,
    are_reads,
    copy_facts,
    distinct_pairs,
    first_facts,
    has_position,
    in_interval,
    make_facts,
    marks_of,
    move_past_settled,
    pair_with_instants,
    place_facts,
    place_in_order,
    settled_facts,
    sort_facts,
)
from backstory.strategies.feeds.records import Pool, StoredRecords, pool_of, sequence_codes, sequences
from backstory.strategies.feeds.states import States, states_of
from backstory.strategies.feeds.terms import ASSERTED, AT, FIRST, FeedTerms
from backstory.strategies.keys import flags_of, key_codes, keys_by_value, pair_codes


@dataclass(frozen=True, slots=True)
class Ties:
    """Masks of the delivered events that are duplicates, and of the delivered events that conflict.

    `own_times` are the earliest own times of stored events (V133).
    """

    duplicate: np.ndarray
    conflict: np.ndarray
    own_times: np.ndarray


def ties_of(terms: FeedTerms, pool: Pool, delivered: RecordFacts, stored: RecordFacts) -> Ties:
    """Match each delivered event with the stored event that has its instant and sequence.

    If no such event is stored, the event is matched with the earliest delivered event that has the same
    instant and sequence. Events of a log are identified by their positions only.
    """
    count = len(delivered.record)
    sides = [(events.record, place_in_order(events.at, events.own)) for events in (delivered, stored)]
    instants, _ = pair_codes(*(np.concatenate(arrays) for arrays in zip(*sides, strict=True)))
    codes, size = pair_codes(instants, np.concatenate([delivered.order, stored.order]))
    delivered_codes, stored_codes = codes[:count], codes[count:]
    rival = np.full(size, -1)
    late_first = np.argsort(delivered.own, kind="stable")[::-1]
    rival[delivered_codes[late_first]] = late_first
    rival[stored_codes] = np.arange(len(stored_codes)) + count
    meets = rival[delivered_codes]
    others = np.flatnonzero(meets != np.arange(count))
    source = np.concatenate([delivered.source, stored.source])
    kind = np.concatenate([delivered.kind, stored.kind])
    same = _have_same_content(terms, pool, source, kind, others, meets[others])
    again, conflict = np.zeros(count, bool), np.zeros(count, bool)
    again[others[same]] = True
    conflict[others[~same]] = True
    own = stored.own.copy()
    known = np.flatnonzero(meets >= count)
    np.minimum.at(own, meets[known] - count, delivered.own[known])
    return Ties(again, conflict, own)


def _have_same_content(
    terms: FeedTerms, pool: Pool, source: np.ndarray, kind: np.ndarray, events: np.ndarray, rivals: np.ndarray
) -> np.ndarray:
    """Whether each event has the same content as its rival: the event that it is matched with (V52)."""
    one, other = source[events], source[rivals]
    same = kind[events] == kind[rivals]
    delete = same & (kind[events] == CLEAR)
    for name in terms.data:
        sets, rival_sets = pool.has(name)[one], pool.has(name)[other]
        same &= delete | (sets == rival_sets)
        if name in terms.tracked:
            compared = np.flatnonzero(same & ~delete & sets)
            same[compared] &= pool.alike(name, one[compared], other[compared])
    return same


@dataclass(frozen=True)
class RecordFold:
    """Delivered events and live stored rows of the same records."""

    terms: FeedTerms
    arrival: Arrival
    events: pa.Table
    rows: pa.Table

    @cached_property
    def codes(self) -> tuple[list[np.ndarray], int]:
        """The record numbers of events and of stored rows, and the number of records."""
        sides = [keys_by_value(side, self.terms.key) for side in (self.events, self.rows)]
        return key_codes(sides, self.terms.key)

    @cached_property
    def stored_records(self) -> StoredRecords:
        """The stored rows with their record numbers."""
        return StoredRecords(self.rows, self.codes[0][1])

    @cached_property
    def pool(self) -> Pool:
        """The values of stored rows, followed by the values of events."""
        asserted = self.events[ASSERTED].combine_chunks()
        return pool_of(self.terms, self.rows, self.events, asserted, self.arrival.marks)

    @cached_property
    def sequence(self) -> pa.Array | None:
        """The further sequence for each index of the pool, or None if there is no further sequence."""
        delivered = further_sequence(self.terms, self.events)
        if delivered is None:
            return None
        stored = sequences(self.rows)
        return pa.concat_arrays(
            [
                pa.nulls(len(self.rows), delivered.type) if stored is None else stored.cast(delivered.type),
                delivered,
            ]
        )

    @cached_property
    def _orders(self) -> list[np.ndarray]:
        """Numbers in sequence order for rows, events, marks and the window's truncates."""
        arrival = self.arrival
        sides = [
            (sequences(self.rows), len(self.rows)),
            (further_sequence(self.terms, self.events), len(self.events)),
            (sequences(arrival.marks), len(arrival.marks)),
            (sequences(arrival.inside), len(arrival.inside)),
        ]
        return sequence_codes(self.terms, sides)

    @cached_property
    def marks(self) -> Marks:
        """The stored marks that still apply, the delivered marks, and the records that voids exclude."""
        arrival, orders = self.arrival, self._orders
        return marks_of(arrival.marks, arrival.first_mark, orders[2], self.stored_records, orders[0])

    @property
    def own_mark(self) -> int | None:
        """The index of a delivered copy's own mark, or None for a feed."""
        return None

    @cached_property
    def _new_truncates(self) -> np.ndarray:
        """The indexes of the delivered truncates among the marks."""
        new = np.arange(self.arrival.first_mark, len(self.marks))
        return new[self.marks.truncate[new]]

    @cached_property
    def _new_positions(self) -> np.ndarray:
        """The numbers of the positions of delivered truncates in their log."""
        new = self._new_truncates
        return self.marks.order[new[self.marks.own[new] != FIRST]]

    @cached_property
    def is_named(self) -> np.ndarray:
        """A mask of the records that have delivered events."""
        codes, count = self.codes
        return flags_of(codes[0], count)

    @cached_property
    def _stored_events(self) -> np.ndarray:
        """Indexes of rows that store events, except settled and restated events (V29, V86)."""
        return self._unsettled_rows[~self._is_withdrawn[self._unsettled_rows]]

    @cached_property
    def _unsettled_rows(self) -> np.ndarray:
        stored = self.stored_records
        is_event = (stored.upsert | stored.delete) & ~in_interval(stored.start, self.terms.settled)
        return np.flatnonzero(is_event)

    @cached_property
    def _is_withdrawn(self) -> np.ndarray:
        """A mask of the stored rows that the window withdraws, by the messages' own times (V86, V135)."""
        stored, window = self.stored_records, self.terms.window
        if window is None:
            return np.zeros(len(self.rows), bool)
        time = np.where(stored.own_times == FIRST, stored.start, stored.own_times)
        return in_window(time, window) & (self.is_named[stored.record] | self.terms.all_keys)

    @cached_property
    def _settled_code(self) -> np.ndarray:
        """For each record, the number of its last settled position, or -1 if it has none (V135)."""
        stored, codes = self.stored_records, np.full(self.codes[1], -1)
        is_message = (stored.upsert | stored.delete) & (stored.own_times != FIRST)
        rows = np.flatnonzero(is_message & in_interval(stored.start, self.terms.settled))
        np.maximum.at(codes, stored.record[rows], self._orders[0][rows])
        return codes

    @cached_property
    def _unsettled_events(self) -> np.ndarray:
        """Indexes of delivered events that are after all settled positions of their record."""
        events = self.delivered_events
        beyond = (events.own == FIRST) | (events.order > self._settled_code[events.record])
        return np.flatnonzero(beyond)

    @cached_property
    def delivered_events(self) -> RecordFacts:
        """The delivered events as facts. The indexes of values and lists refer to the pool."""
        count = len(self.events)
        delete = of_kind(self.events, FactKind.DELETE)
        place = len(self.rows) + np.arange(count)
        at = micros(self.events[AT])
        own = np.where(has_position(self.terms, self.events), at, FIRST)
        read = are_reads(self.terms, further_sequence(self.terms, self.events), count) & ~delete
        return make_facts(
            self.codes[0][0],
            at,
            np.where(delete, CLEAR, UPSERT),
            order=self._orders[1],
            source=place,
            columns=place,
            event=np.arange(count),
            own=own,
            read=read,
        )

    def _facts_of_rows(self, places: np.ndarray) -> RecordFacts:
        """The events that the rows at these indexes store, as facts."""
        stored = self.stored_records
        return make_facts(
            stored.record[places],
            stored.start[places],
            np.where(stored.delete[places], CLEAR, UPSERT),
            order=self._orders[0][places],
            source=places,
            columns=places,
            stored=places,
            own=stored.own_times[places],
            read=self._stored_reads[places],
        )

    @cached_property
    def _stored_event_facts(self) -> RecordFacts:
        return self._facts_of_rows(self._stored_events)

    @cached_property
    def _stored_reads(self) -> np.ndarray:
        return are_reads(self.terms, sequences(self.rows), len(self.rows)) & ~self.stored_records.delete

    @cached_property
    def ties(self) -> Ties:
        """Masks of the events that are duplicates, and of the events that conflict."""
        events = self.delivered_events.take(self._unsettled_events)
        ties = ties_of(self.terms, self.pool, events, self._stored_event_facts)
        again, conflict = (np.zeros(len(self.events), bool) for _ in range(2))
        again[self._unsettled_events], conflict[self._unsettled_events] = ties.duplicate, ties.conflict
        return Ties(again, conflict, ties.own_times)

    @cached_property
    def new_events(self) -> np.ndarray:
        """Indexes of the new events."""
        return self._unsettled_events[~self.ties.duplicate[self._unsettled_events]]

    @cached_property
    def truncate_conflicts(self) -> tuple[np.ndarray, np.ndarray]:
        """Indexes of events, and of rows, with the same instant and sequence as a truncate (V53)."""
        marks, rows = self.marks, self._stored_events
        mark = np.flatnonzero(marks.truncate)
        if not len(mark):
            return np.zeros(0, int), rows[:0]
        stored, events = self._stored_event_facts, self.delivered_events
        sides = [
            (place_in_order(events.at, events.own), events.order),
            (place_in_order(stored.at, stored.own), stored.order),
            (place_in_order(marks.at[mark], marks.own[mark]), marks.order[mark]),
        ]
        codes, size = pair_codes(*(np.concatenate(arrays) for arrays in zip(*sides, strict=True)))
        ends = np.cumsum([len(places) for places, _ in sides])[:-1]
        event_codes, row_codes, mark_codes = np.split(codes, ends)
        of_mark = np.full(size, NONE)
        of_mark[mark_codes] = mark
        marks_of_events = of_mark[event_codes]
        meets = (marks_of_events >= 0) & self._mark_applies(events.record, marks_of_events)
        new = mark_codes[mark >= self.arrival.first_mark]
        return self._unsettled_events[meets[self._unsettled_events]], rows[np.isin(row_codes, new)]

    def _mark_applies(self, record: np.ndarray, mark: np.ndarray) -> np.ndarray:
        """For each pair of a record and a mark, whether the mark applies after the restatement (V72)."""
        speaks = self.marks.applies(record, mark)
        if self.terms.window is None or self.terms.all_keys or not len(self.marks):
            return speaks
        restated = in_window(self.marks.at[mark], self.terms.window) & (mark < self.arrival.first_mark)
        return speaks & ~(restated & self.is_named[record])

    @cached_property
    def since(self) -> np.ndarray:
        """For each record, the first instant at which it can change, or `OPEN` if it cannot change."""
        since = np.full(self.codes[1], OPEN)
        new = self.delivered_events.take(np.concatenate([self.new_events, self._earlier_duplicates]))
        settled = self.terms.settled
        np.minimum.at(since, new.record, move_past_settled(new.at, settled))
        marks = self.marks
        for mark in self._new_truncates:
            applies = (marks.own[mark] == FIRST) | (marks.order[mark] > self._settled_code)
            since = np.where(applies, np.minimum(since, marks.at[mark]), since)
        if self.terms.window is not None:
            goes = self.is_named | self.terms.all_keys
            since = np.where(goes, np.minimum(since, self.terms.window[0]), since)
        return self._extend_since(since, self._first_positions(new))

    @cached_property
    def _earlier_duplicates(self) -> np.ndarray:
        """Indexes of duplicates whose own time is earlier than the stored time."""
        stored = self._stored_event_facts
        renewed = np.flatnonzero(self.ties.own_times != stored.own)
        events = self.delivered_events
        codes, _ = pair_codes(
            np.concatenate([events.record, stored.record[renewed]]),
            np.concatenate([events.order, stored.order[renewed]]),
        )
        again = self.ties.duplicate & (events.own != FIRST)
        return np.flatnonzero(again & np.isin(codes[: len(again)], codes[len(again) :]))

    def _first_positions(self, new: RecordFacts) -> np.ndarray:
        """For each record, the first position added to or removed from its log, or `OPEN` for none."""
        low = np.full(self.codes[1], OPEN)
        log = np.flatnonzero(new.own != FIRST)
        np.minimum.at(low, new.record[log], new.order[log])
        for code in self._new_positions:
            low = np.where(code > self._settled_code, np.minimum(low, code), low)
        withdrawn = self._unsettled_rows[self._is_withdrawn[self._unsettled_rows]]
        withdrawn = withdrawn[self.stored_records.own_times[withdrawn] != FIRST]
        np.minimum.at(low, self.stored_records.record[withdrawn], self._orders[0][withdrawn])
        if len(self.arrival.inside):
            marks = int(self._orders[3].min())
            low = np.where(self.is_named | self.terms.all_keys, np.minimum(low, marks), low)
        return low

    def _extend_since(self, since: np.ndarray, low: np.ndarray) -> np.ndarray:
        """The first instants, moved back if later messages of the log can return to their own times."""
        stored, marks, settled = self.stored_records, self.marks, self.terms.settled
        log = self._unsettled_rows[stored.own_times[self._unsettled_rows] != FIRST]
        log = log[self._orders[0][log] >= low[stored.record[log]]]
        for times in (stored.start, stored.own_times):
            np.minimum.at(since, stored.record[log], move_past_settled(times[log], settled))
        truncates = np.flatnonzero(marks.own[: self.arrival.first_mark] != FIRST)
        if not len(truncates):
            return since
        truncates = truncates[np.argsort(marks.order[truncates])]
        times = np.append(
            np.minimum.accumulate(move_past_settled(marks.own[truncates], settled)[::-1])[::-1], OPEN
        )
        behind = times[np.searchsorted(marks.order[truncates], low)]
        return np.where(low < OPEN, np.minimum(since, behind), since)

    @cached_property
    def states(self) -> States:
        """The states of the touched records after each of their facts."""
        all_, settled = self._placed_facts
        ordered = sort_facts(all_.take(np.flatnonzero(~settled)))
        return states_of(ordered, self.pool, self.terms, self.marks.scopes, self.row_of)

    @cached_property
    def _placed_facts(self) -> tuple[RecordFacts, np.ndarray]:
        """All facts at their instants, and a mask of the settled facts."""
        delivered = replace(self.delivered_events, stored=self._restated_rows).take(self.new_events)
        facts_ = [*self._stored_facts(), delivered]
        return place_facts(RecordFacts.join(*facts_, *self._mark_facts(facts_)), self.terms.settled)

    @cached_property
    def late_events(self) -> np.ndarray:
        """Indexes of delivered events that are settled in their log (V135)."""
        events, settled = self._placed_facts[0].event, self._placed_facts[1]
        late = np.ones(len(self.events), bool)
        late[self._unsettled_events] = False
        late[events[settled & (events >= 0)]] = True
        return np.flatnonzero(late)

    @cached_property
    def settling_rows(self) -> np.ndarray:
        """Indexes of rows that would become settled, or whose settled positions follow new truncates."""
        stored, settled = self._placed_facts[0].stored, self._placed_facts[1]
        moves = stored[settled & (stored >= 0) & (self._placed_facts[0].event < 0)]
        codes = self._new_positions
        if self.terms.drops or not len(codes):
            return moves
        last = np.flatnonzero((self._settled_code >= codes.min())[self.stored_records.record])
        _, first = np.unique(self.stored_records.record[last], return_index=True)
        return np.union1d(moves, last[first])

    @cached_property
    def row_of(self) -> np.ndarray:
        """For each record, the index of a row in the pool that has the record's key."""
        rows = np.full(self.codes[1], NONE)
        rows[self.stored_records.record] = np.arange(len(self.rows))
        rows[self.delivered_events.record] = self.delivered_events.source
        return rows

    @cached_property
    def touched_records(self) -> np.ndarray:
        """The records that can change."""
        return np.flatnonzero(self.since < OPEN)

    def _stored_facts(self) -> list[RecordFacts]:
        stored, touched, since = self.stored_records, self.touched_records, self.since[self.touched_records]
        # The own times of stored events, or earlier own times that are delivered.
        events = replace(self._stored_event_facts, own=self.ties.own_times)
        return [
            first_facts(stored, touched, since),
            settled_facts(self.terms, stored, touched, since),
            events.take(events.at >= self.since[events.record]),
        ]

    @cached_property
    def _restated_rows(self) -> np.ndarray:
        """For each event, the index of its stored row that a window withdraws (V9), or `NONE`."""
        none = np.full(len(self.events), NONE)
        if self.terms.window is None:
            return none
        stored = self.stored_records
        rows = np.flatnonzero((stored.upsert | stored.delete) & self._is_withdrawn)
        sides = self.delivered_events, self._facts_of_rows(rows)
        codes = np.concatenate([place_in_order(events.at, events.own) for events in sides])
        for name in ("record", "order", "kind"):
            more = np.concatenate([getattr(events, name) for events in sides])
            codes, size = pair_codes(codes, more)
        row = np.full(size, NONE)
        row[codes[len(none) :]] = rows
        return row[codes[: len(none)]]

    def _mark_facts(self, others: Sequence[RecordFacts]) -> list[RecordFacts]:
        """The facts of marks for each touched record, given its other facts."""
        marks = self.marks
        record, mark = self._applicable_marks(others)
        speaks = self._mark_applies(record, mark)
        logged = marks.own[mark] != FIRST
        speaks &= ~logged | (marks.order[mark] > self._settled_code[record])
        clears, copies = speaks & marks.truncate[mark], speaks & ~marks.truncate[mark]
        cleared = mark[clears]
        return [
            make_facts(
                record[clears],
                marks.at[cleared],
                CLEAR,
                order=marks.order[cleared],
                mark=cleared,
                truncate=np.maximum(cleared - self.arrival.first_mark, NONE),
                own=marks.own[cleared],
            ),
            self._copy_facts(record[copies], mark[copies]),
        ]

    def _applicable_marks(self, others: Sequence[RecordFacts]) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of a touched record and a mark that may apply to it.

        The mark is at or after the first instant at which the record can change, or later in the log than the
        lowest position of the record's facts.
        """
        marks, touched = self.marks, self.touched_records
        owner, mark = pair_with_instants(touched, self.since[touched], marks.at)
        record = touched[owner]
        logged = np.flatnonzero(marks.own != FIRST)
        if not len(logged):
            return record, mark
        low = np.full(self.codes[1], OPEN - 1)
        for part in others:
            there = np.flatnonzero(part.own != FIRST)
            np.minimum.at(low, part.record[there], part.order[there])
        for code in self._new_positions:
            low = np.where(code > self._settled_code, np.minimum(low, code), low)
        owner, more = pair_with_instants(touched, low[touched] + 1, marks.order[logged])
        return distinct_pairs(np.append(record, touched[owner]), np.append(mark, logged[more]))

    def _copy_facts(self, record: np.ndarray, mark: np.ndarray) -> RecordFacts:
        """The facts of copies.

        A scoped copy listed only the records that were in its scope at its instant.
        """
        marks, lists = self.marks, len(self.rows) + len(self.events) + mark
        facts = copy_facts(
            self.stored_records, record, marks.at[mark], order=marks.order[mark], columns=lists, mark=mark
        )
        for rows in np.split(
            np.argsort(mark, kind="stable"), np.cumsum(np.bincount(mark))[:-1] if len(mark) else []
        ):
            scope = marks.scopes[mark[rows[0]]] if len(rows) else None
            if scope is not None:
                source = facts.source[rows]
                inside = self.pool.within(scope, {name: source for name, _ in scope}, len(rows))
                outside = rows[(source < 0) | ~inside]
                facts.source[outside] = facts.stored[outside] = NONE
        return facts
