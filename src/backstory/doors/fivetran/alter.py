"""AlterTable: the full desired definition against the table as it stands (section 2.6)."""

from backstory.doors.fivetran.definitions import columns_from, key_from
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.errors import Refused
from backstory.model.column import Column, Kind
from backstory.model.table import Shape, TableName
from backstory.tables.evolve import evolution, evolve
from backstory.tables.locks import writing
from backstory.tables.store import Store, existing


def alter(store: Store, table: TableName, definition: common.Table, *, drop_columns: bool) -> bool:
    """Add, widen, re-key and, with `drop_columns`, drop, in one commit; whether anything changed."""
    with writing(store, table):
        stored = existing(store, table)
        key = key_from(definition.columns)
        if not key:
            raise Refused("no-key", f"The definition of {table} has no key column.", "Mark its key columns.")
        wanted = _wanted(stored.shape, definition)
        return evolve(store, stored, evolution(stored.shape, wanted, key, drop=drop_columns))


def _wanted(shape: Shape, definition: common.Table) -> list[Column]:
    """The definition's columns; a decimal that comes without parameters keeps the stored ones."""
    columns = columns_from(definition.columns)
    bare = {
        told.name
        for told in definition.columns
        if told.type == common.DataType.DECIMAL and not told.params.HasField("decimal")
    }

    def kept(column: Column) -> Column:
        stored = shape.column(column.name)
        same = stored is not None and stored.type.kind is Kind.DECIMAL
        return stored if stored and same and column.name in bare else column

    return [kept(column) for column in columns]
