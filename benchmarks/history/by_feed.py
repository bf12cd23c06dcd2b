"""HistoryBench as feeds: the same days through `apply`, in order and shuffled, must leave the same tables.

Run `make bench ONLY=history_feed`, or `python -m benchmarks.history.by_feed [--scale 0.1] [--full]`. The
batches that `run.py` sends to the Fivetran door are Parquet files of changes here; each change names the
columns that it sets. Every change makes a version, as in `run.py`, because its time is tracked. The audits
are the same.
"""

import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import backstory
from benchmarks.asked import Asked, asked, scratch
from benchmarks.history.audits import COLUMNS, audited
from benchmarks.history.days import KEYS, Batch, Day, Row, World
from benchmarks.history.run import CONFIGURATION, SEED, count_files, lived, maintain, told
from benchmarks.report import Report

START, SETS = "start", "sets"
INSTANT: Final = pa.timestamp("us", "UTC")
TYPES: Final = {
    "customer_id": pa.int64(),
    "account_id": pa.int64(),
    "tier": pa.int64(),
    "tax": pa.int64(),
    "credit": pa.decimal128(12, 2),
    "customer_from": INSTANT,
}


def events(table: str, batch: Batch) -> pa.Table:
    """The batch as changes: a new record sets all columns, a change only the columns that it names."""
    schema = pa.schema(
        [
            *((name, TYPES.get(name, pa.string())) for name in COLUMNS[table]),
            (START, INSTANT),
            (SETS, pa.list_(pa.string())),
        ]
    )
    rows = [{**row, SETS: list(row)} for row in _rows(batch)]
    return pa.Table.from_pylist(rows, schema)


def _rows(batch: Batch) -> list[Row]:
    return [
        row | {"credit": Decimal(row["credit"])} if "credit" in row else row
        for row in (*batch.new, *batch.changes)
    ]


class Feeds:
    """A schema of tables filled from feeds; `lived` and the audits use `maintain`, `files` and `views`."""

    def __init__(self, warehouse: Any, folder: Path, schema: str) -> None:
        self.warehouse, self.folder, self.schema = warehouse, folder, schema
        self.spark = warehouse.spark

    def bring(self, day: Day) -> float:
        """Apply a day's two feeds; return the seconds."""
        ready = []
        for table in KEYS:
            batch = getattr(day, table)
            if len(batch):
                path = self.folder / f"{self.schema}-{table}-{day.number}.parquet"
                pq.write_table(events(table, batch), path)
                ready.append((table, path))
        began = time.perf_counter()
        for table, path in ready:
            self.warehouse.apply(
                str(path),
                into=f"{self.schema}.{table}",
                key=KEYS[table],
                sequence_by=START,
                columns_to_update=SETS,
                drop=SETS,
                track=[*(name for name in COLUMNS[table] if name != KEYS[table]), START],
            )
        took = time.perf_counter() - began
        for _, path in ready:
            path.unlink()
        return took

    def maintain(self) -> float:
        """Maintain both tables; return the seconds."""
        return maintain(self.warehouse, *(f"{self.schema}.{table}" for table in KEYS))

    def files(self) -> dict[str, int]:
        """The number of files in each table's current snapshot, including deletion vectors."""
        return count_files(self.spark, self.schema)

    def views(self) -> None:
        """Create the views of versions for the audits."""
        for table in KEYS:
            stored = self.warehouse.spark.table(f"backstory.{self.schema}.{table}")
            stored.where("_memory.role IS NULL").createOrReplaceTempView(table)


def differing(spark: Any) -> int:
    """The number of versions that only one of the two orders has."""
    count = 0
    for table in KEYS:
        names = ", ".join([*COLUMNS[table], "valid_from", "valid_to", "is_current"])
        one, other = (
            f"SELECT {names} FROM backstory.{schema}.{table} WHERE _memory.role IS NULL"
            for schema in ("feed", "shuffled")
        )
        for left, right in ((one, other), (other, one)):
            count += spark.sql(f"SELECT count(*) FROM ({left} EXCEPT ALL {right})").collect()[0][0]
    return int(count)


def run(given: Asked) -> None:
    """Apply the days in both orders, audit them, and write `history_feed.json` and `history_feed.md`."""
    factor, count = (10.0, 365) if given.full else (1.0, 30)
    world = World(factor * given.scale, SEED)
    title = (
        f"HistoryBench as feeds: {count} days at scale factor {factor * given.scale:g}, in order and shuffled"
    )
    report = Report("history_feed", title, given)
    with scratch("history_feed") as folder:
        (folder / "backstory.toml").write_text(CONFIGURATION)
        warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        feeds, days = Feeds(warehouse, folder, "feed"), list(world.days(count))
        found = lived(feeds, days, count, lambda so_far: told(report, so_far, None))
        feeds.views()
        audits = audited(feeds.spark, world, found["starts"])
        shuffled = Feeds(warehouse, folder, "shuffled")
        order = days[1:]
        random.Random(SEED).shuffle(order)
        seconds = [shuffled.bring(day) for day in [*order, days[0]]]
        shuffled.views()
        again = audited(feeds.spark, world, found["starts"])
        audits += [(table, f"{name}, shuffled", broken) for table, name, broken in again]
        apart = differing(feeds.spark)
        report.say(
            "Shuffled",
            f"All {count} days in another order, and the first load last: {sum(seconds):.1f} s; "
            f"{apart} versions differ between the two orders.",
        )
        report.data["differing"] = apart
        told(report, found, audits)
        warehouse.close()
    assert not apart
    assert not any(broken for *_, broken in audits), audits


if __name__ == "__main__":
    run(asked(__doc__))
