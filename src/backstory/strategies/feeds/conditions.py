"""Copies whose word depends on what is known before them: of a scope, or of fewer columns (native.md V22)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from backstory.strategies.feeds.gathering import COPY, Facts
from backstory.strategies.feeds.records import Pool
from backstory.strategies.feeds.states import Effects
from backstory.strategies.feeds.terms import FeedTerms, Scope


@dataclass(frozen=True)
class Conditions:
    """Facts, the scopes of the marks that some of them are of, and a place in the pool for each record."""

    facts: Facts
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
        asked = block[asks[block]]
        _learn(known, effects, block[~asks[block]])
        effects.keeps[asked] = _changes_nothing(conditions, known, asked)
        _learn(known, effects, asked)
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
    gone = record[block[takes]]
    known.there[gone] = False
    counts = np.arange(len(block)) >= cleared[record[block]]
    known.there[record[block[counts & now.appears]]] = True
    for name, places in known.places.items():
        places[gone] = -1
        says = block[counts & now.asserts(name)]
        places[record[says]] = source[says]


def _changes_nothing(conditions: Conditions, known: _Known, asked: np.ndarray) -> np.ndarray:
    facts = conditions.facts
    record, source = facts.record[asked], facts.source[asked]
    found = known.there[record] & (source >= 0)
    for name, places in known.places.items():
        named = conditions.pool.has(name)[facts.told[asked]] | (facts.told[asked] < 0)
        rows = np.flatnonzero(found & named)
        found[rows] = conditions.pool.alike(name, places[record[rows]], source[rows])
    missing = np.flatnonzero(source < 0)
    for mark in np.unique(facts.mark[asked[missing]]):
        rows = missing[facts.mark[asked[missing]] == mark]
        of = record[rows]
        where = {name: each[of] for name, each in known.places.items()}
        where.update(dict.fromkeys(conditions.terms.key, conditions.rows[of]))
        inside = conditions.pool.within(conditions.scopes[mark] or (), where, len(rows))
        found[rows] = ~(known.there[of] & inside)
    return found
