"""The versions that a load on Spark writes: those that close and those that begin (section 9.1)."""

from typing import TYPE_CHECKING

from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_work import SparkWork
from backstory.model.places import ROW_ID
from backstory.model.table import TableName
from backstory.stores.iceberg.frames import rows_with_ids
from backstory.stores.iceberg.literals import absent, column, quoted
from backstory.stores.iceberg.store import StoredTable
from backstory.strategies.scd2.frames import begin, close
from backstory.strategies.scd2.frames.cases import HASH, KEY
from backstory.strategies.sift.join import Outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def beginning(work: SparkWork, found: Outcomes, before: TablePlan, *, late: bool) -> "DataFrame":
    """The records that begin a version: key, hash, and past.

    Only where the history knows the load's instant or a later one (`late`) can it have been interrupted.
    """
    told = before.filled or work.load.archive
    closed = before.rows.where(column(ColumnRole.ENDED).isNotNull()) if told else None
    instant = work.sql("{{ load_timestamp }}") if late else None
    return begin.beginning(work.load.pair, found, closed, archived(work), instant)


def archived(work: SparkWork) -> "DataFrame | None":
    """The versions that were pruned out of the history; None where there is no archive."""
    if work.load.archive is None:
        return None
    return work.store.spark.table(work.store.sql_name(TableName(work.load.schema, work.load.archive.table)))


def closing(work: SparkWork, found: Outcomes, table: StoredTable) -> "DataFrame":
    """The versions that close, whole, with their end and the ids that they keep."""
    rows = rows_with_ids(work.store, table)
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    names = [*table.shape.names, *ids]
    return close.closes(work.load.pair, found, rows, work.sql).select(*map(quoted, names))


def versions(work: SparkWork, live: "DataFrame", begun: "DataFrame", table: StoredTable) -> "DataFrame":
    """The versions that begin: the base's rows of these records, read once more but not moved."""
    same = (column(work.load.dataset.key) == column(KEY)) & (column(ColumnRole.ROW_HASH) == column(HASH))
    rows = work.peppered(live.join(begun, same).drop(KEY, HASH), "r")
    rows = begin.begins(work.load.pair, rows, work.sql)
    return rows.withColumns(absent(table.shape.columns, rows.columns)).select(*map(quoted, table.shape.names))
