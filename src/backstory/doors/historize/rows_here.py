"""The rows of a load that the driver plans, side by side: read here, or by Spark in one query."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from backstory.doors.historize.load_frames import earlier_versions, load_frames, side_schema
from backstory.doors.historize.local_sides import earlier_here, local_sides, open_versions
from backstory.doors.historize.local_stage import GIVEN, computed_here, expressions_here, staged_here
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.engine.parts import Rows
from backstory.engine.steps import ComingRows, PlacedRows
from backstory.formats.memory import UNPACKED, MemoryLease, typed_size
from backstory.formats.rows import arrow_type
from backstory.formats.wrapping.batch_file import Format
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import collected, hold_collected
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.iceberg.store import StoredTable, load
from backstory.strategies.scd2.load import as_they_are
from backstory.strategies.scd2.plan import Earlier, earlier_of
from backstory.strategies.scd2.terms import BASE, OPEN, STAGED, LoadTerms


@dataclass(frozen=True, slots=True)
class LoadRows:
    """The rows of a load by side; `whole` gives all columns of some open versions, in their order.

    `coming` are the stage's with their keys, `placed` the others by place, where all are read here.
    """

    sides: Mapping[str, Rows]
    whole: Callable[[pa.Table], pa.Table]
    coming: ComingRows | None = None
    placed: Mapping[str, PlacedRows] = field(default_factory=dict)


def load_rows(
    work: SparkWork, base: TablePlan, hist: TablePlan, lease: MemoryLease, *, here: bool = True
) -> LoadRows:
    """Rows by side, with the types that the tables have: of the stage, the base and the open versions.

    With a base that is taken as it stands there is no stage. With `here` tables of files on this machine are
    read here, else and what else there is by Spark in one query. Raises TooLarge for more of that than the
    lease can hold; reading raises Unreadable where Spark must read after all.
    """
    stored = dict(local_sides(work, base, hist)) if here else {}
    sides = {side: rows for side, (rows, _) in stored.items()}
    staged = staged_here(work) if here and not work.run.skip_base else None
    if staged is not None:
        sides[STAGED] = staged.rows
    frames = {side: made() for side, made in load_frames(work, base, hist).items() if side not in sides}
    for side in frames:
        plan = {BASE: base, OPEN: hist}.get(side)
        size = size_of_stage(work) if plan is None else 1 if plan.table is None else _size_of(plan.table)
        hold_collected(work.store, lease, side, size)
    read = collected(frames) if frames else {}
    for side, rows in read.items():
        lease.hold(side, 0)  # whoever takes the rows counts them
        sides[side] = _as_rows(rows.cast(side_schema(rows.column_names, side, base, hist)))
    whole = partial(open_versions, work, hist, lease) if OPEN not in read else as_they_are
    placed = {} if frames else {side: by_place for side, (_, by_place) in stored.items()}
    return LoadRows(sides, whole, None if frames else staged, placed)


def _as_rows(rows: pa.Table) -> Rows:
    return Rows(rows.schema, lambda: [rows])


def size_of_stage(work: SparkWork) -> int:
    """What the rows of the stage may take."""
    stage = work.run.stage
    if stage is None:
        return 1
    if stage.path is None:
        found = load(work.store, TableName(*stage.table))
        return 1 if found is None else _size_of(found)
    size = stage.path.stat().st_size if stage.path.is_file() else 0
    return max(1, size * (UNPACKED if stage.format is Format.PARQUET else 1))


def _size_of(table: StoredTable) -> int:
    return typed_size(table.rows, [arrow_type(each.type) for each in table.shape.columns], table.bytes)


def read_earlier(
    work: SparkWork, hist: TablePlan, terms: LoadTerms, lease: MemoryLease, keys: pa.ChunkedArray
) -> Earlier:
    """What the history has of the records with these keys beside open versions; archived ones count, too."""
    if not len(keys) or not (hist.filled or work.load.archive):
        return Earlier()
    if (here := earlier_here(work, hist, terms, lease, keys)) is not None:
        return earlier_of(terms, here)
    with translate_faults(hist.wanted.table):
        versions = earlier_versions(work, hist, terms)
        assert versions is not None
        return earlier_of(terms, of_keys(work.store, versions, pa.table({terms.key: keys})).toArrow())


def version_keys(work: SparkWork, keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """The keys of the versions that the load begins for these records."""
    dataset, local = work.load.dataset, expressions_here(work.load)
    found = computed_here(work, pa.table({dataset.key: keys}), {"key": local.hist_key(dataset, GIVEN)})
    return found["key"]
