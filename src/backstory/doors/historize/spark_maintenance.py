"""What is done on Spark to stored rows before a load when the user asks for it (sections 7.2 and 7.6)."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from backstory.doors.historize.load_sides import archived
from backstory.doors.historize.maintenance import rehashed, relabelled, relabels
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_tables import base_shape, hist_shape
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.doors.historize.work import LoadRun
from backstory.model.schema import Shape
from backstory.stores.iceberg.conditions import change_where
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import existing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A column of a model has no blank in its name.
KEY, KNOWN, AT, CONTINUES = "record key", "past known", "past end", "past continues"


def asks_for_upkeep(run: LoadRun) -> bool:
    """Whether stored rows are to be changed before the load."""
    return run.rehash or run.rehash_base or run.relabel is not None


def maintain(work: SparkWork) -> None:
    """Make hashes of the base and of open versions anew, or give states other labels, as the run asks."""
    if work.run.rehash_base:  # a delta brings some of its rows only
        every = column(work.load.dataset.key).isNotNull()
        _update(work, base_shape(work.load), every, lambda rows: _rehashed_base(work, rows))
    if work.run.rehash:
        open_ = column(ColumnRole.ENDED).isNull()
        _update(work, hist_shape(work.load), open_, lambda rows: _rehashed(work, rows))
    if work.run.relabel is not None:
        named = column(ColumnRole.STATE).isin(_renamed_states(work))
        table = work.store.sql_name(hist_shape(work.load).table)
        _update(
            work,
            hist_shape(work.load),
            named,
            lambda rows: _relabelled(work, rows, work.store.spark.table(table)),
        )


def maintained_base(work: SparkWork, before: TablePlan) -> TablePlan:
    """The rows of the base with the hashes that they are about to have."""
    if not work.run.rehash_base:
        return before
    return replace(before, read=lambda: _rehashed_base(work, before.rows), becomes=True)


def maintained(work: SparkWork, before: TablePlan) -> TablePlan:
    """The versions with the hashes and labels that they are about to have."""
    if not (work.run.rehash or work.run.relabel is not None):
        return before

    def read() -> "DataFrame":
        rows = _rehashed(work, before.rows) if work.run.rehash else before.rows
        return rows if work.run.relabel is None else _relabelled(work, rows, rows)

    return replace(before, read=read, becomes=True)


def _update(
    work: SparkWork, shape: Shape, where: "Column", becoming: "Callable[[DataFrame], DataFrame]"
) -> None:
    table = existing(work.store, shape.table)
    change = change_where(work.store, table, where, becoming)
    work.commit(table, change, replace(work.note(), token=""))


def _rehashed_base(work: SparkWork, rows: "DataFrame") -> "DataFrame":
    return rows.alias("b").withColumn(ColumnRole.ROW_HASH, work.sql(rehashed(work.load, "b")))


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
    key, changed = column(work.load.dataset.key), column(ColumnRole.STATE) == before.changed
    known = closed.select(key.alias(KEY))
    if (pruned := archived(work)) is not None and work.load.archive is not None:
        known = known.unionByName(pruned.select(column(work.load.archive.key).alias(KEY)))
    known = known.distinct().withColumn(KNOWN, lit(True))
    ends = closed.where(changed).select(key.alias(KEY), column(ColumnRole.ENDED).alias(AT)).distinct()
    rows = rows.join(known, key == column(KEY), "left").drop(KEY)
    follows = (key == column(KEY)) & (column(ColumnRole.STARTED) == column(AT))
    rows = rows.join(ends.withColumn(CONTINUES, lit(True)), follows, "left")
    again = column(ColumnRole.ENDED).isNull() & column(ColumnRole.STATE).isin(before.new, before.reappeared)
    again &= column(KNOWN).isNotNull() & column(CONTINUES).isNull()
    state = when(again, lit(now.reappeared)).otherwise(label)
    return rows.alias("h").withColumn(ColumnRole.STATE, state).select(*map(column, names))
