"""Questions about points in time, on every layout of a warehouse."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.errors import UsageError
from backstory.model.history import History
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.reading.frames.versions import HISTORIES, ended_at, versions
from backstory.stores.iceberg.literals import column, instant, literal, micros_of, quoted
from backstory.stores.iceberg.store import Store, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_UNTIL = "valid until"  # no column of a source is called so


def current(store: Store, table: TableName) -> "DataFrame":
    """The rows that are true now: the user's columns, and `valid_from` and `valid_to` with a history."""
    from pyspark.sql.functions import col

    shape = existing(store, table).shape
    if shape.layout in HISTORIES:
        return versions(store, table).where(col(VALID_TO).isNull())
    users = (column(each.name).alias(each.source) for each in shape.user_columns)
    return delivered_rows(store, shape).select(*users)


def delivered_rows(store: Store, shape: Shape) -> "DataFrame":
    """The rows of a table with every column; of one that Fivetran marks those that are true now."""
    from pyspark.sql.functions import col, lit

    rows = store.spark.table(store.sql_name(shape.table))
    if shape.layout is Layout.FIVETRAN_HISTORY:
        ended = ended_at(History(shape))
        return rows.withColumn(_UNTIL, ended).where(col(quoted(_UNTIL)).isNull()).drop(_UNTIL)
    if shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED):
        return rows.where(~col(DELETED).eqNullSafe(lit(True)))
    return rows


def as_of(store: Store, table: TableName, time: datetime) -> "DataFrame":
    """The rows that were true at `time`; UsageError for a table that keeps no history."""
    from pyspark.sql.functions import col

    found, when = versions(store, table), instant(micros_of(time))
    begun = col(VALID_FROM) <= when
    return found.where(begun & (col(VALID_TO).isNull() | (col(VALID_TO) > when)))


def timeline(store: Store, table: TableName, key: Mapping[str, object]) -> "DataFrame":
    """The versions of one record by their start; the key's values may be given as text."""
    from pyspark.sql.functions import col

    shape = existing(store, table).shape
    if set(key) != set(shape.source_key):
        raise UsageError(
            "other-key",
            f"The key of {table} is ({', '.join(shape.source_key)}).",
            "Give a value for each of its columns.",
        )
    found = versions(store, table)
    types = {name: found.schema[name].dataType for name in key}
    _refuse_unlike(store, key, types)
    for name, value in key.items():
        found = found.where(col(quoted(name)) == literal(value).cast(types[name]))
    return found.orderBy(VALID_FROM)


def _refuse_unlike(store: Store, key: Mapping[str, object], types: "Mapping[str, DataType]") -> None:
    """Raise UsageError for a value that no key of its type is written as; Spark needs no job to tell."""
    given = [name for name, value in key.items() if value is not None]
    asked = [literal(key[name]).try_cast(types[name]) for name in given]
    (read,) = store.spark.sql("VALUES (1)").select(*asked).collect()
    for name, value in zip(given, read, strict=True):
        if value is None:
            kind = types[name].simpleString()
            raise UsageError(
                "other-key", f"{name} is of type {kind}, and {key[name]!r} is none.", "Give one."
            )
