"""Measure a history load on Spark against handwritten statements on the same session.

Run `make bench ONLY=historize`, or `python benchmarks/historize.py [ROUNDS] [KEYS]`. The floor is one full
outer join of base and open versions with its actions kept, and one MERGE. The other acts are the four
statements of the specification, the join by itself, and a load into a history with four times the versions.
Each load is undone before the next, in turn (A B A B); the result is the ratio of the medians.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import backstory
from backstory.doors.historize.door import choose, historize_on_spark, open_model
from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.receipts import LoadRequest
from backstory.doors.historize.spark_tables import base_shape, hist_shape
from backstory.engine.deliver import commit_change
from backstory.model.change import Change, Note
from backstory.stores.sql.columns import instant_text
from backstory.stores.sql.engine import fill_placeholders
from backstory.strategies.scd2.statements import hist_steps

MODEL = """
format: historize/1
target_schemas: [{short_name: rawcore}]
target_datasets:
  - target_schema: rawcore
    target_dataset_name: rc_NAME
    lineage_key: "rawcore:NAME"
    target_columns:
      - {target_column_name: id, datatype: BIGINT, system_role: business_key}
      - {target_column_name: name, datatype: STRING}
      - {target_column_name: email, datatype: STRING}
      - {target_column_name: city, datatype: STRING}
      - {target_column_name: credit, datatype: DECIMAL, decimal_precision: 12, decimal_scale: 2}
      - {target_column_name: since, datatype: DATE}
      - {target_column_name: seen, datatype: TIMESTAMP}
"""
CONFIGURATION = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "6g"
"spark.sql.shuffle.partitions" = "4"
"""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ATTRIBUTES = (
    "id, concat('customer ', id % 5000) AS name, concat('user', id, '@example.com') AS email, "
    "concat('city ', id % 300) AS city, CAST(id % 10000 AS DECIMAL(12,2)) AS credit, "
    "date_add(DATE '2020-01-01', CAST(id % 2000 AS INT)) AS since, TIMESTAMP '2025-01-01 00:00:00Z' AS seen"
)


class Bench:
    """A warehouse with histories of a million keys."""

    def __init__(self, folder: Path, keys: int) -> None:
        (folder / "backstory.toml").write_text(CONFIGURATION)
        self.warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        self.spark, self.store, self.keys = self.warehouse.spark, self.warehouse.store, keys
        self.spark.catalog.setCurrentCatalog("backstory")
        self.folder = folder

    def make(self, name: str, closed: int) -> None:
        """Make open versions of every key, `closed` closed versions of each, and a base with equal rows."""
        path = self.folder / f"{name}.yaml"
        path.write_text(MODEL.replace("NAME", name))
        model, _ = open_model(path)
        dataset = model.target_datasets[0]
        hist = sync_hist(dataset, None, NOW)
        load = prepare_load(model, dataset, hist, self.dialect())
        for shape in (base_shape(load), hist_shape(load)):
            commit_change(self.store, None, Change(into=shape), Note("bench", ""))
        key, made = f"sha2(concat('id~', id), 256) AS rc_{name}_key", "sha2(concat_ws('|', id, V), 256)"
        row = f"SELECT {key}, {ATTRIBUTES}, {made.replace('V', '0')} AS row_hash"
        base = self.spark.sql(
            f"{row}, 'r0' AS load_run_id, TIMESTAMP '2025-06-01 00:00:00Z' AS loaded_at FROM range({self.keys})"
        )
        base.writeTo(f"rawcore.rc_{name}").append()
        for version in range(closed, -1, -1):
            start = f"TIMESTAMP '{2024 - version}-06-01 00:00:00Z'"
            end = f"TIMESTAMP '{2025 - version}-06-01 00:00:00Z'" if version else "CAST(NULL AS TIMESTAMP)"
            state = "'changed'" if version or closed else "'new'"
            rows = self.spark.sql(
                f"SELECT sha2(concat(id, ' ', {version}), 256) AS rc_{name}_hist_key, {key}, {ATTRIBUTES}, "
                f"{made.replace('V', str(version))} AS row_hash, {start} AS version_started_at, "
                f"{end} AS version_ended_at, {state} AS version_state, 'r0' AS load_run_id, {start} AS loaded_at "
                f"FROM range({self.keys})"
            )
            rows.writeTo(f"rawcore.rc_{name}_hist").append()
        # Run one load of our own, because a real history always has one.
        self.spark.sql(f"DELETE FROM rawcore.rc_{name} WHERE id = 3")
        path_of = self.folder / f"{name}.yaml"
        historize_on_spark(
            choose(path_of, None), self.store, LoadRequest(skip_base=True, load_timestamp="2025-12-01")
        )

    def change(self, name: str) -> None:
        """Change 1 % of the base, remove 0.5 % and add 0.5 %."""
        table, keys = f"rawcore.rc_{name}", self.keys
        self.spark.sql(
            f"UPDATE {table} SET city = 'elsewhere', row_hash = sha2(concat('other ', id), 256) WHERE id % 100 = 7"
        )
        self.spark.sql(f"DELETE FROM {table} WHERE id % 200 = 3")
        self.spark.sql(
            f"INSERT INTO {table} SELECT sha2(concat('id~', id), 256), {ATTRIBUTES}, sha2(concat_ws('|', id, 0), 256), "
            f"'r1', TIMESTAMP '2025-06-01 00:00:00Z' FROM range({keys}, {keys + keys // 200})"
        )

    def dialect(self):
        from backstory.stores.sql.dialects import Spark

        return Spark()

    def load_of(self, name: str):
        model, _ = open_model(self.folder / f"{name}.yaml")
        dataset = model.target_datasets[0]
        return prepare_load(model, dataset, sync_hist(dataset, None, NOW), self.dialect())

    # The measured acts

    def ours(self, name: str) -> None:
        (receipt,) = historize_on_spark(
            choose(self.folder / f"{name}.yaml", None),
            self.store,
            LoadRequest(skip_base=True, load_timestamp=NOW),
        )
        assert receipt.error is None, receipt.error

    def join(self, name: str) -> None:
        """The join by itself: the number of rows for each action."""
        self.spark.sql(f"SELECT action, count(*) FROM ({self.actions(name)}) GROUP BY action").collect()

    def actions(self, name: str, columns: str = "") -> str:
        key = f"rc_{name}_key"
        return (
            f"SELECT CASE WHEN r.{key} IS NULL THEN 'deleted' WHEN v.{key} IS NULL THEN 'new' "
            f"WHEN NOT (r.row_hash <=> v.row_hash) THEN 'changed' END AS action, v.{key} AS open_key{columns} "
            f"FROM rawcore.rc_{name} r FULL OUTER JOIN (SELECT {key}, row_hash FROM rawcore.rc_{name}_hist "
            f"WHERE version_ended_at IS NULL) v ON r.{key} = v.{key}"
        )

    def floor(self, name: str) -> None:
        """By hand: one join with its actions kept, and one MERGE."""
        key, names = f"rc_{name}_key", "id, name, email, city, credit, since, seen, row_hash"
        payload = ", ".join(f"r.{each}" for each in [key, *names.split(", ")])
        actions = self.spark.sql(self.actions(name, f", {payload}")).where("action IS NOT NULL").persist()
        actions.count()
        actions.createOrReplaceTempView("actions")
        nothing = ", ".join(f"NULL AS {each}" for each in [key, *names.split(", ")])
        instant = "TIMESTAMP '2026-01-01 00:00:00Z'"
        self.spark.sql(
            f"MERGE INTO rawcore.rc_{name}_hist t USING ("
            f"SELECT open_key AS match_key, action, {nothing} FROM actions WHERE open_key IS NOT NULL UNION ALL "
            f"SELECT NULL, action, {key}, {names} FROM actions WHERE action IN ('changed', 'new')) s "
            f"ON t.{key} = s.match_key AND t.version_ended_at IS NULL "
            f"WHEN MATCHED THEN UPDATE SET version_ended_at = {instant}, version_state = s.action, load_run_id = 'r1' "
            f"WHEN NOT MATCHED THEN INSERT (rc_{name}_hist_key, {key}, {names}, version_started_at, "
            f"version_ended_at, version_state, load_run_id, loaded_at) VALUES (sha2(concat(s.{key}, 't'), 256), "
            f"s.{key}, {', '.join(f's.{each}' for each in names.split(', '))}, {instant}, NULL, s.action, 'r1', {instant})"
        )
        actions.unpersist()

    def four(self, name: str) -> None:
        """The four statements of the specification."""
        text = self.dialect().string_literal
        values = {
            "load_timestamp": self.dialect().timestamp_literal(NOW),
            "load_timestamp_text": text(instant_text(NOW)),
            "load_run_id": text("r1"),
            "pepper": text("pepper"),
        }
        for statement in hist_steps(self.load_of(name).pair):
            self.spark.sql(fill_placeholders(statement.sql, values))

    def taken_back(self, name: str, act: Callable[[str], None]) -> float:
        """The seconds of an act, whose commits are undone."""
        table = f"rawcore.rc_{name}_hist"
        before = self.spark.sql(
            f"SELECT snapshot_id FROM {table}.history ORDER BY made_current_at DESC LIMIT 1"
        )
        snapshot = before.collect()[0][0]
        began = time.monotonic()
        act(name)
        took = time.monotonic() - began
        self.spark.sql(f"CALL backstory.system.set_current_snapshot('{table}', {snapshot})")
        return took


def rounds(
    bench: Bench, acts: dict[str, tuple[str, Callable[[str], None]]], count: int
) -> dict[str, list[float]]:
    """The seconds of each act, in turn; the first round warms up."""
    found: dict[str, list[float]] = {label: [] for label in acts}
    for number in range(count + 1):
        for label, (name, act) in acts.items():
            took = bench.taken_back(name, act)
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
    os.environ.setdefault("BACKSTORY_PEPPER", "pepper")
    with tempfile.TemporaryDirectory(prefix="bench-historize-") as folder:
        bench = Bench(Path(folder), keys)
        for name, closed in (("small", 3), ("large", 15)):
            bench.make(name, closed)
        still = rounds(
            bench, {"nothing changed": ("small", bench.ours), "join alone": ("small", bench.join)}, count
        )
        for name in ("small", "large"):
            bench.change(name)
        loads = rounds(
            bench,
            {
                "load": ("small", bench.ours),
                "floor": ("small", bench.floor),
                "four statements": ("small", bench.four),
                "load on 16 M versions": ("large", bench.ours),
            },
            count,
        )
        told(loads, "load", "floor", 1.3)
        told(loads, "load", "four statements", 0.5)
        told(still, "nothing changed", "join alone", 1.1)
        told(loads, "load on 16 M versions", "load", 1.2)
        bench.warehouse.close()


if __name__ == "__main__":
    main()
