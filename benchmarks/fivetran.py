"""Measure the Fivetran destination against the floor: bare Arrow, and bare Iceberg on the same Spark.

Run `make bench ONLY=fivetran`, or `python benchmarks/fivetran.py [decode|history|batch]`. Each comparison
runs side by side for several rounds, A B A B; its result is the ratio of the medians.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.formats.batch_file import BatchFile
from backstory.formats.delivered import read_files
from backstory.model.layout import ACTIVE, END, START, SYNCED
from backstory.model.types import ColumnType, Kind
from backstory.testing.sender import AS_FIVETRAN, Sender, seal

ROUNDS = 5
MILLION = 1_000_000
TMAX = "9999-12-31T23:59:59.999Z"
TYPES = {
    "id": ColumnType(Kind.LONG),
    "quantity": ColumnType(Kind.INT),
    "name": ColumnType(Kind.STRING),
    "email": ColumnType(Kind.STRING),
    "weight": ColumnType(Kind.DOUBLE),
    "price": ColumnType.decimal(12, 2),
    "paid": ColumnType(Kind.BOOLEAN),
    "day": ColumnType(Kind.NAIVE_DATE),
    "note": ColumnType(Kind.STRING),
    SYNCED: ColumnType(Kind.UTC_DATETIME),
}
HISTORY = {
    START: ColumnType(Kind.UTC_DATETIME),
    END: ColumnType(Kind.UTC_DATETIME),
    ACTIVE: ColumnType(Kind.BOOLEAN),
}


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Ten columns of a typical source: numbers, texts with commas and quotes, a decimal, times."""
    rng, count = np.random.default_rng(seed), len(ids)
    cents = rng.integers(0, 10**8, count)
    seconds = rng.integers(0, 10**6, count).astype("timedelta64[s]")
    stamps = np.datetime64("2026-01-01T00:00:00", "s") + seconds
    return pa.table(
        {
            "id": pa.array(ids),
            "quantity": rng.integers(0, 1000, count).astype("int32"),
            "name": [f"customer {n}" for n in rng.integers(0, 5000, count)],
            "email": [f"user{n}.{seed}@example.com" for n in ids],
            "weight": rng.random(count) * 1000,
            "price": pa.array(cents).cast(pa.decimal128(20, 0)).cast(pa.string()),
            "paid": rng.random(count) > 0.5,
            "day": pa.array(rng.integers(0, 20000, count).astype("int32")).cast(pa.date32()),
            "note": [f'said "{n}", twice' if n % 7 == 0 else "n" for n in rng.integers(0, 99, count)],
            SYNCED: pa.array(np.char.add(np.datetime_as_string(stamps, unit="s"), "Z")),
        }
    )


def csv_of(table: pa.Table) -> bytes:
    """The rows as Fivetran's CSV."""
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink)
    return bytes(sink.getvalue())


def measure(rounds: int, **runs: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each run in each round; the runs take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def report(title: str, seconds: dict[str, list[float]], *ratios: tuple[str, str, float]) -> None:
    """Print medians, their spread, and the ratios with their bounds."""
    print(f"\n{title}")
    for name, values in seconds.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"  {name:34} median {statistics.median(values):6.2f} s   ({spread})")
    for name, floor, bound in ratios:
        ratio = statistics.median(seconds[name]) / statistics.median(seconds[floor])
        print(f"  {name} / {floor} = {ratio:.2f}   (at most {bound})")


def decode(folder: Path) -> None:
    """Measure decoding 1 M rows of CSV, AES and zstd into typed Arrow, against read_csv of the plain file."""
    content = csv_of(rows_of(np.arange(MILLION), 1))
    plain = folder / "plain.csv"
    plain.write_bytes(content)
    file = seal(folder, content, AS_FIVETRAN)
    print(f"{len(content) / 1e6:.0f} MB of CSV, {file.path.stat().st_size / 1e6:.0f} MB sealed")
    seconds = measure(
        2 * ROUNDS,
        backstory=lambda: read_files([file], AS_FIVETRAN, TYPES, frozenset(TYPES)),
        read_csv=lambda: pa_csv.read_csv(plain),
    )
    report("Decode", seconds, ("backstory", "read_csv", 2.0))
    told = subprocess.run(
        [sys.executable, __file__, "peak", str(file.path), file.key.hex()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    print(f"  {told.stdout.strip()}   (at most 4)")


def high_water() -> int:
    """The largest amount of memory that this process has held, in KiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def peak(path: str, key: str) -> None:
    """Print the memory that decoding needs beyond the imports; it runs in its own process."""
    before = high_water()
    file = BatchFile(Path(path), bytes.fromhex(key))
    [(_, rows)] = read_files([file], AS_FIVETRAN, TYPES, frozenset(TYPES))
    taken = (high_water() - before) * 1024
    size = rows.values.nbytes
    print(f"peak memory {taken / 1e6:.0f} MB / decoded size {size / 1e6:.0f} MB = {taken / size:.2f}")


class Bench:
    """A warehouse, a server in this process, and a sender to it."""

    def __init__(self, folder: Path) -> None:
        from backstory.doors.fivetran.server import listen
        from backstory.doors.fivetran.service import Destination
        from backstory.observe import log_for_people
        from backstory.settings import Settings
        from backstory.spark.session import start_session
        from backstory.stores.iceberg.store import IcebergStore

        log_for_people()
        settings = Settings(folder / "warehouse", spark={"spark.master": "local[2]"})
        self.spark = start_session(settings)
        self.running = listen(Destination({"backstory": IcebergStore(self.spark)}), "127.0.0.1", 0)
        self.folder = folder
        self.sender = Sender.to(f"127.0.0.1:{self.running.port}", folder)

    def definition(self, name: str, *, history: bool) -> common.Table:
        """Create a table of the ten columns again, and return its definition."""
        table = common.Table(name=name)
        for column, type_ in (TYPES | (HISTORY if history else {})).items():
            told = table.columns.add(name=column, type=common.DataType.Value(type_.kind))
            told.primary_key = column in {"id", START}
            if type_.kind is Kind.DECIMAL:
                told.params.decimal.precision, told.params.decimal.scale = 12, 2
        self.spark.sql(f"DROP TABLE IF EXISTS backstory.bench.{name} PURGE")
        self.sender.create("bench", table)
        return table

    def parquet(self, rows: pa.Table) -> str:
        """Write the rows to a Parquet file with the table's types, for the floor."""
        path = str(self.folder / f"{time.monotonic_ns()}.parquet")
        typed = rows.set_column(5, "price", rows["price"].cast(pa.decimal128(12, 2)))
        for place, name in enumerate(rows.column_names):
            if name in (SYNCED, START, END):
                typed = typed.set_column(place, name, rows[name].cast(pa.timestamp("us", "UTC")))
        pq.write_table(typed, path, row_group_size=1 << 17)
        return path


def history(folder: Path) -> None:
    """Measure history batches of 10,000 and 10 keys into 1 M keys with 4 M versions."""
    bench = Bench(folder)
    told = bench.definition("history", history=True)
    bench.definition("floor", history=True)
    fill(bench, "history")
    fill(bench, "floor")
    at, rng = datetime(2026, 2, 1, tzinfo=UTC), np.random.default_rng(7)
    seconds: dict[str, list[float]] = {n: [] for n in ("merge", "10,000 keys", "10 keys", "again")}
    for _ in range(ROUNDS + 1):
        at += timedelta(hours=1)
        ids = np.sort(rng.choice(MILLION, 10_000, replace=False))
        prepared = prepare(bench, ids, at)
        sent = changes(bench, ids, at)
        few = changes(bench, rng.choice(MILLION, 10, replace=False), at + timedelta(minutes=30))
        for name, values in measure(
            1,
            **{
                "merge": lambda p=prepared: merge(
                    bench, "floor", p, "AND t._fivetran_start = s._fivetran_start"
                ),
                "10,000 keys": lambda f=sent: bench.sender.send_files("bench", told, f),
                "again": lambda f=sent: bench.sender.send_files("bench", told, f),
                "10 keys": lambda f=few: bench.sender.send_files("bench", told, f),
            },
        ).items():
            seconds[name] += values
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first round warms up
    report(
        "History: 1 M keys, 4 M versions",
        seconds,
        ("10,000 keys", "merge", 1.5),
        ("10 keys", "10,000 keys", 0.5),
        ("again", "10,000 keys", 0.2),
    )


def fill(bench: Bench, table: str) -> None:
    """Insert 4 M versions: four for each of 1 M keys, the last one open."""
    bench.spark.sql(
        f"""INSERT INTO backstory.bench.{table}
        SELECT id, int(id % 1000), concat('customer ', id % 5000), concat('user', id, '.', v, '@example.com'),
          rand(1) * 1000, cast(rand(2) * 1000000 AS decimal(12, 2)), id % 2 = 0, date'2020-01-01', 'n',
          t, t, if(v < 3, t + INTERVAL 30 DAYS - INTERVAL 1 MILLISECOND, timestamp'{TMAX}'), v = 3
        FROM (SELECT id, v, timestamp'2025-01-01' + make_interval(0, 0, 0, v * 30) t
          FROM range(0, {MILLION}, 1, 4) CROSS JOIN (SELECT explode(array(0, 1, 2, 3)) v))"""
    )


def changes(bench: Bench, ids: np.ndarray, at: datetime) -> dict[str, list[BatchFile]]:
    """A history batch that updates two columns of these keys at one time."""
    start = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    rows = rows_of(ids, at.hour)
    unmodified = pa.array([AS_FIVETRAN.unmodified_string] * len(ids))
    for place, name in enumerate(rows.column_names):
        if name not in ("id", "name", "email", SYNCED):
            rows = rows.set_column(place, name, unmodified)
    rows = with_times(rows, start)
    earliest = rows.select(["id", START])
    return {
        "earliest_start_files": [seal(bench.folder, csv_of(earliest), AS_FIVETRAN)],
        "update_files": [seal(bench.folder, csv_of(rows), AS_FIVETRAN)],
    }


def with_times(rows: pa.Table, start: str) -> pa.Table:
    """The rows as open versions that begin at `start`."""
    count = rows.num_rows
    rows = rows.append_column(START, pa.array([start] * count))
    rows = rows.append_column(END, pa.array([TMAX] * count))
    return rows.append_column(ACTIVE, pa.array([True] * count))


def prepare(bench: Bench, ids: np.ndarray, at: datetime) -> str:
    """Write the floor's rows for the merge: the open versions, closed, and their successors."""
    bench.spark.createDataFrame(pa.table({"id": ids})).createOrReplaceTempView("ids")
    stamp = at.isoformat()
    path = str(bench.folder / f"prepared-{at:%H}-{time.monotonic_ns()}")
    bench.spark.sql(
        f"""WITH open AS (SELECT /*+ BROADCAST(ids) */ t.* FROM backstory.bench.floor t JOIN ids USING (id)
          WHERE _fivetran_active)
        SELECT * EXCEPT (_fivetran_end, _fivetran_active),
          timestamp'{stamp}' - INTERVAL 1 MILLISECOND AS _fivetran_end, false AS _fivetran_active FROM open
        UNION ALL
        SELECT * EXCEPT (_fivetran_start, _fivetran_end, _fivetran_active), timestamp'{stamp}', _fivetran_end, true
        FROM open"""
    ).coalesce(1).write.parquet(path)
    return path


def merge(bench: Bench, table: str, path: str, more: str = "") -> None:
    """Run a bare MERGE of prepared rows."""
    bench.spark.read.parquet(path).createOrReplaceTempView("prepared")
    bench.spark.sql(
        f"""MERGE INTO backstory.bench.{table} t USING prepared s ON t.id = s.id {more}
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    )


def batch(folder: Path) -> None:
    """Measure a WriteBatch of 1 M rows in four files: into an empty table, and onto 4 M rows."""
    bench = Bench(folder)
    seconds: dict[str, list[float]] = {}

    def taken(name: str, run: Callable[[], object]) -> None:
        began = time.perf_counter()
        run()
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    stored = bench.parquet(rows_of(np.arange(4 * MILLION), 1))
    for round_ in range(ROUNDS):
        rows = rows_of(np.arange(MILLION), 10 + round_)
        files = [seal(folder, csv_of(rows.slice(n * 250_000, 250_000)), AS_FIVETRAN) for n in range(4)]
        path = bench.parquet(rows)
        spread = rows.set_column(0, "id", pa.array(np.arange(MILLION) * 4))
        upserts = [seal(folder, csv_of(spread.slice(n * 250_000, 250_000)), AS_FIVETRAN) for n in range(4)]
        upserts_path = bench.parquet(spread)
        told = bench.definition("empty", history=False)
        bench.definition("floor", history=False)
        taken(
            "append",
            lambda: bench.spark.read.parquet(path).writeTo("backstory.bench.floor").append(),
        )
        taken(
            "batch into empty",
            lambda: bench.sender.send_files("bench", told, {"replace_files": files}),
        )
        taken("again", lambda: bench.sender.send_files("bench", told, {"replace_files": files}))
        told = bench.definition("full", history=False)
        bench.definition("floor", history=False)
        for table in ("full", "floor"):
            bench.spark.read.parquet(stored).writeTo(f"backstory.bench.{table}").append()
        taken("merge", lambda: merge(bench, "floor", upserts_path))
        taken(
            "batch onto 4 M",
            lambda: bench.sender.send_files("bench", told, {"replace_files": upserts}),
        )
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first round warms up
    report(
        "WriteBatch of 1 M rows",
        seconds,
        ("batch into empty", "append", 2.0),
        ("batch onto 4 M", "merge", 1.5),
        ("again", "batch into empty", 0.2),
    )


def main(arguments: list[str]) -> None:
    """Run the named parts, or all, each in its own process."""
    parts = {"decode": decode, "history": history, "batch": batch}
    if arguments[:1] == ["peak"]:
        peak(*arguments[1:])
    elif len(arguments) == 1:
        with tempfile.TemporaryDirectory(prefix="backstory-bench-") as folder:
            parts[arguments[0]](Path(folder))
            sys.stdout.flush()
            os._exit(0)
    else:
        for part in arguments or parts:
            subprocess.run([sys.executable, __file__, part], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
