"""The rows of a small load, read once, in one query, and held by the driver as Arrow tables."""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_base import base_scope, broken, staged_rows
from backstory.doors.historize.spark_history import live_rows, versions_scope
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_versions import archived
from backstory.doors.historize.spark_work import SparkWork
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import UNPACKED, MemoryLease, unpacked_size
from backstory.formats.wrapping.batch_file import Format
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import collected, frame_of
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.slice import PLACE, of_keys
from backstory.stores.iceberg.store import StoredTable, load
from backstory.strategies.scd2.frames.begin import seen
from backstory.strategies.scd2.frames.cases import KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STAGED, BASE, OPEN = "staged", "base", "open versions"
# What is asked of each row beside its values; no column of a model has a blank in its name.
LIVE, IN_SCOPE, BROKEN = "is live", "in scope", "is broken"


def hold_rows(work: SparkWork, lease: MemoryLease, base: TablePlan, hist: TablePlan) -> None:
    """Hold what the rows of stage, base and history may take; TooLarge if it is more than is left."""
    for table in filter(None, (base.table, hist.table)):
        lease.hold(str(table.shape.table), _size(table))
    if work.run.stage is not None and not work.run.skip_base:
        lease.hold(work.run.stage.name, _stage_size(work))


def _size(table: StoredTable) -> int:
    return unpacked_size(table.rows, len(table.shape.columns), table.bytes)


def _stage_size(work: SparkWork) -> int:
    stage = work.run.stage
    assert stage is not None
    if stage.path is None:
        found = load(work.store, TableName(*stage.table))
        return 1 if found is None else _size(found)
    size = stage.path.stat().st_size if stage.path.is_file() else 0
    return max(1, size * (UNPACKED if stage.format is Format.PARQUET else 1))


def read_rows(work: SparkWork, base: TablePlan, hist: TablePlan) -> dict[str, pa.Table]:
    """Rows by side, with the types that the tables have: of the stage, the base and the open versions.

    With a base that is taken as it stands there is no stage, and `BASE` has its live rows.
    """
    return dict(_typed(collected(dict(_sides(work, base, hist))), base.into, hist.into))


def _sides(work: SparkWork, base: TablePlan, hist: TablePlan) -> "Iterator[tuple[str, DataFrame]]":
    from pyspark.sql.functions import lit

    if work.run.skip_base:
        yield BASE, live_rows(work, base.rows)
    else:
        wrong = reduce(or_, broken(work).values(), lit(False))
        yield STAGED, staged_rows(work).alias("r").select("*", _live(work, "r"), wrong.alias(BROKEN))
        kept = base.rows.select(*map(quoted, base.wanted.names), *_places(base)).alias("v")
        yield BASE, kept.select("*", _live(work, "v"), _told(base_scope(work)))
    open_ = hist.rows.where(column(ColumnRole.ENDED).isNull()).alias("v")
    yield OPEN, open_.select("*", _told(versions_scope(work)))


def _places(before: TablePlan) -> list[str]:
    return [FILE, POSITION, *([ROW_ID] if ROW_ID in before.rows.columns else [])]


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


def seen_keys(work: SparkWork, before: TablePlan, keys: pa.ChunkedArray) -> pa.Array:
    """Those of the keys whose records have versions that ended, archived ones too."""
    nobody = pa.array([], pa.string())
    if not len(keys) or not (before.filled or work.load.archive):
        return nobody
    with translate_faults(before.wanted.table):
        closed = before.rows.where(column(ColumnRole.ENDED).isNotNull())
        found = of_keys(work.store, seen(work.load.pair, closed, archived(work)), pa.table({KEY: keys}))
        return pc.unique(found.toArrow()[KEY]).cast(pa.string())


def version_keys(work: SparkWork, keys: pa.ChunkedArray) -> pa.Array:
    """The keys of the versions that the load begins for these records; the pepper is in no plan."""
    name = work.load.dataset.key
    secret = {other: pa.repeat(value, len(keys)) for other, value in work.secret.items()}
    rows = frame_of(work.store, pa.table({name: keys, **secret}))
    found = rows.alias("r").select(work.sql(work.load.pair.version_key("r"))).collect()
    return pa.array([made for (made,) in found], pa.string())
