"""What changed between two instants, or between two times of knowing of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.remembered import END_BEFORE, ENDED_AT, ROLE, Role
from backstory.model.table import TableName
from backstory.reading.comparisons import ENDS, Comparison
from backstory.reading.frames.event_logs import system_columns
from backstory.reading.frames.knowledge import require_knowledge, source_at
from backstory.reading.frames.passages import AWAY, OTHER, change_between, with_passages
from backstory.reading.frames.point_in_time import as_of, current, valid
from backstory.reading.frames.versions import HISTORIES, history_of, shown_key, users_of, versions
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.strategies.comparable import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Whether a row held on each side, and the rows that did; no column of a source is so called.
_BEFORE, _AFTER = "backstory: held before", "backstory: held after"
_ROW_BEFORE, _ROW_AFTER = "backstory: before", "backstory: after"


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells the records of a table apart: the key, and the time where each is an event."""

    table: TableName
    key: Sequence[str]
    timed: bool


def diff(
    store: Store,
    table: TableName,
    first: datetime,
    second: datetime,
    known_at: datetime | None = None,
    comparison: Comparison = ENDS,
) -> "DataFrame":
    """How the records at one instant differ from those at another, by one knowledge (native.md V96).

    `key` is a struct of the key's columns, or of all columns where none is shown; `change` is added, changed
    or removed; `before` and `after` are structs of the user's columns, NULL where there was no record;
    `changed` has the names of the columns that differ, NULL-safe and NaN equal to NaN, of a changed record.
    Through all that happened in between there are the changes of `passages` and the column `away`, too.
    Raises what `versions` raises.
    """
    from pyspark.sql.functions import col

    low, high = sorted((first, second))
    found = versions(store, table, known_at)
    touched = _within(VALID_FROM, low, high) | _within(VALID_TO, low, high)
    sides = found.where(touched).withColumns({_BEFORE: valid(first), _AFTER: valid(second)})
    identity = _identity(store, table)
    if comparison.through:
        return _compared(sides, identity, comparison)
    return _compared(sides.where(col(_BEFORE) != col(_AFTER)), identity, comparison)


def diff_knowledge(
    store: Store,
    table: TableName,
    first: datetime,
    second: datetime,
    time: datetime,
    comparison: Comparison = ENDS,
) -> "DataFrame":
    """How the answers for one instant differ between two known times (V96).

    The columns are those of `diff`. A table without a history is compared as it was at both times.
    """
    stored = existing(store, table)
    if stored.shape.layout is Layout.VERSIONS:
        for known_at in (first, second):
            require_knowledge(stored, known_at)
        sides = _native_sides(store, stored, first, second, time)
        return _compared(sides, _identity(store, table), comparison)
    from pyspark.sql.functions import lit

    pair = []
    for known_at, is_after in ((first, False), (second, True)):
        lasting = source_at(store, stored, known_at)[1].layout in HISTORIES
        held = as_of(store, table, time, known_at) if lasting else current(store, table, known_at)
        marks = {_BEFORE: lit(not is_after), _AFTER: lit(is_after)}
        pair.append(held.withColumns(marks))
    sides = pair[0].unionByName(pair[1], allowMissingColumns=True)
    return _compared(sides, _identity(store, table), comparison)


def _within(name: str, low: datetime, high: datetime) -> "Column":
    border = column(name)
    return (border > instant(micros_of(low))) & (border <= instant(micros_of(high)))


def _native_sides(
    store: Store, table: StoredTable, first: datetime, second: datetime, time: datetime
) -> "DataFrame":
    """The native rows known of an instant at exactly one of two known times, read once (V6)."""
    from pyspark.sql.functions import coalesce, col, lit, when

    moved, at = col(f"{MEMORY}.{ENDED_AT}"), instant(micros_of(time))

    def holds(known_at: datetime) -> "Column":
        known = instant(micros_of(known_at))
        ended = when(moved > known, col(f"{MEMORY}.{END_BEFORE}")).otherwise(column(VALID_TO))
        return (column(RECORDED_AT) <= known) & (ended.isNull() | (ended > at))

    rows = store.spark.table(store.sql_name(table.shape.table))
    no_fact = coalesce(col(f"{MEMORY}.{ROLE}"), lit("")) != Role.FACT
    rows = rows.where((column(VALID_FROM) <= at) & no_fact).withColumns(
        {_BEFORE: holds(first), _AFTER: holds(second)}
    )
    rows = rows.where(col(_BEFORE) != col(_AFTER))
    return rows.select(*users_of(history_of(table)), column(VALID_FROM), column(_BEFORE), column(_AFTER))


def _identity(store: Store, table: TableName) -> Identity:
    """The columns that tell records apart, as readers show them, and whether their time belongs to them."""
    stored = existing(store, table)
    events = stored.shape.layout is Layout.ODF and bool(system_columns(stored)["events"])
    return Identity(table, shown_key(stored.shape), events)


def _compared(sides: "DataFrame", identity: Identity, comparison: Comparison) -> "DataFrame":
    """The records whose rows on the two sides differ; without a key rows come and go as often as they are."""
    from pyspark.sql.functions import array, array_compact, coalesce, col, first, lit, size, struct, when
    from pyspark.sql.functions import max as greatest

    key = identity.key
    shown = [name for name in sides.columns if name not in {VALID_FROM, VALID_TO, _BEFORE, _AFTER}]
    names = comparison.names(identity.table, key, shown)
    if not key:
        return comparison.chosen(_counted(sides, names))
    if comparison.through:
        sides = with_passages(sides, key, names, timed=identity.timed)
    whole, there = struct(*map(column, names)), col(_ROW_BEFORE).isNotNull()
    found = sides.groupBy(*map(column, key), *([column(VALID_FROM)] if identity.timed else [])).agg(
        first(when(col(_BEFORE), whole), ignorenulls=True).alias(_ROW_BEFORE),
        first(when(col(_AFTER), whole), ignorenulls=True).alias(_ROW_AFTER),
        *(greatest(name).alias(name) for name in ((AWAY, OTHER) if comparison.through else ())),
    )
    before, after = column(_ROW_BEFORE), column(_ROW_AFTER)
    unlike = [
        when(_unlike(name, sides.schema[name].dataType), lit(name)) for name in names if name not in key
    ]
    stayed = before.isNotNull() & after.isNotNull()
    changed = when(stayed, array_compact(array(*unlike))).otherwise(array()).cast("array<string>")
    ends = (
        when(before.isNull() & after.isNotNull(), "added")
        .when(there & after.isNull(), "removed")
        .when(size(changed) > 0, "changed")
    )
    same = change_between(there, col(AWAY), col(OTHER)) if comparison.through else lit(None)
    found = found.select(
        struct(*map(column, key)).alias("key"),
        coalesce(ends, same).alias("change"),
        before.alias("before"),
        after.alias("after"),
        changed.alias("changed"),
        *([col(AWAY).alias("away")] if comparison.through else []),
    )
    return comparison.chosen(found.where(col("change").isNotNull()))


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
