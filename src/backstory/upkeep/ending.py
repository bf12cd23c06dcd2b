"""The end of a history: drop it, or keep it read-only under another name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from backstory.engine.deliver import ARCHIVED, deliver_change
from backstory.errors import Refused
from backstory.model.change import CURSOR_TAG, Change, Note
from backstory.model.instant import iso
from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.reading.commits import inventory
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing, load
from backstory.stores.port import table_exists

# Tables on which no other table depends.
_INDEPENDENT: Final = (Layout.VERSIONS, Layout.FIVETRAN_HISTORY, Layout.FIVETRAN_LIVE)
NO_PROPERTIES: Final = MappingProxyType[str, str]({})


@dataclass(frozen=True, slots=True, repr=False)
class HistoryEnd(Receipt):
    """The end of a history, or its plan if `applied` is false.

    `archive` is the name under which the table is kept, or None if its files are deleted. `rows` is the count
    that `tables` shows, and `snapshots` is the number of commits. `cursors` are the consumers that lose their
    position when the files are deleted.
    """

    table: str
    archive: str | None
    applied: bool
    rows: int | None
    snapshots: int
    cursors: list[str]


def end(
    store: IcebergStore, table: TableName, archive: TableName | None = None, *, apply: bool = False
) -> HistoryEnd:
    """Drop a table with its files, or keep it read-only under the name `archive`.

    Unless `apply` is true, nothing is changed. Raises the errors of `archive_history`.
    """
    stored = _require_alone(store, table, archive)
    (counted,) = inventory(store, [table])
    cursors = sorted(tag.removeprefix(CURSOR_TAG) for tag in stored.tags if tag.startswith(CURSOR_TAG))
    snapshots, into = len(stored.metadata.get("snapshots") or ()), None if archive is None else str(archive)
    ended = HistoryEnd(str(table), into, apply, counted["rows"], snapshots, [] if archive else cursors)
    if apply and archive is None:
        _carry_out(store, table, Change(dropped=True))
    elif apply and archive is not None:
        archive_history(store, table, archive)
    return ended


def archive_history(
    store: IcebergStore, table: TableName, archive: TableName, properties: Mapping[str, str] = NO_PROPERTIES
) -> None:
    """Keep a table read-only under another name. The commit that archives the table sets `properties`.

    A second call completes an interrupted call. Raises UsageError if the table does not exist. Raises Refused
    if the table belongs to other tables or to another program, or if the archive's name is taken.
    """
    stored = _require_alone(store, table, archive)
    # From the first commit on, writers are refused until the second one.
    if ARCHIVED not in stored.properties:
        _carry_out(store, table, Change(properties={ARCHIVED: iso(datetime.now(UTC)), **properties}))
    _carry_out(store, table, Change(into=replace(stored.shape, table=archive)))


def _carry_out(store: IcebergStore, table: TableName, change: Change) -> None:
    tables = [table, *([change.into.table] if change.into else [])]
    deliver_change(store, tables, Note("native", ""), lambda: (existing(store, table), change))


def _require_alone(store: IcebergStore, table: TableName, archive: TableName | None) -> IcebergTable:
    """The table, if no other table depends on it and its archive's name is free. Raises Refused otherwise."""
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout in _INDEPENDENT:
        if archive is not None and load(store, archive) is not None:
            raise table_exists(archive)
        return stored
    if shape.layout.is_adopted or shape.layout is Layout.FOREIGN:
        message = f"Another program writes {shape.table}."
    else:
        message = f"{shape.table} has layout {shape.layout}, and other tables depend on it."
    raise Refused(
        "other-layout",
        message,
        "Nothing was changed. End it in the program that writes it, or drop all its tables with Spark SQL.",
    )
