"""Many small tables through one real server: 8 requests at once against one, and a soak test of minutes.

Run `make bench ONLY=tables` (200 tables x 5 batches each way) or `make soak` (10 minutes), or
`python benchmarks/many_tables.py [speed|soak] [TABLES or SECONDS]`.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.testing.sender import AS_FIVETRAN, Sender, write_batch_file

AT_ONCE, BATCHES, ROWS, ROUNDS = 8, 5, 100, 5
CONFIGURATION = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "2g"
"""
COLUMNS = ["id", "name", "note", "_fivetran_synced"]


@dataclass(frozen=True)
class Server:
    """A running `backstory serve` and its address."""

    process: subprocess.Popen
    temp: Path
    address: str

    def figures(self) -> dict[str, int]:
        """Memory in MiB, threads and open files of the process and its Java; the count of temporary files."""
        java = subprocess.check_output(["pgrep", "-P", str(self.process.pid)], text=True).split()[0]
        found = {"temporary files": sum(path.is_file() for path in self.temp.rglob("*"))}
        for name, process in (("Python", self.process.pid), ("Java", java)):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            found[f"{name} MiB"] = int(status["VmRSS"].split()[0]) >> 10
            found[f"{name} threads"] = int(status["Threads"])
            found[f"{name} open files"] = len(list(Path(f"/proc/{process}/fd").iterdir()))
        return found


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Start a server with its own warehouse."""
    temp = folder / "temp"
    temp.mkdir()
    (folder / "backstory.toml").write_text(CONFIGURATION)
    command = [Path(sys.executable).parent / "backstory", "serve", "--port", "0", "--host", "127.0.0.1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--warehouse", folder / "warehouse"],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | {"TMPDIR": str(temp), "SPARK_LOCAL_DIRS": str(temp)},
        )
    try:
        while "listening on " not in (told := (folder / "log").read_text()):
            assert process.poll() is None, told
            time.sleep(0.1)
        yield Server(process, temp, told.split("listening on ")[1].split('"')[0].split()[0])
    finally:
        process.terminate()
        process.wait()


def definition(name: str) -> common.Table:
    """A table with a key, two texts and the time of the sync."""
    table = common.Table(name=name)
    for column in COLUMNS:
        type_ = {"id": "LONG", "_fivetran_synced": "UTC_DATETIME"}.get(column, "STRING")
        table.columns.add(name=column, type=common.DataType.Value(type_), primary_key=column == "id")
    return table


@dataclass(frozen=True)
class Source:
    """Tables and their batches, prepared before the measurement."""

    sender: Sender
    schema: str

    def tables(self, count: int) -> list[tuple[common.Table, list[dict[str, list]]]]:
        """New tables, each with its batches; half of a batch's rows change earlier rows."""
        return [
            (definition(f"t{number}"), [self.batch(n) for n in range(BATCHES)]) for number in range(count)
        ]

    def batch(self, number: int) -> dict[str, list]:
        first = number * ROWS // 2
        rows = [
            {
                "id": n,
                "name": f"name {n}",
                "note": f"batch {number}",
                "_fivetran_synced": "2026-01-01T00:00:00Z",
            }
            for n in range(first, first + ROWS)
        ]
        return {"replace_files": [write_batch_file(self.sender.folder, rows, COLUMNS, AS_FIVETRAN)]}

    def bring(self, table: common.Table, batches: list[dict[str, list]]) -> None:
        """Create the table and send its batches in order."""
        self.sender.create(self.schema, table)
        for batch in batches:
            self.sender.send_files(self.schema, table, batch)


def speed(count: int) -> None:
    """Measure one request at a time against 8 at once, in turn, each on new tables."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as server:
        part = count // ROUNDS
        seconds: dict[int, list[float]] = {1: [], AT_ONCE: []}
        for round_ in range(-1, ROUNDS):
            for at_once in (1, AT_ONCE):
                source = Source(
                    Sender.to(server.address, Path(name)), f"s{round_}_{at_once}".replace("-", "w")
                )
                tables = source.tables(part if round_ >= 0 else 10)
                began = time.perf_counter()
                with ThreadPoolExecutor(at_once) as pool:
                    list(pool.map(lambda table: source.bring(*table), tables))
                if round_ >= 0:
                    seconds[at_once].append(time.perf_counter() - began)
        rates = {at_once: part * BATCHES / statistics.median(found) for at_once, found in seconds.items()}
        for at_once, rate in rates.items():
            spread = f"{min(seconds[at_once]):.1f} to {max(seconds[at_once]):.1f} s a round of {part} tables"
            print(f"{at_once} at once: {rate:.1f} batches a second ({spread})")
        print(f"{AT_ONCE} at once / 1 at once = {rates[AT_ONCE] / rates[1]:.2f}   (at least 1.5)")


def soak(seconds: float) -> None:
    """Send 8 requests at once to 200 tables; print figures each half minute, and their growth at the end."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as server:
        source = Source(Sender.to(server.address, Path(name)), "soak")
        tables = [definition(f"t{number}") for number in range(200)]
        for table in tables:
            source.sender.create("soak", table)
        end, done, numbers = time.monotonic() + seconds, itertools.count(), itertools.count()
        lock, sent = threading.Lock(), [0]

        def work() -> None:
            while time.monotonic() < end:
                number = next(numbers)
                batch = source.batch(number // len(tables))
                source.sender.send_files("soak", tables[number % len(tables)], batch)
                for files in batch.values():
                    for file in files:
                        file.path.unlink()
                with lock:
                    sent[0] += 1

        samples = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(work) for _ in range(AT_ONCE)]
            while time.monotonic() < end:
                time.sleep(min(30, seconds / 12))
                samples.append(server.figures())
                print(f"{next(done):3} {sent[0]:6} batches  {samples[-1]}", flush=True)
            for each in running:
                each.result()
        print(f"{sent[0] / seconds:.1f} batches a second over {seconds:.0f} s")
        third = len(samples) // 3
        for figure in samples[0]:
            before = statistics.median(sample[figure] for sample in samples[third : 2 * third])
            after = statistics.median(sample[figure] for sample in samples[2 * third :])
            print(f"{figure:20} {before:8.0f} -> {after:8.0f}")


if __name__ == "__main__":
    what, number, *_ = [*sys.argv[1:], *["speed", None][len(sys.argv) - 1 :]]
    if what == "soak":
        soak(float(number or 600))
    else:
        speed(int(number or 200))
