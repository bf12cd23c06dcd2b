"""What delivered events count as (native.md V25, V58, V64)."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.alike import alike
from backstory.strategies.feeds.gathering import BEFORE, CLEAR, UPSERT
from backstory.strategies.feeds.states import States
from backstory.strategies.feeds.terms import FIRST

BEGAN, ENDED, SILENT, LATE = "began", "ended", "silent", "late"
PARTIAL, MISMATCHED, RAISED = "partial", "mismatched", "raised"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """For each fact whether it is so; only those of delivered facts count."""

    began: np.ndarray
    ended: np.ndarray
    late: np.ndarray
    partial: np.ndarray
    mismatched: np.ndarray
    raised: np.ndarray


def outcomes(states: States, before: pa.Array | None) -> Outcomes:
    """What the facts of lives count as; `before` are the images that delivered events brought (V64)."""
    facts, effects = states.facts, states.effects
    count = len(facts)
    there_before = np.zeros(count, bool)
    there_before[1:] = states.there[:-1]  # the first fact of a record is never delivered
    began = np.zeros(count, bool)
    began[states.runs.begin] = True
    ends = np.zeros(len(states.firsts), bool)
    later = np.flatnonzero(~states.base)
    ends[later] = states.moves[later] & states.there[states.lasts[later - 1]]
    clears = facts.said == CLEAR
    known = ~facts.new & (facts.said != BEFORE)
    last = np.full(int(facts.record.max(initial=-1)) + 1, -1)
    np.maximum.at(last, facts.record[known], np.flatnonzero(known))
    sparse = (facts.told >= 0) & (facts.said == UPSERT)
    sparse[sparse] = ~effects.pool.whole[facts.told[sparse]]
    return Outcomes(
        began & (facts.said == UPSERT),
        clears & there_before & ends[states.instant],
        last[facts.record] > np.arange(count),
        sparse & ~there_before,
        _mismatched(states, there_before, before),
        (facts.own != FIRST) & (facts.at != facts.own),
    )


def driving(states: States, began: np.ndarray) -> dict[str, np.ndarray]:
    """For each tracked column the facts of these with which it changed in a record that was there (V120)."""
    begins = np.flatnonzero(began)
    instant = states.instant[begins]
    before, after = states.lasts[instant - 1], states.lasts[instant]
    there = states.there[before]
    begins, before, after = begins[there], before[there], after[there]
    pool = states.effects.pool
    places = {name: states.place(name) for name in states.effects.terms.tracked}
    return {name: begins[~pool.alike(name, place[before], place[after])] for name, place in places.items()}


def _mismatched(states: States, there_before: np.ndarray, before: pa.Array | None) -> np.ndarray:
    """Whether an event's image of what was before it is not what is known (V64)."""
    facts, found = states.facts, np.zeros(len(states.facts), bool)
    if before is None:
        return found
    names = [each.name for each in before.type if each.name in states.effects.terms.tracked]
    told = np.flatnonzero(facts.event >= 0)
    told = told[np.asarray(before.is_valid())[facts.event[told]]]
    if not names or not len(told):
        return found
    images = before.take(pa.array(facts.event[told]))
    same = there_before[told]
    for name in names:
        values = states.effects.pool.at(name, states.place(name)[told - 1])
        same = same & alike(values, pc.struct_field(images, name).cast(values.type))
    found[told] = ~same
    return found
