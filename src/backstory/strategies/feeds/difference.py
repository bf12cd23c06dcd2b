"""The difference between recomputed and stored rows: the rows to add and to remove (V4, V7 to V9)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.versions_layout import COLUMNS, KIND, OWN_TIME, ROLE, SEQUENCE, FactKind, Role
from backstory.strategies.copies.version_rows import move_ends, past_rows, with_columns, withdraw_facts
from backstory.strategies.feeds.facts import BEFORE, CLEAR, UPSERT, RecordFacts, times_to_store
from backstory.strategies.feeds.fold import RecordFold
from backstory.strategies.feeds.records import Pool, StoredRecords, make_rows, values_at
from backstory.strategies.feeds.states import Runs, States
from backstory.strategies.feeds.terms import FIRST, FeedTerms


@dataclass(frozen=True)
class HistoryDifference:
    """Recomputed and stored rows of the same records.

    `since` has, for each record, the first instant at which it can change. `sequence` has the further
    sequence for each index of the pool. `copied` is a mask of the facts of a delivered copy.
    """

    terms: FeedTerms
    pool: Pool
    stored: StoredRecords
    states: States
    since: np.ndarray
    sequence: pa.Array | None
    copied: np.ndarray

    @classmethod
    def of(cls, fold: RecordFold) -> Self:
        """The difference between the recomputed and the stored rows of a fold's records."""
        states = fold.states
        copied = states.facts.mark == fold.own_mark
        return cls(fold.terms, fold.pool, fold.stored_records, states, fold.since, fold.sequence, copied)

    @property
    def facts(self) -> RecordFacts:
        """The facts from which the recomputed versions result."""
        return self.states.facts

    @property
    def runs(self) -> Runs:
        """The recomputed versions."""
        return self.states.runs

    def rows(self) -> Iterator[tuple[pa.Table, bool]]:
        """Parts of rows to add, each with a flag.

        The flag is true if the part replaces stored rows. The part then has the places of these rows.
        """
        yield from self._moved_versions()
        yield from self._withdraw_versions()
        yield self._new_versions(), False
        yield from self._withdraw_facts()
        yield self._new_facts(), False

    @cached_property
    def withdrawn_versions(self) -> np.ndarray:
        """The indexes of stored versions that the recomputed rows do not contain."""
        stored = self.stored
        stays = np.zeros(len(stored.rows), bool)
        stays[self._first_rows[self._is_stored]] = True
        return np.flatnonzero(stored.version & (stored.start >= self.since[stored.record]) & ~stays)

    @cached_property
    def _first_rows(self) -> np.ndarray:
        """For each version, the index of the stored row of its first fact, or -1 if it is not stored."""
        return self.facts.stored[self.runs.begin]

    @cached_property
    def _is_stored(self) -> np.ndarray:
        """A mask of the versions that are stored, regardless of ends and of columns without history (V9)."""
        rows, begin = self._first_rows, self.runs.begin
        same = rows >= 0
        if len(self.stored.rows):
            same &= self.stored.version[rows]
        # If a copy replaces another one, its own versions that stay keep their ignored values.
        for name in (*self.terms.tracked, *self.terms.ignored_columns):
            where = np.flatnonzero(same if name in self.terms.tracked else same & ~self.copied[begin])
            same[where] = self.pool.alike(name, self.places(name)[where], rows[where])
        event = np.flatnonzero(same & (self.facts.kind[begin] == UPSERT))
        same[event] = self._has_same_times(begin[event], rows[event])
        lists = self.facts.columns[begin]
        where = np.flatnonzero(same & (self.facts.event[begin] >= 0))
        same[where] = self._same_columns(lists[where], rows[where])
        return same

    def _has_same_times(self, facts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether facts have the same instants and own times as their stored rows (V133)."""
        same: np.ndarray = self.stored.start[rows] == self.facts.at[facts]
        return same & (self.stored.own_times[rows] == self.facts.own[facts])

    def _same_columns(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """For each pair of column lists, whether the two lists are equal."""
        same = np.ones(len(one), bool)
        for name in self.terms.data:
            same &= self.pool.has(name)[one] == self.pool.has(name)[other]
        return same

    def places(self, name: str) -> np.ndarray:
        """The indexes of the versions' values in the pool.

        For columns without history, the newest values are used.
        """
        if name in self.terms.overwritten:
            return self.states.place(name)[self.runs.newest]
        if name in self.terms.tracked:
            return self.states.place(name)[self.runs.begin]
        return self.states.place_at_begin(name)[self.runs.begin]

    @cached_property
    def _needs_renewal(self) -> np.ndarray:
        """A mask of the newest versions with outdated stored values of columns without history (V18)."""
        differs = np.zeros(len(self._first_rows), bool)
        where = np.flatnonzero(self._is_stored & self.runs.reaches)
        for name in self.terms.overwritten:
            places, rows = self.places(name)[where], self._first_rows[where]
            differs[where] |= self._is_set(places, where) & ~self.pool.alike(name, places, rows)
        return differs

    def _is_set(self, places: np.ndarray, versions: np.ndarray) -> np.ndarray:
        """Whether facts decide the values at these places of the pool, which may be NULL.

        If a copy replaces another one and lacks a column, its versions that stay keep the column's values.
        """
        decided: np.ndarray = (places >= 0) | ~self.copied[self.runs.begin[versions]]
        return decided

    def _moved_versions(self) -> Iterator[tuple[pa.Table, bool]]:
        """Stored versions whose end moves, and versions with newer values of columns without history."""
        rows, ends = self._first_rows, self.runs.end
        moves = self._is_stored.copy()
        moves[moves] = self.stored.end[rows[moves]] != ends[moves]
        for where, ended in ((moves, True), (self._needs_renewal & ~moves, False)):
            if not where.any():
                continue
            stored = now = self.stored.rows.take(pa.array(rows[where]))
            for name in self.terms.overwritten:
                old, places = stored[name].combine_chunks(), self.places(name)[where]
                newer = pa.array(self._needs_renewal[where] & self._is_set(places, np.flatnonzero(where)))
                newest = self.pool.at(name, places).cast(old.type)
                now = with_columns(now, {name: pc.if_else(newer, newest, old)})
            if ended:
                now = move_ends(now, ends[where], self.terms.recorded, self.terms.memory)
                yield past_rows(stored, self.terms.memory), False
            yield now, True

    def _withdraw_versions(self) -> Iterator[tuple[pa.Table, bool]]:
        if not len(self.withdrawn_versions):
            return
        stored = self.stored.rows.take(pa.array(self.withdrawn_versions))
        ends = self.stored.start[self.withdrawn_versions]
        yield move_ends(stored, ends, self.terms.recorded, self.terms.memory, Role.PAST), True
        yield past_rows(stored, self.terms.memory), False

    def _new_versions(self) -> pa.Table:
        """The versions that are not stored yet."""
        new = ~self._is_stored & (self.facts.kind[self.runs.begin] != BEFORE)
        begin = self.runs.begin[new]
        row = self.facts.source[begin]
        values = values_at(self.pool, self.terms.key, row)
        values |= {name: self.pool.at(name, self.places(name)[new]) for name in self.terms.data}
        event = self.facts.kind[begin] == UPSERT
        kind = pa.array(np.full(len(begin), FactKind.UPSERT.value), pa.string(), mask=~event)
        time = times_to_store(np.where(event, self.facts.own[begin], FIRST))
        memory = {
            KIND: kind,
            SEQUENCE: self._sequence(np.where(event, row, -1)),
            COLUMNS: self._lists(begin, event),
            OWN_TIME: time,
        }
        return make_rows(self.terms, values, self.facts.at[begin], self.runs.end[new], memory)

    @cached_property
    def _silent_events(self) -> np.ndarray:
        """The indexes of the events that begin no version."""
        event = (self.facts.kind == UPSERT) | ((self.facts.kind == CLEAR) & (self.facts.source >= 0))
        event[self.runs.begin] = False
        return np.flatnonzero(event)

    @cached_property
    def _unchanged_facts(self) -> np.ndarray:
        """The indexes, among the silent events, of the events that are already stored unchanged."""
        rows = self.facts.stored[self._silent_events]
        there = (
            np.flatnonzero((rows >= 0) & ~self.stored.version[rows]) if len(self.stored.rows) else rows[:0]
        )
        rows, source = rows[there], self.facts.source[self._silent_events[there]]
        lists = self.facts.columns[self._silent_events[there]]
        same = self._same_columns(lists, rows) & self._has_same_times(self._silent_events[there], rows)
        for name in (*self.terms.tracked, *self.terms.ignored_columns):
            says = self.pool.has(name)[lists]
            same &= ~says | self.pool.alike(name, source, rows)
        return there[same]

    def _withdraw_facts(self) -> Iterator[tuple[pa.Table, bool]]:
        """Stored facts that now begin versions, or that are no longer true (V8)."""
        stored = self.stored
        event = (
            (stored.upsert | stored.delete) & ~stored.version & (stored.start >= self.since[stored.record])
        )
        event[self.facts.stored[self._silent_events[self._unchanged_facts]]] = False
        if event.any():
            yield (
                withdraw_facts(stored.rows.filter(pa.array(event)), self.terms.recorded, self.terms.memory),
                True,
            )

    def _new_facts(self) -> pa.Table:
        """The events that begin no version and are not stored as facts yet (V4, V32)."""
        places = np.delete(self._silent_events, self._unchanged_facts)
        row, delete = self.facts.source[places], self.facts.kind[places] == CLEAR
        values = values_at(self.pool, self.terms.key, row)
        lists = self.facts.columns[places]
        for name in self.terms.data:
            values[name] = self.pool.at(name, np.where(self.pool.has(name)[lists] & ~delete, row, -1))
        kind = pa.array(np.where(delete, FactKind.DELETE.value, FactKind.UPSERT.value), pa.string())
        time = times_to_store(self.facts.own[places])
        memory = {
            ROLE: pa.repeat(Role.FACT.value, len(places)),
            KIND: kind,
            SEQUENCE: self._sequence(row),
            COLUMNS: self._lists(places, ~delete),
            OWN_TIME: time,
        }
        return make_rows(self.terms, values, self.facts.at[places], self.facts.at[places], memory)

    def _sequence(self, rows: np.ndarray) -> pa.Array | None:
        return None if self.sequence is None else self.sequence.take(pa.array(rows, mask=rows < 0))

    def _lists(self, places: np.ndarray, event: np.ndarray) -> pa.Array:
        """The lists of columns that events set. They are complete, to exclude columns added later (V138)."""
        list_places = np.where(event, self.facts.columns[places], -1)
        lists = self.pool.lists.take(pa.array(list_places, mask=list_places < 0))
        every = pa.scalar(sorted(self.terms.numbers.values()), lists.type)
        return pc.if_else(pa.array(event & np.asarray(lists.is_null())), every, lists)
