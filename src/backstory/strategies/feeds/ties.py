"""Events of one record, instant and sequence: the same one again, or a conflict (native.md V52, V53)."""

from dataclasses import dataclass

import numpy as np

from backstory.strategies.feeds.records import Pool
from backstory.strategies.feeds.terms import FeedTerms
from backstory.strategies.keys import pair_codes


@dataclass(frozen=True)
class Sequenced:
    """Events: of each the record, instant, number of the sequence, place in the pool, whether a delete."""

    record: np.ndarray
    at: np.ndarray
    code: np.ndarray
    place: np.ndarray
    delete: np.ndarray


@dataclass(frozen=True, slots=True)
class Ties:
    """Of each delivered event whether it is known or was delivered before, and whether it conflicts."""

    again: np.ndarray
    conflict: np.ndarray


def ties_of(terms: FeedTerms, pool: Pool, delivered: Sequenced, stored: Sequenced) -> Ties:
    """Each delivered event against the stored one of its instant and sequence, else the first of these."""
    count = len(delivered.record)
    instants, _ = pair_codes(
        *(np.concatenate([getattr(each, of) for each in (delivered, stored)]) for of in ("record", "at"))
    )
    codes, size = pair_codes(instants, np.concatenate([delivered.code, stored.code]))
    mine, theirs = codes[:count], codes[count:]
    rival = np.full(size, -1)
    rival[mine[::-1]] = np.arange(count)[::-1]
    rival[theirs] = np.arange(len(theirs)) + count
    meets = rival[mine]
    others = np.flatnonzero(meets != np.arange(count))
    same = _is_one(terms, pool, delivered, others, _joined(delivered, stored), meets[others])
    again, conflict = np.zeros(count, bool), np.zeros(count, bool)
    again[others[same]] = True
    conflict[others[~same]] = True
    return Ties(again, conflict)


def _joined(one: Sequenced, other: Sequenced) -> Sequenced:
    names = ("record", "at", "code", "place", "delete")
    return Sequenced(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in names))


def _is_one(
    terms: FeedTerms, pool: Pool, delivered: Sequenced, rows: np.ndarray, all_: Sequenced, rivals: np.ndarray
) -> np.ndarray:
    """Whether events say what their rivals do (V52).

    A stored event that asserted all columns is also one that lacks some, where these are NULL: a delivery
    from before a column came is the same when it comes again (V60).
    """
    one, other = delivered.place[rows], all_.place[rivals]
    delete = delivered.delete[rows] & all_.delete[rivals]
    same = delivered.delete[rows] == all_.delete[rivals]
    older = (rivals >= len(delivered.record)) & pool.whole[other]
    for name in terms.data:
        says, said = pool.has(name)[one], pool.has(name)[other]
        same &= delete | (says == said) | older
        if name in terms.tracked:
            wanted = np.where(says, one, -1)
            compared = np.flatnonzero(same & ~delete & (says | older))
            same[compared] &= pool.alike(name, wanted[compared], other[compared])
    return same
