"""The lives of records in an event log: from event to event, by event time."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import UsageError
from backstory.model.table import Shape
from backstory.strategies.events.terms import LETTERS, Op
from backstory.tables.literals import column
from backstory.tables.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

# A table property: the names of the system columns, and whether every row is an event of its own.
COLUMNS: Final = "backstory.odf.columns"


def system_columns(table: StoredTable) -> Mapping[str, Any]:
    """The names of `offset`, `op`, `system_time`, `event_time`, `observed`; `events` is true of ledgers."""
    text = table.iceberg.properties().get(COLUMNS)
    if text is None:
        raise UsageError(
            "no-columns",
            f"{table.shape.table} does not tell its system columns.",
            "Add its manifest again with `backstory add`.",
        )
    told: dict[str, Any] = json.loads(text)
    return told


def data_columns(table: StoredTable) -> list[str]:
    """The columns that the source sent; the event time is one of them where the key names it."""
    own = {name for name in system_columns(table).values() if isinstance(name, str)} - set(table.shape.key)
    return [name for name in table.shape.names if name not in own]


def versions(store: Store, table: StoredTable) -> "tuple[DataFrame, Column, Column]":
    """The rows that are versions, from when and to when each was true (NULL: still).

    An event of a ledger or an append is true from its time on, for ever, unless it was corrected. In the
    other logs a version ends at the time of the next event of its record, or when that is known to be gone.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import col, lead, lit, struct

    names, shape = system_columns(table), table.shape
    rows = store.spark.table(store.sql_name(shape.table)).withColumn("event op", _op(names))
    time = _instant(rows, names["event_time"])
    after = lead(struct("event op", time.alias("time")))
    window = Window.partitionBy(*_identity(names, shape)).orderBy(column(names["offset"]))
    never = lit(None).cast("timestamp")
    if names["events"]:
        if names["op"] is None:
            return rows, time, never
        rows = rows.withColumn("next event", after.over(window))
        corrected = col("next event")["event op"].eqNullSafe(lit(int(Op.CORRECT_FROM)))
        return rows.where(_holds() & ~corrected), time, never
    rows = rows.where(col("event op") != Op.CORRECT_FROM)
    if names["op"] is None and names["event_time"] not in shape.key:
        rows = rows.withColumn("next event", after.over(window))
        return rows.where(_holds()), time, col("next event")["time"]
    return _with_known_ends(rows, time, column(names["system_time"]), window)


def _with_known_ends(
    rows: "DataFrame", time: "Column", known: "Column", window: "WindowSpec"
) -> "tuple[DataFrame, Column, Column]":
    """The versions where a retraction has no time of its own: it ends one when it is known.

    What is back before that ends it earlier, and what is back at the time of its predecessor begins then.
    """
    from pyspark.sql.functions import col, greatest, lag, lead, least, struct, when

    event = struct("event op", time.alias("time"), known.alias("known"))
    beside = {"next": lead(event), "second next": lead(event, 2), "previous": lag(event)}
    beside["second previous"] = lag(event, 2)
    rows = rows.withColumns({f"{name} event": value.over(window) for name, value in beside.items()})
    following, back = col("next event"), col("second next event")["time"]
    gone = when(back > time, least(following["known"], back)).otherwise(following["known"])
    ended = when(following["event op"] == Op.RETRACT, gone).otherwise(following["time"])
    before, there = col("previous event"), col("second previous event")["time"]
    returned = (before["event op"] == Op.RETRACT) & (time <= there)
    return rows.where(_holds()), when(returned, greatest(time, before["known"])).otherwise(time), ended


def _instant(rows: "DataFrame", name: str) -> "Column":
    """The event time; a day begins at midnight, UTC, whatever zone the session has."""
    from pyspark.sql.functions import timestamp_seconds, unix_date
    from pyspark.sql.types import DateType

    dated = isinstance(rows.schema[name].dataType, DateType)
    return timestamp_seconds(unix_date(column(name)) * 86_400) if dated else column(name).cast("timestamp")


def _holds() -> "Column":
    from pyspark.sql.functions import col

    return col("event op").isin(int(Op.APPEND), int(Op.CORRECT_TO))


def _identity(names: Mapping[str, Any], shape: Shape) -> "Sequence[Column]":
    """What makes events those of one record; in a ledger the time belongs to it."""
    extra = [names["event_time"]] if names["events"] and names["event_time"] not in shape.key else []
    return [column(name) for name in (*shape.key, *extra)]


def _op(names: Mapping[str, Any]) -> "Column":
    from pyspark.sql.functions import lit, when

    if names["op"] is not None:
        return column(names["op"])
    if names["observed"] is None:
        return lit(int(Op.APPEND))
    letter = column(names["observed"])
    chosen = when(letter == LETTERS[Op.APPEND], int(Op.APPEND)).when(
        letter == LETTERS[Op.RETRACT], int(Op.RETRACT)
    )
    return chosen.otherwise(int(Op.CORRECT_TO))
