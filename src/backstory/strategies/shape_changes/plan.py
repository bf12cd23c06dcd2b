"""Operations on a table of Iceberg: each as the Change that Spark's frames make of it."""

from functools import singledispatch
from typing import TYPE_CHECKING

from backstory.model.change import Change
from backstory.model.layout import ACTIVE, END, SYNCED
from backstory.model.schema import Column as TableColumn
from backstory.stores import port
from backstory.stores.iceberg.conditions import change_where, delete_where, update_where
from backstory.stores.iceberg.frames import rows_of, rows_with_ids
from backstory.stores.iceberg.literals import column, instant, literal, micros_of
from backstory.stores.iceberg.retype import retype_rows
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.unique import overlap, refuse_repeated
from backstory.stores.port import DISORDER
from backstory.strategies.shape_changes import frames
from backstory.strategies.shape_changes.operations import (
    Add,
    AddInHistory,
    DeleteBefore,
    DropInHistory,
    EndBefore,
    FillFlag,
    FlagBefore,
    HistoryToLive,
    LiveToHistory,
    Operation,
    Reshape,
    Rewriting,
    SetValue,
    SoftDeleteToLive,
    ToHistory,
    TooEarly,
    ToSoftDelete,
    Touching,
    Value,
    ValuesOf,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@singledispatch
def change_of(store: port.Store, table: port.StoredTable, operation: Operation) -> Change | None:
    """The Change that the operation is, None if there is nothing to do.

    Raises TooEarly for a change that an open version is younger than, Refused for values that do not fit
    another type, and for a key that rows would share.
    """
    raise NotImplementedError(store)


@change_of.register(Store)
def _on_iceberg(store: Store, table: StoredTable, operation: Operation) -> Change | None:
    if isinstance(operation, Reshape):
        return _reshaped(store, table, operation)
    if isinstance(operation, Rewriting):
        rows = _rewritten(rows_with_ids(store, table), operation)
        return Change(come=rows, into=operation.into, whole=True, counted="rewritten")
    return _touched(store, table, operation)


def _rewritten(rows: "DataFrame", operation: Rewriting) -> "DataFrame":
    match operation:
        case Add(column=added, value=value):
            return rows.withColumn(added.name, _value(value, added))
        case ToHistory(flag=flag, now=now):
            newest = frames.newest_sync(rows).collect()[0].newest if SYNCED in rows.columns else None
            return frames.to_history(rows, flag, micros_of(now) if newest is None else newest)
        case ToSoftDelete(into=into, flag=flag):
            return frames.to_soft_delete(rows, into.key, flag)
        case SoftDeleteToLive(flag=flag):
            return frames.soft_delete_to_live(rows, flag)
        case HistoryToLive(into=into, keep_deleted=keep_deleted):
            return frames.history_to_live(rows, into.key, keep_deleted=keep_deleted)
        case LiveToHistory(now=now):
            return frames.live_to_history(rows, micros_of(now))


def _touched(store: Store, table: StoredTable, operation: Touching) -> Change | None:
    from pyspark.sql.functions import lit

    match operation:
        case SetValue(column=changed, value=value):
            given = _value(value, changed)
            return update_where(store, table, frames.differs(changed.name, given), {changed.name: given})
        case AddInHistory() | DropInHistory():
            return _re_versioned(store, table, operation)
        case DeleteBefore(synced, before):
            return delete_where(store, table, column(synced) < instant(micros_of(before)))
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


def _re_versioned(store: Store, table: StoredTable, operation: AddInHistory | DropInHistory) -> Change | None:
    from pyspark.sql.functions import lit

    name, time = operation.column.name, micros_of(operation.time)
    into = operation.into if isinstance(operation, AddInHistory) else None
    if not _open_at(store, table, time):
        return Change(into=into) if into else None
    if isinstance(operation, AddInHistory):
        value, where = _value(operation.value, operation.column), None
    else:
        value, where = lit(None).cast(spark_type(operation.column.type)), column(name).isNotNull()
    touched = frames.re_versioned(name, value, time, where=where)
    return change_where(
        store, table, touched, lambda rows: frames.succeeded(rows, name, value, time), into=into
    )


def _open_at(store: Store, table: StoredTable, time: int) -> bool:
    """Whether there are open versions; TooEarly if one of them starts later."""
    if not table.rows:
        return False
    found = frames.newest_open_start(rows_of(store, table)).collect()[0]
    if found.newest is not None and found.newest > time:
        raise TooEarly
    return bool(found.open)


def _reshaped(store: Store, table: StoredTable, operation: Reshape) -> Change:
    """Of the schema alone where stored values can stay as they are."""
    into, new_types, by = operation.into, operation.retyped, operation.unique_by
    if not table.rows or (not new_types and by is None):
        return Change(into=into)
    rows = rows_with_ids(store, table)
    if new_types:
        rows = retype_rows(rows, into.columns, {each.name: each.type for each in operation.before.columns})
    marks: dict[str, str | None] = {}
    if by is not None:
        refuse_repeated(into.table, rows, into.source_key, by)
        if operation.of_history and overlap(into.table, rows, by):
            marks = {DISORDER: "true"}
    if not new_types:
        return Change(into=into, properties=marks)
    return Change(come=rows, into=into, whole=True, counted="rewritten", properties=marks)


def _value(value: Value, of: TableColumn) -> "Column":
    """The value as an expression of the column's type."""
    if isinstance(value, ValuesOf):
        return column(value.column)
    return literal(value.value).cast(spark_type(of.type))
