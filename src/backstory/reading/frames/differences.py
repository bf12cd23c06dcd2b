"""What changed between two instants, or between two times of knowing of one."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.remembered import END_BEFORE, ENDED_AT, ROLE, Role
from backstory.model.table import TableName
from backstory.reading.frames.event_logs import system_columns
from backstory.reading.frames.knowledge import require_known, rows_known
from backstory.reading.frames.point_in_time import as_of, current, valid
from backstory.reading.frames.versions import HISTORIES, history_of, shown_key, users_of, versions
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.strategies.copies.alike import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Whether a row held on each side, and the rows that did; no column of a source is so called.
_BEFORE, _AFTER = "backstory: held before", "backstory: held after"
_ROW_BEFORE, _ROW_AFTER = "backstory: before", "backstory: after"


def diff(
    store: Store, table: TableName, first: datetime, second: datetime, known_at: datetime | None = None
) -> "DataFrame":
    """How the records at one instant differ from those at another, by one knowledge (native.md V96).

    `key` is a struct of the key's columns, or of all columns where none is shown; `change` is added, changed
    or removed; `before` and `after` are structs of the user's columns, NULL where there was no record;
    `changed` has the names of the columns that differ, NULL-safe and NaN equal to NaN, of a changed record.
    Raises what `versions` raises.
    """
    from pyspark.sql.functions import col

    low, high = sorted((first, second))
    found = versions(store, table, known_at)
    touched = _within(VALID_FROM, low, high) | _within(VALID_TO, low, high)
    sides = found.where(touched).withColumns({_BEFORE: valid(first), _AFTER: valid(second)})
    return _compared(sides.where(col(_BEFORE) != col(_AFTER)).drop(VALID_TO), _identity(store, table))


def diff_known(
    store: Store, table: TableName, first: datetime, second: datetime, time: datetime
) -> "DataFrame":
    """How what was known at one time differs from what was known at another, of one instant (V96).

    The columns are those of `diff`. A table without a history is compared as it was at both times.
    """
    stored = existing(store, table)
    if stored.shape.layout is Layout.VERSIONS:
        for known_at in (first, second):
            require_known(stored, known_at)
        return _compared(_told_at_either(store, stored, first, second, time), _identity(store, table))
    from pyspark.sql.functions import lit

    sides = []
    for known_at, is_after in ((first, False), (second, True)):
        lasting = rows_known(store, stored, known_at)[1].layout in HISTORIES
        held = as_of(store, table, time, known_at) if lasting else current(store, table, known_at)
        marks = {_BEFORE: lit(not is_after), _AFTER: lit(is_after)}
        sides.append(held.withColumns(marks).drop(VALID_TO))
    return _compared(sides[0].unionByName(sides[1], allowMissingColumns=True), _identity(store, table))


def _within(name: str, low: datetime, high: datetime) -> "Column":
    border = column(name)
    return (border > instant(micros_of(low))) & (border <= instant(micros_of(high)))


def _told_at_either(
    store: Store, table: StoredTable, first: datetime, second: datetime, time: datetime
) -> "DataFrame":
    """The native rows that were told of an instant at one of two known times, in one reading (V6)."""
    from pyspark.sql.functions import coalesce, col, lit, when

    moved, at = col(f"{MEMORY}.{ENDED_AT}"), instant(micros_of(time))

    def told(known_at: datetime) -> "Column":
        known = instant(micros_of(known_at))
        ended = when(moved > known, col(f"{MEMORY}.{END_BEFORE}")).otherwise(column(VALID_TO))
        return (column(RECORDED_AT) <= known) & (ended.isNull() | (ended > at))

    rows = store.spark.table(store.sql_name(table.shape.table))
    no_fact = coalesce(col(f"{MEMORY}.{ROLE}"), lit("")) != Role.FACT
    rows = rows.where((column(VALID_FROM) <= at) & no_fact).withColumns(
        {_BEFORE: told(first), _AFTER: told(second)}
    )
    rows = rows.where(col(_BEFORE) != col(_AFTER))
    return rows.select(*users_of(history_of(table)), column(VALID_FROM), column(_BEFORE), column(_AFTER))


def _identity(store: Store, table: TableName) -> "tuple[list[str], bool]":
    """The columns that tell records apart, as readers show them, and whether their time belongs to them."""
    stored = existing(store, table)
    events = stored.shape.layout is Layout.ODF and bool(system_columns(stored)["events"])
    return shown_key(stored.shape), events


def _compared(sides: "DataFrame", identity: "tuple[Sequence[str], bool]") -> "DataFrame":
    """The records whose rows on the two sides differ; without a key rows come and go as often as they are."""
    from pyspark.sql.functions import array, array_compact, col, first, lit, size, struct, when

    key, timed = identity
    names = [name for name in sides.columns if name not in {VALID_FROM, _BEFORE, _AFTER}]
    if not key:
        return _counted(sides, names)
    whole = struct(*map(column, names))
    found = sides.groupBy(*map(column, key), *([column(VALID_FROM)] if timed else [])).agg(
        first(when(col(_BEFORE), whole), ignorenulls=True).alias(_ROW_BEFORE),
        first(when(col(_AFTER), whole), ignorenulls=True).alias(_ROW_AFTER),
    )
    before, after = column(_ROW_BEFORE), column(_ROW_AFTER)
    unlike = [
        when(_unlike(name, sides.schema[name].dataType), lit(name)) for name in names if name not in key
    ]
    stayed = before.isNotNull() & after.isNotNull()
    found = found.select(
        struct(*map(column, key)).alias("key"),
        when(before.isNull(), "added").when(after.isNull(), "removed").otherwise("changed").alias("change"),
        before.alias("before"),
        after.alias("after"),
        when(stayed, array_compact(array(*unlike))).otherwise(array()).cast("array<string>").alias("changed"),
    )
    return found.where((col("change") != "changed") | (size("changed") > 0))


def _unlike(name: str, type_: "DataType") -> "Column":
    before, after = (comparable(column(side)[name], type_) for side in (_ROW_BEFORE, _ROW_AFTER))
    return ~before.eqNullSafe(after)


def _counted(sides: "DataFrame", names: Sequence[str]) -> "DataFrame":
    from pyspark.sql.functions import abs as magnitude
    from pyspark.sql.functions import array, array_repeat, col, explode, lit, struct, when
    from pyspark.sql.functions import sum as total

    more = total(when(col(_AFTER), 1).otherwise(-1))
    found = sides.groupBy(*map(column, names)).agg(more.alias("backstory: more rows"))
    rows = struct(*map(column, names))
    count = col("backstory: more rows")
    return found.where(count != 0).select(
        explode(array_repeat(rows, magnitude(count).cast("int"))).alias("key"),
        when(count > 0, "added").otherwise("removed").alias("change"),
        when(count < 0, rows).alias("before"),
        when(count > 0, rows).alias("after"),
        lit(array()).cast("array<string>").alias("changed"),
    )
