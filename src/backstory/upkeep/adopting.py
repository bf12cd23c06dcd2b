"""`adopt`: read, check and repair a history that another tool writes, without rewriting it.

The columns are documented for dbt's snapshots, SQLMesh's SCD_TYPE_2, dlt's `scd2` and AUTO CDC's SCD type 2.
The intervals of all four layouts are half-open. An open version has no end, or an end in 2200 or later.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from backstory.engine.deliver import deliver_change
from backstory.errors import Refused, UsageError, option
from backstory.model.change import Change, Note
from backstory.model.layout import BITEMPORAL, SYSTEM_TIMES, Layout
from backstory.model.receipt import Receipt
from backstory.model.table import Shape, TableName
from backstory.reading.lifetimes import KINDS_OF_INSTANTS
from backstory.stores.iceberg.schema import KEY, LAYOUT, LAYOUT_VERSION
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load


@dataclass(frozen=True, slots=True, repr=False)
class Adopted(Receipt):
    """The layout and key by which a table is read from now on. `changed` is false if they were set before."""

    table: str
    layout: str
    key: Sequence[str]
    changed: bool


def adopt(
    store: IcebergStore,
    table: TableName,
    layout: str,
    key: str | Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> Adopted:
    """Set the properties that mark a table as the history of a tool. The rows are unchanged.

    `key` has one or more column names. By default, the table's identifier fields are used. Raises UsageError
    for a missing table, layout, column or key. Raises Refused if a door of backstory writes the table.
    """
    wanted = _layout_of(layout)
    table_found = require_iceberg(store, table)
    shape = table_found.shape
    names = key_or_identifiers(table_found, key)
    properties = {LAYOUT: wanted.value, KEY: json.dumps(list(names), ensure_ascii=False), LAYOUT_VERSION: "1"}
    set_properties = table_found.properties
    if set_properties.get(LAYOUT, wanted) != wanted:
        raise Refused(
            "other-layout",
            f"{table} is a table of layout {shape.layout}, which the {shape.layout.door} door writes.",
            "Nothing was changed; it can be read as it is.",
        )
    _refuse_columns(shape, wanted)
    refuse_key(shape, wanted, names)
    changed = any(set_properties.get(name) != value for name, value in properties.items())
    if changed:
        change = Change(properties=properties)
        deliver_change(store, [table], Note("native", ""), lambda: (table_found, change), dry_run=dry_run)
    return Adopted(str(table), wanted.value, list(names), changed)


def _layout_of(name: str) -> Layout:
    layouts = {layout.value: layout for layout in Layout if layout.is_adopted}
    if name not in layouts:
        raise UsageError(
            "unknown-layout",
            f"There is no layout {name!r} of another tool.",
            f"Use one of {', '.join([*layouts, BITEMPORAL])} for `layout=`.",
        )
    return layouts[name]


def require_iceberg(store: IcebergStore, table: TableName) -> IcebergTable:
    """The Iceberg table with this name. Raises UsageError if it does not exist in the catalog."""
    stored = load(store, table)
    if stored is None:
        raise UsageError(
            "no-table",
            f"There is no Iceberg table {table} in the catalog.",
            "Only Iceberg tables of this warehouse's catalog can be adopted; check the name, or register it.",
        )
    return stored


def key_or_identifiers(table: IcebergTable, key: str | Sequence[str]) -> tuple[str, ...]:
    """The named key columns, or else the table's identifier fields without the columns that a tool adds."""
    if named := (key,) if isinstance(key, str) else tuple(key):
        return named
    own = {*SYSTEM_TIMES} | {
        name for layout in Layout if layout.is_adopted for name in table.shape.names if layout.owns(name, "")
    }
    names = map(str, table.iceberg.schema().identifierFieldNames())
    return tuple(sorted(name for name in names if name not in own))


def _refuse_columns(shape: Shape, layout: Layout) -> None:
    span = layout.span
    assert span is not None
    spans = {other.value: other.span for other in Layout if other.is_adopted and other.span}
    fitting = (name for name, own in spans.items() if {own.start, own.end} <= set(shape.names))
    refuse_times(shape, (span.start, span.end), layout, next(fitting, None))
    if layout is Layout.AUTOCDC and {*SYSTEM_TIMES} <= set(shape.names):
        raise UsageError(
            "two-axes",
            f"{shape.table} has {' and '.join(SYSTEM_TIMES)}: its rows are statements, and many are past.",
            f"Use {option('layout', BITEMPORAL)}, which imports both times into a new table.",
        )


def refuse_times(shape: Shape, names: Sequence[str], layout: str, fitting: str | None = None) -> None:
    """Raise UsageError if the table lacks one of these columns of a layout, or if a column is not a time.

    `fitting` is the layout that fits the table's columns.
    """
    types = {column.name: column.type for column in shape.columns}
    if missing := [name for name in names if name not in types]:
        raise UsageError(
            "missing-columns",
            f"{shape.table} lacks {' and '.join(missing)}, which a {layout} history needs.",
            f"Use {option('layout', fitting)}, which fits its columns."
            if fitting
            else "Rename the columns to these names.",
        )
    if timeless := [name for name in names if types[name].kind not in KINDS_OF_INSTANTS]:
        raise UsageError(
            "no-instant",
            f"{', '.join(timeless)} of {shape.table} is of type {types[timeless[0]]}, not a time.",
            "Change the columns to a date or timestamp type.",
        )


def refuse_key(
    shape: Shape, layout: Layout, key: Sequence[str], also: Collection[str] = (), name: str = ""
) -> None:
    """Raise UsageError for a key that is empty, or that has repeated, missing or layout columns.

    `also` are further columns of the layout. `name` is the layout's name, if it differs from `layout`.
    """
    if not key:
        raise UsageError(
            "no-key",
            f"{shape.table} has no identifier fields to use as its key.",
            f"Name the key columns of {name or layout}'s own configuration with `key=`.",
        )
    if len(set(key)) < len(key):
        raise UsageError("no-key", "`key=` names a column twice.", "Name each key column once.")
    own = {*also} | {column for column in shape.names if layout.owns(column, shape.table.name)}
    if wrong := [column for column in key if shape.column(column) is None or column in own]:
        raise UsageError(
            "no-key", f"{', '.join(wrong)} cannot be the key of {shape.table}.", "Use columns of the source."
        )
