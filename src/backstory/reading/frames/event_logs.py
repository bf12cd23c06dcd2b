"""The lives of records in an event log: from event to event, by event time."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import UsageError
from backstory.model.schema import Shape
from backstory.stores.iceberg.literals import column
from backstory.stores.port import ToldTable, require_columns
from backstory.strategies.events.terms import LETTERS, Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

# A table property: the names of the system columns, and whether every row is an event of its own.
COLUMNS: Final = "backstory.odf.columns"
# Those without which no event can be read.
REQUIRED: Final = ("offset", "system_time", "event_time")


def system_columns(table: ToldTable) -> Mapping[str, Any]:
    """The names of `offset`, `op`, `system_time`, `event_time`, `observed`; `events` is true of ledgers."""
    text = table.properties.get(COLUMNS)
    if text is None:
        raise UsageError(
            "no-columns",
            f"{table.shape.table} does not name its system columns.",
            "Add its manifest again with `backstory add`.",
        )
    told: dict[str, Any] = json.loads(text)
    if table.rows:
        require_columns(table, *(told[each] for each in REQUIRED if each in told))
    return told


def own_columns(table: ToldTable) -> frozenset[str]:
    """The columns that the source did not send; the event time is one of its own where the key names it."""
    own = {name for name in system_columns(table).values() if isinstance(name, str)}
    return frozenset(own - set(table.shape.key))


def versions(rows: "DataFrame", names: Mapping[str, Any], shape: Shape) -> "tuple[DataFrame, Column, Column]":
    """Of the rows of a log those that are versions, from when and to when each was true (NULL: still).

    An event of a ledger or an append is true from its time on, for ever, unless it was corrected. In the
    other logs the newest event of a record up to a time tells what was true then (odf-ingest.md 2.10): a
    version ends where any later event of its record begins, also where that is told late of an earlier
    time, and what was true at no instant is none.
    """
    from pyspark.sql.functions import coalesce, col, lit
    from pyspark.sql.functions import min as least

    if names["events"]:
        rows, time, corrected = events(rows, names, shape)
        return rows.where(~corrected), time, lit(None).cast("timestamp")
    rows, later = dated(rows, names, shape)
    rows = rows.withColumn("backstory: ended", least("backstory: begun").over(later))
    begun, ended = col("backstory: begun"), col("backstory: ended")
    return rows.where(holds() & coalesce(ended > begun, lit(True))), begun, ended


def events(rows: "DataFrame", names: Mapping[str, Any], shape: Shape) -> "tuple[DataFrame, Column, Column]":
    """The events of a ledger or an append, the time of each, and whether it was corrected since.

    The system time of its correction is `next told`.
    """
    from pyspark.sql.functions import col, lag, lit

    time = instant_in(rows, names["event_time"])
    if names["op"] is None:
        return rows.withColumn("backstory: next told", lit(None).cast("timestamp")), time, lit(False)
    over = _newest_first(names, shape)
    rows = rows.withColumn("backstory: op", op_of(names)).withColumns(
        {
            "backstory: next op": lag("backstory: op").over(over),
            "backstory: next told": lag(column(names["system_time"])).over(over),
        }
    )
    return rows.where(holds()), time, col("backstory: next op").eqNullSafe(lit(int(Op.CORRECT_FROM)))


def dated(rows: "DataFrame", names: Mapping[str, Any], shape: Shape) -> "tuple[DataFrame, WindowSpec]":
    """The events of a log of states with `event begun`, from when each counts; and the later ones of each."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col

    over = _newest_first(names, shape)
    rows = rows.withColumn("backstory: op", op_of(names)).where(col("backstory: op") != Op.CORRECT_FROM)
    time = instant_in(rows, names["event_time"])
    timely = names["op"] is None and names["event_time"] not in shape.key
    begun = time if timely else _begun(time, column(names["system_time"]), over)
    return rows.withColumn("backstory: begun", begun), over.rowsBetween(Window.unboundedPreceding, -1)


def _newest_first(names: Mapping[str, Any], shape: Shape) -> "WindowSpec":
    """The events of a record, the latest told first."""
    from pyspark.sql import Window

    return Window.partitionBy(*identity_of(names, shape)).orderBy(column(names["offset"]).desc())


def identity_of(names: Mapping[str, Any], shape: Shape) -> "list[Column]":
    """What makes events those of one record."""
    return [column(name) for name in identity_names(names, shape)]


def identity_names(names: Mapping[str, Any], shape: Shape) -> list[str]:
    """The columns that make events those of one record; in a ledger the time belongs to it."""
    extra = [names["event_time"]] if names["events"] and names["event_time"] not in shape.key else []
    return [*shape.key, *extra]


def _begun(time: "Column", known: "Column", newest_first: "WindowSpec") -> "Column":
    """From when an event counts where a retraction has no time of its own: from when it is known.

    What is back at the time of its predecessor, or before it, begins when that was known to be gone.
    """
    from pyspark.sql.functions import col, greatest, lead, struct, when

    event = struct("backstory: op", time.alias("time"), known.alias("known"))
    before, there = (lead(event, steps).over(newest_first) for steps in (1, 2))
    returned = (before["backstory: op"] == Op.RETRACT) & (time <= there["time"])
    back = when(returned, greatest(time, before["known"])).otherwise(time)
    return when(col("backstory: op") == Op.RETRACT, known).otherwise(back)


def instant_in(rows: "DataFrame", name: str) -> "Column":
    """The time in a column; a day begins at midnight, UTC, whatever zone the session has."""
    from pyspark.sql.functions import timestamp_seconds, unix_date
    from pyspark.sql.types import DateType

    dated = isinstance(rows.schema[name].dataType, DateType)
    return timestamp_seconds(unix_date(column(name)) * 86_400) if dated else column(name).cast("timestamp")


def holds() -> "Column":
    """Whether an event brings a state, and does not end one."""
    from pyspark.sql.functions import col

    return col("backstory: op").isin(int(Op.APPEND), int(Op.CORRECT_TO))


def op_of(names: Mapping[str, Any]) -> "Column":
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
