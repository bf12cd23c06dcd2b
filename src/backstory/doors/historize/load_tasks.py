"""A load that Spark's tasks plan: all sides come together once, by bucket of the record's key."""

from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from backstory.doors.historize.load_acts import COUNTED, Acts, plan_bucket, sums_of
from backstory.doors.historize.load_frames import earlier_versions, load_frames, side_schema
from backstory.doors.historize.load_refusals import refuse_faults, refuse_late
from backstory.doors.historize.planned_load import PlannedRows
from backstory.doors.historize.rows_here import size_of_stage
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.model.change import Change
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.table import TableName
from backstory.stores.iceberg.buckets import bucket_of, bytes_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import SIDE, tag_sides
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.positions import coded_file, positions_of, with_paths
from backstory.stores.iceberg.store import StoredTable, load
from backstory.strategies.scd2.parts import (
    BASE_GOES,
    BEGINS,
    CAME,
    COMES,
    ENDS,
    FLAGGED,
    GOES,
    LOOKED_AT,
    WENT,
    compared_of,
    few_keys,
)
from backstory.strategies.scd2.terms import BASE, EARLIER, OPEN, STAGED, LoadTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def plan_in_tasks(work: SparkWork, base: TablePlan, hist: TablePlan, terms: LoadTerms) -> PlannedRows:
    """The rows of a load, none of which are on the driver.

    Raises Refused with the codes of section 3.6.
    """
    salt = uuid4().time_low
    with translate_faults(hist.wanted.table):
        acts, rows = _planned(work, base, hist, terms, salt)
        sums = sums_of(row.counts for row in rows.where(_of(COUNTED)).select("counts").collect())
        refuse_faults(work, sums, partial(_moved, terms, acts, rows))
    refuse_late(sums)

    def places_of(kind: str, side: str, table: StoredTable) -> Any:
        _, changed, vanished, *_ = compared_of(side, sums.counts).sizes
        places = rows.where(_of(kind)).select(column("file").alias(FILE), column("position").alias(POSITION))
        coded = positions_of(places, changed + vanished)
        return with_paths(work.store, table, coded, salt) if coded else coded

    def base_change(table: StoredTable) -> Change:
        come = _come(acts, rows, table, COMES, FLAGGED, ids=bool(base.ids))
        return Change(gone=places_of(BASE_GOES, BASE, table), come=come)

    def history_change(table: StoredTable) -> Change:
        come = _come(acts, rows, table, ENDS, ids=bool(hist.ids))
        begun = _come(acts, rows, table, BEGINS, ids=bool(hist.ids))
        come = come.unionByName(_with_keys(work, begun))
        appeared, changed, vanished, *_ = compared_of(OPEN, sums.counts).sizes
        return Change(
            gone=places_of(GOES, OPEN, table), come=come, expected=appeared + 2 * changed + vanished
        )

    return PlannedRows(sums, base_change, history_change)


def _planned(
    work: SparkWork, base: TablePlan, hist: TablePlan, terms: LoadTerms, salt: int
) -> "tuple[Acts, DataFrame]":
    """How acts are written, and those of all buckets.

    They are kept as rows of their own: Spark would compute again what it had computed from a table that is
    newer now, and the base is committed first.
    """
    from pyspark import StorageLevel
    from pyspark.sql.functions import coalesce, when

    frames = {side: made() for side, made in load_frames(work, base, hist).items()}
    if (earlier := earlier_versions(work, hist, terms)) is not None:
        frames[EARLIER] = earlier
    count = _rows(work, base, hist, frames)
    sides = {
        side: frame.withColumn(FILE, coded_file(salt)) if FILE in frame.columns else frame
        for side, frame in frames.items()
    }
    together = tag_sides(sides)
    schemas = {side: _coded(side_schema(frame.columns, side, base, hist)) for side, frame in sides.items()}
    acts = Acts(base.into, hist.into, {side: (together.shared[side], schemas[side]) for side in sides})
    keys = (
        when(column(SIDE) == side, column(acts.sides[side][0][schema.get_field_index(terms.key)]))
        for side, schema in schemas.items()
    )
    size = bytes_of(together.rows) + size_of_stage(work)
    grouped = together.rows.groupBy(bucket_of([coalesce(*keys)], count, size))

    def plan(rows: pa.Table) -> pa.Table:
        return plan_bucket(terms, acts, rows)

    return acts, grouped.applyInArrow(plan, acts.schema).localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def _rows(work: SparkWork, base: TablePlan, hist: TablePlan, frames: "dict[str, DataFrame]") -> int:
    """About how many rows all sides have together."""
    stored = sum(plan.table.rows for plan in (base, hist) if plan.table is not None)
    stage = work.run.stage
    if STAGED not in frames or stage is None:
        return stored
    if stage.path is None and (found := load(work.store, TableName(*stage.table))) is not None:
        return stored + found.rows
    return stored + frames[STAGED].count()


def _coded(schema: pa.Schema) -> pa.Schema:
    """The columns of a side whose files are numbers."""
    if FILE not in schema.names:
        return schema
    return schema.set(schema.get_field_index(FILE), pa.field(FILE, pa.int64()))


def _of(*kinds: str) -> "Column":
    return column("kind").isin(*kinds)


def _moved(terms: LoadTerms, acts: Acts, rows: "DataFrame") -> list[str]:
    """Business keys of records that appeared in the base while others with these vanished from it."""
    from pyspark.sql.functions import col

    numbers = [number for number, name in acts.numbered(CAME).items() if name in terms.business]
    came, went = (rows.where(_of(kind)).select(*numbers).alias(kind) for kind in (CAME, WENT))
    same = (col(f"{CAME}.{number}").eqNullSafe(col(f"{WENT}.{number}")) for number in numbers)
    both = came.join(went, reduce(and_, same), "left_semi").limit(LOOKED_AT).toArrow()
    names = acts.numbered(CAME)
    return few_keys(terms, both.rename_columns([names[number] for number in numbers]))


def _come(acts: Acts, rows: "DataFrame", table: StoredTable, *kinds: str, ids: bool) -> "DataFrame":
    """Rows that a table gets, in its columns, with the ids that they keep."""
    numbers = {name: number for number, name in acts.numbered(kinds[0]).items()}
    columns = [column(numbers[name]).alias(name) for name in table.shape.names]
    return rows.where(_of(*kinds)).select(*columns, *([column("id").alias(ROW_ID)] if ids else []))


def _with_keys(work: SparkWork, begun: "DataFrame") -> "DataFrame":
    """Versions that begin, with keys of their own."""
    pair, names = work.load.pair, begun.columns
    rows = work.peppered(begun, "r").withColumn(pair.hist_key, work.sql(pair.version_key("r")))
    return rows.select(*map(quoted, names))
