"""What a table told of its records: each version as it was told from one recorded time to another."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.remembered import END_BEFORE, ENDED_AT, ROLE, Role
from backstory.model.table import TableName
from backstory.reading.frames import event_logs
from backstory.reading.frames.records import of_record
from backstory.reading.frames.versions import history_of, users_of, versions
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STEPS: Final = "backstory: steps"
_STEP: Final = "backstory: step"
_NTH: Final = "backstory: nth"
_FOLLOWING: Final = "backstory: following"


def statements(store: Store, table: TableName, key: object = None) -> "DataFrame":
    """What was told of a record, or of every one: user's columns, `valid_from`, `valid_to` and two more.

    `TOLD_FROM` and `TOLD_TO` say while the table told so (native.md V97; NULL: still). On layout `versions`
    by its rows (V6), for an event log by its system time; elsewhere the versions as they are known now, and
    NULL. UsageError for what is no key of the table.
    """
    from pyspark.sql.functions import lit

    stored = existing(store, table)
    if stored.shape.layout in {Layout.VERSIONS, Layout.ODF}:
        unfold = _native if stored.shape.layout is Layout.VERSIONS else _of_events
        rows, started, steps = unfold(store, stored)
        told = _unfolded(rows, users_of(history_of(stored)), started, steps)
    else:
        unknown = lit(None).cast("timestamp")
        told = versions(store, table).withColumns({TOLD_FROM: unknown, TOLD_TO: unknown})
    return told if key is None else of_record(told, stored.shape, key)


def _native(store: Store, table: StoredTable) -> "tuple[DataFrame, Column, Column]":
    """A row tells two steps: its end before it was last moved, and its end since (V6)."""
    from pyspark.sql.functions import array, col, lit, when

    moved, before = col(f"{MEMORY}.{ENDED_AT}"), col(f"{MEMORY}.{END_BEFORE}")
    first = _step(when(moved.isNull(), column(VALID_TO)).otherwise(before), column(RECORDED_AT))
    steps = when(moved.isNull(), array(first)).otherwise(array(first, _step(column(VALID_TO), moved)))
    rows = store.spark.table(store.sql_name(table.shape.table))
    rows = rows.where(~col(f"{MEMORY}.{ROLE}").eqNullSafe(lit(str(Role.FACT))))
    return rows, column(VALID_FROM), steps


def _of_events(store: Store, table: StoredTable) -> "tuple[DataFrame, Column, Column]":
    """An event is told until a later one that begins after it ends it, and anew with each told late."""
    from pyspark.sql.functions import (
        aggregate,
        array,
        col,
        collect_list,
        concat,
        element_at,
        lit,
        reverse,
        struct,
        when,
    )

    names = event_logs.system_columns(table)
    rows = store.spark.table(store.sql_name(table.shape.table))
    told = column(names["system_time"])
    endless = _step(lit(None).cast("timestamp"), told)
    if names["events"]:
        rows, begun, corrected = event_logs.events(rows, names, table.shape)
        gone = when(corrected, array(endless, _step(begun, col("backstory: next told"))))
        return rows, begun, gone.otherwise(array(endless))
    rows, later = event_logs.dated(rows, names, table.shape)
    begun = col("backstory: begun")
    following = reverse(collect_list(struct(begun.alias("begun"), told.alias("told"))).over(later))
    rows = rows.withColumn(_FOLLOWING, following).where(event_logs.holds())

    def shortened(steps: "Column", event: "Column") -> "Column":
        end = element_at(steps, -1)[VALID_TO]
        sooner = end.isNull() | (event["begun"] < end)
        return when(sooner, concat(steps, array(_step(event["begun"], event["told"])))).otherwise(steps)

    return rows, begun, aggregate(col(_FOLLOWING), array(endless), shortened)


def _step(ended: "Column", known: "Column") -> "Column":
    from pyspark.sql.functions import struct

    return struct(ended.alias(VALID_TO), known.alias(TOLD_FROM))


def _unfolded(
    rows: "DataFrame", users: "Sequence[Column]", started: "Column", steps: "Column"
) -> "DataFrame":
    """A row for each step of each version, but for those of no length on either axis."""
    from pyspark.sql.functions import col, get, posexplode

    step, following = col(_STEP), get(col(_STEPS), col(_NTH) + 1)[TOLD_FROM]
    rows = rows.select(*users, started.alias(VALID_FROM), steps.alias(_STEPS))
    names = [column(name) for name in rows.columns[:-1]]
    rows = rows.select(*names, _STEPS, posexplode(_STEPS).alias(_NTH, _STEP))
    ended, known = step[VALID_TO], step[TOLD_FROM]
    long = (ended.isNull() | (ended > col(VALID_FROM))) & (following.isNull() | (following > known))
    return rows.where(long).select(
        *names, ended.alias(VALID_TO), known.alias(TOLD_FROM), following.alias(TOLD_TO)
    )
