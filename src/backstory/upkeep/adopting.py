"""`adopt`: a history that another tool writes is read, checked and mended; no row is rewritten.

The columns are those that the tools publish: dbt's snapshots, SQLMesh's SCD_TYPE_2, dlt's `scd2`, and AUTO
CDC's SCD type 2. Intervals of all four are half-open; an open version has no end, or one in 2200 or later.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from backstory.engine.deliver import TableChange, deliver
from backstory.errors import Refused, UsageError, option
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import Shape, TableName
from backstory.stores.iceberg.store import KEY, LAYOUT, LAYOUT_VERSION, Store, StoredTable, load
from backstory.upkeep.laws.terms import TIMELY


@dataclass(frozen=True, slots=True, repr=False)
class Adopted(Receipt):
    """The table, and what it is read by from now on; `changed` is false if it was so before."""

    table: str
    layout: str
    key: Sequence[str]
    changed: bool


def adopt(
    store: Store, table: TableName, layout: str, key: str | Sequence[str] = (), *, dry_run: bool = False
) -> Adopted:
    """Set the properties by which the table is read as a history of a tool; its rows stay as they are.

    `key` is a name or several; without it the table's identifier fields are. UsageError for a table that is
    not in the catalog, a layout that is none of another tool's, columns that are not there, and a key that
    nothing tells; Refused for a table that a door of backstory writes.
    """
    wanted = _layout_of(layout)
    found = load(store, table)
    if found is None:
        raise UsageError(
            "no-table",
            f"There is no Iceberg table {table} in the catalog.",
            "Only Iceberg tables of this warehouse's catalog can be adopted; check the name, or register it.",
        )
    shape = found.shape
    names = ((key,) if isinstance(key, str) else tuple(key)) or _identifiers(found)
    properties = {LAYOUT: wanted.value, KEY: json.dumps(list(names), ensure_ascii=False), LAYOUT_VERSION: "1"}
    told = found.properties
    if told.get(LAYOUT, wanted) != wanted:
        raise Refused(
            "other-layout",
            f"{table} is a table of layout {shape.layout}, which the {shape.layout.door} door writes.",
            "Nothing was changed; it can be read as it is.",
        )
    _refuse_columns(shape, wanted)
    _refuse_key(shape, wanted, names)
    changed = any(told.get(name) != value for name, value in properties.items())
    if changed:
        change = Change(properties=properties)
        deliver(store, TableChange([table], Note("native", ""), lambda: (found, change), dry_run))
    return Adopted(str(table), wanted.value, list(names), changed)


def _layout_of(told: str) -> Layout:
    known = {each.value: each for each in Layout if each.is_adopted}
    if told not in known:
        raise UsageError(
            "unknown-layout",
            f"There is no layout {told!r} of another tool.",
            f"Use one of {', '.join(known)} for `layout=`.",
        )
    return known[told]


def _identifiers(table: StoredTable) -> tuple[str, ...]:
    """The columns by which the table itself tells its records apart, versions' own left out."""
    own = {name for each in Layout if each.is_adopted for name in table.shape.names if each.owns(name, "")}
    names = map(str, table.iceberg.schema().identifierFieldNames())
    return tuple(sorted(name for name in names if name not in own))


def _refuse_columns(shape: Shape, layout: Layout) -> None:
    span = layout.span
    assert span is not None
    types = {each.name: each.type for each in shape.columns}
    missing = [name for name in (span.start, span.end) if name not in types]
    if missing:
        shown = next((each for each in Layout if each.is_adopted and _fits(shape, each)), None)
        raise UsageError(
            "missing-columns",
            f"{shape.table} lacks {' and '.join(missing)}, which a {layout} history needs.",
            f"Use {option('layout', shown.value)}, which fits its columns."
            if shown
            else "Rename the columns to these names.",
        )
    timeless = [name for name in (span.start, span.end) if types[name].kind not in TIMELY]
    if timeless:
        raise UsageError(
            "no-instant",
            f"{', '.join(timeless)} of {shape.table} is of type {types[timeless[0]].name}, not a time.",
            "Change the columns to a date or timestamp type.",
        )


def _fits(shape: Shape, layout: Layout) -> bool:
    return layout.span is not None and {layout.span.start, layout.span.end} <= set(shape.names)


def _refuse_key(shape: Shape, layout: Layout, key: Sequence[str]) -> None:
    if not key:
        raise UsageError(
            "no-key",
            f"{shape.table} does not say which columns are its key.",
            f"Name the key columns of {layout}'s own configuration with `key=`.",
        )
    if len(set(key)) < len(key):
        raise UsageError("no-key", "`key=` names a column twice.", "Name each key column once.")
    wrong = [name for name in key if shape.column(name) is None or layout.owns(name, shape.table.name)]
    if wrong:
        raise UsageError(
            "no-key", f"{', '.join(wrong)} cannot be the key of {shape.table}.", "Use columns of the source."
        )
