"""A load that the driver plans: all sides come together once, whole or in parts by key."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

import pyarrow as pa

from backstory.doors.historize.load_parts import LoadParts
from backstory.doors.historize.load_refusals import refuse_faults, refuse_late
from backstory.doors.historize.planned_load import PlannedRows
from backstory.doors.historize.rows_here import LoadRows, load_rows, read_earlier, size_of_stage, version_keys
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.engine.held_rows import come_of
from backstory.engine.parts import parts_by_key
from backstory.engine.staging import is_local
from backstory.engine.steps import OutOfStep, is_small, parts_as_they_come, parts_in_step, rows_in_step
from backstory.formats.delivered import shaped
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import Change
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import StoredTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.scd2.load import plan_load
from backstory.strategies.scd2.parts import APPEARED, BASE_GOES, CHANGED, COMES, ENDS, FLAGGED, GOES
from backstory.strategies.scd2.plan import Earlier, begins, pasts_of
from backstory.strategies.scd2.terms import STAGED, LoadTerms


def plan_here(
    work: SparkWork,
    base: TablePlan,
    hist: TablePlan,
    terms: LoadTerms,
    kept: ExitStack,
) -> PlannedRows:
    """The rows of a load; TooLarge where Spark's tasks must plan it.

    What is held or spilled goes with `kept`. Raises Refused with the codes of section 3.6.
    """
    lease = kept.enter_context(work.store.memory.lease())
    with translate_faults(base.wanted.table):
        parts = _planned_parts(work, base, hist, terms, lease, kept)
    refuse_faults(work, parts.sums, lambda: parts.moved(terms))
    earlier = _with_pasts(work, hist, terms, lease, parts)
    refuse_late(parts.sums)
    return PlannedRows(
        parts.sums,
        lambda table: _base_change(parts, table),
        lambda table: _history_change(work, hist, terms, parts, earlier, table),
    )


def _planned_parts(
    work: SparkWork,
    base: TablePlan,
    hist: TablePlan,
    terms: LoadTerms,
    lease: MemoryLease,
    kept: ExitStack,
) -> LoadParts:
    """All parts of the load; TooLarge where tasks must plan it."""

    def planned(rows: LoadRows) -> LoadParts:
        first = not (base.filled or hist.filled)
        with suppress(TooLarge, OutOfStep), _in_step(work, rows, terms, first=first) as steps:
            if steps is not None:
                return of_parts(rows, steps)
        return of_parts(rows, parts_by_key(rows.sides, [terms.key], lease, spills=is_local(work.store)))

    def of_parts(rows: LoadRows, each: Iterable[Mapping[str, pa.Table]]) -> LoadParts:
        parts = LoadParts.of(lease, kept)
        for sides in each:
            parts.add(plan_load(terms, sides, rows.whole))
        return parts

    try:
        return planned(load_rows(work, base, hist, lease))
    except Unreadable:
        return planned(load_rows(work, base, hist, lease, here=False))


def _in_step(
    work: SparkWork, rows: LoadRows, terms: LoadTerms, *, first: bool
) -> AbstractContextManager[Iterator[Mapping[str, pa.Table]] | None]:
    """The parts of a load that is large and the first, or whose stage has the order of base and history."""
    memory = work.store.memory
    if rows.coming is None or is_small(memory, size_of_stage(work)):
        return nullcontext()
    count = rows_in_step(memory, rows.sides.values())
    if first:
        empty = {side: each for side, each in rows.sides.items() if side != STAGED}
        return parts_as_they_come(STAGED, rows.coming.rows, empty, [terms.key], memory, count)
    return parts_in_step(STAGED, rows.coming, rows.placed, [terms.key], memory, count)


def _with_pasts(
    work: SparkWork, hist: TablePlan, terms: LoadTerms, lease: MemoryLease, parts: LoadParts
) -> Earlier:
    """What the history has of the records that begin versions; the parts count it, and what it refuses."""
    if not (hist.filled or work.load.archive):
        return Earlier()
    kinds = (APPEARED, CHANGED) if terms.late else (APPEARED,)
    keys = [rows[terms.key].combine_chunks() for rows in parts.tables(*kinds)]
    earlier = read_earlier(work, hist, terms, lease, pa.chunked_array(keys, pa.string()))
    for rows in parts.tables(*([CHANGED] if terms.late else [])):
        parts.add(pasts_of(terms, rows, rows.slice(0, 0), earlier))
    for rows in parts.tables(APPEARED):
        parts.add(pasts_of(terms, rows.slice(0, 0), rows, earlier))
    return earlier


def _base_change(parts: LoadParts, table: StoredTable) -> Change:
    def tables() -> Iterator[pa.Table]:
        for rows in parts.tables(COMES, FLAGGED):
            yield shaped(rows, table.shape.columns)

    come = come_of(tables, *parts.holding(COMES, FLAGGED))
    return Change(gone=parts.places(BASE_GOES), come=come)


def _history_change(
    work: SparkWork,
    hist: TablePlan,
    terms: LoadTerms,
    parts: LoadParts,
    earlier: Earlier,
    table: StoredTable,
) -> Change:
    def begun(changed: pa.Table, appeared: pa.Table) -> pa.Table:
        rows = begins(terms, changed, appeared, earlier)
        rows = rows.append_column(work.load.pair.hist_key, version_keys(work, rows[terms.key]))
        return shaped(rows, table.shape.columns, ids=bool(hist.ids))

    def tables() -> Iterator[pa.Table]:
        for rows in parts.tables(CHANGED):
            yield begun(rows, rows.slice(0, 0))
        for rows in parts.tables(APPEARED):
            yield begun(rows.slice(0, 0), rows)
        for rows in parts.tables(ENDS):
            yield shaped(rows, table.shape.columns, ids=bool(hist.ids))

    held = parts.holding(CHANGED, APPEARED, ENDS)
    return Change(
        gone=parts.places(GOES), come=come_of(tables, *held), expected=sum(each.count for each in held)
    )
