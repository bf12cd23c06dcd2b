"""What is done on Spark to stored versions before a load when the user asks for it (sections 7.2 and 7.6)."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from backstory.doors.historize.maintenance import rehashed, relabelled, relabels
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_tables import hist_shape
from backstory.doors.historize.spark_versions import archived
from backstory.doors.historize.spark_work import SparkWork
from backstory.stores.iceberg.conditions import change_where
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import existing
from backstory.strategies.scd2.frames.begin import seen
from backstory.strategies.scd2.frames.cases import KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A column of a model has no blank in its name.
KNOWN, AT, CONTINUES = "past known", "past end", "past continues"


def maintain(work: SparkWork) -> None:
    """Make open versions' hashes anew, or give states other labels, where the run asks for it."""
    if work.run.rehash:
        _update(work, column(ColumnRole.ENDED).isNull(), lambda rows: _rehashed(work, rows))
    if work.run.relabel is not None:
        named = column(ColumnRole.STATE).isin(_renamed_states(work))
        table = work.store.sql_name(hist_shape(work.load).table)
        _update(work, named, lambda rows: _relabelled(work, rows, work.store.spark.table(table)))


def maintained(work: SparkWork, before: TablePlan) -> TablePlan:
    """The versions with the hashes and labels that they are about to have."""
    rows = before.rows
    if work.run.rehash:
        rows = _rehashed(work, rows)
    if work.run.relabel is not None:
        rows = _relabelled(work, rows, rows)
    return replace(before, read=lambda: rows)


def _update(work: SparkWork, where: "Column", becoming: "Callable[[DataFrame], DataFrame]") -> None:
    table = existing(work.store, hist_shape(work.load).table)
    change = change_where(work.store, table, where, becoming)
    work.commit(table, change, replace(work.note(), token=""))


def _rehashed(work: SparkWork, rows: "DataFrame") -> "DataFrame":
    return rows.alias("h").withColumn(ColumnRole.ROW_HASH, work.sql(rehashed(work.load)))


def _renamed_states(work: SparkWork) -> list[str]:
    before, now = work.run.relabel, work.load.labels
    assert before is not None
    apart = (before.new, before.reappeared) if now.new != now.reappeared else ()
    return list(dict.fromkeys((*relabels(before, now), *apart)))


def _relabelled(work: SparkWork, rows: "DataFrame", versions: "DataFrame") -> "DataFrame":
    """The rows with today's labels; `versions` are all of the history.

    An open version that began when its record came back is told from one that began as new.
    """
    from pyspark.sql.functions import lit, when

    before, now, names = work.run.relabel, work.load.labels, rows.columns
    assert before is not None
    label = work.sql(relabelled(work.load, relabels(before, now)))
    if now.new == now.reappeared:
        return rows.alias("h").withColumn(ColumnRole.STATE, label)
    closed = versions.where(column(ColumnRole.ENDED).isNotNull())
    known = seen(work.load.pair, closed, archived(work)).withColumn(KNOWN, lit(True))
    key, changed = column(work.load.dataset.key), column(ColumnRole.STATE) == before.changed
    ends = closed.where(changed).select(key.alias(KEY), column(ColumnRole.ENDED).alias(AT)).distinct()
    rows = rows.join(known, key == column(KEY), "left").drop(KEY)
    follows = (key == column(KEY)) & (column(ColumnRole.STARTED) == column(AT))
    rows = rows.join(ends.withColumn(CONTINUES, lit(True)), follows, "left")
    again = column(ColumnRole.ENDED).isNull() & column(ColumnRole.STATE).isin(before.new, before.reappeared)
    again &= column(KNOWN).isNotNull() & column(CONTINUES).isNull()
    state = when(again, lit(now.reappeared)).otherwise(label)
    return rows.alias("h").withColumn(ColumnRole.STATE, state).select(*map(column, names))
