"""The system columns of an event log, and what its rows mean by them."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import UsageError
from backstory.model.schema import Shape
from backstory.model.types import Kind
from backstory.reading.lifetimes import LogKind
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.port import ToldTable, require_columns
from backstory.strategies.events.terms import LETTERS, Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


def log_kind(names: Mapping[str, Any], shape: Shape) -> LogKind:
    """What the events of a log are."""
    in_key = names["event_time"] in shape.key
    return LogKind(bool(names["events"]), names["op"] is not None, names["op"] is None and not in_key)


def identity_of(names: Mapping[str, Any], shape: Shape) -> "list[Column]":
    """What makes events those of one record."""
    return [column(name) for name in identity_names(names, shape)]


def identity_names(names: Mapping[str, Any], shape: Shape) -> list[str]:
    """The columns that make events those of one record; in a ledger the time belongs to it."""
    extra = [names["event_time"]] if names["events"] and names["event_time"] not in shape.key else []
    return [*shape.key, *extra]


def instant_in(rows: "DataFrame", name: str) -> "Column":
    """The time in a column; a day begins at midnight, UTC, whatever zone the session has."""
    from pyspark.sql.functions import timestamp_seconds, unix_date
    from pyspark.sql.types import DateType

    dated = isinstance(rows.schema[name].dataType, DateType)
    return (
        timestamp_seconds(unix_date(column(name)).cast("bigint") * 86_400)
        if dated
        else column(name).cast("timestamp")
    )


def instant_sql(shape: Shape, name: str) -> str:
    """The instant in a column, in Spark SQL; a day begins at midnight, and a naive time is one, in UTC."""
    found, value = shape.column(name), quoted(name)
    kind = None if found is None else found.type.kind
    if kind is Kind.NAIVE_DATE:
        return f"timestamp_seconds(CAST(unix_date({value}) AS BIGINT) * 86400)"
    if kind is Kind.NAIVE_DATETIME:
        since = f"timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', {value})"
        return f"timestamp_micros({since})"
    return f"CAST({value} AS TIMESTAMP_LTZ)"


def op_sql(names: Mapping[str, Any]) -> str:
    """What an event does, by its code, in Spark SQL."""
    if names["op"] is not None:
        return quoted(names["op"])
    if names["observed"] is None:
        return str(int(Op.APPEND))
    cases = (f"WHEN '{LETTERS[op]}' THEN {int(op)}" for op in (Op.APPEND, Op.RETRACT))
    return f"CASE {quoted(names['observed'])} {' '.join(cases)} ELSE {int(Op.CORRECT_TO)} END"


def op_of(names: Mapping[str, Any]) -> "Column":
    """The same as a column."""
    from pyspark.sql.functions import expr

    return expr(op_sql(names))
