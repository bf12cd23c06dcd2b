"""Bring a table to another shape: its columns, their types, its key and its layout, in one commit."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from backstory.model.layout import ACTIVE, Layout
from backstory.model.schema import Shape
from backstory.model.types import ColumnType, widens
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.schema import iceberg_name, iceberg_type, refuse_names
from backstory.stores.iceberg.store import CALLED, DISORDER, KEY, LAYOUT, Store, StoredTable, called, settle

NOTHING: Mapping[str, str] = MappingProxyType({})


def evolve(store: Store, table: StoredTable, into: Shape, renamed: Mapping[str, str] = NOTHING) -> None:
    """Make the table this shape, in one commit that touches no data file."""
    with translated(table.shape.table):
        settle(stage(store, table, into, renamed))


def stage(store: Store, table: StoredTable, into: Shape, renamed: Mapping[str, str] = NOTHING) -> Any:
    """Iceberg's transaction that makes the table this shape; nothing is committed yet.

    `renamed` gives columns new names. Columns that the shape lacks are dropped. The transaction's
    `table()` is the table as it will be: data files can be written for it. A column whose values do
    not simply widen (see `widens`) is another column of the same name, so that every row must be
    written anew in the same transaction, if there are rows. Raises Refused for a name that no table
    can have.
    """
    refuse_names(store.jvm, into.names)
    before = table.shape
    transaction = table.begin()
    _set_properties(transaction, before, into)
    parted = ACTIVE in [field.name() for field in table.iceberg.spec().fields()]
    keeps_history = into.layout is Layout.FIVETRAN_HISTORY
    if parted and not keeps_history:
        transaction.updateSpec().removeField(ACTIVE).commit()
    # A column in the sort order cannot be dropped.
    transaction.replaceSortOrder().commit()
    _evolve_columns(store, transaction, before, into, renamed)
    _sort_by_key(store, transaction, into.key)
    if keeps_history and before.layout is not into.layout:
        transaction.updateSpec().addField(ACTIVE).commit()
    return transaction


def _set_properties(transaction: Any, before: Shape, into: Shape) -> None:
    properties = transaction.updateProperties().set(KEY, json.dumps(list(into.key), ensure_ascii=False))
    if called(before) != called(into):
        properties.set(CALLED, called(into))
    if before.layout is not into.layout:
        properties.set(LAYOUT, into.layout.value).remove(DISORDER)
    properties.commit()


def _sort_by_key(store: Store, transaction: Any, key: Sequence[str]) -> None:
    order, iceberg = transaction.replaceSortOrder(), store.jvm.org.apache.iceberg
    for name in key:
        order = order.asc(iceberg.expressions.Expressions.ref(name), iceberg.NullOrder.NULLS_FIRST)
    order.commit()


def _evolve_columns(
    store: Store, transaction: Any, before: Shape, into: Shape, renamed: Mapping[str, str]
) -> None:
    schema = transaction.updateSchema()
    for old, new in renamed.items():
        if old != new:
            schema.renameColumn(old, new)
    known = {renamed.get(column.name, column.name): column.type for column in before.columns}
    for name in known.keys() - set(into.names):
        schema.deleteColumn(name)
    previous = None
    for column in into.columns:
        stored = known.get(column.name)
        if stored is None:
            schema.addColumn(None, column.name, iceberg_type(store.jvm, column.type), str(column.type))
        elif stored != column.type:
            _retype(store, schema, column.name, (stored, column.type), previous)
        previous = column.name
    schema.commit()


def _retype(
    store: Store, schema: Any, name: str, types: tuple[ColumnType, ColumnType], previous: str | None
) -> None:
    old, new = types
    if widens(old, new):
        if iceberg_name(old) != iceberg_name(new):
            schema.updateColumn(name, iceberg_type(store.jvm, new))
        schema.updateColumnDoc(name, str(new))
        return
    schema.deleteColumn(name).addColumn(None, name, iceberg_type(store.jvm, new), str(new))
    if previous is None:
        schema.moveFirst(name)
    else:
        schema.moveAfter(name, previous)
