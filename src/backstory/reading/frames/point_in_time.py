"""Questions about points in time, on every layout of a warehouse.

The statements of one record, with the commit that made each.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.instant import parse_instant
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName
from backstory.reading.frames.versions import (
    HISTORIES,
    RECORDING,
    open_rows,
    record_rows,
    shown_key,
    statements,
    versions,
)
from backstory.reading.histories import require_knowledge, source_at
from backstory.reading.selection import EVERYTHING, Selection, shown_key_of
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.metadata.catalogs import SessionCatalog
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.values import rows_of

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
        return select_rows(versions(store, table, known_at).where(col(VALID_TO).isNull()), shape, selection)
    users = (column(each.name).alias(each.source) for each in shape.user_columns)
    rows = store.spark.sql(f"SELECT * FROM {source}")  # noqa: S608 - a table's name in quotes
    return select_rows(_not_deleted(rows, shape).select(*users), shape, selection)


def select_rows(rows: "DataFrame", shape: Shape, selection: Selection) -> "DataFrame":
    """Those of the rows and columns that were chosen; what can hold the record is all that Spark reads."""
    if selection.key is not None:
        rows = record_rows(rows, shape, selection.key)
    names = selection.select(shape.table, shown_key(shape), rows.columns)
    return rows.select(*map(column, names))


def all_are_current(shape: Shape) -> bool:
    """Whether all rows of a table are true now."""
    marks = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    return not marks and shape.layout not in HISTORIES


def current_table_rows(store: Store, stored: StoredTable) -> "DataFrame":
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
    held = versions(store, table, known_at).where(is_true_at(time))
    if selection == EVERYTHING:
        return held
    return select_rows(held, source_at(store, existing(store, table), known_at)[1], selection)


def is_true_at(time: datetime) -> "Column":
    """Whether a version was true at an instant; intervals are half-open (V99)."""
    from pyspark.sql.functions import col

    when = instant(micros_of(time))
    return (col(VALID_FROM) <= when) & (col(VALID_TO).isNull() | (col(VALID_TO) > when))


def record_versions(store: Store, table: TableName, key: object) -> "DataFrame":
    """The versions of one record by their start; UsageError for what is no key of the table."""
    return record_rows(versions(store, table), existing(store, table).shape, key).orderBy(VALID_FROM)


def life(
    store: Store,
    table: TableName,
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's life: what is told of it now, was at `known_at`, or, on `axis` both, ever was.

    With `columns` only these are told, beside the key. Raises UsageError for what is no key of the table and
    for a table that keeps no history, and what reading at a known time raises.
    """
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout in RECORDING:
        if known_at is not None:
            require_knowledge(stored, known_at)
        told = statements(store, table, key)
    else:
        rows = versions(store, table, known_at)
        shape = source_at(store, stored, known_at)[1]
        told = record_rows(rows, shape, key)
    wanted = shown_key_of(shape, key)
    names = Selection(columns=columns).select(table, list(wanted), told.columns)
    with translate_faults(table):
        found = rows_of(arrow_of(told.select(*map(column, names))))
    commits = commits_by_recorded_time(SessionCatalog(store).describe(table))
    return timeline_of(table, wanted, found, commits, axis, known_at)


def commits_by_recorded_time(found: TableMetadata | None) -> dict[datetime, int]:
    """The commits of a table that are kept, by the recorded time that each tells."""
    named = None if found is None else RECORDING.get(found.shape.layout)
    if named is None or found is None:
        return {}
    told = ((commit.properties.get(named), commit.id) for commit in found.commits)
    return {parse_instant(time): snapshot for time, snapshot in told if time}
