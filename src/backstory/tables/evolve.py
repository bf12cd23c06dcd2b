"""Change a table's columns and key, in one commit that touches no data file."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backstory.errors import Refused
from backstory.model.column import HISTORY_COLUMNS, START, TEXT_KINDS, Column, ColumnType, Kind
from backstory.model.table import Layout, Shape
from backstory.tables.faults import translated
from backstory.tables.literals import column
from backstory.tables.schema import iceberg_name, iceberg_type, refuse_names
from backstory.tables.store import KEY, Store, StoredTable


@dataclass(frozen=True, slots=True)
class Evolution:
    """What changes: columns that come, types that change, columns that go, and the key."""

    add: Sequence[Column] = ()
    retype: Mapping[str, ColumnType] = field(default_factory=dict)
    drop: Sequence[str] = ()
    key: Sequence[str] = ()


def evolution(shape: Shape, wanted: Sequence[Column], key: Sequence[str], *, drop: bool) -> Evolution:
    """The difference between a table and a full definition of it (section 2.6).

    A decimal of the definition without parameters of its own is no change of a stored decimal: the
    caller passes the stored type for it.
    """
    names = {column.name for column in wanted}
    return Evolution(
        add=[column for column in wanted if shape.column(column.name) is None],
        retype={
            column.name: column.type
            for column in wanted
            if (stored := shape.column(column.name)) and stored.type != column.type
        },
        drop=[name for name in shape.names if name not in names] if drop else [],
        key=list(key),
    )


def evolve(store: Store, table: StoredTable, change: Evolution) -> bool:
    """Make the changes in one commit; whether there were any.

    Raises Refused, the table unchanged, for a type that values would have to be rewritten for, for a
    column that the layout needs, and for a key that is not unique.
    """
    shape = table.shape
    new_key = set(change.key) != set(shape.key)
    if not (change.add or change.retype or change.drop or new_key):
        return False
    _refuse(store, shape, change)
    if new_key:
        _refuse_repeated_key(store, table, change)
    with translated(shape.table):
        transaction = table.iceberg.newTransaction()
        if new_key:
            transaction.updateProperties().set(KEY, json.dumps(list(change.key), ensure_ascii=False)).commit()
        _replace_sort_order(store.jvm.org.apache.iceberg, transaction, shape, change)
        schema = transaction.updateSchema()
        for column in change.add:
            schema.addColumn(None, column.name, iceberg_type(store.jvm, column.type), str(column.type))
        for name, type_ in change.retype.items():
            stored = shape.column(name)
            if stored and iceberg_name(stored.type) != iceberg_name(type_):
                schema.updateColumn(name, iceberg_type(store.jvm, type_))
            schema.updateColumnDoc(name, str(type_))
        for name in change.drop:
            schema.deleteColumn(name)
        schema.commit()
        transaction.commitTransaction()
    return True


def _replace_sort_order(iceberg: Any, transaction: Any, shape: Shape, change: Evolution) -> None:
    """Sort by what stays of the old key: a column in the sort order cannot be dropped."""
    order = transaction.replaceSortOrder()
    for name in shape.key:
        if name not in change.drop:
            reference = iceberg.expressions.Expressions.ref(name)
            order = order.asc(reference, iceberg.NullOrder.NULLS_FIRST)
    order.commit()


def _refuse(store: Store, shape: Shape, change: Evolution) -> None:
    refuse_names(store.jvm, [*shape.names, *(column.name for column in change.add)])
    for name, type_ in change.retype.items():
        stored = shape.column(name)
        if stored and not widens(stored.type, type_):
            raise Refused(
                "type-change",
                f"The column {name} of {shape.table} cannot change from {stored.type} to {type_}: "
                "its stored values might not fit.",
                "The table is unchanged; add a column of the new type instead.",
            )
    needed = set(HISTORY_COLUMNS) if shape.layout is Layout.FIVETRAN_HISTORY else set()
    for name in change.drop:
        if name in needed:
            raise Refused(
                "needed-column",
                f"The column {name} of {shape.table} is part of its history.",
                "Migrate the table to another mode instead.",
            )


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type is one of the new, stored as it is."""
    ranks = [Kind.SHORT, Kind.INT, Kind.LONG]
    if old.kind in ranks and new.kind in ranks:
        return ranks.index(old.kind) <= ranks.index(new.kind)
    if (old.kind, new.kind) == (Kind.FLOAT, Kind.DOUBLE):
        return True
    if old.kind is new.kind is Kind.DECIMAL:
        return old.scale == new.scale and old.precision <= new.precision
    return old == new or (
        old.kind in TEXT_KINDS and new.kind in TEXT_KINDS and new.kind is not Kind.NAIVE_TIME
    )


def _refuse_repeated_key(store: Store, table: StoredTable, change: Evolution) -> None:
    """A key that only gains columns stays unique; any other is looked at in the data."""
    shape = table.shape
    if not table.rows or set(shape.key) <= set(change.key):
        return
    old = [name for name in change.key if name in shape.names]
    if shape.layout is Layout.FIVETRAN_HISTORY:
        old.append(START)
    from pyspark.sql.functions import count, lit

    with translated(shape.table):
        rows = store.spark.table(store.sql_name(shape.table))
        repeats = f"repeats {uuid.uuid4()}"
        counted = rows.groupBy(*map(column, old)).agg(count(lit(1)).alias(repeats))
        repeated = counted.where(column(repeats) > 1).take(1)
    if repeated:
        raise Refused(
            "repeated-key",
            f"({', '.join(change.key)}) is not a key of {shape.table}: rows would share one.",
            "The table is unchanged; choose columns that tell its rows apart.",
        )
