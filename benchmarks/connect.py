"""The costs of commits by SQL over Spark Connect, compared with commits by Iceberg's Java.

`python -m benchmarks.connect` makes a table of a million records in both. Then both take turns: a copy with
1 % of the records changed, the same copy again, and a feed of 10 events. Each is a whole client process.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TESTS = Path(__file__).parents[1] / "tests"
RECORDS = int(os.environ.get("BACKSTORY_RECORDS", "1000000"))
TURNS = 3
MEMORY = "8g"
TICKS = os.sysconf("SC_CLK_TCK")
WAYS = ("Java", "SQL")
DAY = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = {
    "change": "a copy with 1 % of the records changed",
    "again": "the same copy again",
    "feed": "a feed of 10 events",
}


def copy(turn: int) -> pa.Table:
    """All records; each turn changes the amount of another 1 %, and no other record."""
    ids = range(RECORDS)
    amounts = [max(0, turn - (turn - number) % 100) for number in ids]  # the last turn that changed it
    return pa.table({"id": ids, "city": [f"city {number % 997}" for number in ids], "amount": amounts})


def events(turn: int) -> pa.Table:
    """The events of 10 records, which are new in the first turn."""
    at = [DAY + timedelta(days=turn)] * 10
    return pa.table({"id": range(10), "city": [f"city {turn}"] * 10, "at": at})


def deliver(step: str, turn: int, folder: Path, address: str) -> None:
    """Run one delivery in this process; print the processor seconds of this process and its children."""
    import backstory

    if address:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(address).getOrCreate()
        warehouse = backstory.open(spark=spark, catalog="lake", driver_memory=MEMORY)
    else:
        warehouse = backstory.open(folder / "embedded", driver_memory=MEMORY)
    if step == "feed":
        warehouse.apply(str(folder / f"events-{turn}.parquet"), into="c.feed", key="id", sequence_by="at")
    else:
        at = DAY + timedelta(days=turn)
        warehouse.snapshot(str(folder / f"copy-{turn}.parquet"), into="c.copy", key="id", at=at)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    seconds = sum(os.times()[:2]) + sum(processor_seconds(int(child)) for child in children.stdout.split())
    print(json.dumps(round(seconds, 2)), flush=True)


def processor_seconds(process: int) -> float:
    """The user and system time of a running process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(step: str, turn: int, folder: Path, address: str, server: int) -> dict[str, float]:
    """The seconds of one client process, and the processor seconds of client and server."""
    before, began = processor_seconds(server), time.monotonic()
    words = [sys.executable, "-m", "benchmarks.connect", step, str(turn), str(folder), address]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    used = {"seconds": seconds, "client": float(done.stdout.splitlines()[-1])}
    return used | ({"server": processor_seconds(server) - before} if address else {})


@contextmanager
def serving(folder: Path) -> Any:
    """A Spark Connect server with a Hadoop catalog, and the id of its process."""
    sys.path.append(str(TESTS))
    from connect_server import serving_connect

    lake = {"type": "hadoop", "warehouse": str(folder / "lake")}
    with serving_connect(folder, {"lake": lake}, "4g") as address:
        children = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True)
        port = address.rpartition(":")[2]
        pids = [
            int(line.split()[0])
            for line in children.stdout.splitlines()
            if f"binding.port={port}" in line and "java" in line.split()[1]
        ]
        yield address, pids[0]


def main() -> None:
    """Measure and print the results as JSON."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as (address, server):
        folder = Path(name)
        for turn in range(TURNS + 1):
            pq.write_table(copy(turn), folder / f"copy-{turn}.parquet")
            pq.write_table(events(turn), folder / f"events-{turn}.parquet")
        places = dict(zip(WAYS, ("", address), strict=True))
        taken: dict[str, dict[str, list[dict[str, float]]]] = {}
        load = [os.getloadavg()[0]]
        for turn in range(TURNS + 1):
            for step in STEPS:
                if turn == 0 and step == "again":
                    continue
                for way, place in places.items():
                    used = measure(step, turn, folder, place, server)
                    print(turn, step, way, used, file=sys.stderr, flush=True)
                    label = ("first copy" if step == "change" else "first feed") if turn == 0 else step
                    taken.setdefault(label, {}).setdefault(way, []).append(used)
                load.append(os.getloadavg()[0])
    rows = {
        step: {
            way: {name: round(median(one[name] for one in runs), 1) for name in runs[0]}
            for way, runs in ways.items()
        }
        for step, ways in taken.items()
    }
    print(
        json.dumps(
            {
                "date": datetime.now(UTC).date().isoformat(),
                "records": RECORDS,
                "turns": TURNS,
                "load": [round(min(load), 1), round(max(load), 1)],
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "versions": {name: version(name) for name in ("backstory", "pyspark", "pyarrow")},
                "rows": rows,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        deliver(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    else:
        main()
