"""What a full copy makes of the records that it touches, as Arrow tables (V7 to V9, V18, V30, V36).

A touched record is a row of four sides: what the copy delivers, and the stored versions that count for it.
`before` was true just before the copy's instant, `replaced` begins at it by a copy that this one replaces,
`next` is true at the following instant of which something is known. Records of different keys never meet
here, so that touched records are planned together or in parts, here or in Spark's tasks, with one result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shaped
from backstory.model.places import FILE, POSITION
from backstory.model.remembered import Role
from backstory.strategies.alike import Values, rows_alike
from backstory.strategies.copies.rows import OPEN, begun, left_behind, moved, with_columns
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import (
    APPEARED,
    CHANGED,
    CLOSED,
    DRIVES,
    HAD,
    LOSES,
    TAKEN_BACK,
    UNCHANGED,
    Side,
    Touched,
)
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan


def plan_copy(terms: CopyTerms, touched: Touched) -> PartPlan:
    """The rows that go and come of touched records; those that are as they were are counted."""
    return _Plan(terms, touched).plan()


@dataclass(frozen=True)
class _Plan:
    """The outcomes of touched records: a truth value for each of them."""

    terms: CopyTerms
    touched: Touched

    def plan(self) -> PartPlan:
        """The rows that go and come, and the counts of all outcomes."""
        parts = [*self._moves(), *self._takes_back(), *self._begins(), *self._goes_on(), *self._renews()]
        come = [shaped(rows, self.terms.columns, ids=self.terms.ids) for rows, _ in parts]
        gone = [rows.select([FILE, POSITION]) for rows, instead in parts if instead]
        none = self.touched.before.rows.select([FILE, POSITION]).slice(0, 0)
        kinds = {
            APPEARED: self.appeared,
            CHANGED: self.changed | self.renewed,
            CLOSED: self.vanished,
            **{f"{LOSES}{name}": self._loses(name) for name in self.terms.compared},
        }
        counts = {kind: int(rows.sum()) for kind, rows in kinds.items()}
        counts[UNCHANGED] = int((self.both & ~self.changed & ~self.renewed).sum())
        counts[TAKEN_BACK] = int(self._withdrawals.sum())
        counts |= {f"{HAD}{name}": int(self._had(name).sum()) for name in self.terms.compared}
        counts |= {f"{DRIVES}{name}": int(self._drives(name).sum()) for name in self._same_values}
        keys = self._keys
        few = {kind: keys.take(pa.array(np.flatnonzero(rows)[:MAX_KEYS])) for kind, rows in kinds.items()}
        nothing = shaped(keys.slice(0, 0), self.terms.columns, ids=self.terms.ids)
        return PartPlan(
            {
                REMOVED: pa.concat_tables([none, *gone]),
                ADDED: pa.concat_tables([*come, nothing]),
                APPEARED: keys.filter(pa.array(self.appeared)),
            },
            {name: count for name, count in counts.items() if count},
            {kind: rows for kind, rows in few.items() if len(rows)},
        )

    @cached_property
    def now(self) -> Side:
        """What was known of the records at the copy's instant."""
        before, replaced = self.touched.before, self.touched.replaced
        there = before.has if self.terms.in_order else before.has & (before.end > self.terms.at)
        if not replaced.has.any() and (there == before.has).all():
            return before
        places = np.arange(len(there))
        rows = np.where(replaced.has, places + len(there), np.where(there, places, -1))
        both = pa.concat_tables([before.rows, replaced.rows])
        return Side(both.take(pa.array(rows, mask=rows < 0)), rows >= 0)

    @cached_property
    def both(self) -> np.ndarray:
        return self.touched.delivered.has & self.now.has

    @cached_property
    def appeared(self) -> np.ndarray:
        return self.touched.delivered.has & ~self.now.has

    @cached_property
    def vanished(self) -> np.ndarray:
        return ~self.touched.delivered.has & self.now.has & self.terms.closes

    @cached_property
    def changed(self) -> np.ndarray:
        """The records that are others in what makes versions."""
        return self.both & ~self._alike_now

    @cached_property
    def renewed(self) -> np.ndarray:
        """The records of which only values without history are others (V18)."""
        if self.terms.following is not None or not self.terms.renewed:
            return np.zeros_like(self.both)
        same = reduce(np.logical_and, (self._same_values[name] for name in self.terms.renewed))
        return self.both & self._alike_now & ~same

    @cached_property
    def _same_values(self) -> Mapping[str, np.ndarray]:
        """For each column of the copy whether the record has the value that it had."""
        names = (*self.terms.compared, *self.terms.renewed)
        return {name: self._alike(self.touched.delivered, self.now, [name]) for name in names}

    @cached_property
    def _alike_now(self) -> np.ndarray:
        """Whether a record is as delivered: on these columns, and on those that a restatement lacks."""
        terms, before = self.terms, self.touched.before
        alike = reduce(
            np.logical_and, (self._same_values[name] for name in terms.compared), np.ones_like(self.both)
        )
        if not terms.restated:
            return alike
        stays = before.has & self._alike(self.touched.delivered, before, terms.compared)
        on_before = self._alike(before, self.now, terms.absent)
        return alike & np.where(stays, on_before, _all_null(self.now, terms.absent))

    @cached_property
    def _relived(self) -> np.ndarray:
        return self.appeared | self.changed | self.vanished

    @cached_property
    def _stays(self) -> np.ndarray:
        """Whether the version before the copy's instant goes on with what is delivered."""
        delivered, before = self.touched.delivered, self.touched.before
        return delivered.has & before.has & self._alike(delivered, before, self.terms.compared)

    @cached_property
    def _starts(self) -> np.ndarray:
        return self.touched.delivered.has & ~self._stays

    @cached_property
    def _joins(self) -> np.ndarray:
        """Whether what the copy says goes on in the version that is known next."""
        terms, after = self.terms, self.touched.next
        if not after.has.any():
            return np.zeros_like(after.has)
        there = [name for name in terms.tracked if name in terms.delivered]
        as_delivered = self._alike(self.touched.delivered, after, there) & _all_null(after, terms.absent)
        as_before = self._alike(self.touched.before, after, terms.tracked)
        joins = after.has & np.where(self._stays, as_before, as_delivered)
        return self.touched.delivered.has & joins

    @cached_property
    def _reach(self) -> np.ndarray:
        """Until when what the copy says is true, for all that is known."""
        following = OPEN if self.terms.following is None else self.terms.following
        if not self._joins.any():
            return np.full(len(self._joins), following)
        return np.where(self._joins, self.touched.next.end, following)

    @cached_property
    def _own(self) -> np.ndarray:
        """Whether the next version begins at the following instant; else one that is here goes on to it."""
        after = self.touched.next
        return after.has & (after.start == self.terms.following) if after.has.any() else after.has

    @cached_property
    def _withdrawals(self) -> np.ndarray:
        replaced = self._relived & self.touched.replaced.has
        return replaced.astype(np.int64) + (self._relived & self._own & self._joins)

    def _moves(self) -> Iterable[tuple[pa.Table, bool]]:
        """Versions from before, with another end."""
        before, at = self.touched.before, self.terms.at
        ends = np.where(self._stays, self._reach, at)
        yield from self._moving(before, self._relived & before.has & (ends != before.end), ends, stays=True)

    def _takes_back(self) -> Iterable[tuple[pa.Table, bool]]:
        """Versions that are replaced, and those that what the copy says goes on into."""
        replaced, after = self.touched.replaced, self.touched.next
        yield from self._moving(replaced, self._relived & replaced.has, replaced.start, Role.PAST)
        if after.has.any():
            yield from self._moving(after, self._relived & self._own & self._joins, after.start, Role.PAST)

    def _moving(
        self,
        side: Side,
        where: np.ndarray,
        ends: np.ndarray,
        role: Role | None = None,
        *,
        stays: bool = False,
    ) -> Iterable[tuple[pa.Table, bool]]:
        if not where.any():
            return
        memory, rows = self.terms.memory, side.at(where)
        now = moved(rows, ends[where], self.terms.recorded, memory, role)
        yield (self._as_newest(now, where, self._stays) if stays else now), True
        yield left_behind(rows, memory), False

    def _begins(self) -> Iterable[tuple[pa.Table, bool]]:
        """Versions with what is delivered."""
        where = self._relived & self._starts
        if where.any():
            delivered, ends = self.touched.delivered.at(where), self._reach[where]
            rows = shaped(begun(delivered, self.terms.at, ends, self.terms.recorded), self.terms.columns)
            yield self._as_newest(rows, where, self._starts), False

    def _goes_on(self) -> Iterable[tuple[pa.Table, bool]]:
        """What was true beyond the following instant is so again, in a version of its own."""
        after = self.touched.next
        where = self._relived & after.has & ~self._own & ~self._joins
        if where.any():
            rows = after.at(where).drop_columns([FILE, POSITION])
            following = self.terms.following or 0
            yield begun(rows, following, after.end[where], self.terms.recorded), False

    def _renews(self) -> Iterable[tuple[pa.Table, bool]]:
        if self.renewed.any():
            delivered = self.touched.delivered.at(self.renewed)
            values = {name: delivered[name] for name in self.terms.renewed}
            yield with_columns(self.now.at(self.renewed), values), True

    def _as_newest(self, rows: pa.Table, where: np.ndarray, which: np.ndarray) -> pa.Table:
        """The rows, of `where`; those of `which` with the newest values of what has no history (V18)."""
        ends = self.terms.following is None
        names = self.terms.renewed if ends else self.terms.overwritten
        chosen = (which & (self._stays if ends else self._joins))[where]
        if not names or not chosen.any():
            return rows
        newest = (self.touched.delivered if ends else self.touched.next).at(where)
        values = {name: (newest[name], rows[name].cast(newest[name].type)) for name in names}
        return with_columns(
            rows, {name: pc.if_else(pa.array(chosen), *each) for name, each in values.items()}
        )

    @cached_property
    def _keys(self) -> pa.Table:
        delivered, now = self.touched.delivered, self.now
        pairs = ((_one(delivered[name]), _one(now[name])) for name in self.terms.key)
        values = [pc.if_else(pa.array(delivered.has), *each) for each in pairs]
        return pa.table(values, names=list(self.terms.key))

    def _drives(self, name: str) -> np.ndarray:
        return (self.changed | self.renewed) & ~self._same_values[name]

    def _had(self, name: str) -> np.ndarray:
        return self.both & np.asarray(_one(self.now[name]).is_valid())

    def _loses(self, name: str) -> np.ndarray:
        return self._had(name) & np.asarray(_one(self.touched.delivered[name]).is_null())

    def _alike(self, one: Side, other: Side, names: Sequence[str]) -> np.ndarray:
        """Whether rows of two sides are alike in these columns; what is on no side is NULL."""
        pairs = ((one[name], other[name].cast(one[name].type)) for name in names)
        return rows_alike(pairs, len(one.has))


def _all_null(side: Side, names: Iterable[str]) -> np.ndarray:
    nulls = (np.asarray(_one(side[name]).is_null()) for name in names)
    return reduce(np.logical_and, nulls, np.ones(len(side.has), bool))


def _one(values: Values) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
