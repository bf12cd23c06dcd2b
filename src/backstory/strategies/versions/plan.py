"""Ordered changes become versions with a start and an end, as one set of actions (section 5.2).

The algorithm of the specification, a column at a time: stored versions, replace rows and update rows
stand in one list, sorted by key and start, and an unmodified cell takes the value above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import Rows
from backstory.model.layout import ACTIVE, END, START
from backstory.model.places import FILE, POSITION
from backstory.strategies.actions import Actions, succeeding
from backstory.strategies.compare import differing, take_or_null
from backstory.strategies.keys import Codes, key_codes, last_of, pair_codes
from backstory.strategies.versions.deletes import Deletes, close
from backstory.strategies.versions.spans import (
    NULL,
    REPLACE,
    STORED,
    UPDATE,
    Chains,
    Versions,
    make_room,
)
from backstory.strategies.versions.times import NEVER, NO_TIME, TMAX, micros, timestamps


@dataclass(frozen=True, slots=True)
class HistoryDelivery:
    """The rows of one WriteHistoryBatch.

    `replace` and `update` have all columns of the table, `earliest` the key and the start, `delete`
    the key and the end. Starts and ends are given, but for update rows that only close a version.
    """

    key: Sequence[str]
    earliest: pa.Table
    replace: Rows
    update: Rows
    delete: pa.Table

    def first_instant(self) -> int | None:
        """The least start or end that the delivery names, in microseconds; None if it names none."""
        named = [
            *(rows[START] for rows in (self.earliest, self.replace.values, self.update.values)),
            *(rows[END] for rows in (self.delete, self.update.values)),
        ]
        least = [pc.min(column.cast(pa.int64())).as_py() for column in named]
        return min((instant for instant in least if instant is not None), default=None)


def plan(stored: pa.Table, delivery: HistoryDelivery) -> Actions:
    """The actions that bring the delivery into the history.

    `stored` holds, with `_file` and `_pos`, the versions of the delivery's keys: at least those that
    are active, end a millisecond before `delivery.first_instant()` or later, or start after it. With
    `_row_id`, a version that is closed or written anew keeps its id, and one that begins has none.
    """
    update, closing, pointless = _split_updates(delivery.update)
    parts = [stored, delivery.replace.values, update.values]
    codes, count = key_codes([*parts, delivery.earliest, delivery.delete, closing], delivery.key)
    first = np.full(count, NEVER)
    np.minimum.at(first, codes[3], micros(delivery.earliest[START]))
    cells = Rows.concat(
        [_complete_rows(stored.select(update.values.column_names)), delivery.replace, update],
        update.values.schema,
    )
    versions = _versions(cells.values, np.concatenate(codes[:3]), [len(part) for part in parts])
    kept, gone, removed = make_room(versions.chosen(versions.kind == STORED), first)
    listed = _joined(kept.chosen(~gone), versions.chosen(versions.kind != STORED))
    chains = Chains.link(listed.by_start(), first, removed)

    final = chains.final()
    ends = np.concatenate([micros(delivery.delete[END]), micros(closing[END])])
    closed, missed = close(chains.versions.chosen(final), Deletes(np.concatenate(codes[4:]), ends))
    outcome = _Outcome(
        stored, versions, cells, chains, final, _joined(closed, listed.chosen(listed.start == NO_TIME))
    )
    ignored = int(np.count_nonzero(chains.orphan)) + missed + pointless
    return outcome.actions(ignored)


def overlap(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether versions of a key, sorted by start, overlap or have an open one before another."""
    (codes,), _ = key_codes([rows], key)
    return _versions(rows, codes, [rows.num_rows, 0, 0]).by_start().disorderly()


def _split_updates(update: Rows) -> tuple[Rows, pa.Table, int]:
    """Split updates into rows that make a version, rows that only close one, and the count of the rest.

    The active flag of a version that an update makes is, if left open, whether it has no end.
    """
    starts, ends = micros(update.values[START]), micros(update.values[END])
    makes = starts != NO_TIME
    closes = ~makes & (ends != NO_TIME) & (ends < TMAX)
    pointless = int(np.count_nonzero(~makes & ~closes))
    closing = update.values.filter(pa.array(closes))
    making = Rows(update.values.filter(pa.array(makes)), update.known.filter(pa.array(makes)))
    endless = pa.array(micros(making.values[END]) == TMAX)
    place = making.values.column_names.index(ACTIVE)
    flags = pc.if_else(making.values[ACTIVE].is_valid(), making.values[ACTIVE], endless)
    return Rows(making.values.set_column(place, ACTIVE, flags), making.known), closing, pointless


def _complete_rows(values: pa.Table) -> Rows:
    """Rows of which every value is known."""
    yes = pa.repeat(pa.scalar(True), values.num_rows)
    return Rows(values, pa.table([yes] * values.num_columns, names=values.column_names))


def _versions(values: pa.Table, code: Codes, sizes: Sequence[int]) -> Versions:
    flags = values[ACTIVE].cast(pa.int8()).fill_null(NULL)
    active = flags.to_numpy() if flags.num_chunks else np.zeros(0, np.int8)
    kind = np.repeat([STORED, REPLACE, UPDATE], sizes)
    return Versions(np.arange(len(code)), kind, code, micros(values[START]), micros(values[END]), active)


def _joined(left: Versions, right: Versions) -> Versions:
    return Versions(
        *(
            np.concatenate([getattr(left, name), getattr(right, name)])
            for name in ("row", "kind", "code", "start", "end", "active")
        )
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The versions that stand in the end beside the stored ones, to tell what changes."""

    stored: pa.Table
    before: Versions
    cells: Rows
    chains: Chains
    final: np.ndarray
    after: Versions

    def actions(self, ignored: int) -> Actions:
        """The stored rows that go and the rows that come; a version that stays as it is, in neither."""
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
        }
        removed = self.stored.select([FILE, POSITION]).filter(pa.array(~stays))
        added = succeeding(self._rows(changed), self.stored, twin[changed])
        return Actions(removed, added, counts, self.after.disorderly())

    def _twins(self) -> np.ndarray:
        """For each final version the stored row with the same key and start, -1 if there is none."""
        before = self.before
        codes, count = pair_codes(before.code, before.start)
        stored = last_of(codes[before.kind == STORED], count)
        return stored[codes[self.after.row]]

    def _rows(self, places: np.ndarray) -> pa.Table:
        """The final versions at these places as whole rows."""
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
