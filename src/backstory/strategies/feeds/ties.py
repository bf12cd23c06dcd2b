"""Events of one record, instant and sequence: the same one again, or a conflict (native.md V52, V53)."""

from dataclasses import dataclass, fields

import numpy as np

from backstory.strategies.feeds.log_order import place_in_order
from backstory.strategies.feeds.records import Pool
from backstory.strategies.feeds.terms import FeedTerms
from backstory.strategies.keys import pair_codes


@dataclass(frozen=True)
class Sequenced:
    """Events: of each the record, instant, number of the sequence, place in the pool, whether a delete.

    Of a message of a log `own` is its own time, else `FIRST`; `read` says whether it is a read.
    """

    record: np.ndarray
    at: np.ndarray
    code: np.ndarray
    place: np.ndarray
    delete: np.ndarray
    own: np.ndarray
    read: np.ndarray

    def at_places(self, places: np.ndarray) -> "Sequenced":
        """Some of them, in this order."""
        return Sequenced(*(getattr(self, each.name)[places] for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Ties:
    """Of each delivered event whether it is known or was delivered before, and whether it conflicts.

    `own` are the own times of stored events, the earliest that came of each (V133).
    """

    again: np.ndarray
    conflict: np.ndarray
    own: np.ndarray


def ties_of(terms: FeedTerms, pool: Pool, delivered: Sequenced, stored: Sequenced) -> Ties:
    """Each delivered event against the stored one of its instant and sequence, else the earliest of these.

    Events of a log are told apart by their positions alone.
    """
    count = len(delivered.record)
    sides = [(each.record, place_in_order(each.at, each.own)) for each in (delivered, stored)]
    instants, _ = pair_codes(*(np.concatenate(each) for each in zip(*sides, strict=True)))
    codes, size = pair_codes(instants, np.concatenate([delivered.code, stored.code]))
    mine, theirs = codes[:count], codes[count:]
    rival = np.full(size, -1)
    late_first = np.argsort(delivered.own, kind="stable")[::-1]
    rival[mine[late_first]] = late_first
    rival[theirs] = np.arange(len(theirs)) + count
    meets = rival[mine]
    others = np.flatnonzero(meets != np.arange(count))
    same = _is_one(terms, pool, delivered, others, _joined(delivered, stored), meets[others])
    again, conflict = np.zeros(count, bool), np.zeros(count, bool)
    again[others[same]] = True
    conflict[others[~same]] = True
    own = stored.own.copy()
    known = np.flatnonzero(meets >= count)
    np.minimum.at(own, meets[known] - count, delivered.own[known])
    return Ties(again, conflict, own)


def _joined(one: Sequenced, other: Sequenced) -> Sequenced:
    names = [each.name for each in fields(one)]
    return Sequenced(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in names))


def _is_one(
    terms: FeedTerms, pool: Pool, delivered: Sequenced, rows: np.ndarray, all_: Sequenced, rivals: np.ndarray
) -> np.ndarray:
    """Whether events say what their rivals do (V52)."""
    one, other = delivered.place[rows], all_.place[rivals]
    delete = delivered.delete[rows] & all_.delete[rivals]
    same = delivered.delete[rows] == all_.delete[rivals]
    for name in terms.data:
        says, said = pool.has(name)[one], pool.has(name)[other]
        same &= delete | (says == said)
        if name in terms.tracked:
            compared = np.flatnonzero(same & ~delete & says)
            same[compared] &= pool.alike(name, one[compared], other[compared])
    return same
