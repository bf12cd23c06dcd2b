"""The commits of a table, and what a warehouse holds: the same rows whoever read the metadata."""

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

    Those of a dataset tell of its blocks, those of layout `versions` of the recorded time (V122). Raises
    UsageError for a table that is not there.
    """
    found = existing(catalog, table)
    layout = found.shape.layout
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
        for commit in reversed(found.commits)
    ]


def _block(told: Mapping[str, str]) -> dict[str, Any]:
    """What a dataset's commit says of its block; NULLs for a commit that is none, such as a compaction's."""
    block = {name: told.get(f"backstory.odf.{name}") or None for name in BLOCK}
    sequence, offsets = block["sequence"], block["offsets"]
    return {
        "sequence": int(sequence) if sequence else None,
        "block": block["block"],
        "system_time": block["system-time"],
        "offsets": [int(offset) for offset in offsets.split(",")] if offsets else None,
        "watermark": block["watermark"],
    }


def inventory(catalog: Catalog, names: Iterable[TableName] | None = None) -> list[dict[str, Any]]:
    """For each table its layout, rows, open versions (NULL without a history) and last commit.

    Rows of layout `versions` are its versions; the rows that are none stand in `memory_rows`, and the
    interval in which nothing changes any more in `settled` (V122). What cannot be told is NULL; a table that
    lies where the warehouse stood before has an `error`.
    """
    asked = catalog.tables() if names is None else names
    return [row for name in asked if (row := _inventory_row(catalog, name)) is not None]


def _inventory_row(catalog: Catalog, name: TableName) -> dict[str, Any] | None:
    try:
        table = catalog.describe(name)
    except (Failed, UsageError) as unreadable:  # a file is gone, or a newer backstory wrote it
        if unreadable.code == SPARK_GONE:
            raise
        moved = {"error": unreadable.to_dict()} if unreadable.code == WAREHOUSE_MOVED else {}
        return {**NOTHING, "table": str(name), **moved}
    return None if table is None else _content_of(catalog, table)


def _content_of(catalog: Catalog, table: TableMetadata) -> dict[str, Any]:
    newest = table.newest
    try:
        counts = catalog.count(table)
    except OSError:  # a file is gone: what else the warehouse has is told all the same
        counts = Counts(None, None)
    remembers = table.shape.layout is Layout.VERSIONS
    try:
        settled = json.loads(table.properties.get(SETTLED) or "null")
    except ValueError:  # somebody's: `check` tells of it
        settled = None
    return {
        "table": str(table.shape.table),
        "layout": table.shape.layout.value,
        "rows": counts.rows,
        "open_versions": counts.open,
        "last_commit": newest and newest.committed_at,
        **({"memory_rows": counts.memory, "settled": settled} if remembers else {}),
    }
