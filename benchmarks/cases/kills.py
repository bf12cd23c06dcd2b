"""Kill a load at several moments and run it again: it must leave the right versions.

Run `make bench ONLY=kills`, or `python -m benchmarks.cases.kills [--scale 0.1]`. Each contestant loads a
copy. Then it loads another copy with 1 % changed, and is killed after a share of the time that such a load
takes. At last it runs this load again to its end.
"""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.asked import Asked, asked, scratch
from benchmarks.peers.contestants import Contestant, Failed, contestants
from benchmarks.peers.ground import NOBODY, Ground, environ, settle
from benchmarks.peers.run import judged, whole
from benchmarks.report import Report

MOMENTS: Final = (0.65, 0.85, 0.95)
FIRST: Final = 1  # the number of the table whose load is timed; the tables of the kills follow


def killed(folder: Path, each: Contestant, number: int, after: float) -> bool:
    """Start a load and kill all its processes after some seconds; return whether it was still running."""
    process = subprocess.Popen(
        each.command(number),
        cwd=folder / "cwd" / each.schema,
        env=environ(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def outcomes(ground: Ground, each: Contestant) -> dict[str, Any]:
    """The outcome for each moment: the load is killed there and then run again."""
    act = whole(ground.folder)
    ground.copy(NOBODY)
    for number in range(FIRST, FIRST + len(MOMENTS) + 1):
        act(each, number)
    ground.copy(7)
    took = act(each, FIRST)
    found: dict[str, Any] = {"seconds": took}
    if each.schema == "rawcore":  # a killed run of a model resumes only under its own id
        each = replace(each, once=[*each.once, "--run-id", "killed"])
    for number, moment in enumerate(MOMENTS, FIRST + 1):
        running = killed(ground.folder, each, number, took * moment)
        began = time.perf_counter()
        try:
            act(each, number)
        except Failed as stop:
            found[f"{moment:.0%}"] = f"the next load failed: {str(stop)[:120]}"
            continue
        right = judged(ground, each, number)["right"]
        told = "right" if right else "**wrong**"
        found[f"{moment:.0%}"] = f"{told}, {time.perf_counter() - began:.0f} s" + (
            "" if running else " (ended before)"
        )
    return found


def run(given: Asked) -> None:
    """Kill and rerun each contestant; write `kills.json` and `kills.md`."""
    rows = int(100_000 * given.scale)
    report = Report("kills", f"Killed in the middle and run again: {rows:,} rows, 1 % changed", given)
    found: dict[str, Any] = {}
    with scratch("kills") as folder:
        ground = settle(folder, rows, [*range(FIRST, FIRST + len(MOMENTS) + 1)], "2g")
        for each in contestants(folder):
            if each.still_open is None:
                continue
            try:
                found[each.name] = each.failed or outcomes(ground, each)
            except Failed as stop:
                found[each.name] = str(stop)[:300]
            print(f"  {each.name}: {found[each.name]}", flush=True)
            head = ["killed after this much of a load", *(f"{moment:.0%}" for moment in MOMENTS)]
            report.table(
                "Outcomes after the next load", head, [_row(name, told) for name, told in found.items()]
            )
            report.data["outcomes"] = found
            report.write()
        ground.warehouse.close()


def _row(name: str, told: dict[str, Any] | str) -> list[str]:
    if isinstance(told, str):
        return [name, told, *[""] * (len(MOMENTS) - 1)]
    return [name, *(told[f"{moment:.0%}"] for moment in MOMENTS)]


if __name__ == "__main__":
    run(asked(__doc__))
