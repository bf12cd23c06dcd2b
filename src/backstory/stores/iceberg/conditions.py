"""Conditions on the rows of a table, evaluated by Spark, and changes of the rows that meet them."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from backstory.model.change import Change
from backstory.model.layout import ACTIVE, END, START, VALID_FROM, VALID_TO
from backstory.model.table import Shape, TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import with_row_ids
from backstory.stores.iceberg.jvm import scan_of_values
from backstory.stores.iceberg.literals import column, null_columns
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.port import repeated_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def grouping_columns(rows: "DataFrame", names: Sequence[str]) -> "list[Column]":
    """The columns to group by, with floats as strings. Spark would put 0.0 and -0.0 in one group."""
    floating = {name for name, type_ in rows.dtypes if type_ in ("float", "double")}
    return [column(name).cast("string") if name in floating else column(name) for name in names]


def refuse_repeated(table: TableName, rows: "DataFrame", key: Sequence[str], by: Sequence[str]) -> None:
    """Raise Refused, naming `key`, if several rows have the same values in the columns `by`."""
    repeats = f"repeats {uuid.uuid4()}"
    with translate_faults(table):
        counted = rows.groupBy(*grouping_columns(rows, by)).agg(sf.count(sf.lit(1)).alias(repeats))
        shared = counted.where(column(repeats) > 1)
        keys, shares = shared.agg(sf.count(sf.lit(1)), sf.sum(column(repeats))).collect()[0]
    if keys:
        raise repeated_key(table, key, keys, shares)


def versions_overlap(table: TableName, rows: "DataFrame", by: Sequence[str]) -> bool:
    """Whether versions with the same values in `by`, except the start, overlap or follow an open version."""
    record = grouping_columns(rows, [name for name in by if name != START])
    before = Window.partitionBy(*record).orderBy(column(START))
    covered = f"covered {uuid.uuid4()}"
    reaches = sf.lag(column(END)).over(before) >= column(START)
    versions = rows.withColumn(covered, reaches | sf.lag(column(ACTIVE)).over(before))
    with translate_faults(table):
        return not versions.where(column(covered) & column(START).isNotNull()).isEmpty()


def has_no_values(store: IcebergStore, table: IcebergTable, name: str) -> bool:
    """Whether no row of the table, including old versions, has a value in a column.

    Reads rows only if the statistics of files are not sufficient.
    """
    if not table.rows:
        return True
    field = next(each["id"] for each in table.fields if each["name"] == name)
    scan = scan_of_values(store.jvm, table.iceberg, name).includeColumnStats()
    with closing(scan.planFiles()) as planned:
        tasks = planned.iterator()
        if not tasks.hasNext():
            return True
        while tasks.hasNext():
            task = tasks.next()
            nulls = (task.file().nullValueCounts() or {}).get(field)
            # In a file with hidden rows, the statistics do not prove that a row has a value.
            if nulls is not None and not task.deletes() and int(nulls) < int(task.file().recordCount()):
                return False
    return store.spark.table(store.sql_name(table.shape.table)).where(column(name).isNotNull()).isEmpty()


def is_withdrawn(store: IcebergStore, table: IcebergTable, name: str) -> bool:
    """Whether a column has values only in rows with an empty validity, which are withdrawn statements."""
    start, end = column(VALID_FROM), column(VALID_TO)
    rows = store.spark.table(store.sql_name(table.shape.table))
    return rows.where(column(name).isNotNull() & ~end.eqNullSafe(start)).isEmpty()


def update_where(
    store: IcebergStore, table: IcebergTable, condition: "Column", values: Mapping[str, "Column"]
) -> Change | None:
    """A change that sets these values in the rows that meet the condition, or None if no row meets it."""
    return change_where(store, table, condition, lambda rows: rows.withColumns(dict(values)))


def change_where(
    store: IcebergStore,
    table: IcebergTable,
    condition: "Column",
    becoming: "Callable[[DataFrame], DataFrame] | None" = None,
    *,
    into: Shape | None = None,
) -> Change | None:
    """A change that replaces or deletes the rows that meet the condition, or None if no row meets it.

    `becoming` returns the new rows. Without it, the rows are deleted. If `into` is set, the table gets this
    shape in the same commit, even if no row meets the condition. The shape may only add columns.
    """
    shape = into or table.shape
    with translate_faults(table.shape.table):
        positions = {}
        if table.rows:
            rows = store.spark.table(store.sql_name(table.shape.table))
            lacking = null_columns(shape.columns, table.shape.names)
            rows = (rows.withColumns(lacking) if lacking else rows).where(condition)
            positions = positions_of(rows)
    if not positions:
        return Change(into=into) if into else None
    count = sum(len(bitmap) for bitmap in positions.values())
    new_rows = becoming(with_row_ids(table, rows)) if becoming else None
    return Change({"updated" if becoming else "deleted": count}, removed=positions, added=new_rows, into=into)
