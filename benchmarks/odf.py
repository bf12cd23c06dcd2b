"""Measure a snapshot and a ledger pull against what one would write by hand on the same session.

Run `make bench ONLY=odf`, or `python benchmarks/odf.py [ROUNDS] [ROWS]`. Stored is a million rows; the snapshot
brings a million (100 k gone, 200 k changed, 100 k new), the ledger 600 k (100 k known). The floor scans each
side once, joins them once, and appends once, with offsets that have gaps and no order. Each act is taken
back before the next, in turn (A B A B); what counts is the ratio of the medians.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import backstory
from backstory.doors.odf import door

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: NAME.parquet}
      read: {kind: Parquet}
      merge: MERGE
"""
MERGES = {
    "snapshot": "{kind: Snapshot, primaryKey: [id], encoding: op}",
    "ledger": "{kind: Ledger, primaryKey: [id]}",
}
CONFIGURATION = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "6g"
"spark.sql.shuffle.partitions" = "4"
"""
DAY = datetime(2026, 1, 1, tzinfo=UTC)
ROW = (
    "id, concat('name ', id % 5000) AS name, concat('city ', id % 300) AS city, "
    "CAST(id % 10000 AS DECIMAL(12,2)) AS credit, date_add(DATE '2020-01-01', CAST(id % 2000 AS INT)) AS since"
)
COLUMNS = ("id", "name", "city", "credit", "since")


class Bench:
    """A warehouse with two datasets of a million rows."""

    def __init__(self, folder: Path, rows: int) -> None:
        (folder / "backstory.toml").write_text(CONFIGURATION)
        self.warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        self.spark, self.store, self.rows = self.warehouse.spark, self.warehouse.store, rows
        self.spark.catalog.setCurrentCatalog("backstory")
        self.folder = folder

    def make(self) -> None:
        rows, tenth = self.rows, self.rows // 10
        later = {
            "snapshot": f"SELECT id, IF(id < {3 * tenth}, 'another', name) AS name, city, credit, since FROM "
            f"(SELECT {ROW} FROM range({tenth}, {rows + tenth}))",
            "ledger": f"SELECT {ROW} FROM range({rows - tenth}, {rows + 5 * tenth})",
        }
        for name, merge in MERGES.items():
            manifest = MANIFEST.replace("NAME", name).replace("MERGE", merge)
            (self.folder / f"{name}.yaml").write_text(manifest)
            self.file(name, f"SELECT {ROW} FROM range({rows})")
            self.pull(name)
            self.file(name, later[name])

    def file(self, name: str, query: str) -> None:
        """One Parquet file, as a publisher has it."""
        place = self.folder / "made"
        self.spark.sql(query).coalesce(1).write.mode("overwrite").parquet(str(place))
        (made,) = place.glob("*.parquet")
        made.replace(self.folder / f"{name}.parquet")

    def pull(self, name: str):
        asked = door.RunRequest(system_time=DAY, refetch=True)
        (receipt,) = door.pull_all(self.store, [self.folder / f"{name}.yaml"], asked)
        assert receipt.error is None, receipt.error
        return receipt

    def ours(self, name: str) -> None:
        receipt = self.pull(name)
        tenth = self.rows // 10
        if name == "snapshot":
            assert (receipt.counts["appended"], receipt.counts["corrected"]) == (tenth, 2 * tenth)
        else:
            assert receipt.offsets == (self.rows, self.rows + 5 * tenth - 1)

    def floor(self, name: str) -> None:
        new = self.spark.read.parquet(str(self.folder / f"{name}.parquet"))
        new.createOrReplaceTempView("new")
        columns = ", ".join(f"e.{each}" for each in COLUMNS)
        {"snapshot": self.floor_of_snapshot, "ledger": self.floor_of_ledger}[name](columns)

    def floor_of_ledger(self, columns: str) -> None:
        self.spark.sql(
            f"INSERT INTO odf.ledger SELECT monotonically_increasing_id(), TIMESTAMP '2026-01-01', "
            f"TIMESTAMP '2026-01-01', {columns} FROM new e LEFT ANTI JOIN odf.ledger o ON e.id = o.id"
        )

    def floor_of_snapshot(self, columns: str) -> None:
        new, old = (", ".join(f"{side}.{each}" for each in COLUMNS) for side in "no")
        same = " AND ".join(f"n.{each} <=> o.{each}" for each in COLUMNS)
        event = "struct({op} AS op, {values}) "
        self.spark.sql(
            f"INSERT INTO odf.snapshot SELECT monotonically_increasing_id(), e.op, TIMESTAMP '2026-01-01', "
            f"TIMESTAMP '2026-01-01', {columns} FROM (SELECT explode(CASE "
            f"WHEN o.id IS NULL THEN array({event.format(op=0, values=new)}) "
            f"WHEN n.id IS NULL THEN array({event.format(op=1, values=old)}) "
            f"WHEN NOT ({same}) THEN array({event.format(op=2, values=old)}, {event.format(op=3, values=new)}) "
            f"END) AS e FROM odf.snapshot o FULL OUTER JOIN new n ON o.id = n.id)"
        )

    def taken_back(self, name: str, act: Callable[[str], None]) -> float:
        """The seconds of an act; its commit is taken back."""
        history = self.spark.sql(f"SELECT snapshot_id FROM odf.{name}.history ORDER BY made_current_at")
        snapshot = history.collect()[-1][0]
        began = time.monotonic()
        act(name)
        took = time.monotonic() - began
        self.spark.sql(f"CALL backstory.system.set_current_snapshot('odf.{name}', {snapshot})")
        self.spark.sql(f"DROP TABLE IF EXISTS odf.{name}__log PURGE")
        return took


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="bench-odf-") as folder:
        bench = Bench(Path(folder), rows)
        bench.make()
        for name in MERGES:
            found: dict[str, list[float]] = {"ours": [], "floor": []}
            for number in range(count + 1):
                for label, act in (("ours", bench.ours), ("floor", bench.floor)):
                    took = bench.taken_back(name, act)
                    if number:
                        found[label].append(took)
                        print(f"  {name} {label:8} {took:6.2f} s", flush=True)
            ours, floor = (statistics.median(found[label]) for label in ("ours", "floor"))
            print(f"{name}: {ours:.2f} s against the floor {floor:.2f} s = {ours / floor:.2f} (at most 1.5)")
        bench.warehouse.close()


if __name__ == "__main__":
    main()
