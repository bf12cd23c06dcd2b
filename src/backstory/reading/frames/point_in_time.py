"""Questions about points in time, on every layout of a warehouse."""

from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.reading.frames.knowledge import source_at
from backstory.reading.frames.records import of_record
from backstory.reading.frames.versions import HISTORIES, open_rows, shown_key, versions
from backstory.reading.selection import EVERYTHING, Selection
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def current(
    store: Store, table: TableName, known_at: datetime | None = None, selection: Selection = EVERYTHING
) -> "DataFrame":
    """The rows that are true now: the user's columns, and `valid_from` and `valid_to` with a history.

    With `known_at` those that were held to be true then.
    """
    from pyspark.sql.functions import col

    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    if shape.layout in HISTORIES:
        return selected(versions(store, table, known_at).where(col(VALID_TO).isNull()), shape, selection)
    users = (column(each.name).alias(each.source) for each in shape.user_columns)
    rows = store.spark.sql(f"SELECT * FROM {source}")  # noqa: S608 - a table's name in quotes
    return selected(_not_deleted(rows, shape).select(*users), shape, selection)


def selected(rows: "DataFrame", shape: Shape, selection: Selection) -> "DataFrame":
    """Those of the rows and columns that were chosen; what can hold the record is all that Spark reads."""
    if selection.key is not None:
        rows = of_record(rows, shape, selection.key)
    names = selection.chosen(shape.table, shown_key(shape), rows.columns)
    return rows.select(*map(column, names))


def keeps_all(shape: Shape) -> bool:
    """Whether all rows of a table are true now."""
    marks = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    return not marks and shape.layout not in HISTORIES


def delivered_rows(store: Store, stored: StoredTable) -> "DataFrame":
    """The rows of a table that are true now, with every column."""
    if stored.shape.layout in HISTORIES:
        return open_rows(store, stored)
    return _not_deleted(store.spark.table(store.sql_name(stored.shape.table)), stored.shape)


def _not_deleted(rows: "DataFrame", shape: Shape) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    if shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED):
        return rows.where(~col(DELETED).eqNullSafe(lit(True)))
    return rows


def as_of(
    store: Store,
    table: TableName,
    time: datetime,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
) -> "DataFrame":
    """The rows that were true at `time`, by what is known now or was at `known_at`.

    Raises UsageError for a table that keeps no history, and what `source_at` raises.
    """
    held = versions(store, table, known_at).where(valid(time))
    if selection == EVERYTHING:
        return held
    return selected(held, source_at(store, existing(store, table), known_at)[1], selection)


def valid(time: datetime) -> "Column":
    """Whether a version was true at an instant; intervals are half-open (V99)."""
    from pyspark.sql.functions import col

    when = instant(micros_of(time))
    return (col(VALID_FROM) <= when) & (col(VALID_TO).isNull() | (col(VALID_TO) > when))


def timeline(store: Store, table: TableName, key: object) -> "DataFrame":
    """The versions of one record by their start; UsageError for what is no key of the table."""
    return of_record(versions(store, table), existing(store, table).shape, key).orderBy(VALID_FROM)
