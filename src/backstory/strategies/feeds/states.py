"""The state of records after each fact, and the versions that follow, as arrays (V22 to V26).

A copy with a scope, or without some columns, may change nothing. Whether it does depends on the state before
the copy (V22).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from backstory.strategies.copies.version_rows import OPEN
from backstory.strategies.feeds.facts import BEFORE, CLEAR, COPY, UPSERT, RecordFacts
from backstory.strategies.feeds.records import Pool
from backstory.strategies.feeds.terms import FeedTerms, Scope


@dataclass(frozen=True)
class States:
    """The state after each fact: whether the record exists and, by column, the index of its value.

    A fact can clear a record, make it appear, and set columns. `keeps` is true for a copy that changes only
    columns without history. Such a copy lists a record with its known values, or lacks a record that does not
    exist or is outside its scope.
    """

    facts: RecordFacts
    pool: Pool
    terms: FeedTerms
    keeps: np.ndarray

    @cached_property
    def _clears(self) -> np.ndarray:
        """A mask of the facts that discard the state before them. A copy then sets the new state."""
        kind = self.facts.kind
        return (kind == BEFORE) | (kind == CLEAR) | ((kind == COPY) & ~self.keeps)

    @cached_property
    def _appears(self) -> np.ndarray:
        """A mask of the facts that make the record exist."""
        kind = self.facts.kind
        return (kind == UPSERT) | (((kind == BEFORE) | (kind == COPY)) & (self.facts.source >= 0))

    def _asserts(self, name: str) -> np.ndarray:
        """A mask of the facts that set a column."""
        sets = self._appears & self.pool.names(name, self.facts.columns)
        return sets if name in self.terms.overwritten else sets & ~self.keeps

    @cached_property
    def there(self) -> np.ndarray:
        """Whether the record exists after each fact."""
        return _latest(self._appears) >= self._last_clear

    @cached_property
    def _last_clear(self) -> np.ndarray:
        return _latest(self._clears)

    @cached_property
    def _places(self) -> Mapping[str, np.ndarray]:
        names = (*self.terms.tracked, *self.terms.overwritten)
        return {name: self._fill_places(self._asserts(name), self._last_clear) for name in names}

    def place(self, name: str) -> np.ndarray:
        """The index of a tracked or overwritten column's value after each fact, or -1 for NULL."""
        return self._places[name]

    def place_at_begin(self, name: str) -> np.ndarray:
        """The index of an ignored column's value. Only facts that begin or end a version set it."""
        counts = self.facts.kind == BEFORE
        moved = self.moves[self.instant]
        counts |= moved & (np.arange(len(counts)) <= self.changer[self.instant])
        return self._fill_places(self._asserts(name) & counts, _latest(self._clears & counts))

    def _fill_places(self, asserts: np.ndarray, cleared: np.ndarray) -> np.ndarray:
        last = _latest(asserts)
        return np.where(last >= cleared, self.facts.source[last], -1)

    def same(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """For each pair of facts, whether the state after one equals the state after the other."""
        alike = self.there[one] == self.there[other]
        for name in self.terms.tracked:
            place = self.place(name)
            rows = np.flatnonzero(alike & self.there[one] & (place[one] != place[other]))
            alike[rows] = self.pool.alike(name, place[one[rows]], place[other[rows]])
        return alike

    @cached_property
    def changes(self) -> np.ndarray:
        """A mask of the facts that change the state."""
        later = np.flatnonzero(self.facts.kind != BEFORE)
        changed = np.zeros(len(self.facts), bool)
        changed[later] = ~self.same(later - 1, later)
        return changed

    @cached_property
    def firsts(self) -> np.ndarray:
        """The index of the first fact at each instant of each record."""
        record, at = self.facts.record, self.facts.at
        differs = np.ones(len(record), bool)
        differs[1:] = (record[1:] != record[:-1]) | (at[1:] != at[:-1])
        return np.flatnonzero(differs)

    @cached_property
    def lasts(self) -> np.ndarray:
        """The index of the last fact at each instant of each record."""
        return np.append(self.firsts[1:], len(self.facts)) - 1

    @cached_property
    def instant(self) -> np.ndarray:
        """For each fact, the number of its instant. The instants of all records are numbered together."""
        return np.repeat(np.arange(len(self.firsts)), np.diff(np.append(self.firsts, len(self.facts))))

    @cached_property
    def base(self) -> np.ndarray:
        """A mask of the instants that represent the state before all other facts."""
        return self.facts.kind[self.firsts] == BEFORE

    @cached_property
    def moves(self) -> np.ndarray:
        """A mask of the instants at which the record changes (V24)."""
        moved = np.zeros(len(self.firsts), bool)
        later = np.flatnonzero(~self.base)
        moved[later] = ~self.same(self.lasts[later - 1], self.lasts[later])
        return moved

    @cached_property
    def changer(self) -> np.ndarray:
        """For each instant, the index of the last fact that changed the state, or -1 if none did."""
        places = np.where(self.changes, np.arange(len(self.facts)), -1)
        return np.maximum.reduceat(places, self.firsts) if len(places) else places

    @cached_property
    def runs(self) -> "Runs":
        """The versions that result from the states."""
        borders = np.flatnonzero(self.moves | self.base)
        record = self.facts.record[self.firsts[borders]]
        ends = np.full(len(borders), OPEN)
        more = np.flatnonzero(record[1:] == record[:-1])
        ends[more] = self.facts.at[self.firsts[borders[more + 1]]]
        there = self.there[self.lasts[borders]]
        following = self.terms.following
        reaches = ends > (OPEN - 1 if following is None else following)
        finals = np.append(self.firsts[borders[1:]], len(self.facts)) - 1
        newest = np.where(reaches, finals, self.lasts[borders])
        borders, ends, newest, reaches = (values[there] for values in (borders, ends, newest, reaches))
        begin = np.where(self.base[borders], self.firsts[borders], self.changer[borders])
        return Runs(begin, newest, ends, reaches)


@dataclass(frozen=True)
class Runs:
    """Versions as parallel arrays: the fact that begins one, the fact with its newest values, and its end.

    `reaches` is true for versions whose columns without history have the newest values: open versions, or
    versions that are true at the following instant.
    """

    begin: np.ndarray
    newest: np.ndarray
    end: np.ndarray
    reaches: np.ndarray


def _latest(flags: np.ndarray) -> np.ndarray:
    """For each index, the last flagged index at or before it, or -1 without one."""
    return (
        np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1)) if len(flags) else flags.astype(int)
    )


def states_of(
    facts: RecordFacts, pool: Pool, terms: FeedTerms, scopes: Sequence[Scope | None], rows: np.ndarray
) -> States:
    """The states after all facts, with a decision for each copy that may change nothing.

    `scopes` are the scopes of the facts' marks. `rows` has an index into the pool for each record. Whether a
    copy changes nothing depends only on earlier facts, so repeated decisions become right one copy of each
    record after the other. Mostly, the second decisions are the first ones.
    """
    asks = np.flatnonzero(_conditional(facts, pool, scopes))
    keeps = np.zeros(len(facts), bool)
    keeps[asks] = True
    while True:
        states = States(facts, pool, terms, keeps)
        decided = _changes_nothing(states, scopes, rows, asks)
        if (keeps[asks] == decided).all():
            return states
        keeps = keeps.copy()
        keeps[asks] = decided


def _conditional(facts: RecordFacts, pool: Pool, scopes: Sequence[Scope | None]) -> np.ndarray:
    """A mask of the copies that may change nothing: listings of some columns, and absences from a scope."""
    sparse = ~pool.whole[facts.columns] & (facts.columns >= 0) if len(pool.whole) else facts.columns >= 0
    scoped = np.array([scope is not None for scope in scopes], bool)
    of_scope = scoped[facts.mark] & (facts.mark >= 0) if len(scoped) else facts.mark >= 0
    return (facts.kind == COPY) & np.where(facts.source >= 0, sparse, of_scope)


def _changes_nothing(
    states: States, scopes: Sequence[Scope | None], keys: np.ndarray, copies: np.ndarray
) -> np.ndarray:
    """For each copy, whether it leaves the state before it. A record's first fact is never a copy."""
    facts, pool, before = states.facts, states.pool, copies - 1
    source, there = facts.source[copies], states.there[before]
    unchanged = there & (source >= 0)
    for name in states.terms.tracked:
        rows = np.flatnonzero(unchanged & pool.names(name, facts.columns[copies]))
        unchanged[rows] = pool.alike(name, states.place(name)[before[rows]], source[rows])
    missing = np.flatnonzero(source < 0)
    for mark in np.unique(facts.mark[copies[missing]]):
        rows = missing[facts.mark[copies[missing]] == mark]
        where = {name: states.place(name)[before[rows]] for name in states.terms.tracked}
        where |= dict.fromkeys(states.terms.key, keys[facts.record[copies[rows]]])
        inside = pool.within(scopes[mark] or (), where, len(rows))
        unchanged[rows] = ~(there[rows] & inside)
    return unchanged
