"""Add a few rows to a small table of our own: a log of runs or of commits."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.delivered import arrow_schema
from backstory.model.schema import Shape
from backstory.stores.iceberg.commit import Note, commit
from backstory.stores.iceberg.create import create
from backstory.stores.iceberg.data_files import write_rows
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.store import Store, StoredTable, existing, load, require_layout
from backstory.stores.iceberg.vectors import Deletions


def opened(store: Store, shape: Shape) -> StoredTable:
    """The table as it stands, made if there is none; Refused if it is another one's."""
    return require_layout(load(store, shape.table) or _created(store, shape), shape.layout)


def add_rows(store: Store, stored: StoredTable, rows: Sequence[Mapping[str, Any]], note: Note) -> None:
    """Add rows in one commit; what a row lacks is NULL. Raises TryAgain if another writer came first."""
    schema = arrow_schema({each.name: each.type for each in stored.shape.columns})
    filled = [{name: row.get(name) for name in schema.names} for row in rows]
    with translated(stored.shape.table):
        files = write_rows(store, stored, pa.Table.from_pylist(filled, schema))
    commit(stored, files, Deletions([], []), note)


def _created(store: Store, shape: Shape) -> StoredTable:
    try:
        create(store, shape)
    except Refused as stop:
        if stop.code != "table-exists":  # another process was faster
            raise
    return existing(store, shape.table)
