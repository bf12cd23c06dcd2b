"""The numbers that Iceberg knows columns by, which marks of copies hold (V2, V31)."""

from backstory.doors.native.evolution import Evolved
from backstory.model.types import ColumnType
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.store import Store, StoredTable


def ids_of_columns(store: Store, table: StoredTable, evolved: Evolved) -> dict[str, int]:
    """The id that each column of the table will have.

    Columns that come, or take another type, get theirs by this very commit: the next ones, in their order.
    """
    stays = set() if evolved.stored is None else set(evolved.stored.names) - set(evolved.retyped)
    ids = {name: id_ for name, id_ in _stored_ids(store, table, evolved).items() if name in stays}
    last = int(table.iceberg.operations().current().lastColumnId())
    for each in evolved.shape.columns:
        if each.name not in ids:
            ids[each.name] = last + 1
            last += 1 + _inner(each.type)
    return ids


def moved_ids(store: Store, table: StoredTable, evolved: Evolved) -> dict[int, int]:
    """The new ids of the columns that take another type, by the ones that they had."""
    stored, ids = _stored_ids(store, table, evolved), ids_of_columns(store, table, evolved)
    return {stored[name]: ids[name] for name in evolved.retyped}


def _stored_ids(store: Store, table: StoredTable, evolved: Evolved) -> dict[str, int]:
    fields = fields_of(store.jvm, table.iceberg.schema())
    return {evolved.renamed.get(field["name"], field["name"]): field["id"] for field in fields}


def _inner(type_: ColumnType) -> int:
    """How many fields are within a type."""
    return sum(1 + _inner(part) for _, part in type_.parts)
