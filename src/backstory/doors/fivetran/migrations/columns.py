"""Migrations of a column: add, drop, set, rename, copy (sections 6.2 to 6.6)."""

from dataclasses import replace

from backstory.doors.fivetran.definitions import stored_as, type_from
from backstory.doors.fivetran.migrations.subject import Subject, refused, time, user_column, value
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.change import Change
from backstory.model.layout import SYSTEM_COLUMNS
from backstory.model.schema import Column
from backstory.stores.names import stored_names
from backstory.strategies.shape_changes.operations import (
    Add,
    AddInHistory,
    DropInHistory,
    SetValue,
    Value,
    ValuesOf,
)


def add_with_default(subject: Subject, asked: sdk.AddColumnWithDefaultValue) -> Change | None:
    """Add the column, and give every row the value, also if the column was there (6.2)."""
    column = _new_column(subject, asked)
    given = value(asked.default_value, column)
    if column in subject.shape.columns:
        return _set(subject, column, given)
    return subject.change(Add(subject.having(column), column, given))


def _new_column(
    subject: Subject, asked: sdk.AddColumnWithDefaultValue | sdk.AddColumnInHistoryMode
) -> Column:
    """The column to add, as the table would have it."""
    name = user_column(asked.column)
    return subject.becoming(name, type_from(common.Column(name=name, type=asked.column_type)))


def _set(subject: Subject, column: Column, given: Value) -> Change | None:
    subject.require_values(column)
    return subject.change(SetValue(column, given))


def update_value(subject: Subject, asked: sdk.UpdateColumnValueOperation) -> Change | None:
    """Give every row the value, all versions included (6.5)."""
    column = subject.column(asked.column)
    return _set(subject, column, value(asked.value, column))


def add_in_history(subject: Subject, asked: sdk.AddColumnInHistoryMode) -> Change | None:
    """Add the column, and give each open version a successor with the value (6.3)."""
    subject.require_history()
    column = _new_column(subject, asked)
    is_new = column not in subject.shape.columns
    if not is_new:
        subject.require_values(column)
    given, instant = value(asked.default_value, column), time(asked.operation_timestamp)
    into = subject.having(column) if is_new else None
    return subject.change(AddInHistory(column, given, instant, into))


def drop_in_history(subject: Subject, asked: sdk.DropColumnInHistoryMode) -> Change | None:
    """Give each open version that has a value a successor without; the column stays (6.4)."""
    subject.require_history()
    column = subject.shape.called(asked.column)
    instant = time(asked.operation_timestamp)
    if column is None:
        return None
    subject.require_values(column)
    return subject.change(DropInHistory(column, instant))


def rename(subject: Subject, asked: sdk.RenameColumn) -> Change | None:
    """Give the column another name; type, values and key stay (6.6)."""
    shape = subject.shape
    old, new = asked.from_column, user_column(asked.to_column)
    if shape.called(old) is None and shape.called(new):
        return None
    column = subject.column(old)
    if shape.called(new):
        raise refused(f"{shape.table} already has a column {new!r}.", "Choose another name.")
    if old in SYSTEM_COLUMNS:
        raise refused(f"{old} is a system column: later requests name it.", "Name another column.")
    others = [each for each in shape.columns if each is not column]
    renamed = stored_as(Column(new, column.type), stored_names(subject.store.reserves, [new], others))
    columns = tuple(renamed if each is column else each for each in shape.columns)
    key = tuple(renamed.name if name == column.name else name for name in shape.key)
    into = replace(shape, columns=columns, key=key)
    return Change(into=into, renamed={column.name: renamed.name})


def copy(subject: Subject, asked: sdk.CopyColumn) -> Change | None:
    """Give the target the source's values; it is added if it is not there (6.6)."""
    source = subject.column(asked.from_column)
    target = subject.becoming(user_column(asked.to_column), source.type)
    if target not in subject.shape.columns:
        return subject.change(Add(subject.having(target), target, ValuesOf(source.name)))
    if target.type == source.type:
        return _set(subject, target, ValuesOf(source.name))
    raise refused(
        f"{target.source} is {target.type}, {source.source} is {source.type}.", "Copy to another column."
    )
