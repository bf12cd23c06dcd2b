"""The rows of a table that are true now or at a time, and one record's life, as Spark frames."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.instant import parse_instant
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName
from backstory.reading.frames.versions import open_rows, record_rows, source_at, statements, versions
from backstory.reading.histories import HISTORIES, RECORDING, require_knowledge, shown_key
from backstory.reading.lifetimes import SPARK, TRUE_AT
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
    from pyspark.sql import Column, DataFrame


def current(
    store: IcebergStore, table: TableName, known_at: datetime | None = None, selection: Selection = EVERYTHING
) -> "DataFrame":
    """The rows that are true now: the user's columns, and with a history `valid_from` and `valid_to`.

    `known_at` gives the rows as they were known then.
    """
    from pyspark.sql.functions import col

    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    if shape.layout in HISTORIES:
        return select_rows(versions(store, table, known_at).where(col(VALID_TO).isNull()), shape, selection)
    users = (column(each.name).alias(each.source) for each in shape.user_columns)
    rows = store.spark.sql(f"SELECT * FROM {source}")  # noqa: S608 - a table's name in quotes
    return select_rows(_not_deleted(rows, shape).select(*users), shape, selection)


def select_rows(rows: "DataFrame", shape: Shape, selection: Selection) -> "DataFrame":
    """The selected rows and columns; Spark reads only files that may contain the record."""
    if selection.key is not None:
        rows = record_rows(rows, shape, selection.key)
    names = selection.select(shape.table, shown_key(shape), rows.columns)
    return rows.select(*map(column, names))


def all_are_current(shape: Shape) -> bool:
    """Whether all rows of a table are true now."""
    marks = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    return not marks and shape.layout not in HISTORIES


def current_table_rows(store: IcebergStore, stored: IcebergTable) -> "DataFrame":
    """The rows of a table that are true now, with all columns."""
    if stored.shape.layout in HISTORIES:
        return open_rows(store, stored)
    return _not_deleted(store.spark.table(store.sql_name(stored.shape.table)), stored.shape)


def _not_deleted(rows: "DataFrame", shape: Shape) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    if shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED):
        return rows.where(~col(DELETED).eqNullSafe(lit(True)))
    return rows


def as_of(
    store: IcebergStore,
    table: TableName,
    time: datetime,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
) -> "DataFrame":
    """The rows that were true at `time`, as known now or at `known_at`.

    Raises UsageError if the table keeps no history, and the errors of `source_at`.
    """
    rows = versions(store, table, known_at).where(is_true_at(time))
    if selection == EVERYTHING:
        return rows
    return select_rows(rows, source_at(store, existing(store, table), known_at)[1], selection)


def is_true_at(time: datetime) -> "Column":
    """Whether a version was true at an instant; intervals are half-open (V99)."""
    from pyspark.sql.functions import expr

    return expr(TRUE_AT.format(started=VALID_FROM, ended=VALID_TO, at=SPARK.at(micros_of(time))))


def record_versions(store: IcebergStore, table: TableName, key: object) -> "DataFrame":
    """The versions of one record, sorted by their start; UsageError if it is not a key of the table."""
    return record_rows(versions(store, table), existing(store, table).shape, key).orderBy(VALID_FROM)


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
        statement_rows = statements(store, table, key)
    else:
        rows = versions(store, table, known_at)
        shape = source_at(store, stored, known_at)[1]
        statement_rows = record_rows(rows, shape, key)
    shown_key = shown_key_of(shape, key)
    names = Selection(columns=columns).select(table, list(shown_key), statement_rows.columns)
    with translate_faults(table):
        life_rows = rows_of(arrow_of(statement_rows.select(*map(column, names))))
    commits = commits_by_recorded_time(SessionCatalog(store).describe(table))
    return timeline_of(table, shown_key, life_rows, commits, axis, known_at)


def commits_by_recorded_time(table: TableMetadata | None) -> dict[datetime, int]:
    """The snapshot ids of a table's kept commits, by the recorded time in their properties."""
    time_property = None if table is None else RECORDING.get(table.shape.layout)
    if time_property is None or table is None:
        return {}
    times = ((commit.properties.get(time_property), commit.id) for commit in table.commits)
    return {parse_instant(time): snapshot for time, snapshot in times if time}
