"""What is known after each fact, and where versions begin and end (native.md V22 to V26), as arrays.

Copies whose word depends on what is known before them: of a scope, or of fewer columns (native.md V22).
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
    """What facts do to a record: take it away, say that it is there, assert some of its columns.

    `keeps` are copies that listed a record as it was known, or did not list one that is not in their scope:
    they change nothing but what has no history.
    """

    facts: RecordFacts
    pool: Pool
    terms: FeedTerms
    keeps: np.ndarray

    @property
    def listings(self) -> np.ndarray:
        """The copies that listed the record."""
        return (self.facts.said == COPY) & (self.facts.source >= 0)

    @cached_property
    def clears(self) -> np.ndarray:
        """Whether a fact leaves nothing of what was known; a copy then says what is."""
        said = self.facts.said
        return (said == BEFORE) | (said == CLEAR) | ((said == COPY) & ~self.keeps)

    @cached_property
    def appears(self) -> np.ndarray:
        """Whether a fact says that the record is there."""
        said = self.facts.said
        return (said == UPSERT) | ((said == BEFORE) & (self.facts.source >= 0)) | self.listings

    def asserts(self, name: str) -> np.ndarray:
        """Whether a fact says what a column is."""
        told = self.facts.told
        names = (told < 0) | self.pool.has(name)[told] if len(self.pool.lists) else told < 0
        no_change = self.keeps if name not in self.terms.overwritten else np.zeros_like(self.keeps)
        return self.appears & names & ~no_change


@dataclass(frozen=True)
class States:
    """What is known after each fact: by column the place of the value in the pool, -1 for NULL."""

    effects: Effects

    @property
    def facts(self) -> RecordFacts:
        """The facts in their order."""
        return self.effects.facts

    @cached_property
    def there(self) -> np.ndarray:
        """Whether the record is there."""
        return _latest(self.effects.appears) >= self._last_clear

    @cached_property
    def _last_clear(self) -> np.ndarray:
        return _latest(self.effects.clears)

    @cached_property
    def _places(self) -> Mapping[str, np.ndarray]:
        terms = self.effects.terms
        return {
            name: self._fill_places(self.effects.asserts(name), self._last_clear) for name in _lasting(terms)
        }

    def place(self, name: str) -> np.ndarray:
        """Where the value of a column is that makes versions, or has no history."""
        return self._places[name]

    def place_at_begin(self, name: str) -> np.ndarray:
        """The same of a column that only facts count for that begin a version, or end one."""
        counts = self.effects.facts.said == BEFORE
        moved = self.moves[self.instant]
        counts |= moved & (np.arange(len(counts)) <= self.changer[self.instant])
        return self._fill_places(self.effects.asserts(name) & counts, _latest(self.effects.clears & counts))

    def _fill_places(self, asserts: np.ndarray, cleared: np.ndarray) -> np.ndarray:
        said = _latest(asserts)
        return np.where(said >= cleared, self.facts.source[said], -1)

    def same(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Whether the records are alike after two facts, for pairs of these."""
        alike = self.there[one] == self.there[other]
        for name in self.effects.terms.tracked:
            place = self.place(name)
            rows = np.flatnonzero(alike & self.there[one] & (place[one] != place[other]))
            alike[rows] = self.effects.pool.alike(name, place[one[rows]], place[other[rows]])
        return alike

    @cached_property
    def changes(self) -> np.ndarray:
        """Whether a fact changes what is known."""
        later = np.flatnonzero(self.facts.said != BEFORE)
        changed = np.zeros(len(self.facts), bool)
        changed[later] = ~self.same(later - 1, later)
        return changed

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first fact of each instant of each record."""
        record, at = self.facts.record, self.facts.at
        differs = np.ones(len(record), bool)
        differs[1:] = (record[1:] != record[:-1]) | (at[1:] != at[:-1])
        return np.flatnonzero(differs)

    @cached_property
    def lasts(self) -> np.ndarray:
        """The last fact of each instant."""
        return np.append(self.firsts[1:], len(self.facts)) - 1

    @cached_property
    def instant(self) -> np.ndarray:
        """The number of each fact's instant among those of all records."""
        return np.repeat(np.arange(len(self.firsts)), np.diff(np.append(self.firsts, len(self.facts))))

    @cached_property
    def base(self) -> np.ndarray:
        """Which instants are what was known before all others."""
        return self.facts.said[self.firsts] == BEFORE

    @cached_property
    def moves(self) -> np.ndarray:
        """The instants after which a record is another one than before (V24)."""
        moved = np.zeros(len(self.firsts), bool)
        later = np.flatnonzero(~self.base)
        moved[later] = ~self.same(self.lasts[later - 1], self.lasts[later])
        return moved

    @cached_property
    def changer(self) -> np.ndarray:
        """The last fact of each instant that changed anything, -1 where none did."""
        places = np.where(self.changes, np.arange(len(self.facts)), -1)
        return np.maximum.reduceat(places, self.firsts) if len(places) else places

    @cached_property
    def runs(self) -> "Runs":
        """The versions of the new lives."""
        borders = np.flatnonzero(self.moves | self.base)
        record = self.facts.record[self.firsts[borders]]
        ends = np.full(len(borders), OPEN)
        more = np.flatnonzero(record[1:] == record[:-1])
        ends[more] = self.facts.at[self.firsts[borders[more + 1]]]
        there = self.there[self.lasts[borders]]
        borders, ends = borders[there], ends[there]
        begin = np.where(self.base[borders], self.firsts[borders], self.changer[borders])
        final = np.searchsorted(self.facts.record, self.facts.record[begin], "right") - 1
        return Runs(begin, np.where(ends == OPEN, final, self.lasts[borders]), ends)


@dataclass(frozen=True)
class Runs:
    """Versions: the fact that begins each, the one after which it has its newest values, and its end."""

    begin: np.ndarray
    newest: np.ndarray
    end: np.ndarray


def _lasting(terms: FeedTerms) -> Sequence[str]:
    return (*terms.tracked, *terms.overwritten)


def _latest(flags: np.ndarray) -> np.ndarray:
    """For each place the last one up to it that has the flag, -1 before the first."""
    return (
        np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1)) if len(flags) else flags.astype(int)
    )


@dataclass(frozen=True)
class Conditions:
    """Facts, the scopes of the marks that some of them are of, and a place in the pool for each record."""

    facts: RecordFacts
    pool: Pool
    terms: FeedTerms
    scopes: Sequence[Scope | None]
    rows: np.ndarray


@dataclass
class _Known:
    """What is known of each record up to a fact: whether it is there, and the places of its values."""

    there: np.ndarray
    places: Mapping[str, np.ndarray] = field(default_factory=dict)


def effects_of(conditions: Conditions) -> Effects:
    """What each fact does, once it is known which copies change nothing.

    Each copy of this kind is asked with what is known before it: those that come first in their records are
    asked together, then those that come second.
    """
    facts, terms = conditions.facts, conditions.terms
    effects = Effects(facts, conditions.pool, terms, np.zeros(len(facts), bool))
    asks = _conditional(conditions)
    if not asks.any():
        return effects
    number = np.cumsum(asks) - asks  # of those that stand before a fact in all records
    first = np.searchsorted(facts.record, facts.record)
    rounds = number - number[first]
    order = np.argsort(rounds, kind="stable")
    ends = np.cumsum(np.bincount(rounds))
    count = int(facts.record.max()) + 1
    known = _Known(np.zeros(count, bool), {name: np.full(count, -1) for name in terms.tracked})
    for block in np.split(order, ends[:-1]):
        copies = block[asks[block]]
        _learn(known, effects, block[~asks[block]])
        effects.keeps[copies] = _changes_nothing(conditions, known, copies)
        _learn(known, effects, copies)
    return Effects(facts, conditions.pool, terms, effects.keeps)


def _conditional(conditions: Conditions) -> np.ndarray:
    facts, pool = conditions.facts, conditions.pool
    sparse = ~pool.whole[facts.told] & (facts.told >= 0) if len(pool.whole) else facts.told >= 0
    scoped = np.array([scope is not None for scope in conditions.scopes], bool)
    of_scope = scoped[facts.mark] & (facts.mark >= 0) if len(scoped) else facts.mark >= 0
    return (facts.said == COPY) & np.where(facts.source >= 0, sparse, of_scope)


def _learn(known: _Known, effects: Effects, block: np.ndarray) -> None:
    """What is known after these facts, which are in their order."""
    record, source = effects.facts.record, effects.facts.source
    now = Effects(effects.facts.at_places(block), effects.pool, effects.terms, effects.keeps[block])
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


def _changes_nothing(conditions: Conditions, known: _Known, copies: np.ndarray) -> np.ndarray:
    facts = conditions.facts
    record, source = facts.record[copies], facts.source[copies]
    unchanged = known.there[record] & (source >= 0)
    for name, places in known.places.items():
        named = conditions.pool.has(name)[facts.told[copies]] | (facts.told[copies] < 0)
        rows = np.flatnonzero(unchanged & named)
        unchanged[rows] = conditions.pool.alike(name, places[record[rows]], source[rows])
    missing = np.flatnonzero(source < 0)
    for mark in np.unique(facts.mark[copies[missing]]):
        rows = missing[facts.mark[copies[missing]] == mark]
        of = record[rows]
        where = {name: places[of] for name, places in known.places.items()}
        where.update(dict.fromkeys(conditions.terms.key, conditions.rows[of]))
        inside = conditions.pool.within(conditions.scopes[mark] or (), where, len(rows))
        unchanged[rows] = ~(known.there[of] & inside)
    return unchanged
