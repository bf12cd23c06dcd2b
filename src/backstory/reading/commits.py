"""The commits of a table, and what a warehouse holds."""

import json
from datetime import UTC, datetime
from typing import Any

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores.iceberg.store import Store, StoredTable, existing, load, tables

BLOCK = ("sequence", "block", "system-time", "offsets", "watermark")


def commits(store: Store, table: TableName) -> list[dict[str, Any]]:
    """A table's commits, newest first: time, snapshot id, door, token, counts; of a dataset its blocks."""
    found = []
    stored = existing(store, table)
    for snapshot in stored.iceberg.snapshots():
        summary = snapshot.summary()
        found.append(
            {
                "committed_at": _committed(snapshot),
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
    """For each table its layout, rows, open versions (NULL without a history) and last commit.

    A table that Spark cannot read, for a column of another tool's type, has NULL for its counts.
    """
    found = []
    for name in tables(store):
        table = load(store, name)
        if table is None:
            continue
        rows, open_ = _counted(store, table)
        newest = table.iceberg.currentSnapshot()
        found.append(
            {
                "table": str(name),
                "layout": table.shape.layout.value,
                "rows": rows,
                "open_versions": open_,
                "last_commit": None if newest is None else _committed(newest),
            }
        )
    return found


def _counted(store: Store, table: StoredTable) -> tuple[int | None, int | None]:
    """The rows, and the open versions of a history; read from the commit alone where it tells them."""
    span, newest = table.shape.layout.span, table.iceberg.currentSnapshot()
    open_ = span and span.open
    if newest is None:
        return 0, 0 if open_ else None
    summary = newest.summary()
    if open_ is None and summary.get("total-delete-files") == "0" and summary.get("total-records"):
        return table.rows, None
    from pyspark.errors import PySparkException

    asked = ["count(*) AS rows", f"count_if({open_ or 'NULL'}) AS open"]
    try:
        (counts,) = store.spark.table(store.sql_name(table.shape.table)).selectExpr(*asked).collect()
    except PySparkException:
        return None, None
    return counts["rows"], counts["open"] if open_ else None


def _committed(snapshot: Any) -> datetime:
    return datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)
