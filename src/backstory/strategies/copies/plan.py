"""The plan of the records that a full copy touches, as Arrow tables (V7 to V9, V18, V30, V36).

A touched record has four sides: the delivered row and up to three stored versions. The version `before` was
true just before the copy's instant. The version `replaced` begins at the copy's instant, and comes from a
copy that this copy replaces. The version `next` is true at the next known instant. Records do not affect each
other. They can be planned together, in parts, or in Spark's tasks, with the same result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shape_rows
from backstory.model.layout import FILE, MEMORY, POSITION, VALID_FROM, VALID_TO
from backstory.model.table import Column
from backstory.model.types import ColumnType
from backstory.model.versions_layout import Role
from backstory.strategies.copies.version_rows import (
    OPEN,
    begin_versions,
    micros,
    move_ends,
    past_rows,
    with_columns,
    written_rows,
)
from backstory.strategies.keys import key_codes, keys_by_value, last_of
from backstory.strategies.part_plan import PartPlan
from backstory.strategies.values import Values, one_array, rows_alike

if TYPE_CHECKING:
    from backstory.strategies.feeds.copy_plan import FeedCopyTerms


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """The settings for the comparison of a copy. Instants are in microseconds.

    `columns` are the table's columns, and `delivered` the copy's columns, both including the key. A
    difference in `compared` columns opens a version; `renewed` columns are written into the open version.
    `tracked` are all tracked columns of the table, and `overwritten` are all columns without history.
    `following` is the next instant with a known fact. `in_order` is true if no fact is known from `at` on.
    `restated` is true if the copy replaces a stored one. If the new copy lacks columns, their values from the
    replaced copy are discarded. If `closes` is set, missing records are closed. `ids` is true if the table
    has row ids. `successions` are pairs of a missing and an added column of the same type, which may be one
    renamed column. `scope` has the columns and values that define the copy's scope; `other_scopes` are the
    scopes of other copies at the same instant. `feed` has the settings for a table of events. `copies` is the
    column with the number of equal rows, if the key is the whole row.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    delivered: tuple[str, ...]
    compared: tuple[str, ...]
    renewed: tuple[str, ...]
    tracked: tuple[str, ...]
    overwritten: tuple[str, ...]
    at: int
    recorded: int
    following: int | None = None
    in_order: bool = True
    restated: bool = False
    closes: bool = True
    ids: bool = False
    successions: tuple[tuple[str, str], ...] = ()
    scope: tuple[tuple[str, object], ...] | None = None
    other_scopes: tuple[tuple[tuple[str, object], ...], ...] = ()
    feed: "FeedCopyTerms | None" = None
    copies: str | None = None

    @property
    def memory(self) -> ColumnType:
        """The type of the column `_memory`."""
        return next(column.type for column in self.columns if column.name == MEMORY)

    @property
    def absent(self) -> tuple[str, ...]:
        """The tracked columns that the copy lacks."""
        return tuple(name for name in self.tracked if name not in self.delivered)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The columns whose differences change a record at the copy's instant."""
        return (*self.compared, *(self.renewed if self.following is None else ()))


# The counted outcomes. The plan has all keys of appearing records, and a few keys of the other outcomes.
APPEARED: Final = "appeared"
CHANGED: Final = "changed"
CLOSED: Final = "closed"
UNCHANGED: Final = "unchanged"
TAKEN_BACK: Final = "taken back"
# Counts by column: records that change in it, records that lose its value, and records that had a value.
DRIVES: Final = "drives "
LOSES: Final = "loses "
HAD: Final = "had "


@dataclass(frozen=True)
class AlignedRows:
    """The rows of one side: one row for each record, in the same order on every side.

    If the record has no row on this side, `has` is false and all values are NULL.
    """

    rows: pa.Table
    has: np.ndarray

    def __getitem__(self, name: str) -> Values:
        return self.rows[name]

    def at(self, rows: np.ndarray) -> pa.Table:
        """The rows selected by the mask."""
        return self.rows.filter(pa.array(rows))

    @cached_property
    def start(self) -> np.ndarray:
        """The starts of the versions, in microseconds."""
        return micros(self.rows[VALID_FROM])

    @cached_property
    def end(self) -> np.ndarray:
        """The ends of the versions, in microseconds, or `OPEN` for open versions."""
        return micros(self.rows[VALID_TO])


@dataclass(frozen=True, slots=True)
class AlignedRecords:
    """The records that a copy may change, with an aligned row on each side."""

    delivered: AlignedRows
    before: AlignedRows
    replaced: AlignedRows
    next: AlignedRows


def rows_at(terms: CopyTerms, slice_: pa.Table) -> pa.Array:
    """A mask of the versions in a slice that are true at the copy's instant.

    If the copy is in order, the slice has only open versions, which are all true.
    """
    if terms.in_order:
        return pa.repeat(True, len(slice_))
    return pa.array((micros(slice_[VALID_FROM]) <= terms.at) & (micros(slice_[VALID_TO]) > terms.at))


def spoilt_rows(terms: CopyTerms, slice_: pa.Table) -> pa.Table:
    """One row for each record with two versions at one instant, or with a version that never began (V119)."""
    (codes,), count = key_codes([keys_by_value(slice_, terms.key)], terms.key)
    if terms.in_order:
        together = [np.ones(len(slice_), bool)]
    else:
        start, end = micros(slice_[VALID_FROM]), micros(slice_[VALID_TO])
        together = [(start <= terms.at) & (end > terms.at), start < terms.at, end == OPEN]
    numbers = (np.bincount(codes[flags], minlength=count) > 1 for flags in together)
    never = np.bincount(codes[np.asarray(slice_[VALID_FROM].is_null())], minlength=count) > 0
    wrong = np.flatnonzero(reduce(np.logical_or, numbers, never))
    return slice_.take(pa.array(last_of(codes, count)[wrong]))


def align_records(terms: CopyTerms, delivered: pa.Table, slice_: pa.Table) -> AlignedRecords:
    """Align the delivered rows with the stored versions. Each side has one row for each key on any side.

    `delivered` has each key once. `slice_` has whole versions with their places, and at most one version of
    each key for each of the three stored sides.
    """
    sides = [keys_by_value(side, terms.key) for side in (delivered, slice_)]
    (delivered_codes, stored_codes), count = key_codes(sides, terms.key)
    there = np.zeros(count, bool)
    there[delivered_codes] = there[stored_codes] = True
    records = np.flatnonzero(there)
    everywhere = np.arange(len(slice_))
    if terms.in_order:
        before, replaced, after = everywhere, everywhere[:0], everywhere[:0]
    else:
        start, end = micros(slice_[VALID_FROM]), micros(slice_[VALID_TO])
        before, replaced = np.flatnonzero(start < terms.at), np.flatnonzero(start == terms.at)
        following = terms.following
        after = everywhere[:0]
        if following is not None:
            after = np.flatnonzero((start <= following) & (end > following))
    return AlignedRecords(
        _align_rows(delivered, last_of(delivered_codes, count)[records]),
        *(
            _align_rows(slice_, _places_by_code(stored_codes, count, versions)[records])
            for versions in (before, replaced, after)
        ),
    )


def _places_by_code(codes: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
    """For each code, the index of its row, or -1 if it has no row."""
    places = np.full(count, -1, np.int64)
    places[codes[rows]] = rows
    return places


def _align_rows(rows: pa.Table, places: np.ndarray) -> AlignedRows:
    has = places >= 0
    if has.all() and len(places) == len(rows) and (np.diff(places) == 1).all():
        return AlignedRows(rows, has)
    return AlignedRows(rows.take(pa.array(places, mask=~has)), has)


def plan_copy(terms: CopyTerms, touched: AlignedRecords) -> PartPlan:
    """The rows to add and to remove for touched records. Unchanged records are only counted."""
    return _Plan(terms, touched).plan()


@dataclass(frozen=True)
class _Plan:
    """The outcomes of touched records, as one mask for each outcome."""

    terms: CopyTerms
    records: AlignedRecords

    def plan(self) -> PartPlan:
        """The rows to add and to remove, and the counts of all outcomes."""
        parts = [
            *self._moved_versions(),
            *self._withdrawn_versions(),
            *self._new_versions(),
            *self._continued_versions(),
            *self._renewed_versions(),
        ]
        kinds = {
            APPEARED: self.appears,
            CHANGED: self.changes | self.is_renewed,
            CLOSED: self.vanishes,
            **{
                f"{LOSES}{name}": self._had(name)
                & np.asarray(one_array(self.records.delivered[name]).is_null())
                for name in self.terms.compared
            },
        }
        counts = {kind: int(rows.sum()) for kind, rows in kinds.items()}
        counts[UNCHANGED] = int((self.both & ~self.changes & ~self.is_renewed).sum())
        counts[TAKEN_BACK] = int((self._differs & self.records.replaced.has).sum())
        counts[TAKEN_BACK] += int((self._differs & self._begins_next & self._continues).sum())
        counts |= {f"{HAD}{name}": int(self._had(name).sum()) for name in self.terms.compared}
        counts |= {
            f"{DRIVES}{name}": int((kinds[CHANGED] & ~same).sum()) for name, same in self._same_values.items()
        }
        keys = self._keys
        few = {kind: keys.take(pa.array(np.flatnonzero(rows)[:MAX_KEYS])) for kind, rows in kinds.items()}
        written = written_rows(parts, self.records.before.rows, self.terms.columns, ids=self.terms.ids)
        return PartPlan(
            {**written, APPEARED: keys.filter(pa.array(self.appears))},
            {name: count for name, count in counts.items() if count},
            {kind: rows for kind, rows in few.items() if len(rows)},
        )

    @cached_property
    def at_instant(self) -> AlignedRows:
        """The versions at the copy's instant, as known before the copy."""
        before, replaced = self.records.before, self.records.replaced
        there = before.has if self.terms.in_order else before.has & (before.end > self.terms.at)
        if not replaced.has.any() and (there == before.has).all():
            return before
        places = np.arange(len(there))
        rows = np.where(replaced.has, places + len(there), np.where(there, places, -1))
        both = pa.concat_tables([before.rows, replaced.rows])
        return AlignedRows(both.take(pa.array(rows, mask=rows < 0)), rows >= 0)

    @cached_property
    def both(self) -> np.ndarray:
        return self.records.delivered.has & self.at_instant.has

    @cached_property
    def appears(self) -> np.ndarray:
        return self.records.delivered.has & ~self.at_instant.has

    @cached_property
    def vanishes(self) -> np.ndarray:
        return ~self.records.delivered.has & self.at_instant.has & self.terms.closes

    @cached_property
    def changes(self) -> np.ndarray:
        """A mask of the records that differ in a column with history."""
        return self.both & ~self._alike_now

    @cached_property
    def is_renewed(self) -> np.ndarray:
        """A mask of the records that differ only in columns without history (V18)."""
        if self.terms.following is not None or not self.terms.renewed:
            return np.zeros_like(self.both)
        same = reduce(np.logical_and, (self._same_values[name] for name in self.terms.renewed))
        return self.both & self._alike_now & ~same

    @cached_property
    def _same_values(self) -> Mapping[str, np.ndarray]:
        """For each column of the copy, whether the record keeps its value."""
        names = (*self.terms.compared, *self.terms.renewed)
        return {name: self._alike(self.records.delivered, self.at_instant, [name]) for name in names}

    @cached_property
    def _alike_now(self) -> np.ndarray:
        """A mask of the records whose known version equals the delivered row.

        A restatement also compares the columns that the copy lacks.
        """
        terms, before = self.terms, self.records.before
        alike = reduce(
            np.logical_and, (self._same_values[name] for name in terms.compared), np.ones_like(self.both)
        )
        if not terms.restated:
            return alike
        stays = before.has & self._alike(self.records.delivered, before, terms.compared)
        on_before = self._alike(before, self.at_instant, terms.absent)
        return alike & np.where(stays, on_before, _all_null(self.at_instant, terms.absent))

    @cached_property
    def _differs(self) -> np.ndarray:
        return self.appears | self.changes | self.vanishes

    @cached_property
    def _stays(self) -> np.ndarray:
        """Whether the version before the copy's instant has the delivered values and so continues."""
        delivered, before = self.records.delivered, self.records.before
        return delivered.has & before.has & self._alike(delivered, before, self.terms.compared)

    @cached_property
    def _starts(self) -> np.ndarray:
        return self.records.delivered.has & ~self._stays

    @cached_property
    def _continues(self) -> np.ndarray:
        """Whether the copy's values continue in the next known version."""
        terms, after = self.terms, self.records.next
        if not after.has.any():
            return np.zeros_like(after.has)
        there = [name for name in terms.tracked if name in terms.delivered]
        as_delivered = self._alike(self.records.delivered, after, there) & _all_null(after, terms.absent)
        as_before = self._alike(self.records.before, after, terms.tracked)
        joins = after.has & np.where(self._stays, as_before, as_delivered)
        return self.records.delivered.has & joins

    @cached_property
    def _reach(self) -> np.ndarray:
        """The time until which the copy's values are valid, according to the known facts."""
        following = OPEN if self.terms.following is None else self.terms.following
        if not self._continues.any():
            return np.full(len(self._continues), following)
        return np.where(self._continues, self.records.next.end, following)

    @cached_property
    def _begins_next(self) -> np.ndarray:
        """Whether the next version begins exactly at the next known instant."""
        after = self.records.next
        return after.has & (after.start == self.terms.following) if after.has.any() else after.has

    def _moved_versions(self) -> Iterable[tuple[pa.Table, bool]]:
        """Earlier versions whose end moves."""
        before, at = self.records.before, self.terms.at
        ends = np.where(self._stays, self._reach, at)
        yield from self._move_versions(
            before, self._differs & before.has & (ends != before.end), ends, stays=True
        )

    def _withdrawn_versions(self) -> Iterable[tuple[pa.Table, bool]]:
        """Replaced versions, and next versions that merge into the copy's version."""
        replaced, after = self.records.replaced, self.records.next
        yield from self._move_versions(replaced, self._differs & replaced.has, replaced.start, Role.PAST)
        if after.has.any():
            yield from self._move_versions(
                after, self._differs & self._begins_next & self._continues, after.start, Role.PAST
            )

    def _move_versions(
        self,
        side: AlignedRows,
        where: np.ndarray,
        ends: np.ndarray,
        role: Role | None = None,
        *,
        stays: bool = False,
    ) -> Iterable[tuple[pa.Table, bool]]:
        if not where.any():
            return
        memory, rows = self.terms.memory, side.at(where)
        now = move_ends(rows, ends[where], self.terms.recorded, memory, role)
        yield (self._as_newest(now, where, self._stays) if stays else now), True
        yield past_rows(rows, memory), False

    def _new_versions(self) -> Iterable[tuple[pa.Table, bool]]:
        """Versions with the delivered values."""
        where = self._differs & self._starts
        if where.any():
            delivered, ends = self.records.delivered.at(where), self._reach[where]
            rows = shape_rows(
                begin_versions(delivered, self.terms.at, ends, self.terms.recorded), self.terms.columns
            )
            yield self._as_newest(rows, where, self._starts), False

    def _continued_versions(self) -> Iterable[tuple[pa.Table, bool]]:
        """Interrupted versions that continue from the next known instant, as separate versions."""
        after = self.records.next
        where = self._differs & after.has & ~self._begins_next & ~self._continues
        if where.any():
            rows = after.at(where).drop_columns([FILE, POSITION])
            following = self.terms.following or 0
            yield begin_versions(rows, following, after.end[where], self.terms.recorded), False

    def _renewed_versions(self) -> Iterable[tuple[pa.Table, bool]]:
        if self.is_renewed.any():
            delivered = self.records.delivered.at(self.is_renewed)
            values = {name: delivered[name] for name in self.terms.renewed}
            yield with_columns(self.at_instant.at(self.is_renewed), values), True

    def _as_newest(self, rows: pa.Table, where: np.ndarray, which: np.ndarray) -> pa.Table:
        """The rows of the records in `where`, with the newest values of columns without history (V18).

        Values are replaced only for records in `which` whose version continues.
        """
        ends = self.terms.following is None
        names = self.terms.renewed if ends else self.terms.overwritten
        chosen = (which & (self._stays if ends else self._continues))[where]
        if not names or not chosen.any():
            return rows
        newest = (self.records.delivered if ends else self.records.next).at(where)
        values = {name: (newest[name], rows[name].cast(newest[name].type)) for name in names}
        return with_columns(
            rows, {name: pc.if_else(pa.array(chosen), *pair) for name, pair in values.items()}
        )

    @cached_property
    def _keys(self) -> pa.Table:
        delivered, now = self.records.delivered, self.at_instant
        pairs = ((one_array(delivered[name]), one_array(now[name])) for name in self.terms.key)
        values = [pc.if_else(pa.array(delivered.has), *pair) for pair in pairs]
        return pa.table(values, names=list(self.terms.key))

    def _had(self, name: str) -> np.ndarray:
        return self.both & np.asarray(one_array(self.at_instant[name]).is_valid())

    def _alike(self, one: AlignedRows, other: AlignedRows, names: Sequence[str]) -> np.ndarray:
        """Whether rows of two sides are equal in these columns. A missing row counts as NULL."""
        pairs = ((one[name], other[name].cast(one[name].type)) for name in names)
        return rows_alike(pairs, len(one.has))


def _all_null(side: AlignedRows, names: Iterable[str]) -> np.ndarray:
    nulls = (np.asarray(one_array(side[name]).is_null()) for name in names)
    return reduce(np.logical_and, nulls, np.ones(len(side.has), bool))
