"""Bring a table to another shape: its columns, their types, its key and its layout, in one commit."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backstory.model.change import Change, Tag
from backstory.model.foreign_writes import COLUMNS_STATE
from backstory.model.layout import ACTIVE, Layout
from backstory.model.schema import Column, Shape
from backstory.model.types import parts_added, widens
from backstory.stores.iceberg.create import sort_by_key
from backstory.stores.iceberg.schema import iceberg_name, iceberg_type
from backstory.stores.iceberg.store import CALLED, KEY, LAYOUT, Store, StoredTable, called
from backstory.stores.names import refuse_names
from backstory.stores.port import DISORDER


def stage(store: Store, table: StoredTable, change: Change) -> Any:
    """Iceberg's transaction that gives the table the change's shape and properties; nothing is committed yet.

    The transaction's `table()` is the table as it will be: data files can be written for it. Columns that
    the new shape lacks are dropped. A column whose values do not simply widen is another column of the same
    name, so that every row must be written anew in the same transaction, if there are rows. Raises TryAgain
    if another writer came first, and Refused for a name that no table can have.
    """
    transaction = table.begin()
    if change.back_to is not None:
        transaction.manageSnapshots().setCurrentSnapshot(change.back_to).commit()
    if change.into is not None:
        _reshape(store, table, transaction, change.into, change.renamed)
    elif table.shape.layout.sorted and not table.iceberg.sortOrders().containsKey(0):
        transaction.replaceSortOrder().commit()  # a table of an earlier version
        sort_by_key(store, transaction, table.shape)
    if change.properties:
        _set_properties(transaction, change.properties)
    left = str(transaction.table().schema().schemaId())
    if change.into is not None or (
        COLUMNS_STATE in table.properties and table.properties[COLUMNS_STATE] != left
    ):
        _set_properties(transaction, {COLUMNS_STATE: left})
    if change.tags:
        _set_tags(transaction, table.tags, change.tags)
    return transaction


def _reshape(
    store: Store, table: StoredTable, transaction: Any, into: Shape, renamed: Mapping[str, str]
) -> None:
    refuse_names(store.reserves, into.names)
    before = table.shape
    _tell_shape(transaction, before, into)
    if not into.layout.sorted:
        _evolve_columns(store, transaction, before, into, renamed)
        return
    parted = ACTIVE in [field.name() for field in table.iceberg.spec().fields()]
    keeps_history = into.layout is Layout.FIVETRAN_HISTORY
    if parted and not keeps_history:
        transaction.updateSpec().removeField(ACTIVE).commit()
    # A column in the sort order cannot be dropped.
    transaction.replaceSortOrder().commit()
    _evolve_columns(store, transaction, before, into, renamed)
    sort_by_key(store, transaction, into)
    if keeps_history and before.layout is not into.layout:
        transaction.updateSpec().addField(ACTIVE).commit()


def _tell_shape(transaction: Any, before: Shape, into: Shape) -> None:
    told: dict[str, str | None] = {KEY: json.dumps(list(into.key), ensure_ascii=False)}
    if called(before) != called(into):
        told[CALLED] = called(into)
    if before.layout is not into.layout:
        told |= {LAYOUT: into.layout.value, DISORDER: None}
    _set_properties(transaction, told)


def _set_properties(transaction: Any, properties: Mapping[str, str | None]) -> None:
    update = transaction.updateProperties()
    for name, value in properties.items():
        if value is None:
            update.remove(name)
        else:
            update.set(name, value)
    update.commit()


def _set_tags(transaction: Any, known: Mapping[str, int], tags: Mapping[str, Tag | None]) -> None:
    update = transaction.manageSnapshots()
    for name, tag in tags.items():
        if tag is None:
            update.removeTag(name)
            continue
        (update.replaceTag if name in known else update.createTag)(name, tag.snapshot)
        update.setMaxRefAgeMs(name, tag.kept)
    update.commit()


def _evolve_columns(
    store: Store, transaction: Any, before: Shape, into: Shape, renamed: Mapping[str, str]
) -> None:
    schema = transaction.updateSchema()
    known = {renamed.get(column.name, column.name): column.type for column in before.columns}
    former = {new: old for old, new in renamed.items()}
    # Iceberg knows a column by its former name until the update is committed.
    called: dict[str, str] = {}
    for old, new in renamed.items():
        wanted = into.column(new)
        # What becomes another column goes under its old name: Iceberg knows no other yet.
        stays = wanted is None or widens(known[new], wanted.type) or parts_added(known[new], wanted.type)
        if old != new and stays:
            schema.renameColumn(old, new)
            called[new] = old
    for name in known.keys() - set(into.names):
        schema.deleteColumn(name)
    standing = [name for name in known if into.column(name)]
    for column in into.columns:
        stored = known.get(column.name)
        if stored == column.type:
            continue
        if stored is not None and widens(stored, column.type):
            _widen(store, schema, column, iceberg_name(stored), called.get(column.name, column.name))
            continue
        if stored is not None and (added := parts_added(stored, column.type)) is not None:
            for part in added:
                parent = ".".join((former.get(column.name, column.name), *part.within))
                schema.addColumn(parent, part.name, iceberg_type(store.jvm, part.type))
            continue
        if stored is not None:
            schema.deleteColumn(former.get(column.name, column.name))
            standing.remove(column.name)
        schema.addColumn(None, column.name, iceberg_type(store.jvm, column.type), column.doc)
        standing.append(column.name)
    _order(schema, standing, into.names, called)
    schema.commit()


def _widen(store: Store, schema: Any, column: Column, stored: str, called: str) -> None:
    if iceberg_name(column.type) != stored:
        schema.updateColumn(called, iceberg_type(store.jvm, column.type))
    schema.updateColumnDoc(called, column.doc)


def _order(schema: Any, standing: Sequence[str], wanted: Sequence[str], called: Mapping[str, str]) -> None:
    """Move columns until they stand in the order that the shape has them in."""
    order = list(standing)
    for place, name in enumerate(wanted):
        if order[place] == name:
            continue
        order.remove(name)
        order.insert(place, name)
        if place:
            schema.moveAfter(called.get(name, name), called.get(wanted[place - 1], wanted[place - 1]))
        else:
            schema.moveFirst(called.get(name, name))
