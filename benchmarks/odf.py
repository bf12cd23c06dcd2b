"""Measure a snapshot pull and a ledger pull against handwritten statements on one session, and small pulls.

Run `make bench ONLY=odf`, or `python benchmarks/odf.py [ROUNDS] [ROWS]`. Each log stores a million rows. The
snapshot contains a million (100 k gone, 200 k changed, 100 k new), the ledger 600 k (100 k known). The floor
scans each side once, joins them once, and appends once, with offsets that have gaps and no order. Each act is
undone before the next, in turn (A B A B); the result is the ratio of the medians.

Small pulls add 1,000 new rows, 1,000 known rows, or nothing to a log of a million, and count Spark's jobs.
Every act measures processor seconds too, of Python and Java together.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
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
    "append": "{kind: Append}",
}
FEW = 1_000
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
    """A warehouse with three datasets of a million rows."""

    def __init__(self, folder: Path, rows: int) -> None:
        (folder / "backstory.toml").write_text(CONFIGURATION)
        self.warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        self.spark, self.store, self.rows = self.warehouse.spark, self.warehouse.store, rows
        self.spark.catalog.setCurrentCatalog("backstory")
        self.folder = folder

    def make(self) -> None:
        rows, tenth = self.rows, self.rows // 10
        for name, merge in MERGES.items():
            manifest = MANIFEST.replace("NAME", name).replace("MERGE", merge)
            (self.folder / f"{name}.yaml").write_text(manifest)
            self.file(f"{name}-first", f"SELECT {ROW} FROM range({rows})")
            self.file(f"{name}-few", f"SELECT {ROW} FROM range({rows}, {rows + FEW})")
            self.file(f"{name}-known", f"SELECT {ROW} FROM range({rows // 2}, {rows // 2 + FEW})")
            self.pull(name, "first")
        self.file(
            "snapshot-later",
            f"SELECT id, IF(id < {3 * tenth}, 'another', name) AS name, city, credit, since FROM "
            f"(SELECT {ROW} FROM range({tenth}, {rows + tenth}))",
        )
        self.file("ledger-later", f"SELECT {ROW} FROM range({rows - tenth}, {rows + 5 * tenth})")

    def file(self, name: str, query: str) -> None:
        """Write one Parquet file, as a publisher would."""
        place = self.folder / "made"
        self.spark.sql(query).coalesce(1).write.mode("overwrite").parquet(str(place))
        (made,) = place.glob("*.parquet")
        made.replace(self.folder / f"{name}.parquet")

    def pull(self, name: str, file: str | None):
        """Pull a published file; without one, pull the unchanged first file."""
        place = self.folder / f"{name}.parquet"
        place.unlink(missing_ok=True)
        place.hardlink_to(self.folder / f"{name}-{file or 'first'}.parquet")
        asked = door.IngestRequest(system_time=DAY, refetch=file is not None)
        (receipt,) = door.pull_all(self.store, [self.folder / f"{name}.yaml"], asked)
        assert receipt.error is None, receipt.error
        return receipt

    def ours(self, name: str) -> None:
        receipt = self.pull(name, "later")
        tenth = self.rows // 10
        if name == "snapshot":
            assert (receipt.counts["appended"], receipt.counts["corrected"]) == (tenth, 2 * tenth)
        else:
            assert receipt.offsets == (self.rows, self.rows + 5 * tenth - 1)

    def small(self, name: str, file: str | None) -> None:
        """Pull a few rows or none, and check that only new rows are added."""
        added = FEW if file == "few" or (name == "append" and file) else 0
        assert self.pull(name, file).counts["appended"] == added

    def floor(self, name: str) -> None:
        new = self.spark.read.parquet(str(self.folder / f"{name}-later.parquet"))
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

    def processor(self) -> float:
        """The processor seconds that Python and Java have used."""
        java = self.spark._jvm.java.lang.ProcessHandle.current().pid()
        told = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")

    def jobs(self) -> int:
        """The number of Spark's newest job."""
        return max(self.spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)

    def taken_back(self, name: str, act: Callable[[], None]) -> tuple[float, float, int]:
        """The seconds of an act, its processor seconds and its jobs; its commit is undone."""
        history = self.spark.sql(f"SELECT snapshot_id FROM odf.{name}.history ORDER BY made_current_at")
        snapshot = history.collect()[-1][0]
        jobs, used, began = self.jobs(), self.processor(), time.monotonic()
        act()
        took = time.monotonic() - began
        found = took, self.processor() - used, self.jobs() - jobs
        self.spark.sql(f"CALL backstory.system.set_current_snapshot('odf.{name}', {snapshot})")
        self.spark.sql(f"DROP TABLE IF EXISTS odf.{name}__log PURGE")
        return found


def against_floor(bench: Bench, name: str, count: int) -> None:
    """Measure a pull and its floor in turn; the first round warms up."""
    found: dict[str, list[tuple[float, float, int]]] = {"ours": [], "floor": []}
    for number in range(count + 1):
        for label, act in (("ours", bench.ours), ("floor", bench.floor)):
            seen = bench.taken_back(name, partial(act, name))
            if number:
                found[label].append(seen)
                print(f"  {name} {label:8} {seen[0]:6.2f} s, processor {seen[1]:.2f} s", flush=True)
    (ours, own), (floor, theirs) = (
        [statistics.median(each[place] for each in found[label]) for place in range(2)] for label in found
    )
    print(f"{name}: {ours:.2f} s against the floor {floor:.2f} s = {ours / floor:.2f} (at most 1.5)")
    print(f"{name}: processor {own:.2f} s against the floor {theirs:.2f} s = {own / theirs:.2f}")


def small_pulls(bench: Bench, count: int) -> None:
    """Measure pulls of few rows or none onto a large log."""
    acts = {"1,000 new rows": "few", "1,000 known rows": "known", "nothing": None}
    for name in ("append", "ledger"):
        for label, file in acts.items():
            if name == "append" and file == "known":
                continue
            seen = [bench.taken_back(name, partial(bench.small, name, file)) for _ in range(count + 1)][1:]
            took, used = (statistics.median(each[place] for each in seen) for place in range(2))
            jobs = max(each[2] for each in seen)
            told = f"{took:.2f} s (at most 1.5), processor {used:.2f} s, jobs: {jobs}"
            print(f"{name}, a pull of {label}: {told}", flush=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="bench-odf-") as folder:
        bench = Bench(Path(folder), rows)
        bench.make()
        small_pulls(bench, count)
        for name in ("snapshot", "ledger"):
            against_floor(bench, name, count)
        bench.warehouse.close()


if __name__ == "__main__":
    main()
