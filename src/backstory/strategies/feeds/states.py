"""The state of records after each fact, and the versions that follow, as arrays (V22 to V26).

A copy with a scope, or without some columns, may change nothing. Whether it does depends on the state before
the copy (V22).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from backstory.strategies.copies.version_rows import OPEN
from backstory.strategies.feeds.facts import BEFORE, CLEAR, COPY, UPSERT, RecordFacts
from backstory.strategies.feeds.records import Pool
from backstory.strategies.feeds.terms import FeedTerms, Scope


@dataclass(frozen=True)
class Effects:
    """The effects of facts on records: a fact can clear a record, make it appear, and set columns.

    `keeps` is true for a copy that changes only columns without history. Such a copy lists a record with its
    known values, or lacks a record that does not exist or is outside its scope.
    """

    facts: RecordFacts
    pool: Pool
    terms: FeedTerms
    keeps: np.ndarray

    @property
    def listings(self) -> np.ndarray:
        """A mask of the copies that listed the record."""
        return (self.facts.kind == COPY) & (self.facts.source >= 0)

    @cached_property
    def clears(self) -> np.ndarray:
        """A mask of the facts that discard the state before them. A copy then sets the new state."""
        kind = self.facts.kind
        return (kind == BEFORE) | (kind == CLEAR) | ((kind == COPY) & ~self.keeps)

    @cached_property
    def appears(self) -> np.ndarray:
        """A mask of the facts that make the record exist."""
        kind = self.facts.kind
        return (kind == UPSERT) | ((kind == BEFORE) & (self.facts.source >= 0)) | self.listings

    def asserts(self, name: str) -> np.ndarray:
        """A mask of the facts that set a column."""
        lists = self.facts.columns
        names = (lists < 0) | self.pool.has(name)[lists] if len(self.pool.lists) else lists < 0
        no_change = self.keeps if name not in self.terms.overwritten else np.zeros_like(self.keeps)
        return self.appears & names & ~no_change


@dataclass(frozen=True)
class States:
    """The state after each fact: whether the record exists and, by column, the index of its value."""

    effects: Effects

    @property
    def facts(self) -> RecordFacts:
        """The facts in their order."""
        return self.effects.facts

    @cached_property
    def there(self) -> np.ndarray:
        """Whether the record exists after each fact."""
        return _latest(self.effects.appears) >= self._last_clear

    @cached_property
    def _last_clear(self) -> np.ndarray:
        return _latest(self.effects.clears)

    @cached_property
    def _places(self) -> Mapping[str, np.ndarray]:
        terms = self.effects.terms
        return {
            name: self._fill_places(self.effects.asserts(name), self._last_clear)
            for name in (*terms.tracked, *terms.overwritten)
        }

    def place(self, name: str) -> np.ndarray:
        """The index of a tracked or overwritten column's value after each fact, or -1 for NULL."""
        return self._places[name]

    def place_at_begin(self, name: str) -> np.ndarray:
        """The index of an ignored column's value. Only facts that begin or end a version set it."""
        counts = self.effects.facts.kind == BEFORE
        moved = self.moves[self.instant]
        counts |= moved & (np.arange(len(counts)) <= self.changer[self.instant])
        return self._fill_places(self.effects.asserts(name) & counts, _latest(self.effects.clears & counts))

    def _fill_places(self, asserts: np.ndarray, cleared: np.ndarray) -> np.ndarray:
        last = _latest(asserts)
        return np.where(last >= cleared, self.facts.source[last], -1)

    def same(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """For each pair of facts, whether the state after one equals the state after the other."""
        alike = self.there[one] == self.there[other]
        for name in self.effects.terms.tracked:
            place = self.place(name)
            rows = np.flatnonzero(alike & self.there[one] & (place[one] != place[other]))
            alike[rows] = self.effects.pool.alike(name, place[one[rows]], place[other[rows]])
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
        following = self.effects.terms.following
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


@dataclass
class _Known:
    """The state of each record before a fact: whether the record exists, and the indexes of its values."""

    there: np.ndarray
    places: Mapping[str, np.ndarray] = field(default_factory=dict)


def effects_of(
    facts: RecordFacts, pool: Pool, terms: FeedTerms, scopes: Sequence[Scope | None], rows: np.ndarray
) -> Effects:
    """The effects of all facts, with a decision for each copy that may change nothing.

    `scopes` are the scopes of the facts' marks. `rows` has an index into the pool for each record. A copy
    that may change nothing is compared with the state before it. All records' first copies are decided
    together, then all second copies, and so on.
    """
    effects = Effects(facts, pool, terms, np.zeros(len(facts), bool))
    asks = _conditional(facts, pool, scopes)
    if not asks.any():
        return effects
    number = np.cumsum(asks) - asks  # how many such copies are before a fact, in all records
    first = np.searchsorted(facts.record, facts.record)
    rounds = number - number[first]
    order = np.argsort(rounds, kind="stable")
    ends = np.cumsum(np.bincount(rounds))
    count = int(facts.record.max()) + 1
    known = _Known(np.zeros(count, bool), {name: np.full(count, -1) for name in terms.tracked})
    for block in np.split(order, ends[:-1]):
        copies = block[asks[block]]
        _learn(known, effects, block[~asks[block]])
        effects.keeps[copies] = _changes_nothing(effects, scopes, rows, known, copies)
        _learn(known, effects, copies)
    return Effects(facts, pool, terms, effects.keeps)


def _conditional(facts: RecordFacts, pool: Pool, scopes: Sequence[Scope | None]) -> np.ndarray:
    sparse = ~pool.whole[facts.columns] & (facts.columns >= 0) if len(pool.whole) else facts.columns >= 0
    scoped = np.array([scope is not None for scope in scopes], bool)
    of_scope = scoped[facts.mark] & (facts.mark >= 0) if len(scoped) else facts.mark >= 0
    return (facts.kind == COPY) & np.where(facts.source >= 0, sparse, of_scope)


def _learn(known: _Known, effects: Effects, block: np.ndarray) -> None:
    """Apply the facts in `block`, which are in order, to the known states."""
    record, source = effects.facts.record, effects.facts.source
    now = Effects(effects.facts.take(block), effects.pool, effects.terms, effects.keeps[block])
    cleared = np.full(len(known.there), -1)
    takes = np.flatnonzero(now.clears)
    cleared[record[block[takes]]] = takes
    cleared_records = record[block[takes]]
    known.there[cleared_records] = False
    counts = np.arange(len(block)) >= cleared[record[block]]
    known.there[record[block[counts & now.appears]]] = True
    for name, places in known.places.items():
        places[cleared_records] = -1
        says = block[counts & now.asserts(name)]
        places[record[says]] = source[says]


def _changes_nothing(
    effects: Effects, scopes: Sequence[Scope | None], keys: np.ndarray, known: _Known, copies: np.ndarray
) -> np.ndarray:
    facts, pool = effects.facts, effects.pool
    record, source = facts.record[copies], facts.source[copies]
    unchanged = known.there[record] & (source >= 0)
    for name, places in known.places.items():
        named = pool.has(name)[facts.columns[copies]] | (facts.columns[copies] < 0)
        rows = np.flatnonzero(unchanged & named)
        unchanged[rows] = pool.alike(name, places[record[rows]], source[rows])
    missing = np.flatnonzero(source < 0)
    for mark in np.unique(facts.mark[copies[missing]]):
        rows = missing[facts.mark[copies[missing]] == mark]
        of = record[rows]
        where = {name: places[of] for name, places in known.places.items()}
        where.update(dict.fromkeys(effects.terms.key, keys[of]))
        inside = pool.within(scopes[mark] or (), where, len(rows))
        unchanged[rows] = ~(known.there[of] & inside)
    return unchanged
