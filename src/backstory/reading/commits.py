"""The commits of a table, and what a warehouse holds."""

import json
from datetime import UTC, datetime
from typing import Any

from backstory.model.table import Layout, TableName
from backstory.tables.store import Store, existing, load, tables

# Which versions of a history are open.
OPEN = {Layout.FIVETRAN_HISTORY: "_fivetran_active", Layout.HIST: "version_ended_at IS NULL"}

BLOCK = ("sequence", "block", "system-time", "offsets", "watermark")


def commits(store: Store, table: TableName) -> list[dict[str, Any]]:
    """A table's commits, newest first: time, snapshot id, door, token, counts; of a dataset its blocks."""
    found = []
    stored = existing(store, table)
    for snapshot in stored.iceberg.snapshots():
        summary = snapshot.summary()
        found.append(
            {
                "committed_at": datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC),
                "snapshot_id": int(snapshot.snapshotId()),
                "operation": snapshot.operation(),
                "door": summary.get("backstory.door"),
                "token": summary.get("backstory.token"),
                "counts": json.loads(summary.get("backstory.counts") or "{}"),
                **(_block(summary) if stored.shape.layout is Layout.ODF else {}),
            }
        )
    return found[::-1]


def _block(summary: Any) -> dict[str, Any]:
    """What a dataset's commit says of its block; NULLs for a commit that is none, such as a compaction's."""
    told = {name: summary.get(f"backstory.odf.{name}") or None for name in BLOCK}
    sequence, offsets = told["sequence"], told["offsets"]
    return {
        "sequence": int(sequence) if sequence else None,
        "block": told["block"],
        "system_time": told["system-time"],
        "offsets": [int(offset) for offset in offsets.split(",")] if offsets else None,
        "watermark": told["watermark"],
    }


def inventory(store: Store) -> list[dict[str, Any]]:
    """For each table its layout, rows, open versions (NULL without a history) and last commit."""
    found = []
    for name in tables(store):
        table = load(store, name)
        if table is None:
            continue
        rows = store.spark.table(store.sql_name(name))
        open_ = OPEN.get(table.shape.layout)
        newest = commits(store, name)[:1]
        found.append(
            {
                "table": str(name),
                "layout": table.shape.layout.value,
                "rows": rows.count(),
                "open_versions": rows.where(open_).count() if open_ else None,
                "last_commit": newest[0]["committed_at"] if newest else None,
            }
        )
    return found
