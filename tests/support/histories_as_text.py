"""Histories of every layout as text, written without a door, as another program may change a table."""

from committing import append_past, make
from tables_as_text import table

from backstory.model import layout, versions_layout
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing

INSTANT = ColumnType(Kind.UTC_DATETIME)
TEXT = ColumnType(Kind.STRING)
FLAG = ColumnType(Kind.BOOLEAN)
SHORT = {
    "from": layout.VALID_FROM,
    "to": layout.VALID_TO,
    "current": layout.IS_CURRENT,
    "recorded": layout.RECORDED_AT,
    "began": layout.STARTED,
    "ended": layout.ENDED,
    "state": layout.STATE,
    "hash": layout.ROW_HASH,
}
WITHIN = (versions_layout.ROLE, versions_layout.ENDED_AT, versions_layout.END_BEFORE, versions_layout.KIND)
FIVETRAN = (
    Column("k", TEXT),
    Column("v", TEXT),
    Column(layout.START, INSTANT),
    Column(layout.END, INSTANT),
    Column(layout.ACTIVE, FLAG),
    Column(layout.SYNCED, INSTANT),
)
HIST = (
    Column("c_key", TEXT),
    Column("k", TEXT),
    Column("v", TEXT),
    Column(layout.ROW_HASH, TEXT),
    Column(layout.STARTED, INSTANT),
    Column(layout.ENDED, INSTANT),
    Column(layout.STATE, TEXT),
    Column(layout.LOADED_AT, INSTANT),
)
COLUMNS = {
    Layout.VERSIONS: (Column("k", TEXT), Column("v", TEXT), *versions_layout.OWN_COLUMNS),
    Layout.FIVETRAN_HISTORY: FIVETRAN,
    Layout.HIST: HIST,
    Layout.FIVETRAN_LIVE: (Column("k", TEXT), Column("v", TEXT), Column(layout.SYNCED, INSTANT)),
}


def written(store, name, layout_, text):
    """A table of a layout with these rows. Values that a row omits are NULL, or the layout's default."""
    target = TableName("spoilt", name)
    drop(store, target)
    make(store, Shape(target, COLUMNS[layout_], ("k",), layout_))
    append(store, target, text)
    return target


def append(store, target, text):
    """Append the rows of a text, as a program that ignores all laws."""
    names = existing(store, target).shape.names
    append_past(store, target, [_row(line, names) for line in table(text)])


def _row(line, names):
    flags = {"true": True, "false": False}
    cells = {SHORT.get(name, name): flags.get(value, value) for name, value in line.items()}
    if layout.MEMORY in names:
        memory = {name: cells.get(name) for name in WITHIN}
        cells |= {layout.MEMORY: memory if any(memory.values()) else None}
        cells.setdefault(layout.IS_CURRENT, cells.get(layout.VALID_TO) is None)
    if layout.ROW_HASH in names:
        cells.setdefault("c_key", cells["k"])
        cells.setdefault(layout.ROW_HASH, "a" * 64)
    return tuple(cells.get(name) for name in names)
