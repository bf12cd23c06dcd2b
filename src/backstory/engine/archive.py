"""Archived histories: every command reads them, and no delivery writes to them."""

from typing import Final

from backstory.errors import Refused
from backstory.model.change import Change
from backstory.stores.port import StoredTable

# A property of a table: since when it is archived.
ARCHIVED: Final = "backstory.archived"


def refuse_archived(table: StoredTable | None, change: Change | None) -> None:
    """Raise Refused for a delivery to an archived table; it may be dropped, renamed, and read by cursors."""
    since = table and table.properties.get(ARCHIVED)
    if table is None or not since:
        return
    moves = change is not None and (
        change.dropped or bool(change.tags) or (change.into and change.into.table != table.shape.table)
    )
    if not moves:
        raise Refused(
            "archived",
            f"{table.shape.table} is archived since {since}: it can be read, not written.",
            f"Deliver to another table. To go on with this one, take its property `{ARCHIVED}` away.",
        )
