"""The rule of the feed on Spark: rows that moved become inserts, deletes and pairs (`rule.py`)."""

from typing import TYPE_CHECKING, Final

from backstory.model.change_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeType,
)
from backstory.reading.changes.rows import ToldRows
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.moved_rows import MOVED, NUMBER, SIGN, TIME, VERSION
from backstory.strategies.comparable import comparable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

# A feed of up to so many rows is one partition, which is in order as a whole.
ROWS_IN_ORDER: Final = 1 << 19
_RANK = "moved: rank"


def fed(moved: "DataFrame", told: ToldRows, rows: int, *, net: bool, only_come: bool) -> "DataFrame":
    """The feed: the shown columns, then type, version and time of the change.

    `rows` says how many moved at most, `only_come` that none went. Within a partition commits stand in their
    order, and of each identity what goes before what comes; without many rows there is but one partition.
    """
    found = moved if told.condition is None else moved.where(told.condition())
    shown = [column(name).alias(as_) for name, as_ in told.columns.items()]
    found = found.select(*shown, *map(column, MOVED))
    names = {told.columns[name] for name in told.identity}
    values = {field.name: comparable(column(field.name), field.dataType) for field in found.schema}
    content = [value for name, value in values.items() if name not in {*names, *MOVED}]
    by = [value for name, value in values.items() if name in names] or content
    found = found.repartition(1 + rows // ROWS_IN_ORDER, *by)
    if only_come and not net:
        return _in_order(_typed(found, paired=None), by, told, each=True)
    number = column(NUMBER)
    found = _left(found, [*by, *content, number])
    if net:
        found = _left(_touched_last(found, by), [*by, *content])
    sides = _sides([*by] if net else [*by, number])
    found = _typed(found, (sides[0] == 1) & (sides[1] == 1))
    return _in_order(found, by, told, each=not net)


def _typed(moved: "DataFrame", paired: "Column | None") -> "DataFrame":
    """With the type of each change."""
    from pyspark.sql.functions import when

    goes = column(SIGN) < 0
    alone = when(goes, ChangeType.DELETE.value).otherwise(ChangeType.INSERT.value)
    pair = when(goes, ChangeType.BEFORE.value).otherwise(ChangeType.AFTER.value)
    return moved.withColumn(CHANGE_TYPE, alone if paired is None else when(paired, pair).otherwise(alone))


def _in_order(typed: "DataFrame", by: "Sequence[Column]", told: ToldRows, *, each: bool) -> "DataFrame":
    ordered = typed.sortWithinPartitions(*([NUMBER] if each else []), *by, SIGN)
    shown = [column(as_) for as_ in told.columns.values()]
    version, time = column(VERSION).alias(COMMIT_VERSION), column(TIME).alias(COMMIT_TIMESTAMP)
    return ordered.select(*shown, CHANGE_TYPE, version, time)


def _sides(of: "Sequence[Column]") -> "tuple[Column, Column]":
    """How many rows go and how many come beside a row."""
    from pyspark.sql import Window
    from pyspark.sql.functions import count_if

    beside = Window.partitionBy(*of)
    return count_if(column(SIGN) < 0).over(beside), count_if(column(SIGN) > 0).over(beside)


def _left(moved: "DataFrame", same: "Sequence[Column]") -> "DataFrame":
    """What is left once rows that go and rows that come, and are the same, have cancelled out as a bag."""
    from pyspark.sql import Window
    from pyspark.sql.functions import lit, row_number, when

    gone, come = _sides(same)
    ranked = row_number().over(Window.partitionBy(*same, column(SIGN)).orderBy(lit(0)))
    more = when(column(SIGN) < 0, gone - come).otherwise(come - gone)
    return moved.withColumn(_RANK, ranked <= more).where(column(_RANK)).drop(_RANK)


def _touched_last(moved: "DataFrame", by: "Sequence[Column]") -> "DataFrame":
    """Each row with the last commit that touched its identity."""
    from pyspark.sql import Window
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import struct

    about = struct(*map(column, (NUMBER, VERSION, TIME)))
    last = greatest(about).over(Window.partitionBy(*by))
    return moved.withColumns({name: last[name] for name in (VERSION, TIME)})
