"""Plan the versions, with a start and an end, that result from ordered changes (section 5.2).

The code follows the specification's algorithm, one column at a time. Stored versions, replace rows and update
rows form one list, sorted by key and start. An unmodified cell takes the value of the preceding row. Instants
are whole microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS, Refused
from backstory.formats.rows import Rows
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, END, FILE, POSITION, START
from backstory.model.table import Shape
from backstory.model.values import key_text
from backstory.strategies.keys import Codes, ParallelArrays, key_codes, last_of, latest_at, pair_codes
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan
from backstory.strategies.values import LACKING, differing, integers, take_or_null, with_row_ids

TMAX = 253_402_300_799_999_000  # 9999-12-31T23:59:59.999Z, the end of an active version (F10)
NEVER = np.iinfo(np.int64).max

_INSTANT = pa.timestamp("us", tz="UTC")


def timestamps(numbers: np.ndarray) -> pa.Array:
    """Microseconds as timestamps, with NULL for `LACKING`."""
    return pa.array(numbers, mask=numbers == LACKING).cast(_INSTANT)


STORED, REPLACE, UPDATE = 0, 1, 2
# The count of parts in which versions would overlap, because the sender delivered overlapping rows.
OUT_OF_ORDER: Final = "out of order"
TRUE, FALSE, NULL = 1, 0, -1


@dataclass(frozen=True)
class Versions(ParallelArrays):
    """Versions of keys, as parallel arrays. `row` is the row with a version's cells."""

    row: np.ndarray
    kind: np.ndarray
    code: Codes
    start: np.ndarray
    end: np.ndarray
    active: np.ndarray

    @property
    def count(self) -> int:
        """The number of versions."""
        return len(self.row)

    def with_ends(self, end: np.ndarray, active: np.ndarray) -> Self:
        """The same versions with different ends and active flags."""
        return replace(self, end=end, active=active)

    def disorderly(self) -> bool:
        """Whether versions of one key, sorted by start, overlap, or an active version precedes another."""
        same_key = self.code[1:] == self.code[:-1]
        known = self.start[1:] != LACKING
        overlap = (self.end[:-1] >= self.start[1:]) | (self.active[:-1] == TRUE)
        return bool((same_key & known & overlap).any())

    def by_start(self) -> Self:
        """The versions that have a start, sorted by key, start, kind and row."""
        order = np.lexsort((self.row, self.kind, self.start, self.code))
        return self.take(order[self.start[order] != LACKING])


def make_room(stored: Versions, first: np.ndarray) -> tuple[Versions, np.ndarray, np.ndarray]:
    """Apply step 1 of section 5.2 to the stored versions.

    `first` has s0 for the code of each key, or NEVER if the delivery has none. Returns the versions, closed
    if they reach s0, and a mask of the versions to remove, which start at or after s0. Also returns, for each
    code, the row of the first removed version, or -1.
    """
    s0 = first[stored.code]
    is_removed = stored.start >= s0
    reaching = ~is_removed & (s0 != NEVER) & ((stored.active == TRUE) | (stored.end >= s0))
    end = np.where(reaching, s0 - MILLISECOND, stored.end)
    active = np.where(reaching, FALSE, stored.active)
    removed = np.full(len(first), -1)
    going = stored.take(is_removed)
    latest_first = np.lexsort((going.row, -going.start))
    removed[going.code[latest_first]] = going.row[latest_first]
    return stored.with_ends(end, active), is_removed, removed


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of sorted versions, which determine the row of each cell.

    A chain is a version with all its cells, followed by the updates that build on it. `base` is the row from
    which the head of a chain takes its unmodified cells: a removed version, or -1. `orphan` is a mask of the
    updates without a record.
    """

    versions: Versions
    head: np.ndarray
    base: np.ndarray
    orphan: np.ndarray

    @classmethod
    def link(cls, versions: Versions, first: np.ndarray, removed: np.ndarray) -> Self:
        """Link versions that are sorted by key, start and kind (rules 1 to 3 of step 3, F16)."""
        count = versions.count
        before = np.maximum(np.arange(count) - 1, 0)
        same_key = versions.code == versions.code[before]
        same_key[:1] = False
        start, ended = versions.start, versions.end[before]
        s0 = first[versions.code]
        alive = (ended >= start - MILLISECOND) | ((s0 != NEVER) & (ended >= s0 - MILLISECOND))
        has_base = same_key & ((start == start[before]) | alive)
        update = versions.kind == UPDATE
        head = ~update | ~has_base
        base = np.where(update & head, removed[versions.code], -1)
        lost = update & head & (base < 0)
        own_head = np.maximum.accumulate(np.where(head, np.arange(count), 0))
        return cls(versions, head, base, lost[own_head] if count else lost)

    def source(self, known: np.ndarray) -> np.ndarray:
        """For each version, the row that contains its cell in one column, or -1 for NULL.

        `known` contains, for each row, whether it has a value. Stored and replace rows always have one.
        """
        rows = self.versions.row
        has_value = known[rows] | (self.versions.kind != UPDATE)
        own_source = np.where(has_value, rows, self.base)
        begins = has_value | self.head
        last = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        return own_source[last]

    def final(self) -> np.ndarray:
        """A mask of the final versions: the last version of each key and start.

        Stored versions must not share a key and a start. If they do, all are kept unless the delivery writes
        that start.
        """
        versions = self.versions.take(~self.orphan)
        differs = (versions.code[1:] != versions.code[:-1]) | (versions.start[1:] != versions.start[:-1])
        last = np.append(differs, True)[: versions.count]
        group = np.cumsum(np.append(0, last[:-1]))[: versions.count]
        stored = versions.kind[last][group] == STORED if versions.count else last
        mask = ~self.orphan
        mask[mask] = last | stored
        return mask


def close(versions: Versions, codes: Codes, ends: np.ndarray) -> tuple[Versions, int]:
    """Apply the deletes to the versions (step 4 of section 5.2), and count the deletes without effect.

    `versions` are sorted by key and start. `codes` and `ends` have the key and the new end for each delete.
    Deletes are applied by ascending end. A delete closes the version that was true at its time. This version
    must be active, or end no earlier than a millisecond before the delete.
    """
    # Starts and ends are compared as whole milliseconds.
    target = latest_at(versions.code, versions.start // MILLISECOND, codes, ends // MILLISECOND)
    order = np.lexsort((ends, target))
    order = order[target[order] >= 0]
    instant, end = target[order], ends[order]
    head = np.ones(len(instant), bool)
    head[1:] = instant[1:] != instant[:-1]
    open_ = (versions.active[instant] == TRUE) | (versions.end[instant] >= end - MILLISECOND)
    late = np.zeros(len(instant), bool)
    late[1:] = end[1:] - end[:-1] > MILLISECOND
    applied = _before_first(np.where(head, ~open_, late), head)

    new_end, new_active = versions.end.copy(), versions.active.copy()
    new_end[instant[applied]] = end[applied]
    new_active[instant[applied]] = FALSE
    missed = len(codes) - int(np.count_nonzero(applied))
    return versions.with_ends(new_end, new_active), missed


def _before_first(stop: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Whether a row is before the first stop of its group. Each group begins with a head."""
    stops = np.cumsum(stop)
    starts = np.flatnonzero(head)
    before = stops[starts] - stop[starts]
    return stops - np.repeat(before, np.diff(np.append(starts, len(stop)))) == 0


def refuse_broken_versions(stored: pa.Table, shape: Shape | None) -> None:
    """Raise Refused if versions of a record overlap, share a start or have no start.

    No door writes such versions. Without a shape, nothing is checked. A table whose sender delivers versions
    out of order is marked (`backstory.disorder`), and the sender may continue.
    """
    if shape is None or not stored.num_rows:
        return
    (codes,), _ = key_codes([stored], shape.key)
    start, end = integers(stored[START]), integers(stored[END])
    active = np.asarray(stored[ACTIVE].cast(pa.int8()).fill_null(0).to_numpy()) == TRUE
    order = np.lexsort((end, start, codes))
    never = order[start[order] == LACKING]
    order = order[start[order] != LACKING]
    before, after = order[:-1], order[1:]
    covered = active[before] | (end[before] > start[after]) | (start[before] == start[after])
    wrong = np.concatenate([before[(codes[before] == codes[after]) & covered], never])
    if len(wrong):
        rows = stored.select(list(shape.key)).take(pa.array(wrong[:MAX_KEYS]))
        keys = {key_text(shape.source_key, list(row.values())) for row in rows.to_pylist()}
        raise Refused(
            "spoilt-table",
            f"{shape.table} holds versions of a record that overlap or have no start: something other than "
            "backstory wrote to it.",
            f"Nothing was written; `backstory repair {shape.table}` shows the repair, and `apply=True` "
            "makes it.",
            sorted(keys),
        )


@dataclass(frozen=True, slots=True)
class HistoryDelivery:
    """The rows of one WriteHistoryBatch.

    `replace` and `update` have all columns of the table. `earliest` has the key and the start, and `delete`
    the key and the end. All rows have starts and ends, except update rows that only close a version.
    """

    key: Sequence[str]
    earliest: pa.Table
    replace: Rows
    update: Rows
    delete: pa.Table


def plan_versions(stored: pa.Table, delivery: HistoryDelivery) -> PartPlan:
    """The plan that applies the delivery to the history.

    `stored` has versions of the delivered keys, with `_file` and `_pos`. It must include all versions that
    are active, end a millisecond before the delivery's first instant or later, or start after it. With
    `_row_id`, closed and rewritten versions keep their ids, and new versions have none.
    """
    update, closing, pointless = _split_updates(delivery.update)
    parts = [stored, delivery.replace.values, update.values]
    codes, count = key_codes([*parts, delivery.earliest, delivery.delete, closing], delivery.key)
    first = np.full(count, NEVER)
    np.minimum.at(first, codes[3], integers(delivery.earliest[START]))
    cells = Rows.concat(
        [_complete_rows(stored.select(update.values.column_names)), delivery.replace, update],
        update.values.schema,
    )
    versions = _versions(cells.values, np.concatenate(codes[:3]), [len(part) for part in parts])
    shortened, is_removed, removed = make_room(versions.take(versions.kind == STORED), first)
    all_versions = Versions.join(shortened.take(~is_removed), versions.take(versions.kind != STORED))
    chains = Chains.link(all_versions.by_start(), first, removed)

    final = chains.final()
    ends = np.concatenate([integers(delivery.delete[END]), integers(closing[END])])
    closed, missed = close(chains.versions.take(final), np.concatenate(codes[4:]), ends)
    outcome = _Outcome(
        stored,
        versions,
        cells,
        chains,
        final,
        Versions.join(closed, all_versions.take(all_versions.start == LACKING)),
    )
    ignored = int(np.count_nonzero(chains.orphan)) + missed + pointless
    return outcome.plan(ignored)


def _split_updates(update: Rows) -> tuple[Rows, pa.Table, int]:
    """Split updates into rows that begin a version, rows that only close one, and the number of other rows.

    If an update that begins a version has no active flag, the version is active if it has no end.
    """
    starts, ends = integers(update.values[START]), integers(update.values[END])
    makes = starts != LACKING
    closes = ~makes & (ends != LACKING) & (ends < TMAX)
    pointless = int(np.count_nonzero(~makes & ~closes))
    closing = update.values.filter(pa.array(closes))
    making = Rows(update.values.filter(pa.array(makes)), update.known.filter(pa.array(makes)))
    endless = pa.array(integers(making.values[END]) == TMAX)
    place = making.values.column_names.index(ACTIVE)
    flags = pc.if_else(making.values[ACTIVE].is_valid(), making.values[ACTIVE], endless)
    return Rows(making.values.set_column(place, ACTIVE, flags), making.known), closing, pointless


def _complete_rows(values: pa.Table) -> Rows:
    """The rows, with all values marked as known."""
    yes = pa.repeat(pa.scalar(True), values.num_rows)
    return Rows(values, pa.table([yes] * values.num_columns, names=values.column_names))


def _versions(values: pa.Table, code: Codes, sizes: Sequence[int]) -> Versions:
    flags = values[ACTIVE].cast(pa.int8()).fill_null(NULL)
    kind, places = np.repeat([STORED, REPLACE, UPDATE], sizes), np.arange(len(code))
    start, end = integers(values[START]), integers(values[END])
    return Versions(places, kind, code, start, end, np.asarray(flags))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The final versions and the stored versions. The plan is their difference."""

    stored: pa.Table
    before: Versions
    cells: Rows
    chains: Chains
    final: np.ndarray
    after: Versions

    def plan(self, ignored: int) -> PartPlan:
        """The stored rows to remove and the rows to add. Unchanged versions are in neither."""
        after = self.after
        own = after.kind == STORED
        twin = np.where(own, after.row, self._twins())
        same = np.zeros(after.count, bool)
        same[own] = (after.end[own] == self.before.end[after.row[own]]) & (
            after.active[own] == self.before.active[after.row[own]]
        )
        rivals = np.flatnonzero(~own & (twin >= 0))
        old = self.cells.values.take(pa.array(twin[rivals]))
        same[rivals] = ~differing(self._rows(rivals), old)

        stays = np.zeros(self.stored.num_rows, bool)
        stays[twin[same]] = True
        changed = np.flatnonzero(~same)
        closed = int(np.count_nonzero(own & ~same))
        updated = int(np.count_nonzero(~own & ~same & (twin >= 0)))
        counts = {
            "inserted": int(np.count_nonzero(twin < 0)),
            "updated": updated,
            "closed": closed,
            "removed": max(int(np.count_nonzero(~stays)) - closed - updated, 0),
            "unchanged": int(np.count_nonzero(same & ~own)),
            "ignored": ignored,
            **({OUT_OF_ORDER: 1} if self.after.disorderly() else {}),
        }
        removed = self.stored.select([FILE, POSITION]).filter(pa.array(~stays))
        added = with_row_ids(self._rows(changed), self.stored, twin[changed])
        return PartPlan({REMOVED: removed, ADDED: added}, counts)

    def _twins(self) -> np.ndarray:
        """For each final version, the stored row with the same key and start, or -1 without one."""
        before = self.before
        codes, count = pair_codes(before.code, before.start)
        stored = last_of(codes[before.kind == STORED], count)
        return stored[codes[self.after.row]]

    def _rows(self, places: np.ndarray) -> pa.Table:
        """The final versions with these indexes, as whole rows."""
        values, columns = self.cells.values, []
        linked = np.flatnonzero(self.final)
        for name in values.column_names:
            if name == END:
                columns.append(timestamps(self.after.end[places]))
            elif name == ACTIVE:
                flags = self.after.active[places]
                columns.append(pa.array(flags == 1, mask=flags == NULL))
            else:
                source = self.chains.source(np.asarray(self.cells.known[name]))[linked]
                unlinked = self.after.row[len(linked) :]
                columns.append(take_or_null(values[name], np.concatenate([source, unlinked])[places]))
        return pa.table(columns, schema=values.schema)
