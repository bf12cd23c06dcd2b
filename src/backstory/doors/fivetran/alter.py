"""AlterTable: the full desired definition against the table as it stands (section 2.6)."""

from dataclasses import replace

from backstory.doors.fivetran.definitions import columns_from, key_from, refuse_foreign, stored_as
from backstory.doors.fivetran.notes import note
from backstory.doors.fivetran.own_tables import existing
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.engine.deliver import TableChange, deliver
from backstory.errors import Refused
from backstory.model.change import Change
from backstory.model.layout import HISTORY_COLUMNS, Layout
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.model.types import Kind, related
from backstory.stores.names import stored_names
from backstory.stores.port import Store, StoredTable
from backstory.strategies.shape_changes.operations import Reshape
from backstory.strategies.shape_changes.plan import change_of


def alter(store: Store, table: TableName, definition: common.Table, *, drop_columns: bool) -> bool:
    """Add, retype, re-key and, with `drop_columns`, drop, in one commit; whether anything changed."""

    def plan() -> tuple[StoredTable, Change | None]:
        stored = existing(store, table)
        refuse_foreign(stored.shape)
        into = _desired_shape(store, stored.shape, definition, drop_columns=drop_columns)
        if _same(stored.shape, into):
            return stored, None
        _refuse(stored.shape, into)
        return stored, change_of(store, stored, Reshape(stored.shape, into))

    told = note("alter", table, definition.SerializeToString(deterministic=True).hex(), drop_columns)
    return deliver(store, TableChange([table], told, plan)) is not None


def _desired_shape(store: Store, shape: Shape, definition: common.Table, *, drop_columns: bool) -> Shape:
    """The shape that the definition asks for; a decimal without parameters keeps the stored ones."""
    key = key_from(definition.columns)
    if not key:
        raise Refused(
            "no-key", f"The definition of {shape.table} has no key column.", "Mark its key columns."
        )
    columns = columns_from(definition.columns)
    names = stored_names(store.reserves, [column.name for column in columns], shape.columns)
    desired = {names[column.name]: stored_as(column, names) for column in columns}
    for column in definition.columns:
        stored = shape.called(column.name)
        bare = column.type == common.DataType.DECIMAL and not column.params.HasField("decimal")
        if bare and stored and stored.type.kind is Kind.DECIMAL:
            desired[stored.name] = stored
    kept = [desired.get(c.name, c) for c in shape.columns if c.name in desired or not drop_columns]
    new = [column for name, column in desired.items() if shape.column(name) is None]
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
