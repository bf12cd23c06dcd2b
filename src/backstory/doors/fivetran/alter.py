"""AlterTable: the full desired definition against the table as it stands (section 2.6)."""

from dataclasses import replace

from backstory.doors.fivetran.definitions import columns_from, key_from, refuse_foreign, stored_as
from backstory.doors.fivetran.notes import note
from backstory.doors.fivetran.own_tables import existing
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.engine.deliver import TableChange, deliver
from backstory.errors import Refused
from backstory.model.change import Change
from backstory.model.layout import HISTORY_COLUMNS, START, Layout
from backstory.model.schema import Column, Shape
from backstory.model.table import TableName
from backstory.model.types import Kind, related, widens
from backstory.stores.iceberg.frames import rows_of
from backstory.stores.iceberg.retype import retyped
from backstory.stores.iceberg.schema import stored_names
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.unique import refuse_repeated


def alter(store: Store, table: TableName, definition: common.Table, *, drop_columns: bool) -> bool:
    """Add, retype, re-key and, with `drop_columns`, drop, in one commit; whether anything changed."""

    def plan() -> tuple[StoredTable, Change | None]:
        stored = existing(store, table)
        refuse_foreign(stored.shape)
        into = _wanted(store, stored.shape, definition, drop_columns=drop_columns)
        if _same(stored.shape, into):
            return stored, None
        _refuse(stored.shape, into)
        return stored, _change(store, stored, into)

    told = note("alter", table, definition.SerializeToString(deterministic=True).hex(), drop_columns)
    return deliver(store, TableChange([table], told, plan)) is not None


def _wanted(store: Store, shape: Shape, definition: common.Table, *, drop_columns: bool) -> Shape:
    """The shape that the table shall have; a decimal without parameters keeps the stored ones."""
    key = key_from(definition.columns)
    if not key:
        raise Refused(
            "no-key", f"The definition of {shape.table} has no key column.", "Mark its key columns."
        )
    columns = columns_from(definition.columns)
    names = stored_names(store.jvm, [column.name for column in columns], shape.columns)
    told = {names[column.name]: stored_as(column, names) for column in columns}
    for column in definition.columns:
        stored = shape.called(column.name)
        bare = column.type == common.DataType.DECIMAL and not column.params.HasField("decimal")
        if bare and stored and stored.type.kind is Kind.DECIMAL:
            told[stored.name] = stored
    kept = [told.get(c.name, c) for c in shape.columns if c.name in told or not drop_columns]
    new = [column for name, column in told.items() if shape.column(name) is None]
    return replace(shape, columns=(*kept, *new), key=tuple(names[name] for name in key))


def _same(shape: Shape, into: Shape) -> bool:
    return shape.columns == into.columns and set(shape.key) == set(into.key)


def _refuse(shape: Shape, into: Shape) -> None:
    for column in shape.columns:
        new = into.column(column.name)
        if new and not related(column.type, new.type):
            raise Refused(
                "type-change",
                f"The column {column.source} of {shape.table} cannot change "
                f"from {column.type} to {new.type}.",
                "The table is unchanged; add a column of the new type instead.",
            )
    history = HISTORY_COLUMNS if shape.layout is Layout.FIVETRAN_HISTORY else ()
    for name in history:
        if into.column(name) != shape.column(name):
            raise Refused(
                "needed-column",
                f"The column {name} of {shape.table} is part of its history.",
                "Migrate the table to another mode instead.",
            )


def _change(store: Store, stored: StoredTable, into: Shape) -> Change:
    """The change itself: of the schema alone where stored values can stay as they are."""
    shape = stored.shape
    new_types = [c for c in into.columns if _rewritten(shape, c)]
    if not stored.rows or not (new_types or _may_repeat(shape, into)):
        return Change(into=into)
    rows = rows_of(store, stored)
    if new_types:
        rows = retyped(rows, into.columns, {column.name: column.type for column in shape.columns})
    if _may_repeat(shape, into) or {column.name for column in new_types} & set(into.key):
        by = [name for name in into.key if new_types or shape.column(name)]
        refuse_repeated(shape.table, rows, into.source_key, [*by, *_start(shape)])
    return Change(come=rows, into=into, whole=True, counted="rewritten") if new_types else Change(into=into)


def _rewritten(shape: Shape, column: Column) -> bool:
    stored = shape.column(column.name)
    return stored is not None and not widens(stored.type, column.type)


def _may_repeat(shape: Shape, into: Shape) -> bool:
    """A key that only gains columns stays unique; any other is looked at in the data."""
    return not set(shape.key) <= set(into.key)


def _start(shape: Shape) -> list[str]:
    return [START] if shape.layout is Layout.FIVETRAN_HISTORY else []
