"""The commits of a table and the tables of a warehouse, as rows, from metadata."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from backstory.engine.run_context import AUTHOR, NOTE
from backstory.errors import Failed, UsageError
from backstory.model.change import COUNTS, DOOR, TOKEN
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.model.versions_layout import RECORDED, SETTLED
from backstory.stores.embedded_catalog import WAREHOUSE_MOVED
from backstory.stores.iceberg.faults import SPARK_GONE
from backstory.stores.metadata.table_metadata import Catalog, Counts, TableMetadata, existing

NOTHING = dict.fromkeys(("table", "layout", "rows", "open_versions", "last_commit"))
BLOCK = ("sequence", "block", "system-time", "offsets", "watermark")


def commits(catalog: Catalog, table: TableName) -> list[dict[str, Any]]:
    """A table's commits, newest first: time, snapshot id, door, token, counts, note, author.

    Commits of a dataset also have their block, and commits of layout `versions` their recorded time (V122).
    Raises UsageError if the table does not exist.
    """
    described = existing(catalog, table)
    layout = described.shape.layout
    return [
        {
            "committed_at": commit.committed_at,
            "snapshot_id": commit.id,
            "operation": commit.operation,
            "door": commit.properties.get(DOOR),
            "token": commit.properties.get(TOKEN),
            "counts": json.loads(commit.properties.get(COUNTS) or "{}"),
            "note": commit.properties.get(NOTE),
            "author": commit.properties.get(AUTHOR),
            **(_block(commit.properties) if layout is Layout.ODF else {}),
            **({"recorded_at": commit.properties.get(RECORDED)} if layout is Layout.VERSIONS else {}),
        }
        for commit in reversed(described.commits)
    ]


def _block(properties: Mapping[str, str]) -> dict[str, Any]:
    """The block in a commit's properties, or NULLs for a commit without one, such as a compaction."""
    block = {name: properties.get(f"backstory.odf.{name}") or None for name in BLOCK}
    sequence, offsets = block["sequence"], block["offsets"]
    return {
        "sequence": int(sequence) if sequence else None,
        "block": block["block"],
        "system_time": block["system-time"],
        "offsets": [int(offset) for offset in offsets.split(",")] if offsets else None,
        "watermark": block["watermark"],
    }


def inventory(catalog: Catalog, names: Iterable[TableName] | None = None) -> list[dict[str, Any]]:
    """The layout, rows, open versions (NULL without a history) and last commit of each table.

    For layout `versions`, `rows` counts the versions, and `memory_rows` counts the other rows. `settled` is
    the interval that no longer changes (V122). Unknown values are NULL. A table whose files are still in a
    former folder of the warehouse has an `error`.
    """
    listed = catalog.tables() if names is None else names
    return [row for name in listed if (row := _inventory_row(catalog, name)) is not None]


def _inventory_row(catalog: Catalog, name: TableName) -> dict[str, Any] | None:
    try:
        table = catalog.describe(name)
    except (Failed, UsageError) as unreadable:  # a file is missing, or a newer backstory wrote it
        if unreadable.code == SPARK_GONE:
            raise
        moved = {"error": unreadable.to_dict()} if unreadable.code == WAREHOUSE_MOVED else {}
        return {**NOTHING, "table": str(name), **moved}
    return None if table is None else _content_of(catalog, table)


def _content_of(catalog: Catalog, table: TableMetadata) -> dict[str, Any]:
    newest = table.newest
    try:
        counts = catalog.count(table)
    except OSError:  # a file is missing, but the other tables are listed
        counts = Counts(None, None)
    remembers = table.shape.layout is Layout.VERSIONS
    try:
        settled = json.loads(table.properties.get(SETTLED) or "null")
    except ValueError:  # changed by hand: `check` reports it
        settled = None
    return {
        "table": str(table.shape.table),
        "layout": table.shape.layout.value,
        "rows": counts.rows,
        "open_versions": counts.open,
        "last_commit": newest and newest.committed_at,
        **({"memory_rows": counts.memory, "settled": settled} if remembers else {}),
    }
