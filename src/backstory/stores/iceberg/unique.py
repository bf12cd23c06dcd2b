"""Whether columns tell the rows of a table apart, and the versions of a history one after the other."""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstory.model.layout import ACTIVE, END, START
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column
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


def overlap(table: TableName, rows: "DataFrame", by: Sequence[str]) -> bool:
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
