"""What becomes of the rows for which a condition holds, however many there are.

Whether columns tell the rows of a table apart, and the versions of a history one after the other.

Whether a column has any value, by the statistics of files; rows are read where these leave it open.
"""

import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from backstory.model.change import Change
from backstory.model.layout import ACTIVE, END, START, VALID_FROM, VALID_TO
from backstory.model.table import Shape, TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import with_row_ids
from backstory.stores.iceberg.jvm import scan_where
from backstory.stores.iceberg.literals import column, null_columns
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.refusals import repeated_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def grouping_columns(rows: "DataFrame", names: Sequence[str]) -> "list[Column]":
    """The columns to group by so that 0.0 and -0.0 differ, which Spark groups as one: floats as text."""
    floating = {name for name, type_ in rows.dtypes if type_ in ("float", "double")}
    return [column(name).cast("string") if name in floating else column(name) for name in names]


def refuse_repeated(table: TableName, rows: "DataFrame", key: Sequence[str], by: Sequence[str]) -> None:
    """Raises Refused if rows share a value of the columns `by`, which the key `key` stands for."""
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import sum as total

    repeats = f"repeats {uuid.uuid4()}"
    with translate_faults(table):
        counted = rows.groupBy(*grouping_columns(rows, by)).agg(count(lit(1)).alias(repeats))
        shared = counted.where(column(repeats) > 1)
        keys, shares = shared.agg(count(lit(1)), total(column(repeats))).collect()[0]
    if keys:
        raise repeated_key(table, key, keys, shares)


def versions_overlap(table: TableName, rows: "DataFrame", by: Sequence[str]) -> bool:
    """Whether versions that share these columns, the start aside, overlap or follow on an open one."""
    from pyspark.sql import Window
    from pyspark.sql.functions import lag

    record = grouping_columns(rows, [name for name in by if name != START])
    before = Window.partitionBy(*record).orderBy(column(START))
    covered = f"covered {uuid.uuid4()}"
    reaches = lag(column(END)).over(before) >= column(START)
    marked = rows.withColumn(covered, reaches | lag(column(ACTIVE)).over(before))
    with translate_faults(table):
        return not marked.where(column(covered) & column(START).isNotNull()).isEmpty()


def has_no_values(store: Store, table: StoredTable, name: str) -> bool:
    """Whether no row of the table, old versions included, has a value in a column."""
    if not table.rows:
        return True
    field = int(table.iceberg.schema().findField(name).fieldId())
    scan = scan_where(store.jvm, table.iceberg, {"type": "not-null", "term": name}).includeColumnStats()
    with closing(scan.planFiles()) as planned:
        tasks = planned.iterator()
        if not tasks.hasNext():
            return True
        while tasks.hasNext():
            if _has_values(tasks.next(), field):
                return False
    return store.spark.table(store.sql_name(table.shape.table)).where(column(name).isNotNull()).isEmpty()


def is_withdrawn(store: Store, table: StoredTable, name: str) -> bool:
    """Whether a column has values in none but rows without length: statements that were taken back."""
    start, end = column(VALID_FROM), column(VALID_TO)
    rows = store.spark.table(store.sql_name(table.shape.table))
    return rows.where(column(name).isNotNull() & ~end.eqNullSafe(start)).isEmpty()


def _has_values(task: Any, field: int) -> bool:
    """Whether a file surely has a row with a value, by its statistics; hidden rows could be all of these."""
    nulls = (task.file().nullValueCounts() or {}).get(field)
    return nulls is not None and not task.deletes() and int(nulls) < int(task.file().recordCount())


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame


def delete_where(store: Store, table: StoredTable, condition: "Column") -> Change | None:
    """The rows go; None if there are none."""
    return change_where(store, table, condition, None)


def update_where(
    store: Store, table: StoredTable, condition: "Column", values: "Mapping[str, Column]"
) -> Change | None:
    """The rows get these values; None if there are none."""
    return change_where(store, table, condition, lambda rows: rows.withColumns(dict(values)))


def change_where(
    store: Store,
    table: StoredTable,
    condition: "Column",
    becoming: "Callable[[DataFrame], DataFrame] | None",
    *,
    into: Shape | None = None,
) -> Change | None:
    """What `becoming` makes of the rows takes their place, or nothing; None if there are no such rows.

    With `into` the table gets that shape in the same commit, rows or not; it may only have columns more.
    """
    shape = into or table.shape
    with translate_faults(table.shape.table):
        positions = {}
        if table.rows:
            rows = store.spark.table(store.sql_name(table.shape.table))
            rows = rows.withColumns(null_columns(shape.columns, table.shape.names)).where(condition)
            positions = positions_of(rows)
    if not positions:
        return Change(into=into) if into else None
    count = sum(len(bitmap) for bitmap in positions.values())
    come = becoming(with_row_ids(table, rows)) if becoming else None
    return Change({"updated" if becoming else "deleted": count}, removed=positions, added=come, into=into)
