"""A cluster: the same copies into native tables on a standalone master with two workers of one core, and on `local[2]`.

Run `make bench ONLY=cluster`, or `python -m benchmarks.growth.cluster [--scale 0.1] [--full]`. Both tables must be equal,
and the cluster take at most 1 / 0.8 of the time.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.asked import Asked, asked, scratch
from benchmarks.peers.contestants import Contestant
from benchmarks.peers.ground import settle
from benchmarks.peers.page import STEPS, Seconds
from benchmarks.peers.run import in_turn, rounds
from benchmarks.report import Report, ratio, spread

CORES: Final = 2
PORT: Final = 17077
MASTER: Final = f"spark://127.0.0.1:{PORT}"
WAIT: Final = 60  # seconds for the workers to register


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A master and two workers of one core on this machine, ended with the block."""
    import pyspark

    home = Path(pyspark.__file__).parent
    system = os.environ | {"SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder / "work")}
    system |= {"PYSPARK_PYTHON": sys.executable}
    deploy, at = "org.apache.spark.deploy", ["--host", "127.0.0.1", "--webui-port", "0"]
    started = [[f"{deploy}.master.Master", "--port", str(PORT), *at]]
    started += [
        [f"{deploy}.worker.Worker", "--cores", "1", "--memory", "3g", *at, MASTER] for _ in range(CORES)
    ]
    log = (folder / "cluster.log").open("wb")
    running = []
    try:
        for words in started:
            command = [str(home / "bin" / "spark-class"), *words]
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=system))
            time.sleep(3)  # the master listens before a worker asks
        _registered(folder / "cluster.log")
        yield
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(timeout=30)
        log.close()


def _registered(log: Path) -> None:
    until = time.time() + WAIT
    while log.read_text("utf-8", "replace").count("Successfully registered with master") < CORES:
        assert time.time() < until, log.read_text("utf-8", "replace")[-2000:]
        time.sleep(0.5)


def sides(folder: Path) -> list[Contestant]:
    """The two sessions, each with settings and a schema of its own."""
    text = (folder / "backstory.toml").read_text()
    found = []
    for name, schema, master in (
        ("local[2]", "here", "local[2]"),
        ("two workers of one core", "spread", MASTER),
    ):
        place = folder / schema
        (place / "cwd" / schema).mkdir(parents=True)
        told = text.replace("local[2]", master)
        told += '"spark.executor.memory" = "2g"\n"spark.driver.host" = "127.0.0.1"\n"spark.driver.bindAddress" = "127.0.0.1"\n'
        (place / "backstory.toml").write_text(told if schema == "spread" else text)
        (place / "warehouse").symlink_to(folder / "warehouse")
        found.append(
            Contestant(name, "native.py", schema, "valid_to IS NULL", more={"BENCH_SIDE": f"_{schema}"})
        )
    return found


def told(report: Report, found: Seconds, differing: int | None) -> None:
    """The page: both sides, their ratio, and whether the tables are equal."""
    here, spread_ = found.get("local[2]", {}), found.get("two workers of one core", {})
    rows = []
    for step in STEPS:
        times = ratio(spread_.get(step, []), here.get(step, []))
        rows.append(
            [
                step,
                spread(here.get(step, [])),
                spread(spread_.get(step, [])),
                f"{times:.2f} ×" if times else "–",
            ]
        )
    told_of = (
        "not compared" if differing is None else "equal" if not differing else f"{differing} rows differ"
    )
    report.table(
        "Times",
        ["", "local[2]", "two workers of one core", "speed (at least 0.8 ×)"],
        rows,
        f"The tables are {told_of}.",
    )
    report.data |= {"seconds": found, "differing": differing}
    report.write()


def run(given: Asked) -> None:
    """Bring the copies on both sides in turn, compare the tables, write `cluster.json` and `cluster.md`."""
    rows = int(1_000_000 * given.scale)
    report = Report("cluster", f"A cluster against one process: copies of {rows:,} rows", given)
    found: Seconds = {}
    with scratch("cluster") as folder, cluster(folder):
        ground = settle(folder, rows, [], "3g")
        both = sides(folder)
        try:
            for each in both:
                each.start(folder / each.schema)
            play = lambda number: in_turn(ground, both, number, lambda each, n: each.load(n), found)  # noqa: E731
            rounds(given, given.until, 0, play, warming=True)
        finally:
            for each in both:
                each.stop()
        for steps in found.values():
            for values in steps.values():
                del values[: len(values) > 1]  # the first round warms up
        told(report, found, None)
        told(report, found, _differing(ground, both))
        ground.warehouse.close()
    failed = [f"{each.name}: {each.failed}" for each in both if each.failed]
    assert not failed, failed


def _differing(ground: Any, both: list[Contestant]) -> int:
    """Versions that one table has and the other lacks, the instants of loads left out."""
    kept = "id, name, email, city, credit, since, seen, note, is_current"
    here, there = (f"SELECT {kept} FROM backstory.native.customer_0_{each.schema}" for each in both)
    return sum(
        ground.one(f"SELECT count(*) FROM ({first} EXCEPT ALL {second})")[0]
        for first, second in ((here, there), (there, here))
    )


if __name__ == "__main__":
    run(asked(__doc__))
