"""The same copies into native tables on a cluster and on `local[2]`.

Run `make bench ONLY=cluster`, or `python -m benchmarks.growth.cluster [--scale 0.1] [--full]`. The cluster is
a standalone master with two workers of one core. Spark's tasks plan everything (`driver-memory = "0m"`). Both
tables must be equal. The cluster may take at most 1 / 0.9 of the time. Its workers must use four fifths of
the processor seconds.
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
from benchmarks.peers.sizes import family
from benchmarks.report import Report, ratio, spread

CORES: Final = 2
PORT: Final = 17077
MASTER: Final = f"spark://127.0.0.1:{PORT}"
WAIT: Final = 60  # seconds in which the workers must register
SPEED, SHARE = 0.9, 0.8
TICKS: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def cluster(folder: Path) -> Iterator[list[int]]:
    """Start a master and two workers of one core; yield the workers' processes, and stop all at the end."""
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
            time.sleep(3)  # a worker needs a master that already listens
        _registered(folder / "cluster.log")
        yield [each.pid for each in running[1:]]
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
    """The two contestants, each with its own settings and schema."""
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
        tasks = '\n[delivery]\ndriver-memory = "0m"\n'
        (place / "backstory.toml").write_text((told if schema == "spread" else text) + tasks)
        (place / "warehouse").symlink_to(folder / "warehouse")
        found.append(
            Contestant(name, "native.py", schema, "valid_to IS NULL", more={"BENCH_SIDE": f"_{schema}"})
        )
    return found


def processor_seconds(roots: list[int]) -> float:
    """The processor seconds of these processes and all their descendants, including ended ones."""
    ticks = 0
    for root in roots:
        for process in family(root):
            try:
                words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(map(int, words[11:15]))
    return ticks / TICKS


def told(report: Report, found: Seconds, shares: list[tuple[float, float]], differing: int | None) -> None:
    """Write the page: times of both sides, their ratio, the workers' share, and the tables' equality."""
    here, spread_ = found.get("local[2]", {}), found.get("two workers of one core", {})
    rows = []
    for step in STEPS:
        times = ratio(spread_.get(step, []), here.get(step, []))
        rows.append(
            [
                step,
                spread(here.get(step, [])),
                spread(spread_.get(step, [])),
                f"{times:.2f} × ({'holds' if times >= SPEED else 'missed'}: {SPEED})" if times else "–",
            ]
        )
    told_of = (
        "not compared" if differing is None else "equal" if not differing else f"{differing} rows differ"
    )
    report.table(
        "Times",
        ["", "local[2]", "two workers of one core", "speed"],
        rows,
        f"The tables are {told_of}.",
    )
    workers, driver = (sum(each) for each in zip(*shares, strict=True)) if shares else (0.0, 0.0)
    share = workers / (workers + driver) if shares else 0.0
    report.table(
        "Whose the processors' seconds are",
        ["workers", "driver", "the workers' share"],
        [
            [
                f"{workers:.1f} s",
                f"{driver:.1f} s",
                f"{share:.0%} ({'holds' if share >= SHARE else 'missed'}: {SHARE:.0%})",
            ]
        ],
        "Of all measured copies on the cluster.",
    )
    report.data |= {"seconds": found, "shares": shares, "differing": differing}
    report.write()


def run(given: Asked) -> None:
    """Load the copies on both sides in turn, compare the tables, write `cluster.json` and `cluster.md`."""
    rows = int(1_000_000 * given.scale)
    report = Report("cluster", f"A cluster against one process: copies of {rows:,} rows", given)
    found: Seconds = {}
    shares: list[tuple[float, float]] = []
    with scratch("cluster") as folder, cluster(folder) as workers:
        ground = settle(folder, rows, [], "3g")
        both = sides(folder)
        try:
            for each in both:
                each.start(folder / each.schema)

            def load(each: Contestant, number: int) -> float:
                driver = [each.process.pid]
                before = processor_seconds(workers), processor_seconds(driver)
                took = each.load(number)
                if each.schema == "spread":
                    shares.append(
                        (processor_seconds(workers) - before[0], processor_seconds(driver) - before[1])
                    )
                return took

            play = lambda number: in_turn(ground, both, number, load, found)  # noqa: E731
            rounds(given, given.until, 0, play, warming=True)
        finally:
            for each in both:
                each.stop()
        for steps in found.values():
            for values in steps.values():
                del values[: len(values) > 1]  # the first round warms up
        del shares[: len(STEPS) if len(shares) > len(STEPS) else 0]
        told(report, found, shares, None)
        told(report, found, shares, _differing(ground, both))
        ground.warehouse.close()
    failed = [f"{each.name}: {each.failed}" for each in both if each.failed]
    assert not failed, failed


def _differing(ground: Any, both: list[Contestant]) -> int:
    """The number of versions in only one of the tables, without the times of loads."""
    kept = "id, name, email, city, credit, since, seen, note, is_current"
    here, there = (f"SELECT {kept} FROM backstory.native.customer_0_{each.schema}" for each in both)
    return sum(
        ground.one(f"SELECT count(*) FROM ({first} EXCEPT ALL {second})")[0]
        for first, second in ((here, there), (there, here))
    )


if __name__ == "__main__":
    run(asked(__doc__))
