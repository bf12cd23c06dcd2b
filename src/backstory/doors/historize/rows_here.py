"""The rows of a load that the driver plans, side by side: read here, or by Spark in one query."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.local_sides import (
    BASE,
    BROKEN,
    IN_SCOPE,
    LIVE,
    OPEN,
    STAGED,
    local_sides,
    open_versions,
    seen_here,
)
from backstory.doors.historize.local_stage import GIVEN, computed_here, expressions_here, staged_here
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_base import base_scope, broken, staged_rows
from backstory.doors.historize.spark_history import live_rows, versions_scope
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_versions import archived
from backstory.doors.historize.spark_work import SparkWork
from backstory.engine.parts import Rows
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import UNPACKED, MemoryLease, typed_size
from backstory.formats.rows import arrow_type
from backstory.formats.wrapping.batch_file import Format
from backstory.model.places import FILE, POSITION
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import collected
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.slice import PLACE, of_keys
from backstory.stores.iceberg.store import StoredTable, load
from backstory.strategies.scd2.frames.begin import seen
from backstory.strategies.scd2.frames.cases import KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class LoadRows:
    """The rows of a load by side; `whole` gives all columns of some open versions, in their order."""

    sides: Mapping[str, Rows]
    whole: Callable[[pa.Table], pa.Table]


def load_rows(
    work: SparkWork, base: TablePlan, hist: TablePlan, lease: MemoryLease, *, here: bool = True
) -> LoadRows:
    """Rows by side, with the types that the tables have: of the stage, the base and the open versions.

    With a base that is taken as it stands there is no stage, and `BASE` has its live rows. With `here` tables
    of files on this machine are read here, else and what else there is by Spark in one query. Raises TooLarge
    for more of that than the lease can hold; reading raises Unreadable where Spark must read after all.
    """
    sides = dict(local_sides(work, base, hist)) if here else {}
    if here and not work.run.skip_base and (staged := staged_here(work)) is not None:
        sides[STAGED] = staged
    frames = {side: made() for side, made in _sides(work, base, hist).items() if side not in sides}
    for side in frames:
        lease.hold(side, _size(work, {BASE: base, OPEN: hist}.get(side)))
    read = dict(_typed(collected(frames), base.into, hist.into)) if frames else {}
    for side, rows in read.items():
        lease.hold(side, 0)  # whoever takes the rows counts them
        sides[side] = _as_rows(rows)
    whole = partial(open_versions, work, hist, lease) if OPEN not in read else lambda rows: rows
    return LoadRows(sides, whole)


def _as_rows(rows: pa.Table) -> Rows:
    return Rows(rows.schema, lambda: [rows])


def _size(work: SparkWork, plan: TablePlan | None) -> int:
    """What the rows of a side that Spark reads may take; None for the stage."""
    stage = work.run.stage
    if plan is not None or stage is None:
        return 1 if plan is None or plan.table is None else _size_of(plan.table)
    if stage.path is None:
        found = load(work.store, TableName(*stage.table))
        return 1 if found is None else _size_of(found)
    size = stage.path.stat().st_size if stage.path.is_file() else 0
    return max(1, size * (UNPACKED if stage.format is Format.PARQUET else 1))


def _size_of(table: StoredTable) -> int:
    return typed_size(table.rows, [arrow_type(each.type) for each in table.shape.columns], table.bytes)


def _sides(work: SparkWork, base: TablePlan, hist: TablePlan) -> "dict[str, Callable[[], DataFrame]]":
    open_ = partial(_open, work, hist)
    if work.run.skip_base:
        return {BASE: lambda: live_rows(work, base.rows), OPEN: open_}
    return {STAGED: partial(_staged, work), BASE: partial(_base, work, base), OPEN: open_}


def _staged(work: SparkWork) -> "DataFrame":
    from pyspark.sql.functions import lit

    wrong = reduce(or_, broken(work).values(), lit(False))
    return staged_rows(work).alias("r").select("*", _live(work, "r"), wrong.alias(BROKEN))


def _base(work: SparkWork, base: TablePlan) -> "DataFrame":
    kept = base.rows.select(*map(quoted, base.wanted.names), FILE, POSITION, *base.ids).alias("v")
    return kept.select("*", _live(work, "v"), _told(base_scope(work)))


def _open(work: SparkWork, hist: TablePlan) -> "DataFrame":
    open_ = hist.rows.where(column(ColumnRole.ENDED).isNull()).alias("v")
    return open_.select("*", _told(versions_scope(work)))


def _live(work: SparkWork, alias: str) -> "Column":
    return work.sql("TRUE" + work.load.live(alias)).alias(LIVE)


def _told(scope: "Column | None") -> "Column":
    from pyspark.sql.functions import lit

    return (lit(True) if scope is None else scope).alias(IN_SCOPE)


def _typed(rows: Mapping[str, pa.Table], base: Shape, hist: Shape) -> Iterator[tuple[str, pa.Table]]:
    for side, table in rows.items():
        shape = hist if side == OPEN else base
        types = {
            field.name: field.type
            for field in [*arrow_schema({each.name: each.type for each in shape.columns}), *PLACE]
        }
        fields = [pa.field(field.name, types.get(field.name, field.type)) for field in table.schema]
        yield side, table.cast(pa.schema(fields))


def seen_keys(work: SparkWork, before: TablePlan, lease: MemoryLease, keys: pa.ChunkedArray) -> pa.Array:
    """Those of the keys whose records have versions that ended, archived ones too."""
    nobody = pa.array([], pa.string())
    if not len(keys) or not (before.filled or work.load.archive):
        return nobody
    if (here := seen_here(work, before, lease, keys)) is not None:
        return here
    with translate_faults(before.wanted.table):
        closed = before.rows.where(column(ColumnRole.ENDED).isNotNull())
        found = of_keys(work.store, seen(work.load.pair, closed, archived(work)), pa.table({KEY: keys}))
        return pc.unique(found.toArrow()[KEY]).cast(pa.string())


def version_keys(work: SparkWork, keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """The keys of the versions that the load begins for these records."""
    dataset, local = work.load.dataset, expressions_here(work.load)
    found = computed_here(work, pa.table({dataset.key: keys}), {"key": local.hist_key(dataset, GIVEN)})
    return found["key"]
