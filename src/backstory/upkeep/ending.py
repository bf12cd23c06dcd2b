"""End a history: drop it, or keep it under another name, read only."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from backstory.engine.deliver import ARCHIVED, TableChange, deliver
from backstory.errors import Refused
from backstory.model.change import Change, Note
from backstory.model.change_feed import CURSOR_TAG
from backstory.model.instant import iso
from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.reading.commits import inventory
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.metadata.catalogs import SessionCatalog
from backstory.stores.refusals import table_exists

# Tables that have no other table beside them.
_ALONE: Final = (Layout.VERSIONS, Layout.FIVETRAN_HISTORY, Layout.FIVETRAN_LIVE)


@dataclass(frozen=True, slots=True, repr=False)
class HistoryEnd(Receipt):
    """The end of a history, or what it would be until it is `applied`.

    `archive` is the name under which it is kept, None if its files are deleted. `rows` are as `tables` counts
    them, `snapshots` are its commits, and `cursors` the consumers that lose their place with the files.
    """

    table: str
    archive: str | None
    applied: bool
    rows: int | None
    snapshots: int
    cursors: list[str]


def end(
    store: Store, table: TableName, archive: TableName | None = None, *, apply: bool = False
) -> HistoryEnd:
    """Drop a table with its files, or with `archive` keep it under this name, where nothing writes to it.

    Without `apply` nothing is changed. An end that was interrupted is completed by the next one. Raises
    UsageError for a table that does not exist, and Refused for one that belongs to other tables or to another
    program, and where the archive's name is taken.
    """
    stored = existing(store, table)
    _require_alone(stored)
    if archive is not None and load(store, archive) is not None:
        raise table_exists(archive)
    (counted,) = inventory(SessionCatalog(store), [table])
    cursors = sorted(tag.removeprefix(CURSOR_TAG) for tag in stored.tags if tag.startswith(CURSOR_TAG))
    ended = HistoryEnd(
        str(table),
        None if archive is None else str(archive),
        apply,
        counted["rows"],
        len(stored.snapshots),
        [] if archive else cursors,
    )
    if apply and archive is None:
        _carry_out(store, table, Change(dropped=True))
    elif apply and archive is not None:
        # A writer that comes between the two commits is refused.
        if ARCHIVED not in stored.properties:
            _carry_out(store, table, Change(properties={ARCHIVED: iso(datetime.now(UTC))}))
        _carry_out(store, table, Change(into=replace(stored.shape, table=archive)))
    return ended


def _carry_out(store: Store, table: TableName, change: Change) -> None:
    tables = [table, *([change.into.table] if change.into else [])]
    deliver(store, TableChange(tables, Note("native", ""), lambda: (existing(store, table), change)))


def _require_alone(stored: StoredTable) -> None:
    shape = stored.shape
    if shape.layout in _ALONE:
        return
    if shape.layout.is_adopted or shape.layout is Layout.FOREIGN:
        told = f"Another program writes {shape.table}."
    else:
        told = f"{shape.table} has layout {shape.layout}, and other tables depend on it."
    raise Refused(
        "other-layout",
        told,
        "Nothing was changed. End it in the program that writes it, or drop all its tables with Spark SQL.",
    )
