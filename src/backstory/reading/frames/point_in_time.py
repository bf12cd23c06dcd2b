"""The rows of a table that are true now or at a time, and one record's life, as Spark frames."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.instant import parse_instant
from backstory.model.layout import DELETED, Layout
from backstory.model.table import Shape, TableName
from backstory.reading.frames.versions import (
    lifetimes_sql,
    record_rows,
    shown_sql,
    source_at,
    statements,
    versions,
)
from backstory.reading.histories import (
    HISTORIES,
    RECORDING,
    history_of,
    require_knowledge,
    shown_key,
    warn_of_disorder,
)
from backstory.reading.lifetimes import SPARK, true_query
from backstory.reading.selection import EVERYTHING, Selection, shown_key_of
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, micros_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.metadata.catalogs import SessionCatalog
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.values import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_at(
    store: IcebergStore,
    table: TableName,
    time: datetime | None = None,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
) -> "DataFrame":
    """The rows that are true at an instant, by default now: the user's columns, and the times of a history.

    `known_at` gives the rows as they were known then. Intervals are half-open (V99). Raises UsageError for an
    instant if the table keeps no history, and the errors of `source_at`.
    """
    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    if time is not None or shape.layout in HISTORIES:
        history, instant = history_of(stored, shape), None if time is None else micros_of(time)
        warn_of_disorder(table, disorderly=stored.disorderly)
        query = true_query(SPARK, lifetimes_sql(stored, history, source, known_at), instant)
        rows = store.spark.sql(shown_sql(history, query))
    else:
        users = (column(each.name).alias(each.source) for each in shape.user_columns)
        live = store.spark.sql(f"SELECT * FROM {source}")  # noqa: S608 - a table's name in quotes
        rows = _not_deleted(live, shape).select(*users)
    if selection.key is not None:  # Spark reads only files that may contain the record
        rows = record_rows(rows, shape, selection.key)
    return rows.select(*map(column, selection.select(table, shown_key(shape), rows.columns)))


def all_are_current(shape: Shape) -> bool:
    """Whether all rows of a table are true now."""
    marks = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    return not marks and shape.layout not in HISTORIES


def current_table_rows(store: IcebergStore, stored: IcebergTable) -> "DataFrame":
    """The rows of a table that are true now, with all columns."""
    source = store.sql_name(stored.shape.table)
    rows = store.spark.table(source)
    if stored.shape.layout not in HISTORIES:
        return _not_deleted(rows, stored.shape)
    query = true_query(SPARK, lifetimes_sql(stored, history_of(stored), source), None)
    return store.spark.sql(query).select(*map(column, rows.columns))


def _not_deleted(rows: "DataFrame", shape: Shape) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    if shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED):
        return rows.where(~col(DELETED).eqNullSafe(lit(True)))
    return rows


def life(
    store: IcebergStore,
    table: TableName,
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's life as known now or at `known_at`; on `axis` both, all statements ever made.

    With `columns` it has only these and the key. Raises UsageError for another key and for a table that keeps
    no history, and the errors of `source_at`.
    """
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout in RECORDING:
        if known_at is not None:
            require_knowledge(stored, known_at)
        rows = statements(store, table)
    else:
        rows, shape = versions(store, table, known_at), source_at(store, stored, known_at)[1]
    rows, shown_key = record_rows(rows, shape, key), shown_key_of(shape, key)
    names = Selection(columns=columns).select(table, list(shown_key), rows.columns)
    with translate_faults(table):
        life_rows = rows_of(arrow_of(rows.select(*map(column, names))))
    commits = commits_by_recorded_time(SessionCatalog(store).describe(table))
    return timeline_of(table, shown_key, life_rows, commits, axis, known_at)


def commits_by_recorded_time(table: TableMetadata | None) -> dict[datetime, int]:
    """The snapshot ids of a table's kept commits, by the recorded time in their properties."""
    time_property = None if table is None else RECORDING.get(table.shape.layout)
    if time_property is None or table is None:
        return {}
    times = ((commit.properties.get(time_property), commit.id) for commit in table.commits)
    return {parse_instant(time): snapshot for time, snapshot in times if time}
