"""Migrations of a column: add, drop, set, rename, copy (sections 6.2 to 6.6)."""

from dataclasses import replace
from typing import TYPE_CHECKING

from backstory.doors.fivetran.definitions import stored_as, type_from
from backstory.doors.fivetran.migrations.subject import Subject, refused, rewritten, time, user_column, value
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.change import Change
from backstory.model.layout import SYSTEM_COLUMNS
from backstory.model.schema import Column
from backstory.stores.iceberg.conditions import change_where, update_where
from backstory.stores.iceberg.frames import rows_of
from backstory.stores.iceberg.literals import column as values_of
from backstory.stores.iceberg.schema import stored_names
from backstory.strategies.shape_changes import plan

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression


def add_with_default(subject: Subject, asked: sdk.AddColumnWithDefaultValue) -> Change | None:
    """Add the column, and give every row the value, also if the column was there (6.2)."""
    column = _asked_column(subject, asked)
    given = value(asked.default_value, column)
    if column in subject.shape.columns:
        return _set(subject, column, given)
    return _add(subject, column, given)


def _asked_column(
    subject: Subject, asked: sdk.AddColumnWithDefaultValue | sdk.AddColumnInHistoryMode
) -> Column:
    name = user_column(asked.column)
    return subject.becoming(name, type_from(common.Column(name=name, type=asked.column_type)))


def _add(subject: Subject, column: Column, given: "Expression") -> Change | None:
    rows = rows_of(subject.store, subject.table).withColumn(column.name, given)
    return rewritten(subject.having(column), rows)


def _set(subject: Subject, column: Column, given: "Expression") -> Change | None:
    subject.require_values(column)
    others = plan.differs(column.name, given)
    return update_where(subject.store, subject.table, others, {column.name: given})


def update_value(subject: Subject, asked: sdk.UpdateColumnValueOperation) -> Change | None:
    """Give every row the value, all versions included (6.5)."""
    column = subject.column(asked.column)
    return _set(subject, column, value(asked.value, column))


def add_in_history(subject: Subject, asked: sdk.AddColumnInHistoryMode) -> Change | None:
    """Add the column, and give each open version a successor with the value (6.3)."""
    subject.require_history()
    column = _asked_column(subject, asked)
    is_new = column not in subject.shape.columns
    if not is_new:
        subject.require_values(column)
    given, at = value(asked.default_value, column), time(asked.operation_timestamp)
    into = subject.having(column) if is_new else None
    if not _open_at(subject, at):
        return Change(into=into) if into else None
    return change_where(
        subject.store,
        subject.table,
        plan.re_versioned(column.name, given, at),
        lambda rows: plan.succeeded(rows, column.name, given, at),
        into=into,
    )


def drop_in_history(subject: Subject, asked: sdk.DropColumnInHistoryMode) -> Change | None:
    """Give each open version that has a value a successor without; the column stays (6.4)."""
    subject.require_history()
    column = subject.shape.called(asked.column)
    at = time(asked.operation_timestamp)
    if column is None:
        return None
    subject.require_values(column)
    if not _open_at(subject, at):
        return None
    nothing = value("NULL", column)
    touched = plan.re_versioned(column.name, nothing, at, where=values_of(column.name).isNotNull())
    return change_where(
        subject.store, subject.table, touched, lambda rows: plan.succeeded(rows, column.name, nothing, at)
    )


def _open_at(subject: Subject, at: int) -> bool:
    """Whether there are open versions; Refused if one of them starts later."""
    if not subject.table.rows:
        return False
    found = plan.newest_open_start(rows_of(subject.store, subject.table)).collect()[0]
    if found.newest is not None and found.newest > at:
        raise refused(
            f"{subject.shape.table} has open versions that start after the operation's time.",
            "Send a later time.",
        )
    return bool(found.open)


def rename(subject: Subject, asked: sdk.RenameColumn) -> Change | None:
    """Give the column another name; type, values and key stay (6.6)."""
    shape = subject.shape
    old, new = asked.from_column, user_column(asked.to_column)
    if shape.called(old) is None and shape.called(new):
        return None
    column = subject.column(old)
    if shape.called(new):
        raise refused(f"{shape.table} has a column {new!r} already.", "Choose another name.")
    if old in SYSTEM_COLUMNS:
        raise refused(f"{old} is a system column: later requests name it.", "Name another column.")
    others = [each for each in shape.columns if each is not column]
    renamed = stored_as(Column(new, column.type), stored_names(subject.store.jvm, [new], others))
    columns = tuple(renamed if each is column else each for each in shape.columns)
    key = tuple(renamed.name if name == column.name else name for name in shape.key)
    into = replace(shape, columns=columns, key=key)
    return Change(into=into, renamed={column.name: renamed.name})


def copy(subject: Subject, asked: sdk.CopyColumn) -> Change | None:
    """Give the target the source's values; it is added if it is not there (6.6)."""
    source = subject.column(asked.from_column)
    target = subject.becoming(user_column(asked.to_column), source.type)
    if target not in subject.shape.columns:
        return _add(subject, target, values_of(source.name))
    if target.type == source.type:
        return _set(subject, target, values_of(source.name))
    raise refused(
        f"{target.source} is {target.type}, {source.source} is {source.type}.", "Copy to another column."
    )
