"""A load that the driver can hold: stage, base and open versions are read once and planned as Arrow tables.

What is too large, and what the load must tell more of than its counts (a refusal, a dry run, an instant that
the history knows already), is planned by frames; both are held to one rule.
"""

import time
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.collisions import differing, warn_of_collisions
from backstory.doors.historize.columns import business_keys, foreign_keys, user_columns
from backstory.doors.historize.local_sides import BASE, BROKEN, IN_SCOPE, LIVE, OPEN, STAGED
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.preflight import mass_delete
from backstory.doors.historize.receipts import LoadOutcome
from backstory.doors.historize.small_rows import SmallRows, read_rows, seen_keys, version_keys
from backstory.doors.historize.spark_base import PlannedBase, base_plan, with_base
from backstory.doors.historize.spark_history import PlannedHistory, newest_of, outcome_of
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.work import LoadRun
from backstory.formats.delivered import shaped
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import Change
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.store import StoredTable
from backstory.strategies.scd2.arrow.versions import LoadMoment, begins, closes, tally
from backstory.strategies.sift.matching import Matched, matched, taken


@dataclass(frozen=True, slots=True)
class Planned:
    """Base and history of a small load; no base where it is taken as it stands."""

    base: PlannedBase | None
    history: PlannedHistory


@dataclass(frozen=True, slots=True)
class SmallLoad:
    """A load whose rows are here, by side."""

    work: SparkWork
    rows: SmallRows
    hist: TablePlan
    newest: datetime | None
    lease: MemoryLease


def plan_small(
    work: SparkWork, base: TablePlan, hist: TablePlan, loaded: LoadOutcome, lease: MemoryLease
) -> Planned | None:
    """The plan of a load that the lease can hold and that nothing speaks against, else None."""
    newest = None if hist.table is None else newest_of(work.store, hist.table)
    late = newest is not None and newest >= work.run.instant
    if late or not _plain(work.run):
        return None
    began = time.monotonic()
    try:
        with translate_faults(base.wanted.table):
            small = SmallLoad(work, read_rows(work, base, hist, lease), hist, newest, lease)
    except TooLarge:
        return None
    if not work.run.skip_base:
        return _with_base(small, loaded, began)
    history = _history(small, small.rows[BASE], loaded)
    return None if history is None else Planned(None, history)


def _plain(run: LoadRun) -> bool:
    """Whether counts are all that the load has to tell, and no row becomes another one before it."""
    upkeep = run.rehash or run.rehash_base or run.relabel is not None
    return not (run.dry_run or upkeep) and (run.skip_base or run.stage is not None)


def _with_base(small: SmallLoad, loaded: LoadOutcome, began: float) -> Planned | None:
    found = _base_match(small)
    if found is None:
        return None
    planned = base_plan(found, lambda table: _base_change(small, found, table), began)
    history = _history(small, _live_after(small, found), with_base(loaded, planned))
    if history is None:
        return None
    _warn_of_collisions(small, found)
    return Planned(planned, history)


def _base_match(small: SmallLoad) -> Matched | None:
    """Stage and base matched; None for a stage that cannot be a base, or whose deletions are flags."""
    load, staged, stored = small.work.load, small.rows[STAGED], small.rows[BASE]
    compared = [*user_columns(load.dataset), *foreign_keys(load.dataset)]
    names = [*(each.name for each in compared), ColumnRole.ROW_HASH]
    found = matched(staged, stored, [load.dataset.key], names, stored[IN_SCOPE])
    if found is None or pc.any(staged[BROKEN]).as_py():
        return None
    empty = len(stored) and not len(staged) and load.deletes_base and not load.delete_scope
    if empty and not load.dataset.historization.allow_empty_snapshot:
        return None
    soft = load.dataset.historization.soft_delete
    flags = soft is not None and soft.on_delete != "delete"
    return None if (flags and len(found.vanished)) or _moved(small, found) else found


def _moved(small: SmallLoad, found: Matched) -> bool:
    """Whether a record that appeared has the business keys of one that vanished."""
    names = [each.name for each in business_keys(small.work.load.dataset)]
    if not len(found.appeared) or not len(found.vanished) + len(found.kept):
        return False
    came = taken(small.rows[STAGED].select(names), found.appeared)
    went = taken(small.rows[BASE].select(names), pa.concat_arrays([found.vanished, found.kept]))
    apart = [each.group_by(names).aggregate([]).num_rows for each in (came, went)]
    return pa.concat_tables([came, went]).group_by(names).aggregate([]).num_rows < sum(apart)


def _base_change(small: SmallLoad, found: Matched, table: StoredTable) -> Change:
    staged, stored = small.rows[STAGED], small.rows[BASE]
    appeared, (changed, known) = taken(staged, found.appeared), found.changed
    came = taken(staged, changed)
    if ROW_ID in stored.column_names:
        came = came.append_column(ROW_ID, stored[ROW_ID].take(known))
        appeared = appeared.append_column(ROW_ID, pa.nulls(len(appeared), pa.int64()))
    come = shaped(pa.concat_tables([appeared, came]), table.shape.columns)
    gone = taken(stored.select([FILE, POSITION]), pa.concat_arrays([known, found.vanished]))
    return Change(gone=gone.cast(PLACE), come=come)


def _live_after(small: SmallLoad, found: Matched) -> pa.Table:
    """The rows that the base will have and that are not flagged as deleted."""
    staged, stored = small.rows[STAGED], small.rows[BASE]
    names = [name for name in staged.column_names if name in stored.column_names]
    came = taken(staged.select(names), pa.concat_arrays([found.appeared, found.changed[0]]))
    gone = np.ones(len(stored), bool)
    gone[np.concatenate([found.same[1], found.kept])] = False
    stays = stored.select(names)
    rows = pa.concat_tables([came, stays.filter(pa.array(~gone)) if gone.any() else stays])
    return rows.filter(pc.fill_null(rows[LIVE], False))


def _history(small: SmallLoad, live: pa.Table, loaded: LoadOutcome) -> PlannedHistory | None:
    """Live rows of the base against the open versions; None if something speaks against the load."""
    began = time.monotonic()
    work, open_ = small.work, small.rows[OPEN]
    load, rules = work.load, work.load.dataset.historization
    found = matched(live, open_, [load.dataset.key], [ColumnRole.ROW_HASH], open_[IN_SCOPE])
    if found is None or live[ColumnRole.ROW_HASH].null_count:
        return None
    if not len(live) and len(open_) and not rules.allow_empty_snapshot:
        return None
    if mass_delete(rules, len(found.vanished), len(open_)) or _late_effective(small, live, found):
        return None
    seen = seen_keys(work, small.hist, small.lease, live[load.dataset.key].take(found.appeared))
    outcome = outcome_of(tally(found, len(seen)), len(live), loaded, began)

    def change(table: StoredTable) -> Change:
        return replace(_versions(small, live, found, seen, table), counts=outcome.counts)

    return PlannedHistory(outcome, found.nothing, small.newest, change)


def _late_effective(small: SmallLoad, live: pa.Table, found: Matched) -> bool:
    dating = small.work.load.dataset.historization.effective_dating
    if dating is None or dating.late_policy != "reject":
        return False
    now, before = found.changed
    open_ = small.rows[OPEN]
    early = pc.less(live[dating.column].take(now), open_[dating.column].take(before))
    return bool(pc.any(early).as_py())


def _versions(small: SmallLoad, live: pa.Table, found: Matched, seen: pa.Array, table: StoredTable) -> Change:
    work, pair = small.work, small.work.load.pair
    moment = LoadMoment(work.run.instant, work.run.run_id)
    begun = begins(pair, live, found, seen, moment)
    begun = begun.append_column(pair.hist_key, version_keys(work, begun[pair.key]))
    ended = _ended(small, found, moment)
    parts = [shaped(each, table.shape.columns) for each in (begun, ended) if len(each)]
    gone = ended.select([FILE, POSITION]).cast(PLACE)
    come = pa.concat_tables(parts, promote_options="default")
    return Change(gone=gone, come=come, expected=len(come))


def _ended(small: SmallLoad, found: Matched, moment: LoadMoment) -> pa.Table:
    """The open versions that close, read whole for these records alone."""
    places = pa.concat_arrays([found.changed[1], found.vanished])
    whole = small.rows.whole(taken(small.rows[OPEN], places))
    other, gone = pa.array(range(len(found.changed[1]))), pa.array(range(len(found.changed[1]), len(places)))
    return closes(small.work.load.pair, whole, replace(found, changed=(other, other), vanished=gone), moment)


def _warn_of_collisions(small: SmallLoad, found: Matched) -> None:
    """Tell of records that changed under one hash; the texts that are compared are the dialect's."""
    from pyspark.sql.functions import count, when

    work = small.work
    differs = differing(work.load, "r", "v") if len(found.changed[0]) else {}
    if not differs:
        return
    now, before = (
        rows.take(places).select([name for name in rows.column_names if name not in _BESIDE])
        for rows, places in zip((small.rows[STAGED], small.rows[BASE]), found.changed, strict=True)
    )
    alike = pc.equal(now[ColumnRole.ROW_HASH], before[ColumnRole.ROW_HASH])
    if pc.any(alike).as_py():
        sides = {"r": now.filter(alike), "v": before.filter(alike)}
        rows = frame_of(work.store, pa.table({side: each.to_struct_array() for side, each in sides.items()}))
        (counts,) = rows.agg(*(count(when(work.sql(sql), 1)) for sql in differs.values())).collect()
        warn_of_collisions(work.load, dict(zip(differs, counts, strict=True)))


_BESIDE = {LIVE, IN_SCOPE, BROKEN, FILE, POSITION, ROW_ID}
