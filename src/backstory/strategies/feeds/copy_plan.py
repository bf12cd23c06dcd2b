"""The plan of a full or scoped copy among other facts, as Arrow tables (V30, V35 to V44, V69).

The copy is a mark like the stored marks, but its records are in the delivery. The copy's facts are folded
together with all other facts, like the facts of a feed. Only records that differ at the copy's instant are
planned.
"""

from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model.layout import VALID_FROM
from backstory.model.versions_layout import COLUMNS, SCOPE, SEQUENCE, FactKind
from backstory.strategies.copies.plan import (
    APPEARED,
    CHANGED,
    CLOSED,
    DRIVES,
    HAD,
    LOSES,
    TAKEN_BACK,
    UNCHANGED,
)
from backstory.strategies.copies.version_rows import (
    are_live,
    memory_field,
    micros,
    withdraw_facts,
    written_rows,
)
from backstory.strategies.feeds.arrival import Arrival
from backstory.strategies.feeds.difference import HistoryDifference
from backstory.strategies.feeds.facts import NONE, RecordFacts, are_truncate_voids
from backstory.strategies.feeds.fold import RecordFold
from backstory.strategies.feeds.records import is_of
from backstory.strategies.feeds.terms import ASSERTED, AT, FURTHER, KIND, FeedTerms
from backstory.strategies.part_plan import PartPlan
from backstory.strategies.values import alike

KNOWN = "there before"


@dataclass(frozen=True, slots=True)
class FeedCopyTerms:
    """The settings of a copy with known facts at or after its instant.

    `terms` are the feed's settings. `marks` are the live marks, except a mark with the copy's instant and
    scope, followed by the copy's own mark. `restated` is true if the copy replaces such a mark. `compared`
    are the delivered columns outside the key.
    """

    terms: FeedTerms
    at: int
    marks: pa.Table
    compared: tuple[str, ...]
    restated: bool = False


@dataclass(frozen=True)
class _CopyFold(RecordFold):
    """Delivered rows and live stored rows of the same records. The copy may change any of these records."""

    at: int

    @property
    def count(self) -> int:
        """The number of records."""
        return self.codes[1]

    @property
    def own_mark(self) -> int:
        return self.arrival.first_mark

    @cached_property
    def since(self) -> np.ndarray:
        """The copy's instant, for each record."""
        return np.full(self.codes[1], self.at)

    @cached_property
    def new_events(self) -> np.ndarray:
        """An empty array, because a copy has no new events."""
        return np.zeros(0, np.int64)

    @cached_property
    def listed_rows(self) -> np.ndarray:
        """For each record, the index of its delivered row in the pool, or `NONE` if it has no row."""
        places = np.full(self.codes[1], NONE)
        places[self.codes[0][0]] = len(self.rows) + np.arange(len(self.events))
        return places

    def _copy_facts(self, record: np.ndarray, mark: np.ndarray) -> RecordFacts:
        """The facts of copies. The facts of this copy are taken from the delivered rows."""
        facts = super()._copy_facts(record, mark)
        own = mark == self.own_mark
        facts.source[own] = self.listed_rows[record[own]]
        return facts


def plan_copy_in_feed(
    copy: FeedCopyTerms, delivered: pa.Table, slice_: pa.Table, voids: pa.Table
) -> PartPlan:
    """The rows to add and to remove, without the copy's mark, and the counts.

    `delivered` has each key once. `slice_` has the records' live rows that are open, or that end at or after
    the copy's instant. `voids` has the `own_voids` of all records, including records that the copy does not
    change.
    """
    terms, count = copy.terms, len(delivered)
    own = copy.marks.slice(len(copy.marks) - 1)
    places = pa.array(np.zeros(count, np.int64))
    events = {
        **{name: delivered[name] for name in delivered.column_names},
        AT: own[VALID_FROM].take(places),
        KIND: pa.repeat(FactKind.COPY.value, count),
        ASSERTED: memory_field(own, COLUMNS).take(places),
    }
    if terms.sequence:
        events[FURTHER] = memory_field(own, SEQUENCE).take(places)
    rows = slice_.filter(are_live(slice_))
    arrival = _arrival(copy, pa.table(events))
    records = _CopyFold(terms, arrival, arrival.events, rows, copy.at)
    difference = HistoryDifference.of(records)
    # A restated copy applies again to the records that it was void for (V72).
    parts = [*difference.rows(), (withdraw_facts(voids, terms.recorded, terms.memory), True)]
    outcomes = _outcomes(copy, records)
    counts = {name: int(rows.sum()) for name, rows in outcomes.items()}
    counts[TAKEN_BACK] = len(difference.withdrawn_versions)
    counts[UNCHANGED] = int((outcomes[KNOWN] & ~outcomes[CHANGED] & ~outcomes[CLOSED]).sum())
    del outcomes[KNOWN], counts[KNOWN]
    keys = pa.table({name: records.pool.at(name, records.row_of) for name in terms.key})
    few = {name: keys.take(pa.array(np.flatnonzero(rows)[:MAX_KEYS])) for name, rows in outcomes.items()}
    written = written_rows(parts, rows, terms.columns, ids=terms.ids)
    return PartPlan(
        {**written, APPEARED: keys.filter(pa.array(outcomes[APPEARED]))},
        {name: number for name, number in counts.items() if number},
        {name: sample for name, sample in few.items() if len(sample)},
    )


def _arrival(copy: FeedCopyTerms, events: pa.Table) -> Arrival:
    none = copy.marks.slice(0, 0)
    return Arrival(
        events,
        copy.marks,
        np.zeros(1, bool),
        none,
        none,
        none.select([]),
        none.select([]),
        {},
        {},
    )


def own_voids(copy: FeedCopyTerms, rows: pa.Table) -> pa.Table:
    """The live rows that cancel the mark of a restated copy."""
    if not copy.restated or not len(rows):
        return rows.slice(0, 0)
    own = pa.repeat(memory_field(copy.marks, SCOPE)[len(copy.marks) - 1], len(rows))
    void = is_of(rows, FactKind.VOID) & ~are_truncate_voids(rows) & (micros(rows[VALID_FROM]) == copy.at)
    flags = pa.array(void & alike(memory_field(rows, SCOPE), own))
    return rows.filter(pc.and_(are_live(rows), pa.chunked_array([flags])))


def _outcomes(copy: FeedCopyTerms, records: _CopyFold) -> dict[str, np.ndarray]:
    """Masks of records by outcome. An outcome depends on the states before and after the copy (V36)."""
    states, stored = records.states, records.stored_records
    count = records.count
    everyone = np.arange(count)
    before = stored.covering(everyone, np.full(count, copy.at))
    own = np.flatnonzero(states.facts.mark == records.own_mark)
    last = np.zeros(count, np.int64)
    last[states.facts.record[own]] = states.lasts[states.instant[own]]
    after, there = states.there[last], before >= 0
    pool, both = records.pool, np.flatnonzero(states.there[last] & (before >= 0))
    outcomes = {KNOWN: there, APPEARED: after & ~there, CLOSED: there & ~after}
    drives: dict[str, np.ndarray] = {}
    for name in (*copy.terms.tracked, *copy.terms.overwritten):
        drives[name] = np.zeros(count, bool)
        drives[name][both] = ~pool.alike(name, states.place(name)[last[both]], before[both])
    # Columns without history change alone only if the copy has them, and no following copy has others.
    renewed = copy.compared if copy.terms.following is None else ()
    decisive = (rows for name, rows in drives.items() if name in {*copy.terms.tracked, *renewed})
    changed = outcomes[CHANGED] = reduce(np.logical_or, decisive, np.zeros(count, bool))
    outcomes |= {f"{DRIVES}{name}": rows & changed for name, rows in drives.items() if name in copy.compared}
    for name in copy.compared:
        had, loses = np.zeros(count, bool), np.zeros(count, bool)
        had[both] = np.asarray(pool.at(name, before[both]).is_valid())
        if name in drives:
            loses[both] = had[both] & np.asarray(pool.at(name, states.place(name)[last[both]]).is_null())
        outcomes |= {f"{HAD}{name}": had, f"{LOSES}{name}": loses}
    return outcomes
