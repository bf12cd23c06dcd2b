"""The tables that requests name: their catalog and schema, this door's layouts, and the notes of commits."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from backstory.errors import UsageError
from backstory.model.change import Note
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores import tables
from backstory.stores.port import Store, StoredTable, require_layout

DOOR = "fivetran"


def note(act: str, *about: object) -> Note:
    """The note for a commit. Its token is a hash of the act and its arguments."""
    text = " ".join(map(str, (act, *about)))
    return Note(DOOR, hashlib.sha256(text.encode()).hexdigest())


LAYOUTS = (Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY)


def load_own(store: Store, table: TableName) -> StoredTable | None:
    """The stored table, or None if it does not exist. Raises Refused if another door writes it."""
    stored = tables.load(store, table)
    return stored and require_layout(stored, *LAYOUTS)


def existing_own(store: Store, table: TableName) -> StoredTable:
    """The stored table. Raises UsageError if it does not exist, and Refused if another door writes it."""
    return require_layout(tables.existing(store, table), *LAYOUTS)


NUL = "\0"
CATALOG_FIELD, PREFIX_FIELD = "catalog", "schema_prefix"


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store, and a prefix for the names of its schemas."""

    store: Store
    prefix: str

    def schema(self, name: str) -> str:
        """The schema's name in the store. Raises UsageError if the name is empty."""
        if not name or NUL in name:
            raise UsageError("no-schema", "The request names no valid schema.", "Name the schema.")
        return self.prefix + name

    def table(self, schema: str, name: str) -> TableName:
        """The table's name in the store. Raises UsageError if the name is empty."""
        if not name or NUL in name:
            raise UsageError("no-table-name", "The request names no valid table.", "Name the table.")
        return TableName(self.schema(schema), name)


def target(stores: Mapping[str, Store], configuration: Mapping[str, str]) -> NamedStore:
    """The store and prefix in a configuration.

    If the configuration is empty, the form's defaults apply (F20). Raises UsageError for a catalog that this
    server does not serve.
    """
    name = configuration.get(CATALOG_FIELD) or next(iter(stores))
    if name not in stores:
        raise UsageError(
            "no-catalog",
            "The configuration names a catalog that this server was not started with.",
            f"Choose one of {', '.join(stores)}.",
        )
    return NamedStore(stores[name], configuration.get(PREFIX_FIELD, ""))
