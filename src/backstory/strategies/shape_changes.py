"""Operations on the shape, mode and old rows of a table, as data and as Changes of Iceberg tables.

Columns are named as in the table. The door has already refused invalid requests, such as an unknown column.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import singledispatch

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import array, coalesce, count, explode, lit, max_by, struct, unix_micros, when
from pyspark.sql.functions import max as greatest

from backstory.model.change import Change
from backstory.model.instant import MILLISECOND, TMAX
from backstory.model.layout import ACTIVE, DELETED, END, HISTORY_COLUMNS, ROW_ID, START, SYNCED, Layout
from backstory.model.table import Column as TableColumn
from backstory.model.table import Shape
from backstory.model.types import widens
from backstory.stores import port
from backstory.stores.iceberg.conditions import (
    change_where,
    grouping_columns,
    refuse_repeated,
    update_where,
    versions_overlap,
)
from backstory.stores.iceberg.frames import rows_of, rows_with_ids
from backstory.stores.iceberg.literals import column, instant, literal, micros_of, retype_rows
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.port import DISORDER


class TooEarly(ValueError):
    """A change to a history table's columns is older than one of the table's open versions."""


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """A constant value in the request."""

    value: object


@dataclass(frozen=True, slots=True)
class ValuesOf:
    """The values of another column in the same row."""

    column: str


Value = ConstantValue | ValuesOf


@dataclass(frozen=True, slots=True)
class Add:
    """Add `column`, which is the last column of `into`, with a value in every row (6.2, 6.6)."""

    into: Shape
    column: TableColumn
    value: Value


@dataclass(frozen=True, slots=True)
class SetValue:
    """Set the value in every row, including all versions (6.2, 6.5, 6.6)."""

    column: TableColumn
    value: Value


@dataclass(frozen=True, slots=True)
class AddInHistory:
    """Give each open version a successor at `time` with the value (6.3). `into` may have a new column."""

    column: TableColumn
    value: ConstantValue
    time: datetime
    into: Shape | None = None


@dataclass(frozen=True, slots=True)
class DropInHistory:
    """Give each open version with a value in the column a successor at `time` without the value (6.4)."""

    column: TableColumn
    time: datetime


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """Delete rows whose `synced` time is before an instant (2.7)."""

    synced: str
    before: datetime


@dataclass(frozen=True, slots=True)
class FlagBefore:
    """Flag rows as deleted if their `synced` time is before an instant (2.7)."""

    synced: str
    before: datetime
    flag: str


@dataclass(frozen=True, slots=True)
class EndBefore:
    """End open versions at the instant if their `synced` time is before it (2.7)."""

    synced: str
    before: datetime


@dataclass(frozen=True, slots=True)
class FillFlag:
    """Set the flag to FALSE where it is NULL (6.9, type 4)."""

    flag: str


@dataclass(frozen=True, slots=True)
class ToHistory:
    """Turn a live or soft-delete table into a history table (6.8).

    Live rows start at the newest sync time in the table, or at `now` if no row has one.
    """

    into: Shape
    flag: str
    now: datetime


@dataclass(frozen=True, slots=True)
class ToSoftDelete:
    """Keep the newest version of each key of a history table, flagged if it is closed (6.8, type 2)."""

    into: Shape
    flag: str


@dataclass(frozen=True, slots=True)
class SoftDeleteToLive:
    """Delete flagged rows (6.9, type 0)."""

    into: Shape
    flag: str


@dataclass(frozen=True, slots=True)
class HistoryToLive:
    """Keep the newest version of each key, if it is open or `keep_deleted` is set (6.9, type 3)."""

    into: Shape
    keep_deleted: bool


@dataclass(frozen=True, slots=True)
class LiveToHistory:
    """Make every row an open version that starts now (6.9, type 5)."""

    into: Shape
    now: datetime


@dataclass(frozen=True, slots=True)
class Reshape:
    """Change columns, types or key (2.6). The change is refused if a value cannot be cast exactly."""

    before: Shape
    into: Shape

    @property
    def retyped_columns(self) -> list[TableColumn]:
        """The columns whose stored values must be rewritten."""
        stored = {column.name: column.type for column in self.before.columns}
        return [c for c in self.into.columns if c.name in stored and not widens(stored[c.name], c.type)]

    @property
    def unique_by(self) -> list[str] | None:
        """The columns that must be unique in the data, or None if the new key is certainly unique.

        A key that only gains columns stays unique; any other key must be checked.
        """
        new_types = self.retyped_columns
        only_grows = set(self.before.key) <= set(self.into.key)
        if only_grows and not {column.name for column in new_types} & set(self.into.key):
            return None
        start = [START] if self.of_history else []
        return [*(name for name in self.into.key if new_types or self.before.column(name)), *start]

    @property
    def of_history(self) -> bool:
        """Whether rows are versions, which may overlap if the new key merges several records."""
        return self.before.layout is Layout.FIVETRAN_HISTORY


Rewriting = Add | ToHistory | ToSoftDelete | SoftDeleteToLive | HistoryToLive | LiveToHistory
Touching = SetValue | AddInHistory | DropInHistory | DeleteBefore | FlagBefore | EndBefore | FillFlag
Operation = Rewriting | Touching | Reshape
_OPEN_END = micros_of(TMAX)


def differs(name: str, value: Column) -> Column:
    """A condition for whether the column has another value."""
    return ~column(name).eqNullSafe(value)


def touched_at(name: str, value: Column, moment: int, *, where: Column | None = None) -> Column:
    """A condition for whether a column's change at `moment` (microseconds) affects a version (6.3 and 6.4).

    It affects versions that start at the moment and have another value, and open versions that start earlier.
    `where` restricts the latter.
    """
    before = column(ACTIVE) & (column(START) < instant(moment))
    return ((column(START) == instant(moment)) & differs(name, value)) | (
        before if where is None else before & where
    )


def with_successors(rows: DataFrame, name: str, value: Column, moment: int) -> DataFrame:
    """The versions, closed before the moment and followed by successors with the new value.

    `rows` are the versions that `touched_at` selects, which keep their ids. A version that starts at the
    moment gets the value itself.
    """
    turn, starts_then = f"turn {uuid.uuid4()}", column(START) == instant(moment)
    # One row for a version that starts at the moment. Two rows for an earlier one: itself and its successor.
    turns = when(starts_then, array(lit(True))).otherwise(array(lit(False), lit(True)))
    rows = rows.withColumn(turn, explode(turns))
    new = column(turn)
    closes = ~new
    follows = new & (column(START) < instant(moment))
    ids = {ROW_ID: when(~follows, column(ROW_ID))} if ROW_ID in rows.columns else {}
    return rows.withColumns(
        {
            **ids,
            name: when(new, value).otherwise(column(name)),
            START: when(follows, instant(moment)).otherwise(column(START)),
            END: when(closes, instant(moment - MILLISECOND))
            .when(follows, instant(_OPEN_END))
            .otherwise(column(END)),
            ACTIVE: when(closes, lit(False)).when(follows, lit(True)).otherwise(column(ACTIVE)),
        }
    ).drop(turn)


def to_history(rows: DataFrame, flag: str, start: int) -> DataFrame:
    """The rows of a table without history as versions.

    Live rows start at `start`. Deleted rows start and end in 1970.
    """
    deleted = coalesce(column(flag), lit(False)) if flag in rows.columns else lit(False)
    return rows.withColumns(
        {
            START: when(deleted, instant(0)).otherwise(instant(start)),
            END: when(deleted, instant(0)).otherwise(instant(_OPEN_END)),
            ACTIVE: ~deleted,
        }
    ).drop(DELETED)


def to_soft_delete(rows: DataFrame, key: Sequence[str], flag: str) -> DataFrame:
    """The newest version of each key as a row, flagged if it is closed."""
    newest = newest_versions(rows, key)
    if flag != DELETED:
        newest = newest.withColumn(DELETED, lit(False))
    closed = ~coalesce(column(ACTIVE), lit(False))
    return newest.withColumn(flag, closed).drop(*HISTORY_COLUMNS)


def newest_versions(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """For each key, the version with the greatest start. NULL counts as the smallest start."""
    age = struct(column(START), coalesce(column(ACTIVE), lit(False)), column(END))
    whole = struct(*map(column, rows.columns))
    version = f"version {uuid.uuid4()}"
    newest = rows.groupBy(*grouping_columns(rows, key)).agg(max_by(whole, age).alias(version))
    return newest.select(*(column(version).getField(name).alias(name) for name in rows.columns))


@singledispatch
def change_of(store: port.Store, table: port.StoredTable, operation: Operation) -> Change | None:
    """The Change for an operation, or None if there is nothing to do.

    Raises TooEarly if an open version starts after the change. Raises Refused if values do not fit a new
    type, or if rows would share a key.
    """
    raise NotImplementedError(store)


@change_of.register(IcebergStore)
def _on_iceberg(store: IcebergStore, table: IcebergTable, operation: Operation) -> Change | None:
    if isinstance(operation, Reshape):
        return _reshape(store, table, operation)
    if isinstance(operation, Rewriting):
        rows = _rewrite_rows(rows_with_ids(store, table), operation)
        return Change(added=rows, into=operation.into, whole=True, count_as="rewritten")
    return _touch_rows(store, table, operation)


def _rewrite_rows(rows: DataFrame, operation: Rewriting) -> DataFrame:
    match operation:
        case Add(column=added, value=value):
            return rows.withColumn(added.name, _value(value, added))
        case ToHistory(flag=flag, now=now):
            synced = unix_micros(greatest(column(SYNCED))).alias("newest")
            last = rows.agg(synced).collect()[0].newest if SYNCED in rows.columns else None
            return to_history(rows, flag, micros_of(now) if last is None else last)
        case ToSoftDelete(into=into, flag=flag):
            return to_soft_delete(rows, into.key, flag)
        case SoftDeleteToLive(flag=flag):
            live = rows.where(~coalesce(column(flag), lit(False))) if flag in rows.columns else rows
            return live.drop(DELETED) if flag == DELETED else live
        case HistoryToLive(into=into, keep_deleted=keep_deleted):
            newest = newest_versions(rows, into.key)
            return (newest if keep_deleted else newest.where(column(ACTIVE))).drop(*HISTORY_COLUMNS)
        case LiveToHistory(now=now):
            start = instant(micros_of(now))
            return rows.withColumns({START: start, END: instant(_OPEN_END), ACTIVE: lit(True)})


def _touch_rows(store: IcebergStore, table: IcebergTable, operation: Touching) -> Change | None:
    match operation:
        case SetValue(column=changed, value=value):
            new_value = _value(value, changed)
            return update_where(store, table, differs(changed.name, new_value), {changed.name: new_value})
        case AddInHistory() | DropInHistory():
            return _change_in_history(store, table, operation)
        case DeleteBefore(synced, before):
            return change_where(store, table, column(synced) < instant(micros_of(before)))
        case FlagBefore(synced, before, flag):
            unflagged = ~column(flag).eqNullSafe(lit(True))
            old = column(synced) < instant(micros_of(before))
            return update_where(store, table, old & unflagged, {flag: lit(True)})
        case EndBefore(synced, before):
            end = instant(micros_of(before))
            ended = {ACTIVE: lit(False), END: end}
            return update_where(store, table, (column(synced) < end) & column(ACTIVE), ended)
        case FillFlag(flag):
            return update_where(store, table, column(flag).isNull(), {flag: lit(False)})


def _change_in_history(
    store: IcebergStore, table: IcebergTable, operation: AddInHistory | DropInHistory
) -> Change | None:
    name, time = operation.column.name, micros_of(operation.time)
    into = operation.into if isinstance(operation, AddInHistory) else None
    if not _has_open_versions(store, table, time):
        return Change(into=into) if into else None
    if isinstance(operation, AddInHistory):
        value, where = _value(operation.value, operation.column), None
    else:
        value, where = lit(None).cast(spark_type(operation.column.type)), column(name).isNotNull()
    touched = touched_at(name, value, time, where=where)
    return change_where(
        store, table, touched, lambda rows: with_successors(rows, name, value, time), into=into
    )


def _has_open_versions(store: IcebergStore, table: IcebergTable, time: int) -> bool:
    """Whether the table has open versions. Raises TooEarly if one starts after `time`."""
    if not table.rows:
        return False
    newest = unix_micros(greatest(column(START))).alias("newest")
    open_ = rows_of(store, table).where(column(ACTIVE))
    counts = open_.agg(count(lit(1)).alias("open"), newest).collect()[0]
    if counts.newest is not None and counts.newest > time:
        raise TooEarly
    return bool(counts.open)


def _reshape(store: IcebergStore, table: IcebergTable, operation: Reshape) -> Change:
    """Change only the schema if the stored values can stay as they are. Otherwise rewrite the rows."""
    into, new_types, by = operation.into, operation.retyped_columns, operation.unique_by
    if not table.rows or (not new_types and by is None):
        return Change(into=into)
    rows = rows_with_ids(store, table)
    if new_types:
        rows = retype_rows(rows, into.columns, {each.name: each.type for each in operation.before.columns})
    marks: dict[str, str | None] = {}
    if by is not None:
        refuse_repeated(into.table, rows, into.source_key, by)
        if operation.of_history and versions_overlap(into.table, rows, by):
            marks = {DISORDER: "true"}
    if not new_types:
        return Change(into=into, properties=marks)
    return Change(added=rows, into=into, whole=True, count_as="rewritten", properties=marks)


def _value(value: Value, of: TableColumn) -> Column:
    """The value as a Spark expression of the column's type."""
    if isinstance(value, ValuesOf):
        return column(value.column)
    return literal(value.value).cast(spark_type(of.type))
