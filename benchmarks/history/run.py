"""HistoryBench: days of changes through the Fivetran door, audited; the costs of the first and the last days.

Run `make bench ONLY=history`, or `python -m benchmarks.history.run [--scale 0.1] [--full]`. Scale 1 is
30 days at scale factor 1, or with `--full` 365 days at scale factor 10; a lower scale lowers the factor. Each
day two history tables get one batch each (a real gRPC server, encrypted and compressed files). `maintain`
runs once a week.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.model.layout import ACTIVE, END, HISTORY_COLUMNS, START, SYNCED
from backstory.testing.sender import AS_FIVETRAN, UNMODIFIED, Sender, instant, write_batch_file
from benchmarks.asked import Asked, asked, scratch
from benchmarks.history.audits import COLUMNS, audited
from benchmarks.history.days import KEYS, Batch, Day, Row, World
from benchmarks.report import Report

SCHEMA: Final = "bench"
OPEN: Final = "9999-12-31T23:59:59.999Z"
WEEK: Final = 7
TEN: Final = 10
SEED: Final = 14
NUMBERS: Final = {"customer_id", "account_id", "tier", "tax"}
CONFIGURATION: Final = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "3g"
"""


def definition(table: str) -> common.Table:
    """The history table as Fivetran would define it."""
    made = common.Table(name=table)
    for name in COLUMNS[table]:
        kind = "LONG" if name in NUMBERS else "UTC_DATETIME" if name == "customer_from" else "STRING"
        kind = "DECIMAL" if name == "credit" else kind
        column = made.columns.add(
            name=name, type=common.DataType.Value(kind), primary_key=name == KEYS[table]
        )
        if kind == "DECIMAL":
            column.params.decimal.precision, column.params.decimal.scale = 12, 2
    for name in (SYNCED, *HISTORY_COLUMNS):
        kind = "BOOLEAN" if name == ACTIVE else "UTC_DATETIME"
        made.columns.add(name=name, type=common.DataType.Value(kind), primary_key=name == START)
    return made


def files(folder: Path, table: str, batch: Batch, day: Day) -> dict[str, list[Any]]:
    """Write the batch to files: whole new rows, sparse updates, and the earliest start of each key."""
    synced, key = instant(day.ends), KEYS[table]
    names = [*COLUMNS[table], SYNCED, START, END, ACTIVE]
    starts: dict[Any, list[Any]] = {}
    for row in [*batch.new, *batch.changes]:
        starts.setdefault(row[key], []).append(row["start"])
    ends = {
        (found, start): following
        for found, listed in starts.items()
        for start, following in pairwise([*sorted(listed), None])
    }

    def whole(row: Row, missing: object) -> Row:
        """A row of a file; it ends a millisecond before the key's next start in the batch."""
        values = {name: row.get(name, missing) for name in COLUMNS[table]}
        following = ends[row[key], row["start"]]
        end = OPEN if following is None else following - timedelta(milliseconds=1)
        return {**values, START: row["start"], END: end, ACTIVE: following is None, SYNCED: synced}

    told = [{key: found, START: min(listed)} for found, listed in starts.items()]
    rows = {
        "earliest_start_files": (told, [key, START]),
        "replace_files": ([whole(row, None) for row in batch.new], names),
        "update_files": ([whole(row, UNMODIFIED) for row in batch.changes], names),
    }
    return {kind: [write_batch_file(folder, *each, AS_FIVETRAN)] for kind, each in rows.items() if each[0]}


def maintain(warehouse: Any, *tables: str, **options: bool) -> float:
    """Maintain the tables; return the seconds."""
    began = time.perf_counter()
    for done in warehouse.maintain(*tables, **options):
        assert done.error is None, done.error
    return time.perf_counter() - began


def count_files(spark: Any, schema: str) -> dict[str, int]:
    """The number of files in each table's current snapshot, including deletion vectors."""
    query = f"SELECT count(*) FROM backstory.{schema}.{{}}.files"
    return {table: spark.sql(query.format(table)).collect()[0][0] for table in KEYS}


class Tables:
    """A warehouse, a server for it in this process, and a sender to the server."""

    def __init__(self, folder: Path) -> None:
        import backstory

        (folder / "backstory.toml").write_text(CONFIGURATION)
        self.warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        self.running = self.warehouse.serve(host="127.0.0.1", port=0)
        self.folder, self.spark = folder, self.warehouse.spark
        self.sender = Sender.to(f"127.0.0.1:{self.running.port}", folder)
        self.told = {table: definition(table) for table in KEYS}
        for table in self.told.values():
            self.sender.create(SCHEMA, table)

    def bring(self, day: Day) -> float:
        """Send a day's two batches; return the seconds."""
        ready = {}
        for table in KEYS:
            batch = getattr(day, table)
            if len(batch):
                ready[table] = files(self.folder, table, batch, day)
        began = time.perf_counter()
        for table, listed in ready.items():
            self.sender.send_files(SCHEMA, self.told[table], listed)
        took = time.perf_counter() - began
        for listed in ready.values():
            for each in (file for kind in listed.values() for file in kind):
                each.path.unlink()
        return took

    def maintain(self) -> float:
        """Run `maintain --all`; return the seconds."""
        return maintain(self.warehouse, all=True)

    def files(self) -> dict[str, int]:
        """The number of files in each table's current snapshot, including deletion vectors."""
        return count_files(self.spark, SCHEMA)

    def views(self) -> None:
        """Create views of the tables as versions for the audits, in plain SQL."""
        for table in KEYS:
            self.spark.sql(
                f"SELECT *, {START} AS valid_from, if({END} >= TIMESTAMP '9999-12-31 00:00:00Z', NULL, {END} + "
                f"INTERVAL 1 MILLISECOND) AS valid_to FROM backstory.{SCHEMA}.{table}"
            ).createOrReplaceTempView(table)


def starts_of(day: Day) -> dict[str, int]:
    """The number of versions that begin on the day: one for each action, as no two share a second."""
    return {table: len(getattr(day, table)) for table in KEYS}


def lived(
    tables: Any, days: Iterable[Day], count: int, note: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Load the days; return the seconds of each day and each maintenance, and the files every five weeks."""
    found: dict[str, Any] = {"first_load": None, "days": [], "maintain": [], "files": {}, "starts": []}
    for day in days:
        took = tables.bring(day)
        found["starts"].append(starts_of(day))
        if day.number == 0:
            found["first_load"] = took
        else:
            found["days"].append(round(took, 3))
        if day.number and day.number % WEEK == 0:
            found["maintain"].append(round(tables.maintain(), 3))
        if day.number in {TEN, count} or (day.number and day.number % (WEEK * 5) == 0):
            found["files"][day.number] = tables.files()
            note(found)
            gc.collect()
    return found


def told(report: Report, found: dict[str, Any], audits: list[tuple[str, str, int]] | None) -> None:
    """Write the results so far to the report."""
    days, maintained = found["days"], found["maintain"]
    first, last = days[:TEN], days[-TEN:]
    ratio = statistics.mean(last) / statistics.mean(first) if len(days) > TEN else None
    files = {int(day): sum(each.values()) for day, each in found["files"].items()}
    growth = max(files) > TEN and TEN in files and files[max(files)] / files[TEN]
    rows = [
        ["days so far", "", len(days), ""],
        ["first load", f"{sum(found['starts'][0].values()):,} versions", f"{found['first_load']:.2f} s", ""],
        ["a day, first ten", "mean of both batches", f"{statistics.mean(first):.2f} s", ""],
        ["a day, last ten", "mean of both batches", f"{statistics.mean(last):.2f} s", ""],
        ["last ten days / first ten", "", f"{ratio:.2f}" if ratio else "–", "1.3"],
        ["`maintain --all`, once a week", f"{len(maintained)} times, mean", _mean(maintained), ""],
        [
            f"files after {max(files)} days / after {TEN}",
            _files(files),
            f"{growth:.2f}" if growth else "–",
            "3",
        ],
    ]
    report.table("Days", ["", "", "measured", "at most"], rows)
    report.data.update(found)
    if audits is not None:
        report.table(
            "Audits",
            ["table", "audit", "break it"],
            audits,
            "Each is SQL over the stored rows; the last compares every version with those that were generated.",
        )
        report.data["audits"] = audits
    report.write()


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} s" if values else "–"


def _files(files: dict[int, int]) -> str:
    return ", ".join(f"day {day}: {count}" for day, count in sorted(files.items()))


def run(given: Asked) -> None:
    """Load the days, audit them, and write `history.json` and `history.md`."""
    factor, count = (10.0, 365) if given.full else (1.0, 30)
    world = World(factor * given.scale, SEED)
    title = f"HistoryBench: {count} days at scale factor {factor * given.scale:g}, derived from TPC-DI, not comparable"
    report = Report("history-full" if given.full else "history", title, given)
    with scratch("history") as folder:
        tables = Tables(folder)
        found = lived(tables, world.days(count), count, lambda so_far: told(report, so_far, None))
        tables.views()
        audits = audited(tables.spark, world, found["starts"])
        told(report, found, audits)
        tables.running.stop()
        tables.warehouse.close()
    assert not any(broken for *_, broken in audits), audits


if __name__ == "__main__":
    run(asked(__doc__))
