"""The lives of records: the user's columns of each version and from when to when it was true."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from backstory.errors import Refused, UsageError
from backstory.model.instant import TMAX
from backstory.model.layout import ACTIVE, DELETED, END, ENDED, START, STARTED, VALID_FROM, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.reading import event_logs
from backstory.stores.iceberg.literals import column, instant, literal, micros_of, quoted
from backstory.stores.iceberg.store import Store, existing
from backstory.stores.iceberg.workers import carry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

log = structlog.get_logger()

HISTORIES = (Layout.FIVETRAN_HISTORY, Layout.HIST, Layout.ODF)
_UNTIL = "valid until"  # no column of a source is called so


def _called(shape: Shape) -> dict[str, str]:
    """The source's name of each of the user's columns."""
    return {column.name: column.source for column in shape.user_columns}


def current(store: Store, table: TableName) -> "DataFrame":
    """The rows that are true now: the user's columns, and `valid_from` and `valid_to` with a history."""
    from pyspark.sql.functions import col

    shape = existing(store, table).shape
    if shape.layout in HISTORIES:
        return lives(store, table).where(col(VALID_TO).isNull())
    rows = delivered_rows(store, shape)
    return rows.select(*(column(name).alias(source) for name, source in _called(shape).items()))


def delivered_rows(store: Store, shape: Shape) -> "DataFrame":
    """The rows of a table with every column; of one that Fivetran marks those that are true now."""
    from pyspark.sql.functions import col, lit

    rows = store.spark.table(store.sql_name(shape.table))
    if shape.layout is Layout.FIVETRAN_HISTORY:
        ended = _fivetran_span(shape)[VALID_TO]
        return rows.withColumn(_UNTIL, ended).where(col(quoted(_UNTIL)).isNull()).drop(_UNTIL)
    if shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED):
        return rows.where(~col(DELETED).eqNullSafe(lit(True)))
    return rows


def as_of(store: Store, table: TableName, time: datetime) -> "DataFrame":
    """The rows that were true at `time`; UsageError for a table that keeps no history."""
    from pyspark.sql.functions import col

    versions, when = lives(store, table), instant(micros_of(time))
    begun = col(VALID_FROM) <= when
    return versions.where(begun & (col(VALID_TO).isNull() | (col(VALID_TO) > when)))


def lives(store: Store, table: TableName) -> "DataFrame":
    """Every version: the user's columns, `valid_from`, and `valid_to`, which is NULL while it is true."""
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout not in HISTORIES:
        raise UsageError(
            "no-history",
            f"{table} keeps no history (its layout is {shape.layout}).",
            "Read its rows with `current`.",
        )
    if shape.layout is Layout.ODF:
        rows, begun, ended = event_logs.versions(store, stored)
        names = {name: name for name in event_logs.data_columns(stored)}
        span = {VALID_FROM: begun, VALID_TO: ended}
    else:
        if stored.disorderly:
            log.warning(f"{table} holds versions that overlap; at an instant the one that began last is read")
        rows, names = store.spark.table(store.sql_name(table)), _called(shape)
        span = _fivetran_span(shape) if shape.layout is Layout.FIVETRAN_HISTORY else _hist_span()
    users = (column(name).alias(_apart(source)) for name, source in names.items())
    return rows.select(*users, *(value.alias(name) for name, value in span.items()))


def _apart(name: str) -> str:
    """A user's own `valid_from` is read as `valid_from_src`."""
    return f"{name}_src" if name in {VALID_FROM, VALID_TO} else name


def _hist_span() -> "dict[str, Column]":
    from pyspark.sql.functions import col

    return {VALID_FROM: col(STARTED), VALID_TO: col(ENDED)}


def _fivetran_span(shape: Shape) -> "dict[str, Column]":
    """From when to when a version was true.

    One whose successor starts before its end, or within a millisecond of it, reaches up to that start: at
    any instant at most one is true, that which began last. A deleted one ends at its `_fivetran_end`. Where
    the flag is NULL the end tells; a row with neither fails the query, for nothing does.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, col, expr, lead, lit, raise_error, when

    key = [quoted(name) for name in shape.key]
    following = lead(START).over(Window.partitionBy(*key).orderBy(START))
    open_ = coalesce(col(ACTIVE), lit(False)) | (col(END) >= instant(micros_of(TMAX)))
    endless = raise_error(lit(carry(_endless(shape.table)))).cast("timestamp")
    ended = when(coalesce(open_, lit(False)), lit(None)).when(col(END).isNull(), endless).otherwise(col(END))
    reaches = ended.isNull() | (following <= ended + expr("INTERVAL 1 MILLISECOND"))
    succeeded = following.isNotNull() & reaches
    return {VALID_FROM: col(START), VALID_TO: when(succeeded, following).otherwise(ended)}


def _endless(table: TableName) -> Refused:
    return Refused(
        "no-end",
        f"A version in {table} has no {END} and no {ACTIVE}: nothing tells until when it was true.",
        "Give such rows an end, or delete them, in the program that wrote them.",
    )


def life(store: Store, table: TableName, key: Mapping[str, object]) -> "DataFrame":
    """The versions of one record by their start; the key's values may be given as text."""
    from pyspark.sql.functions import col

    shape = existing(store, table).shape
    if set(key) != set(shape.source_key):
        raise UsageError(
            "other-key",
            f"The key of {table} is ({', '.join(shape.source_key)}).",
            "Give a value for each of its columns.",
        )
    versions = lives(store, table)
    types = {name: versions.schema[name].dataType for name in key}
    _refuse_unlike(store, key, types)
    for name, value in key.items():
        versions = versions.where(col(quoted(name)) == literal(value).cast(types[name]))
    return versions.orderBy(VALID_FROM)


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
