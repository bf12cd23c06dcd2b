"""The sides of a load as frames: what of it Spark reads, for the driver or for its own tasks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.scopes import hist_scope, increment_scope
from backstory.doors.historize.spark_tables import stage_rows
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.formats.delivered import arrow_schema
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.table import TableName
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.scd2.plan import earlier_columns
from backstory.strategies.scd2.terms import BASE, EARLIER, IN_SCOPE, LIVE, OPEN, STAGED, LoadTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Made = Callable[[], DataFrame]


def load_frames(work: SparkWork, base: TablePlan, hist: TablePlan) -> "dict[str, Made]":
    """Makes the frame of each side, with the flags that a plan asks of its rows.

    With a base that is taken as it stands there is no stage.
    """
    sides: dict[str, Made] = {OPEN: partial(_open, work, hist)}
    if work.run.skip_base:
        return sides | {BASE: partial(_untouched_base, work, base)}
    return sides | {STAGED: partial(_staged, work), BASE: partial(_base, work, base)}


def side_schema(names: Sequence[str], side: str, base: TablePlan, hist: TablePlan) -> pa.Schema:
    """The columns of a side as Arrow's, of the types that the tables have."""
    columns = arrow_schema(
        {each.name: each.type for each in (hist if side in {OPEN, EARLIER} else base).into.columns}
    )
    beside = [
        *PLACE,
        pa.field(ROW_ID, pa.int64()),
        *(pa.field(name, pa.bool_()) for name in (LIVE, IN_SCOPE)),
    ]
    types = {field.name: field.type for field in [*columns, *beside]}
    return pa.schema([pa.field(name, types[name]) for name in names])


def staged_rows(work: SparkWork) -> "DataFrame":
    """The stage's rows as rows of the base, keys and hashes computed."""
    assert work.run.stage is not None
    rows, brought = stage_rows(work.store, work.run.stage, work.load, work.secret)
    values = work.load.base_values("s", brought)
    return rows.alias("s").select(*(work.sql(sql).alias(name) for name, sql in values.items()))


def earlier_versions(work: SparkWork, hist: TablePlan, terms: LoadTerms) -> "DataFrame | None":
    """The versions that ended, archived ones too, by what a plan asks of them; None where there are none.

    Times of archived ones are NULL: they were pruned, and so lie long before the load.
    """
    from pyspark.sql.functions import lit

    if not (hist.filled or work.load.archive):
        return None
    closed = hist.rows.where(column(ColumnRole.ENDED).isNotNull())
    rows = closed.select(*map(quoted, earlier_columns(terms)))
    if (pruned := archived(work)) is not None and work.load.archive is not None:
        nothing = (lit(None).cast(each.dataType).alias(each.name) for each in rows.schema.fields[1:])
        key = column(work.load.archive.key).alias(terms.key)
        rows = rows.unionByName(pruned.select(key, *nothing))
    return rows


def archived(work: SparkWork) -> "DataFrame | None":
    """The versions that were pruned out of the history; None where there is no archive."""
    if work.load.archive is None:
        return None
    return work.store.spark.table(work.store.sql_name(TableName(work.load.schema, work.load.archive.table)))


def _staged(work: SparkWork) -> "DataFrame":
    return staged_rows(work).alias("r").select("*", _live(work, "r"))


def _untouched_base(work: SparkWork, base: TablePlan) -> "DataFrame":
    """The base's rows with the columns that a version takes."""
    load = work.load
    names = [load.dataset.key, *(each.input or each.name for each in load.mirrored), ColumnRole.ROW_HASH]
    return base.rows.alias("r").select(*map(column, dict.fromkeys(names)), _live(work, "r"))


def _base(work: SparkWork, base: TablePlan) -> "DataFrame":
    """The base's rows, all columns of them where the flag of deletion is set in some."""
    names = base.wanted.names if not _flags(work) else base.into.names
    kept = base.rows.select(*map(quoted, names), FILE, POSITION, *base.ids).alias("v")
    return kept.select("*", _live(work, "v"), _scope(_base_scope(work)))


def _open(work: SparkWork, hist: TablePlan) -> "DataFrame":
    open_ = hist.rows.where(column(ColumnRole.ENDED).isNull()).alias("v")
    return open_.select("*", _scope(_versions_scope(work)))


def _live(work: SparkWork, alias: str) -> "Column":
    return work.sql("TRUE" + work.load.live(alias)).alias(LIVE)


def _scope(scope: "Column | None") -> "Column":
    from pyspark.sql.functions import lit

    return (lit(True) if scope is None else scope).alias(IN_SCOPE)


def _flags(work: SparkWork) -> bool:
    """Whether a row of the base that the stage lacks gets a flag instead of being deleted."""
    soft = work.load.dataset.historization.soft_delete
    return soft is not None and soft.on_delete == "flag"


def _base_scope(work: SparkWork) -> "Column | None":
    """Which stored rows go, or get the flag, when the stage does not have them; None for all."""
    from pyspark.sql.functions import lit

    load = work.load
    if not load.deletes_base:
        return lit(False)
    scope = (
        work.sql(increment_scope(load.model, load.dataset, load.dialect, "v") or "TRUE")
        if load.delete_scope
        else None
    )
    if not _flags(work):
        return scope
    live = work.sql("TRUE" + load.live("v"))
    return live if scope is None else scope & live


def _versions_scope(work: SparkWork) -> "Column | None":
    """Which open versions a deletion may close; None for all."""
    from pyspark.sql.functions import lit

    if not work.load.closes_deleted:
        return lit(False)
    scope = hist_scope(work.load.dataset, work.load.hist, work.load.dialect, "v")
    return work.sql(scope) if scope else None
