"""What a full or scoped copy makes of the records of a table with events, as Arrow tables (V36 to V44, V69).

The copy is a fact of each record beside the stored ones; everything else is as with a feed (`plan`). `copies`
is the rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shaped
from backstory.formats.rows import arrow_type
from backstory.model.places import FILE, POSITION
from backstory.model.remembered import COLUMNS, SEQUENCE, Role, Told
from backstory.strategies.copies.rows import INSTANT, memory_field, taken_back
from backstory.strategies.copies.sifted import DIFFERING, NO_KEY
from backstory.strategies.copies.touched import APPEARED, CHANGED, CLOSED, TAKEN_BACK, UNCHANGED
from backstory.strategies.feeds.arrival import SPOILT, Arrival
from backstory.strategies.feeds.difference import Difference
from backstory.strategies.feeds.gathering import COPY, NONE, Facts, beginning, facts
from backstory.strategies.feeds.plan import difference_of
from backstory.strategies.feeds.records import is_of, live_rows
from backstory.strategies.feeds.rows import Remembered, kinds, rows_of
from backstory.strategies.feeds.terms import ASSERTED, AT, FURTHER, KIND, CopyPlace, FeedTerms, Scope
from backstory.strategies.feeds.touched import Records
from backstory.strategies.sift.plan import distinct

# Rows outside the copy's scope (V41), and records that a copy of another scope has at its instant (V43).
OUT_OF_SCOPE, ELSEWHERE = "out of scope", "in another scope"
COPY_FAULTS = NO_KEY, DIFFERING, OUT_OF_SCOPE, ELSEWHERE, SPOILT


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """What becomes of touched records: places of rows that go, rows that come, records by outcome, some keys.

    `appeared` are the keys of all records that were not there at the copy's instant.
    """

    gone: pa.Table
    come: pa.Table
    counts: Mapping[str, int]
    samples: Mapping[str, pa.Table]
    appeared: pa.Table


def plan_copied(
    terms: FeedTerms, place: CopyPlace, delivered: pa.Table, slice_: pa.Table, marks: pa.Table
) -> CopiedRecords:
    """The rows that go and come for a copy, or a part of it by key.

    `delivered` has the key and the columns that the copy delivers. `slice_` are the stored rows of these keys
    that are open or end at or after the copy's instant, `marks` the live marks from then on but the copy's
    own. With faults in the counts nothing else is to be trusted.
    """
    rows, columns = live_rows(slice_), [delivered[name] for name in terms.key]
    refused = delivered.filter(pa.array(np.logical_or.reduce([each.is_null() for each in columns])))
    one_each, differing = (delivered, refused) if len(refused) else distinct(delivered, terms.key)
    records = _Copied(terms, _arrival(terms, marks), _as_facts(terms, place, one_each), rows, place)
    faults = {NO_KEY: refused, DIFFERING: differing.slice(0, 0 if len(refused) else None)}
    if not any(map(len, faults.values())):
        faults |= records.faults
    key, none = list(terms.key), rows.select([FILE, POSITION]).slice(0, 0)
    found = {name: each.select(key) for name, each in faults.items() if len(each)}
    if found:
        nothing = shaped(none.select([]), terms.columns, ids=terms.ids)
        counts = {name: len(each) for name, each in found.items()}
        samples = {name: each.slice(0, MAX_KEYS) for name, each in found.items()}
        return CopiedRecords(none, nothing, counts, samples, rows.select(key).slice(0, 0))
    made = difference_of(records)
    parts = [*made.rows(), *records.voids()]
    found = {name: records.keys(where) for name, where in records.outcomes(made).items()}
    counts = {name: len(each) for name, each in found.items()} | {TAKEN_BACK: len(made.taken_back)}
    return CopiedRecords(
        pa.concat_tables([none, *(rows.select([FILE, POSITION]) for rows, instead in parts if instead)]),
        pa.concat_tables([shaped(rows, terms.columns, ids=terms.ids) for rows, _ in parts]),
        {name: count for name, count in counts.items() if count},
        {name: each.slice(0, MAX_KEYS) for name, each in found.items() if len(each)},
        found[APPEARED],
    )


def copy_mark(
    terms: FeedTerms, place: CopyPlace, stored: pa.Table, *, differs: bool
) -> tuple[pa.Table, pa.Table]:
    """Places of marks that go and marks that come with a copy (V31); `stored` is its own one, if there.

    A mark stays, unless a restatement that changes something has other columns.
    """
    none = stored.select([FILE, POSITION]).slice(0, 0)
    ids = pa.array([place.columns], pa.list_(pa.int32()))
    if len(stored) and not (differs and memory_field(stored, COLUMNS)[0].as_py() != ids[0].as_py()):
        return none, shaped(none.select([]), terms.columns, ids=terms.ids)
    at = np.array([place.at])
    told = Remembered(
        kinds(1, Told.COPY), columns=ids, scope=pa.array([place.text], pa.string()), role=Role.FACT
    )
    back = shaped(taken_back(stored, terms.recorded, terms.memory), terms.columns, ids=terms.ids)
    return stored.select([FILE, POSITION]), pa.concat_tables([rows_of(terms, {}, at, at, told), back])


def _as_facts(terms: FeedTerms, place: CopyPlace, delivered: pa.Table) -> pa.Table:
    """The copy's rows with the columns that tell of facts."""
    count = len(delivered)
    told = {
        AT: pa.repeat(pa.scalar(place.at, INSTANT), count),
        KIND: kinds(count, Told.COPY),
        ASSERTED: pa.array([place.columns], pa.list_(pa.int32())).take(pa.array(np.zeros(count, np.int64))),
    }
    if terms.sequence:
        told[FURTHER] = pa.nulls(count, arrow_type(dict(terms.memory.parts)[SEQUENCE]))
    return pa.table({**{name: delivered[name] for name in delivered.column_names}, **told})


def _arrival(terms: FeedTerms, marks: pa.Table) -> Arrival:
    """A copy beside the marks: it brings no events and no truncates."""
    none = _as_facts(terms, CopyPlace(0), marks.slice(0, 0))
    nowhere = marks.select([FILE, POSITION]).slice(0, 0)
    nothing = shaped(nowhere.select([]), terms.columns, ids=terms.ids)
    return Arrival(none, none, np.zeros(0, bool), marks, marks.slice(0, 0), nowhere, nothing, {}, {})


@dataclass(frozen=True)
class _Copied(Records):
    """The rows of a copy beside the live stored rows of the same records."""

    place: CopyPlace

    @cached_property
    def since(self) -> np.ndarray:
        """The copy's instant: it is a fact of every record."""
        return np.full(self.codes[1], self.place.at)

    @property
    def touched(self) -> np.ndarray:
        """All records."""
        return np.arange(self.codes[1])

    @property
    def scopes(self) -> Sequence[Scope | None]:
        """The scopes of the marks, and then the copy's."""
        return [*self.marks.scopes, self.place.scope]

    @cached_property
    def listed(self) -> np.ndarray:
        """For each record the place of the copy's row in the pool, `NONE` if it has none."""
        found = np.full(self.codes[1], NONE)
        found[self.delivered.record] = self.delivered.place
        return found

    @cached_property
    def before(self) -> np.ndarray:
        """For each record the place of the version that was known at the copy's instant, or `NONE`."""
        return self.stored.covering(self.touched, self.since)

    def new_facts(self) -> list[Facts]:
        """What the copy says of each record; a version that a former one began there may be its own."""
        own = beginning(self.stored, self.before, self.since)
        if len(self.rows):
            own = np.where(self.stored.upsert[own], NONE, own)
        own = np.where(self.listed >= 0, own, NONE)
        mark = np.full(len(self.touched), len(self.marks))
        return [
            facts(self.touched, self.since, COPY, source=self.listed, told=self.listed, stored=own, mark=mark)
        ]

    @property
    def faults(self) -> dict[str, pa.Table]:
        """Rows for which the copy is refused."""
        outside = np.zeros(len(self.events), bool)
        if self.place.scope is not None:
            where = dict.fromkeys((name for name, _ in self.place.scope), self.delivered.place)
            outside = ~self.pool.within(self.place.scope, where, len(self.events))
        elsewhere = np.zeros(len(self.events), bool)
        before = self.before[self.delivered.record]
        for mark in np.flatnonzero((self.marks.at == self.place.at) & ~self.marks.truncate):
            scope = self.marks.scopes[mark] or ()
            inside = self.pool.within(scope, {name: before for name, _ in scope}, len(before))
            speaks = self.marks.speaks(self.delivered.record, np.full(len(before), mark))
            elsewhere |= (before >= 0) & inside & speaks
        return {
            OUT_OF_SCOPE: self.events.filter(pa.array(outside)),
            ELSEWHERE: self.events.filter(pa.array(elsewhere)),
            SPOILT: self.rows.take(pa.array(self.stored.spoilt())),
        }

    def outcomes(self, made: Difference) -> dict[str, np.ndarray]:
        """The records by outcome: what was known of them at the copy's instant, and what is (V36)."""
        states, runs, at = self.states, self.states.runs, self.place.at
        covers = np.flatnonzero((states.facts.at[runs.begin] <= at) & (runs.end > at))
        run = np.full(self.codes[1], NONE)
        run[states.facts.record[runs.begin[covers]]] = covers
        listed, there = self.listed >= 0, self.before >= 0
        both = np.flatnonzero(listed & there)
        same = np.ones(len(both), bool)
        for name in (*self.terms.tracked, *self.terms.overwritten):
            same &= self.pool.alike(name, made.places(name)[run[both]], self.before[both])
        unchanged = np.zeros(len(listed), bool)
        unchanged[both[same]] = True
        return {
            APPEARED: listed & ~there,
            CHANGED: listed & there & ~unchanged,
            CLOSED: ~listed & there & (run < 0),
            UNCHANGED: unchanged,
        }

    def keys(self, where: np.ndarray) -> pa.Table:
        """The keys of some records."""
        places = self.row_of[np.flatnonzero(where)]
        return pa.table({name: self.pool.at(name, places) for name in self.terms.key})

    def voids(self) -> Iterator[tuple[pa.Table, bool]]:
        """The rows that silenced a copy whose place this one takes: it speaks of all records (V72)."""
        if not self.place.speaks or not len(self.rows):
            return
        scope = self.stored.scope.fill_null("").to_numpy(zero_copy_only=False) == (self.place.text or "")
        copy = np.asarray(memory_field(self.rows, COLUMNS).is_null())
        void = is_of(self.rows, Told.VOID) & (self.stored.start == self.place.at) & scope & copy
        if void.any():
            rows = self.rows.filter(pa.array(void))
            yield taken_back(rows, self.terms.recorded, self.terms.memory), True
