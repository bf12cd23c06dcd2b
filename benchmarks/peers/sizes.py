"""Copies of 1, 5 and 20 million rows of ordinary width, by whole processes in turn, and their memory.

Run `make bench ONLY=sizes`, or `python -m benchmarks.peers.sizes [--full] [--scale 0.2] [--rounds 1]`. Steps:
a first load; 1 % changed, 0.5 % new, 0.5 % gone; nothing changed. The rows are hashes, names and decimals,
which hardly compress. `--full` measures all three sizes. The default is one size that the driver cannot hold.
At 20 M rows a MERGE by hand replaces dbt, which takes too long.
"""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.asked import Asked, asked, scratch
from benchmarks.peers.contestants import Contestant, Failed, contestants
from benchmarks.peers.ground import Ground, settle
from benchmarks.quiet import settled
from benchmarks.report import Report, ratio

STEPS: Final = ("first load", "1 % changed", "nothing changed")
# How many times faster than dbt each must be.
GOALS: Final = {
    "backstory snapshot": (2.5, 5, 5),
    "backstory historize": (1.5, 3, 3),
    "backstory snapshot, in Spark's tasks": (1.0, 2.5, 2.5),
}
MOST_GIB: Final = 8
LARGE: Final = 10_000_000  # the first size without dbt
PATIENCE: Final = 3600


def copies(rows: int) -> list[tuple[int, int, int]]:
    """For each step the first id, the id after the last, and which hundredth of the rows has moved."""
    few = rows // 200
    return [(0, rows, -1), (few, rows + few, 7), (few, rows + few, 7)]


def everybody(folder: Path, rows: int) -> list[Contestant]:
    """The contestants at this size; the one that leaves all work to Spark's tasks has its own table."""
    every = {each.schema: each for each in contestants(folder)}
    (folder / "tasks.toml").write_text(
        (folder / "backstory.toml").read_text() + '\n[delivery]\ndriver-memory = "0m"\n'
    )
    once = [
        word.replace("native.", "tasks.").replace("backstory.toml", "tasks.toml")
        for word in every["native"].once
    ]
    tasks = replace(every["native"], name="backstory snapshot, in Spark's tasks", schema="tasks", once=once)
    (folder / "cwd" / "tasks").mkdir(parents=True, exist_ok=True)
    other = every["hand"] if rows >= LARGE else every["dbt"]
    return [every["native"], every["rawcore"], tasks, other]


def load(each: Contestant, number: int, folder: Path) -> tuple[float, float]:
    """Run one load in its own process; return its seconds and the peak GiB of all its processes together."""
    began = time.perf_counter()
    with (folder / f"{each.schema}.log").open("ab") as log:
        process = subprocess.Popen(
            each.command(number),
            cwd=folder / "cwd" / each.schema,
            env=each.environ(folder),
            stdout=log,
            stderr=log,
        )
        most = [0.0]
        watcher = threading.Thread(target=_watch, args=(process.pid, most, process), daemon=True)
        watcher.start()
        try:
            code = process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"no end in {PATIENCE} s") from None
    took = time.perf_counter() - began
    watcher.join()
    if code:
        raise Failed(f"ended with {code}: see {log.name}")
    return took, most[0]


def _watch(root: int, most: list[float], process: Any) -> None:
    while process.poll() is None:
        most[0] = max(most[0], sum(map(_resident, family(root))) / 2**30)
        time.sleep(0.2)


def family(root: int) -> list[int]:
    """A process and its descendants, found by their parents."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(words[1]), []).append(int(place.name))
    family = [root]
    for each in family:
        family += parents.get(each, [])
    return family


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def measure(given: Asked, rows: int, report: Report) -> None:
    """Play all rounds at one size; write each result to the page at once."""
    with scratch("sizes") as folder:
        ground = settle(folder, rows, list(range(given.rounds)), "3g")
        ground.spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.tasks")
        who = everybody(folder, rows)
        found: dict[str, dict[str, list[tuple[float, float]]]] = {each.name: {} for each in who}
        try:
            for number in range(given.rounds):
                for step, (first, last, moved) in zip(STEPS, copies(rows), strict=True):
                    ground.copy(moved, first, last)
                    for each in who:
                        if each.failed is not None or time.time() > given.until:
                            continue
                        settled()
                        try:
                            found[each.name].setdefault(step, []).append(load(each, number, folder))
                        except (Failed, OSError) as stop:
                            each.failed = f"{step}: {stop}"
                        print(f"  {rows:,} {step:16} {each.name:40} {found[each.name].get(step)}", flush=True)
                        tell(report, rows, who, found)
        finally:
            _judge(ground, report, rows, who)
            ground.warehouse.close()


def tell(
    report: Report, rows: int, who: list[Contestant], found: dict[str, dict[str, list[tuple[float, float]]]]
) -> None:
    """Write the table of one size."""
    other = who[-1].name
    lines = []
    for each in who:
        cells = []
        for place, step in enumerate(STEPS):
            took = [seconds for seconds, _ in found[each.name].get(step, [])]
            most = max((gib for _, gib in found[each.name].get(step, [])), default=0)
            theirs = [seconds for seconds, _ in found[other].get(step, [])]
            times = ratio(took, theirs)
            goal = GOALS.get(each.name, (0, 0, 0))[place]
            verdict = (
                f", {times:.1f} × ({'holds' if times >= goal else 'missed'}: {goal})"
                if times and goal
                else ""
            )
            cells.append(f"{min(took):.1f} s{verdict}, {most:.1f} GiB" if took else "–")
        lines.append([each.name, *cells])
    report.table(
        f"{rows:,} rows",
        ["", *STEPS],
        lines,
        f"Seconds of whole processes; × is how many times as long {other} takes; GiB is the most that all processes of a load held together (at most {MOST_GIB} at 20 M rows).",
    )
    report.data[str(rows)] = found
    if failed := [f"* {each.name}: {each.failed}" for each in who if each.failed]:
        report.say("Who could not take part", *failed)
    report.write()


def _judge(ground: Ground, report: Report, rows: int, who: list[Contestant]) -> None:
    """Write whether the contestants' tables hold the right versions."""
    few = rows // 200
    changed = len(range(7 if few <= 7 else few + (7 - few) % 100, rows, 100))
    wanted = (rows + few + changed, rows)
    lines = []
    for each in who:
        table = f"backstory.{each.schema}.{each.of.replace('NUMBER', '0')}"
        try:
            versions = ground.one(f"SELECT count(*), count_if({each.still_open}) FROM {table}")
        except Exception as stop:  # noqa: BLE001 - a contestant that made no table
            versions = str(stop).splitlines()[0][:80]
        lines.append([each.name, versions == wanted, versions])
    report.table(f"{rows:,} rows: versions", ["", "as they must be", "versions, open"], lines)
    report.write()


def run(given: Asked) -> None:
    """Measure each size, and write `sizes.json` and `sizes.md`."""
    sizes = (1_000_000, 5_000_000, 20_000_000) if given.full else (3_000_000,)
    name = "sizes-full" if given.full else "sizes"
    report = Report(name, "Copies of rows of ordinary width, by size", given)
    for rows in sizes:
        measure(given, int(rows * given.scale), report)


if __name__ == "__main__":
    sys.exit(run(asked(__doc__)))
