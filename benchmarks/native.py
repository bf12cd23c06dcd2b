"""Measure a native snapshot against handwritten statements on the same session.

Run `make bench ONLY=native`, or `python benchmarks/native.py [ROUNDS] [KEYS]`. A full copy of a million keys
is loaded onto their open versions and as many closed ones. Among its keys 1 % changed, 0.5 % are gone, and
0.5 % are new. The floor is one full outer join of the copy and the open versions with its actions kept, and
one MERGE. For a copy without changes the floor is only the join. A copy with memory is measured against one
without. Each act is undone before the next, in turn (A B A B); the result is the ratio of the medians.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import backstory

CONFIGURATION = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "6g"
"spark.sql.shuffle.partitions" = "4"
"""
COLUMNS = ("id", "name", "email", "city", "credit", "since", "seen")
ROWS = (
    "SELECT id, concat('customer ', id % 5000) AS name, concat('user', id, '@example.com') AS email, "
    "concat('city ', (id + {move}) % 300) AS city, CAST(id % 10000 AS DECIMAL(12,2)) AS credit, "
    "date_add(DATE '2020-01-01', CAST(id % 2000 AS INT)) AS since, TIMESTAMP '2025-01-01 00:00:00Z' AS seen "
    "FROM range({keys})"
)
CHANGED = (
    "SELECT id, name, email, if(id % 100 = 7, 'elsewhere', city) AS city, credit, since, seen FROM ({rows}) "
    "WHERE id % 200 <> 3 UNION ALL SELECT id + {keys}, name, email, city, credit, since, seen FROM ({rows}) "
    "WHERE id < {keys} / 200"
)
Act = Callable[[], object]


class Bench:
    """A warehouse with two tables of versions, the second with a memory, and two copies in Parquet."""

    def __init__(self, folder: Path, keys: int) -> None:
        (folder / "backstory.toml").write_text(CONFIGURATION)
        self.warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        self.spark = self.warehouse.spark
        self.spark.catalog.setCurrentCatalog("backstory")
        rows = ROWS.format(keys=keys, move=0)
        for name, query in (("same", rows), ("other", CHANGED.format(rows=rows, keys=keys))):
            self.spark.sql(query).write.parquet(str(folder / name))
        self.same, self.other = (self.spark.read.parquet(str(folder / name)) for name in ("same", "other"))
        self.same.createOrReplaceTempView("same_copy")
        self.other.createOrReplaceTempView("other_copy")
        earlier = self.spark.sql(ROWS.format(keys=keys, move=1))
        for table, more in (("bench.plain", {}), ("bench.remembering", {"backfill": True})):
            self.warehouse.snapshot(earlier, into=table, key="id", at="2025-01-01", **more)
            self.warehouse.snapshot(self.same, into=table, at="2025-06-01")

    def copy(self, frame, table: str) -> None:
        self.warehouse.snapshot(frame, into=table, at="2026-01-01")

    def actions(self, copy: str, columns: str = "") -> str:
        differ = " OR ".join(f"NOT (r.{name} <=> v.{name})" for name in COLUMNS[1:])
        return (
            f"SELECT CASE WHEN r.id IS NULL THEN 'closed' WHEN v.id IS NULL THEN 'new' WHEN {differ} THEN 'changed' "
            f"END AS action, v.id AS open_id{columns} FROM {copy} r FULL OUTER JOIN "
            "(SELECT * FROM bench.plain WHERE valid_to IS NULL) v ON r.id = v.id"
        )

    def join(self) -> None:
        """The join by itself: the number of rows for each action."""
        self.spark.sql(
            f"SELECT action, count(*) FROM ({self.actions('same_copy')}) GROUP BY action"
        ).collect()

    def floor(self) -> None:
        """By hand: one join with its actions kept, and one MERGE."""
        payload = "".join(f", r.{name}" for name in COLUMNS)
        actions = self.spark.sql(self.actions("other_copy", payload)).where("action IS NOT NULL").persist()
        actions.count()
        actions.createOrReplaceTempView("actions")
        nothing, names = ", ".join(f"NULL AS {name}" for name in COLUMNS), ", ".join(COLUMNS)
        instant = "TIMESTAMP '2026-01-01 00:00:00Z'"
        self.spark.sql(
            f"MERGE INTO bench.plain t USING (SELECT open_id, {nothing} FROM actions WHERE open_id IS NOT NULL "
            f"UNION ALL SELECT NULL, {names} FROM actions WHERE action IN ('changed', 'new')) s "
            f"ON t.id = s.open_id AND t.valid_to IS NULL WHEN MATCHED THEN UPDATE SET valid_to = {instant}, "
            f"is_current = false WHEN NOT MATCHED THEN INSERT ({names}, valid_from, is_current, recorded_at) "
            f"VALUES ({', '.join(f's.{name}' for name in COLUMNS)}, {instant}, true, {instant})"
        )
        actions.unpersist()

    def taken_back(self, table: str, act: Act) -> float:
        """The seconds of an act, whose commits are undone."""
        newest = f"SELECT snapshot_id FROM {table}.history ORDER BY made_current_at DESC LIMIT 1"
        snapshot = self.spark.sql(newest).collect()[0][0]
        began = time.monotonic()
        act()
        took = time.monotonic() - began
        self.spark.sql(f"CALL backstory.system.set_current_snapshot('{table}', {snapshot})")
        return took


def rounds(bench: Bench, acts: dict[str, tuple[str, Act]], count: int) -> dict[str, list[float]]:
    """The seconds of each act, in turn; the first round warms up."""
    found: dict[str, list[float]] = {label: [] for label in acts}
    for number in range(count + 1):
        for label, (table, act) in acts.items():
            took = bench.taken_back(table, act)
            if number:
                found[label].append(took)
                print(f"  {label:32} {took:6.2f} s", flush=True)
    return found


def told(found: dict[str, list[float]], label: str, against: str, bound: float) -> None:
    ours, floor = statistics.median(found[label]), statistics.median(found[against])
    print(
        f"{label}: {ours:.2f} s ({min(found[label]):.2f} to {max(found[label]):.2f}) against {against} {floor:.2f} s "
        f"({min(found[against]):.2f} to {max(found[against]):.2f}) = {ours / floor:.2f} (at most {bound})"
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    keys = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="bench-native-") as folder:
        bench = Bench(Path(folder), keys)
        acts: dict[str, tuple[str, Act]] = {
            "nothing changed": ("bench.plain", lambda: bench.copy(bench.same, "bench.plain")),
            "join alone": ("bench.plain", bench.join),
            "snapshot": ("bench.plain", lambda: bench.copy(bench.other, "bench.plain")),
            "floor": ("bench.plain", bench.floor),
            "snapshot with memory": (
                "bench.remembering",
                lambda: bench.copy(bench.other, "bench.remembering"),
            ),
        }
        found = rounds(bench, acts, count)
        told(found, "snapshot", "floor", 1.3)
        told(found, "nothing changed", "join alone", 1.1)
        told(found, "snapshot with memory", "snapshot", 1.1)
        bench.warehouse.close()


if __name__ == "__main__":
    main()
