"""A load that the driver plans: stage, base and open versions come together once, whole or in parts by key.

What the load must tell more of than its counts (a refusal, a dry run, an instant that the history knows
already), and what Spark alone reads, is planned by frames; both are held to one rule.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from backstory.doors.historize.collisions import differing, warn_of_collisions
from backstory.doors.historize.load_parts import Declined, LoadParts
from backstory.doors.historize.preflight import mass_delete
from backstory.doors.historize.receipts import LoadOutcome
from backstory.doors.historize.rows_here import LoadRows, load_rows, seen_keys, version_keys
from backstory.doors.historize.spark_base import PlannedBase, base_plan, with_base
from backstory.doors.historize.spark_history import PlannedHistory, newest_of, outcome_of
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.work import LoadRun
from backstory.engine.held_rows import come_of
from backstory.engine.parts import parts_by_key
from backstory.engine.staging import is_local
from backstory.formats.delivered import shaped
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import Change
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.store import StoredTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.scd2.plan import LoadMoment, begins, tally


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Base and history of a load; no base where it is taken as it stands."""

    base: PlannedBase | None
    history: PlannedHistory


def plan_here(
    work: SparkWork,
    base: TablePlan,
    hist: TablePlan,
    loaded: LoadOutcome,
    lease: MemoryLease,
    kept: ExitStack,
) -> PlannedLoad | None:
    """The plan of a load that nothing speaks against; None where frames must make it, or refuse it.

    What is spilled goes with `kept`.
    """
    newest = None if hist.table is None else newest_of(work.store, hist.table)
    late = newest is not None and newest >= work.run.instant
    if late or not _plain(work.run) or not work.store.memory.most:
        return None
    try:
        with translate_faults(base.wanted.table):
            parts = _planned_parts(work, base, hist, lease, kept)
        planned = None
        if not work.run.skip_base:
            planned = base_plan(parts.base, partial(_base_change, parts), parts.began)
            loaded = with_base(loaded, planned)
        return PlannedLoad(planned, _history(work, hist, loaded, lease, parts))
    except (TooLarge, Declined):
        return None


def _plain(run: LoadRun) -> bool:
    """Whether counts are all that the load has to tell, and no row becomes another one before it."""
    upkeep = run.rehash or run.rehash_base or run.relabel is not None
    return not (run.dry_run or upkeep) and (run.skip_base or run.stage is not None)


def _planned_parts(
    work: SparkWork, base: TablePlan, hist: TablePlan, lease: MemoryLease, kept: ExitStack
) -> LoadParts:
    """All parts of the load; Declined for what is to be refused, TooLarge where tasks must plan it."""
    try:
        parts = _in_parts(work, load_rows(work, base, hist, lease), lease, kept)
    except Unreadable:
        parts = _in_parts(work, load_rows(work, base, hist, lease, here=False), lease, kept)
    load, rules = work.load, work.load.dataset.historization
    whole = load.deletes_base and not load.delete_scope
    lost = whole and parts.base.stored and not parts.base.delivered
    emptied = parts.history.stored and not parts.history.delivered
    if (lost or emptied) and not rules.allow_empty_snapshot:
        raise Declined
    if mass_delete(rules, parts.history.sizes[2], parts.history.stored) or parts.has_moved(work):
        raise Declined
    return parts


def _in_parts(work: SparkWork, rows: LoadRows, lease: MemoryLease, kept: ExitStack) -> LoadParts:
    parts, key = LoadParts.of(lease, kept), [work.load.dataset.key]
    for sides in parts_by_key(rows.sides, key, lease, spills=is_local(work.store)):
        parts.add(work, sides, rows.whole)
    return parts


def _base_change(parts: LoadParts, table: StoredTable) -> Change:
    def tables() -> Iterator[pa.Table]:
        for rows in parts.base_come.tables():
            yield shaped(rows, table.shape.columns)

    return Change(gone=pa.concat_tables(parts.base_gone), come=come_of(tables, parts.base_come))


def _history(
    work: SparkWork, hist: TablePlan, loaded: LoadOutcome, lease: MemoryLease, parts: LoadParts
) -> PlannedHistory:
    began, key = time.monotonic(), work.load.dataset.key
    newest = None if hist.table is None else newest_of(work.store, hist.table)
    keys = pa.chunked_array([rows[key].combine_chunks() for rows in parts.appeared.tables()], pa.string())
    seen = seen_keys(work, hist, lease, keys)
    outcome = outcome_of(tally(parts.history.sizes, len(seen)), parts.history.delivered, loaded, began)
    _warn_of_collisions(work, parts)

    def change(table: StoredTable) -> Change:
        return replace(_versions(work, hist, parts, seen, table), counts=outcome.counts)

    return PlannedHistory(outcome, parts.history.nothing, newest, change)


def _versions(
    work: SparkWork, hist: TablePlan, parts: LoadParts, seen: pa.Array, table: StoredTable
) -> Change:
    pair, moment = work.load.pair, LoadMoment(work.run.instant, work.run.run_id)

    def begun(changed: pa.Table, appeared: pa.Table) -> pa.Table:
        rows = begins(pair, changed, appeared, seen, moment)
        rows = rows.append_column(pair.hist_key, version_keys(work, rows[pair.key]))
        return shaped(rows, table.shape.columns, ids=bool(hist.ids))

    def tables() -> Iterator[pa.Table]:
        for rows in parts.changed.tables():
            yield begun(rows, rows.slice(0, 0))
        for rows in parts.appeared.tables():
            yield begun(rows.slice(0, 0), rows)
        for rows in parts.ended.tables():
            yield shaped(rows, table.shape.columns, ids=bool(hist.ids))

    held = (parts.changed, parts.appeared, parts.ended)
    expected = sum(each.count for each in held)
    return Change(gone=pa.concat_tables(parts.gone), come=come_of(tables, *held), expected=expected)


def _warn_of_collisions(work: SparkWork, parts: LoadParts) -> None:
    """Tell of records that changed under one hash; the texts that are compared are the dialect's."""
    from pyspark.sql.functions import count, when

    differs = differing(work.load, "r", "v") if parts.alike else {}
    if differs:
        now, before = (pa.concat_tables(rows) for rows in zip(*parts.alike, strict=True))
        sides = pa.table({"r": now.to_struct_array(), "v": before.to_struct_array()})
        rows = frame_of(work.store, sides)
        (counts,) = rows.agg(*(count(when(work.sql(sql), 1)) for sql in differs.values())).collect()
        warn_of_collisions(work.load, dict(zip(differs, counts, strict=True)))
