"""Tables that Fivetran may change: those of its own layouts."""

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores import tables
from backstory.stores.port import Store, StoredTable, require_layout

LAYOUTS = (Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY)


def load(store: Store, table: TableName) -> StoredTable | None:
    """The table as it stands now, None if there is none; Refused for a table that another door writes."""
    found = tables.load(store, table)
    return found and require_layout(found, *LAYOUTS)


def existing(store: Store, table: TableName) -> StoredTable:
    """The table as it stands now; UsageError if there is none, Refused if another door writes it."""
    return require_layout(tables.existing(store, table), *LAYOUTS)
