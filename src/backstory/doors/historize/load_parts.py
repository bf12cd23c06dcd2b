"""The parts of a load by key, each planned as Arrow tables: what they add up to, and the rows to write."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.columns import business_keys, foreign_keys, user_columns
from backstory.doors.historize.local_sides import BASE, BROKEN, IN_SCOPE, LIVE, OPEN, STAGED
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_work import SparkWork
from backstory.engine.held_rows import HeldRows
from backstory.formats.memory import MemoryLease
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.scd2.plan import LoadMoment, closes
from backstory.strategies.sift.plan import Compared, Matched, matched, take_rows

BESIDE = (LIVE, IN_SCOPE, BROKEN, FILE, POSITION, ROW_ID)


class Declined(Exception):
    """Something speaks against the load; frames tell what, and of which keys."""


@dataclass
class LoadParts:
    """What the parts of a load come to.

    `base_come` are rows of the base, `ended` closed versions, `changed` and `appeared` the base's rows whose
    records begin versions; the others are places of stored rows that go. `came` and `went` have the business
    keys of records that appeared in the base and that vanished from it, `alike` those that changed under one
    hash, before and after.
    """

    base_come: HeldRows
    ended: HeldRows
    changed: HeldRows
    appeared: HeldRows
    began: float = field(default_factory=time.monotonic)
    base: Compared = field(default_factory=Compared)
    history: Compared = field(default_factory=Compared)
    base_gone: list[pa.Table] = field(default_factory=list)
    gone: list[pa.Table] = field(default_factory=list)
    came: list[pa.Table] = field(default_factory=list)
    went: list[pa.Table] = field(default_factory=list)
    alike: list[tuple[pa.Table, pa.Table]] = field(default_factory=list)

    @classmethod
    def of(cls, lease: MemoryLease, kept: ExitStack) -> "LoadParts":
        """No parts yet; what the lease cannot hold of their rows is spilled, and goes with `kept`."""
        held = partial(HeldRows, lease=lease, kept=kept)
        return cls(held("rows of the base"), held("closed versions"), held("changed"), held("appeared"))

    def add(
        self, work: SparkWork, sides: Mapping[str, pa.Table], whole: Callable[[pa.Table], pa.Table]
    ) -> None:
        """One more part; raises Declined for what is to be refused, or is not told apart here."""
        if work.run.skip_base:
            self._add_history(work, sides[BASE], sides[OPEN], whole)
            return
        matches = _base_matches(work, sides)
        self.base += _compared(matches, sides[STAGED], sides[BASE])
        self._add_base(sides, matches)
        self._add_keys(work, sides, matches)
        self._add_history(work, _live_after(sides, matches), sides[OPEN], whole)

    def _add_base(self, sides: Mapping[str, pa.Table], matches: Matched) -> None:
        staged, stored = sides[STAGED], sides[BASE]
        rows = staged.drop_columns([LIVE, BROKEN])
        appeared, (changed, known) = take_rows(rows, matches.appeared), matches.changed
        came = take_rows(rows, changed)
        if ROW_ID in stored.column_names:
            came = came.append_column(ROW_ID, stored[ROW_ID].take(known))
            appeared = appeared.append_column(ROW_ID, pa.nulls(len(appeared), pa.int64()))
        self.base_come.add(pa.concat_tables([appeared, came]))
        self.base_gone.append(_places(stored, pa.concat_arrays([known, matches.vanished])))

    def _add_keys(self, work: SparkWork, sides: Mapping[str, pa.Table], matches: Matched) -> None:
        staged, stored = sides[STAGED], sides[BASE]
        names = [each.name for each in business_keys(work.load.dataset)]
        if work.base is not None:
            self.came.append(take_rows(staged.select(names), matches.appeared))
            self.went.append(
                take_rows(stored.select(names), pa.concat_arrays([matches.vanished, matches.kept]))
            )
        now, before = (
            take_rows(rows, places).select([name for name in rows.column_names if name not in BESIDE])
            for rows, places in zip((staged, stored), matches.changed, strict=True)
        )
        same = pc.equal(now[ColumnRole.ROW_HASH], before[ColumnRole.ROW_HASH])
        if pc.any(same).as_py():
            self.alike.append((now.filter(same), before.filter(same)))

    def _add_history(
        self, work: SparkWork, live: pa.Table, open_: pa.Table, whole: Callable[[pa.Table], pa.Table]
    ) -> None:
        key, pair = work.load.dataset.key, work.load.pair
        matches = matched(live, open_, [key], [ColumnRole.ROW_HASH], open_[IN_SCOPE])
        if matches is None or live[ColumnRole.ROW_HASH].null_count:
            raise Declined
        if _is_early(work, live, open_, matches):
            raise Declined
        self.history += _compared(matches, live, open_)
        rows = live.select(list(dict.fromkeys([key, *pair.mirrored.values(), ColumnRole.ROW_HASH])))
        self.changed.add(take_rows(rows, matches.changed[0]))
        self.appeared.add(take_rows(rows, matches.appeared))
        versions = whole(take_rows(open_, pa.concat_arrays([matches.changed[1], matches.vanished])))
        self.gone.append(versions.select([FILE, POSITION]).cast(PLACE))
        versions, count = versions.drop_columns([FILE, POSITION]), len(matches.changed[1])
        moment = LoadMoment(work.run.instant, work.run.run_id)
        self.ended.add(closes(pair, versions.slice(0, count), versions.slice(count), moment))

    def has_moved(self, work: SparkWork) -> bool:
        """Whether a record that appeared has the business keys of one that vanished."""
        names = [each.name for each in business_keys(work.load.dataset)]
        if not any(map(len, self.came)) or not any(map(len, self.went)):
            return False
        sides = [pa.concat_tables(rows) for rows in (self.came, self.went)]
        apart = [each.group_by(names).aggregate([]).num_rows for each in sides]
        return pa.concat_tables(sides).group_by(names).aggregate([]).num_rows < sum(apart)


def _base_matches(work: SparkWork, sides: Mapping[str, pa.Table]) -> Matched:
    """Stage and base matched; Declined for a stage that cannot be a base, or whose deletions are flags."""
    load, staged, stored = work.load, sides[STAGED], sides[BASE]
    compared = [*user_columns(load.dataset), *foreign_keys(load.dataset)]
    names = [*(each.name for each in compared), ColumnRole.ROW_HASH]
    matches = matched(staged, stored, [load.dataset.key], names, stored[IN_SCOPE])
    if matches is None or pc.any(staged[BROKEN]).as_py():
        raise Declined
    soft = load.dataset.historization.soft_delete
    if soft is not None and soft.on_delete != "delete" and len(matches.vanished):
        raise Declined
    return matches


def _compared(matches: Matched, delivered: pa.Table, stored: pa.Table) -> Compared:
    return Compared(matches.sizes, len(delivered), len(stored))


def _places(rows: pa.Table, places: pa.Array) -> pa.Table:
    return take_rows(rows.select([FILE, POSITION]), places).cast(PLACE)


def _live_after(sides: Mapping[str, pa.Table], matches: Matched) -> pa.Table:
    """The rows that the base will have and that are not flagged as deleted."""
    staged, stored = sides[STAGED], sides[BASE]
    names = [name for name in staged.column_names if name in stored.column_names]
    came = take_rows(staged.select(names), pa.concat_arrays([matches.appeared, matches.changed[0]]))
    gone = np.ones(len(stored), bool)
    gone[np.concatenate([matches.same[1], matches.kept])] = False
    stays = stored.select(names)
    rows = pa.concat_tables([came, stays.filter(pa.array(~gone)) if gone.any() else stays])
    return rows.filter(pc.fill_null(rows[LIVE], False))


def _is_early(work: SparkWork, live: pa.Table, open_: pa.Table, matches: Matched) -> bool:
    """Whether a row became effective before the version that it changes, where that is refused."""
    dating = work.load.dataset.historization.effective_dating
    if dating is None or dating.late_policy != "reject":
        return False
    now, before = matches.changed
    early = pc.less(live[dating.column].take(now), open_[dating.column].take(before))
    return bool(pc.any(early).as_py())
