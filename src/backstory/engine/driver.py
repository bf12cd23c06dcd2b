"""Plan a delivery on the driver: in one piece if the rows fit into memory, else by sift or in parts by key.

The size of a frame is estimated from its plan before it runs.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.engine.plans import (
    STEPS_HELD,
    KeyInTwoParts,
    LocalSide,
    PlanResult,
    PlanTerms,
    SideRows,
    empty_side,
    parts_by_key,
    parts_in_order,
)
from backstory.engine.row_buffers import RowBuffer
from backstory.engine.sift import Buckets, SiftTerms, counts_of_unchanged, sift_sides, with_counts
from backstory.engine.staging import is_local
from backstory.formats.memory import CELL, UNPACKED, MemoryLease, TooLarge, unpacked_size
from backstory.model.layout import FILE, POSITION
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.frames import bytes_of, collect_sides, hold_memory_of_rows
from backstory.stores.iceberg.jvm import scanned_bytes
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.slice import PLACE, rows_of_keys, searchable_columns
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.port import Store
from backstory.strategies.part_plan import PartPlan, PlanSums, as_they_are

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Up to SHORT, stored rows are collected without a filter by the delivered keys; with this filter, up to MANY.
SHORT: Final = 20_000
MANY: Final = 200_000
# An array of strings has room for 2 GiB.
LONGEST: Final = (1 << 31) - 1
# A frame of unknown size may have at most this many partitions, because each is read for a few rows.
PARTS: Final = 64
UNKNOWN_SIZE: Final = 1 << 60
NARROWING: Final = frozenset(["Project", "Filter"])


def result_of_rows(sums: PlanSums, rows: Mapping[str, pa.Table]) -> PlanResult:
    """The result of a plan whose rows the driver has collected, by kind."""
    typed = {kind: table.cast(PLACE) if _are_places(table.schema) else table for kind, table in rows.items()}
    return PlanResult(sums, {kind: table if len(table) else None for kind, table in typed.items()})


def _are_places(schema: pa.Schema) -> bool:
    return {*schema.names} == {FILE, POSITION}


def plan_on_driver(terms: PlanTerms, stack: ExitStack) -> PlanResult | None:
    """Plan a delivery on the driver.

    Returns None if only Spark can read the rows, or if `only_tasks` is set. Rows in memory and spilled rows
    are released with `stack`. Raises TooLarge if there are too many rows.
    """
    if terms.only_tasks:
        return None
    for reads in (True, False):
        with suppress(Unreadable), ExitStack() as held:
            lease = held.enter_context(terms.store.memory.lease())
            planned = _plan_sides(terms, _local_sides(terms, lease, reads=reads), lease, held)
            stack.enter_context(held.pop_all())  # the next attempt needs the memory of a failed one
            return planned
    return None


def _plan_sides(
    terms: PlanTerms, sides: Mapping[str, LocalSide], lease: MemoryLease, stack: ExitStack
) -> PlanResult:
    if terms.first is not None and (planned := terms.first(sides, lease)) is not None:
        return planned
    (name, delivered), *stored = sides.items()
    if not terms.key:
        return _plan_parts(terms, sides, ({name: rows} for rows in delivered.rows.tables()), lease, stack)
    if delivered.columns is not None and _is_large(terms, name):
        if all(side.is_empty for _, side in stored):
            with (
                suppress(TooLarge, KeyInTwoParts),
                parts_in_order(terms.key, sides, terms.store.memory) as parts,
            ):
                return _plan_parts(terms, sides, parts, lease, stack)
        elif terms.sift is not None and all(side.columns is not None for _, side in stored):
            return _plan_sifted(terms, terms.sift, sides, lease, stack)
    return _plan_by_key(terms, sides, lease, stack)


def _is_large(terms: PlanTerms, name: str) -> bool:
    """Whether a side has more rows than fit into one step. A side of unknown size counts as small."""
    size = terms.sides[name].size
    return size is not None and size >= terms.store.memory.most // STEPS_HELD


def _plan_sifted(
    terms: PlanTerms, by: SiftTerms, sides: Mapping[str, LocalSide], lease: MemoryLease, stack: ExitStack
) -> PlanResult:
    """Plan the records that may differ, and count all others."""
    count = max(side.count or 0 for side in terms.sides.values())
    try:
        # No variable refers to the buckets, so that their memory is free when the rows are planned.
        totals, left = sift_sides(by, terms.key, sides, Buckets.for_rows(count, terms.store.memory), lease)
    except TooLarge:  # digests do not fit into memory, so parts are spilled
        return _plan_by_key(terms, sides, lease, stack)
    planned = _plan_by_key(replace(terms, plan=with_counts(terms.plan, by)), left, lease, stack)
    planned.sums.counts.update(counts_of_unchanged(by, totals, planned.sums.counts))
    return planned


def _plan_by_key(
    terms: PlanTerms, sides: Mapping[str, LocalSide], lease: MemoryLease, stack: ExitStack
) -> PlanResult:
    """Plan all rows together, or in parts by key."""
    local = _spills(terms.store)
    wide = {
        name: LocalSide(side.columns(terms.sides[name].schema.names))
        for name, side in sides.items()
        if side.whole is not as_they_are and side.columns is not None
    }
    with suppress(*([TooLarge] if local else [])):
        parts = parts_by_key(_rows_of(sides), terms.key, lease, spills=local and not wide)
        return _plan_parts(terms, sides, parts, lease, stack)
    # Either the rows do not fit into memory, or their plan does not. Adding columns to the rows of each
    # part would read the table once for each part.
    sides = {**sides, **wide}
    parts = parts_by_key(_rows_of(sides), terms.key, lease, spread=True)
    return _plan_parts(terms, sides, parts, lease, stack)


def _rows_of(sides: Mapping[str, LocalSide]) -> dict[str, SideRows]:
    return {name: side.rows for name, side in sides.items()}


def sizes_of_rows(
    terms: PlanTerms, frames: "Mapping[str, DataFrame]", counts: Mapping[str, int]
) -> dict[str, int]:
    """The estimated size in bytes of the frames' rows in memory. `counts` are the frames' row counts."""
    sizes = {}
    for name, frame in frames.items():
        side, count = terms.sides[name], counts[name]
        share_of_files = bytes_of(frame) * count // max(1, side.count or 0)
        sizes[name] = max(share_of_files, unpacked_size(count, len(side.schema), 0))
    return sizes


def plan_collected(
    terms: PlanTerms, frames: "Mapping[str, DataFrame]", sizes: Mapping[str, int], stack: ExitStack
) -> PlanResult:
    """Plan the rows of frames on the driver. `sizes` are their bytes in memory.

    Raises TooLarge if the driver cannot hold the rows.
    """
    with ExitStack() as held:
        lease = held.enter_context(terms.store.memory.lease())
        for name, size in sizes.items():
            hold_memory_of_rows(terms.spark_store, lease, name, size)
        rows = collect_sides(frames)
        for name in frames:
            lease.hold(name, 0)  # the rows are counted again when they are divided into parts
        sides = {name: _as_side(rows[name], terms.sides[name].schema) for name in frames}
        planned = _plan_by_key(terms, sides, lease, held)
        stack.enter_context(held.pop_all())  # tasks need the memory of a plan that was too large
    return planned


def _plan_parts(
    terms: PlanTerms,
    sides: Mapping[str, LocalSide],
    parts: Iterable[Mapping[str, pa.Table]],
    lease: MemoryLease,
    stack: ExitStack,
) -> PlanResult:
    buffers: dict[str, RowBuffer] = {}
    removed: dict[str, list[pa.Table]] = {}
    for kind, schema in terms.kinds.items():
        if _are_places(schema):
            removed[kind] = []
        else:
            buffers[kind] = RowBuffer(kind, lease, stack)
    sums = PlanSums()
    whole = next((side.whole for side in sides.values() if side.whole is not as_they_are), as_they_are)
    local = _spills(terms.store)
    for part in parts:
        _require_room(part)
        plan: PartPlan = terms.plan(part, whole)
        sums.add(plan)
        for kind, rows in plan.rows.items():
            if kind in removed:
                removed[kind] += [rows.cast(PLACE)] if len(rows) else []
            else:
                buffers[kind].add(rows)
                if buffers[kind].is_spilled and not local:
                    raise TooLarge
    added = {kind: buffer.rows() for kind, buffer in buffers.items()}
    places = {kind: pa.concat_tables(tables) if tables else None for kind, tables in removed.items()}
    return PlanResult(sums, {**added, **places})


def _spills(store: Store) -> bool:
    """Whether rows may be spilled to disk, which requires that Spark's tasks run on this machine."""
    return isinstance(store, IcebergStore) and is_local(store)


def _require_room(part: Mapping[str, pa.Table]) -> None:
    """Raise TooLarge if a column, over all sides together, is longer than an array can be."""
    sizes = [{name: rows[name].nbytes for name in rows.column_names} for rows in part.values()]
    for name in {name for side_sizes in sizes for name in side_sizes}:
        if sum(side_sizes.get(name, 0) for side_sizes in sizes) > LONGEST:
            raise TooLarge


def _local_sides(terms: PlanTerms, lease: MemoryLease, *, reads: bool) -> dict[str, LocalSide]:
    """Read the rows of all sides on the driver, if `reads` is set and this is possible.

    Otherwise Spark collects them. Raises TooLarge if the rows do not fit into memory.
    """
    local: dict[str, LocalSide] = {}
    for meets in (False, True):
        sides = {name: side for name, side in terms.sides.items() if (side.meets is not None) is meets}
        for name, side in sides.items():
            here = reads or side.count == 0
            rows = side.local(lease, local.get(side.meets or "")) if here else None
            if rows is not None:
                local[name] = rows
        long = [name for name, side in sides.items() if meets and (side.count or 0) > SHORT]
        others = [name for name in sides if name not in local]
        local |= _collect(terms, lease, [name for name in others if name not in long])
        for name in others:
            if name in long:
                local[name] = _with_keys(terms, name, local[sides[name].meets or ""], lease)
    return {name: local[name] for name in terms.sides}


def _collect(terms: PlanTerms, lease: MemoryLease, names: list[str]) -> dict[str, LocalSide]:
    """Collect the rows of the named sides with one Spark query."""
    frames: dict[str, DataFrame] = {}
    bounds: dict[str, int] = {}
    if not names:
        return {}
    store = terms.spark_store
    for name in names:
        side, frame = terms.sides[name], terms.sides[name].frame()
        if not hold_frame(store, frame, side.size, name, lease):
            bounds[name] = few_rows(store, len(side.schema))
            frame = frame.limit(bounds[name] + 1)
        frames[name] = frame
    rows = collect_sides(frames)
    for name in names:
        lease.hold(name, 0)  # the rows are counted again when they are divided into parts
        if name in bounds and len(rows[name]) > bounds[name]:
            raise TooLarge
    return {name: _as_side(rows[name], terms.sides[name].schema) for name in names}


def _with_keys(terms: PlanTerms, name: str, other: LocalSide, lease: MemoryLease) -> LocalSide:
    """Collect the rows of the longer side whose keys are in the other side.

    Raises TooLarge if there are too many.
    """
    side, key = terms.sides[name], list(terms.key)
    tables = [rows.select(key) for rows in other.rows.tables()]
    keys = pa.concat_tables([*tables, other.rows.schema.empty_table().select(key)])
    if not len(keys):
        return empty_side(side.schema)
    keys = searchable_columns(keys)
    if not keys.num_columns:
        raise TooLarge
    hold_memory_of_rows(terms.spark_store, lease, name, unpacked_size(MANY, len(side.schema), 0))
    frame = side.frame().toDF(*(f"c{place}" for place in range(len(side.schema))))
    keys = keys.rename_columns([f"c{side.schema.get_field_index(column)}" for column in keys.column_names])
    rows = arrow_of(rows_of_keys(terms.spark_store, frame, keys).limit(MANY + 1))
    lease.hold(name, 0)
    if len(rows) > MANY:
        raise TooLarge
    return _as_side(rows, side.schema)


def _as_side(rows: pa.Table, schema: pa.Schema) -> LocalSide:
    named = rows.rename_columns(schema.names).cast(schema)
    return LocalSide(SideRows(schema, lambda: [named]))


def few_rows(store: IcebergStore, columns: int) -> int:
    """The number of rows with this many columns that may be collected although their size is unknown."""
    return min(FEW, store.memory.most // (CELL * max(1, columns)))


def hold_frame(
    store: IcebergStore, frame: "DataFrame", size: int | None, what: str, lease: MemoryLease
) -> bool:
    """Reserve memory for the rows of a frame, and return whether the estimate is an upper bound.

    `size` is the number of bytes, or None to estimate it from the plan. Raises TooLarge if there is too
    little memory.
    """
    if size is not None:
        hold_memory_of_rows(store, lease, what, size)
        return True
    if not store.has_java:
        return False
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - Python has no name for it
    planned, scanned = _planned_size(plan), _scanned_size(plan)
    if scanned is not None:
        with suppress(TooLarge):
            hold_memory_of_rows(store, lease, what, max(planned, scanned))
            return True
    hold_memory_of_rows(store, lease, what, planned)
    return False


def _scanned_size(plan: Any) -> int | None:
    """An upper bound of the bytes in the files that a frame reads.

    Returns None if the frame does more than filter rows. Spark assumes short strings, so its own estimate
    could be too small.
    """
    while plan.nodeName() in NARROWING:
        plan = plan.child()
    if plan.nodeName() == "LogicalRelation":
        return int(plan.stats().sizeInBytes()) * UNPACKED
    size = scanned_bytes(plan) if plan.nodeName() == "DataSourceV2ScanRelation" else None
    return None if size is None else size * UNPACKED


def _planned_size(plan: Any) -> int:
    """The bytes that Spark's plan estimates, or 1 if the size is unknown and there are few partitions."""
    size, leaves = int(plan.stats().sizeInBytes()), plan.collectLeaves()
    if size < UNKNOWN_SIZE:
        return max(1, size * UNPACKED)
    parts = 0
    for place in range(int(leaves.size())):
        leaf = leaves.apply(place)
        if leaf.nodeName() != "LogicalRDD":
            return size
        parts += int(leaf.rdd().getNumPartitions())
    return 1 if parts <= PARTS else size
