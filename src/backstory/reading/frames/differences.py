"""What changed between two instants, or between two known times for one instant, as a frame."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import TableName
from backstory.reading.differences import (
    ANSWER,
    CHANGED,
    SIDES,
    differences_query,
    moves_query,
    revisions_query,
)
from backstory.reading.frames.point_in_time import rows_at
from backstory.reading.frames.versions import lifetimes_sql, query_frame, recorded_rows, shown_sql, source_at
from backstory.reading.histories import HISTORIES, history_of, require_knowledge, shown_key, system_columns
from backstory.reading.lifetimes import ENDED, SPARK, STARTED, internal_name
from backstory.reading.selection import ENDS, Comparison
from backstory.stores.iceberg.literals import column, micros_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.strategies.frames import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_TIMES: Final = {VALID_FROM: STARTED, VALID_TO: ENDED}
_SIDES: Final = tuple(map(internal_name, SIDES))
_CHANGE, _OTHERWISE, _ROW, _WAS, _IS, _AWAY = map(internal_name, ANSWER)


def diff(
    store: IcebergStore,
    table: TableName,
    first: datetime,
    second: datetime,
    known_at: datetime | None = None,
    comparison: Comparison = ENDS,
) -> "DataFrame":
    """The records that differ between two instants, as known now or at `known_at` (native.md V96).

    `key` is a struct of the key's columns, or of all columns if readers show no key. `change` is added,
    changed or removed. `before` and `after` are structs of the user's columns, NULL if the record did not
    exist. `changed` has the names of the columns that differ in a changed record, with NULL and NaN equal to
    themselves. With `comparison.through` there are also records that are equal at both times, whose `change`
    is returned, reverted or passed, and the column `away`. Raises the errors of `versions`.
    """
    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    history = history_of(stored, shape)
    between = micros_of(first), micros_of(second)
    moves = moves_query(
        SPARK, lifetimes_sql(stored, history, source, known_at), between, through=comparison.through
    )
    return _differences(store.spark.sql(shown_sql(history, moves, *_SIDES)), stored, comparison)


def diff_knowledge(
    store: IcebergStore,
    table: TableName,
    first: datetime,
    second: datetime,
    time: datetime,
    comparison: Comparison = ENDS,
) -> "DataFrame":
    """The records whose state at one instant differs between two known times (V96), in the columns of `diff`.

    A table without a history is compared as it was at both times.
    """
    stored = existing(store, table)
    if stored.shape.layout is Layout.VERSIONS:
        for known_at in (first, second):
            require_knowledge(stored, known_at)
        syntax = replace(SPARK, rows=recorded_rows(stored, stored.shape, store.sql_name(table)))
        rows = revisions_query(syntax, micros_of(time), (micros_of(first), micros_of(second)))
        shown = shown_sql(history_of(stored), rows, *_SIDES, timed=False)
        return _differences(store.spark.sql(shown), stored, comparison)
    from pyspark.sql.functions import lit

    pair = []
    for known_at, side in ((first, "before"), (second, "after")):
        lasting = source_at(store, stored, known_at)[1].layout in HISTORIES
        state = rows_at(store, table, time if lasting else None, known_at)
        pair.append(state.withColumns({internal_name(each): lit(each == side) for each in SIDES}))
    return _differences(pair[0].unionByName(pair[1], allowMissingColumns=True), stored, comparison)


def _differences(sides: "DataFrame", stored: IcebergTable, comparison: Comparison) -> "DataFrame":
    """The records whose rows before and after differ, by `differences_query`."""
    from pyspark.sql.functions import array, array_compact, coalesce, lit, size, struct, when

    key, types = shown_key(stored.shape), {each.name: each.dataType for each in sides.schema}
    hidden = {VALID_FROM, VALID_TO, STARTED, ENDED, *_SIDES}
    names = comparison.names(stored.shape.table, key, [name for name in types if name not in hidden])
    timed = stored.shape.layout is Layout.ODF and bool(system_columns(stored)["events"])
    row = struct(*(_shown_value(name, types[name], unsigned=not key) for name in names))
    rows = sides.withColumn(_ROW, row).withColumnsRenamed(_TIMES)
    if comparison.through or not key:
        values = struct(*(comparable(column(name), types[name]).alias(name) for name in names))
        rows = rows.withColumn(internal_name("values"), values)
    records = query_frame(rows, differences_query(SPARK, key, through=comparison.through, timed=timed))
    before, after = column(_WAS), column(_IS)
    differing = (when(_values_differ(name, types[name]), lit(name)) for name in names if name not in key)
    changed = when(column(_CHANGE) == CHANGED, array_compact(array(*differing))).otherwise(array())
    same = (column(_CHANGE) == CHANGED) & (size(changed) == 0)
    whole = coalesce(before, after)
    differences = records.select(
        (struct(*map(column, key)) if key else whole).alias("key"),
        when(same, column(_OTHERWISE))
        .otherwise(coalesce(column(_CHANGE), column(_OTHERWISE)))
        .alias("change"),
        before.alias("before"),
        after.alias("after"),
        changed.cast("array<string>").alias("changed"),
        *([column(_AWAY).alias("away")] if comparison.through else []),
    )
    return comparison.filter_kind(differences.where(column("change").isNotNull()))


def _shown_value(name: str, type_: "DataType", *, unsigned: bool) -> "Column":
    """A value as it is shown; `unsigned` replaces -0.0, where one row represents its copies."""
    from pyspark.sql.functions import lit
    from pyspark.sql.types import DoubleType, FloatType

    value = column(name)
    signed = unsigned and isinstance(type_, DoubleType | FloatType)
    return (value + lit(0.0).cast(type_) if signed else value).alias(name)


def _values_differ(name: str, type_: "DataType") -> "Column":
    before, after = (comparable(column(side)[name], type_) for side in (_WAS, _IS))
    return ~before.eqNullSafe(after)
