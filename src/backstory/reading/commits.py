"""The commits of a table, and what a warehouse holds."""

import json
from typing import Any

from backstory.model.change import COUNTS, DOOR, TOKEN
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.snapshots import Snapshot
from backstory.stores.iceberg.store import Store, StoredTable, existing, load, tables

BLOCK = ("sequence", "block", "system-time", "offsets", "watermark")


def commits(store: Store, table: TableName) -> list[dict[str, Any]]:
    """A table's commits, newest first: time, snapshot id, door, token, counts; of a dataset its blocks."""
    stored = existing(store, table)
    of_dataset = stored.shape.layout is Layout.ODF
    return [
        {
            "committed_at": snapshot.committed_at,
            "snapshot_id": snapshot.id,
            "operation": snapshot.operation,
            "door": snapshot.told(DOOR),
            "token": snapshot.told(TOKEN),
            "counts": json.loads(snapshot.told(COUNTS) or "{}"),
            **(_block(snapshot) if of_dataset else {}),
        }
        for snapshot in reversed(snapshots.known(stored))
    ]


def _block(snapshot: Snapshot) -> dict[str, Any]:
    """What a dataset's commit says of its block; NULLs for a commit that is none, such as a compaction's."""
    told = {name: snapshot.told(f"backstory.odf.{name}") or None for name in BLOCK}
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
        newest = snapshots.newest(table)
        found.append(
            {
                "table": str(name),
                "layout": table.shape.layout.value,
                "rows": rows,
                "open_versions": open_,
                "last_commit": newest and newest.committed_at,
            }
        )
    return found


def _counted(store: Store, table: StoredTable) -> tuple[int | None, int | None]:
    """The rows, and the open versions of a history; read from the commit alone where it tells them."""
    span, newest = table.shape.layout.span, snapshots.newest(table)
    open_ = span and span.open
    if newest is None:
        return 0, 0 if open_ else None
    if open_ is None and newest.told("total-delete-files") == "0" and newest.told("total-records"):
        return table.rows, None
    from pyspark.errors import PySparkException

    asked = ["count(*) AS rows", f"count_if({open_ or 'NULL'}) AS open"]
    try:
        (counts,) = store.spark.table(store.sql_name(table.shape.table)).selectExpr(*asked).collect()
    except PySparkException:
        return None, None
    return counts["rows"], counts["open"] if open_ else None
