"""The explorer on a history of 4 million versions: seconds from a request to its last byte.

Run `make bench ONLY=explorer`, or `python -m benchmarks.explorer [--scale 0.1] [--rounds 3]`. The history is
a native table of 3.4 M records with 8 columns of ordinary width. Twelve weekly copies follow the first:
eleven change 50,000 records each, and the last changes 1,000. Each round starts the explorer again in its own
process.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import backstory
from benchmarks.asked import Asked, asked, scratch
from benchmarks.quiet import settled
from benchmarks.report import Report, spread

RECORDS, WEEKS, CHANGED, LAST = 3_400_000, 12, 50_000, 1_000
SINCE: Final = datetime(2026, 1, 1, tzinfo=UTC)
TABLE: Final = "crm.customer"
TIERS: Final = np.array(["A", "B", "C", "–"])


def week(number: int) -> str:
    """The time of a copy."""
    return f"{SINCE + timedelta(weeks=number):%Y-%m-%d}"


# Each question's path, its parameters, and the seconds that it may take.
QUESTIONS: Final[dict[str, tuple[str, dict[str, Any], float | None]]] = {
    "a record by its key": ("/record", {"key": "2345"}, 0.5),
    "a record on both axes": ("/record", {"key": "2345", "axis": "both"}, 0.5),
    "the story of a value": ("/value", {"key": "2345", "column": "tier"}, 0.5),
    "a page of rows as of a time": ("/table", {"at": week(5)}, 1.0),
    "a page from the middle": ("/table", {"at": week(5), "after": str(RECORDS // 2)}, 1.0),
    "a page of rows with a value": ("/table", {"at": week(5), "where": "tier=B"}, 1.0),
    "a page as of a time before all": ("/table", {"at": "2025-01-01"}, 1.0),
    "differences of near times, 1,000 records": ("/diff", {"from": week(WEEKS - 1), "to": week(WEEKS)}, 1.0),
    "differences of a week, 50,000 records": ("/diff", {"from": week(3), "to": week(4)}, 1.0),
    "differences, none": ("/diff", {"from": "2026-01-02", "to": "2026-01-03"}, 1.0),
    "the commits": ("/log", {}, None),
}


def make(folder: Path, count: int, part: float) -> None:
    """Make the history from full copies."""
    chance = np.random.default_rng(1)
    rows: dict[str, Any] = {
        "id": np.arange(count),
        "name": [f"{each:016x}" for each in chance.integers(0, 1 << 62, count)],
        "city": [f"{each:08x}" for each in chance.integers(0, 1 << 30, count)],
        "tier": TIERS[chance.integers(0, 4, count)],
        "amount": chance.random(count),
        "score": chance.integers(0, 1 << 40, count),
        "mail": [f"{each:020x}" for each in chance.integers(0, 1 << 62, count)],
        "flag": chance.integers(0, 2, count) == 1,
    }
    with backstory.open(folder / "warehouse") as warehouse:
        for number in range(WEEKS + 1):
            if number:
                size = int((LAST if number == WEEKS else CHANGED) * part) or 1
                places = chance.choice(count, size, replace=False)
                rows["tier"][places] = TIERS[chance.integers(0, 4, size)]
                rows["amount"][places] = chance.random(size)
            pq.write_table(pa.table(rows), folder / "copy.parquet")
            warehouse.snapshot(str(folder / "copy.parquet"), into=TABLE, key="id", at=week(number))
            print(f"  copy {number}", flush=True)


@dataclass(frozen=True)
class Opened:
    """The address of an explorer, the seconds until it served its first page, and its process."""

    base: str
    seconds: float
    pid: int

    @property
    def memory(self) -> int:
        """The largest amount of memory that it has used so far, in MB."""
        told = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", told)[1]) >> 10  # type: ignore[index]


@contextmanager
def explorer(folder: Path) -> Iterator[Opened]:
    """Start an explorer for one round."""
    command = [f"{Path(sys.executable).parent}/backstory", "explore", "--port", "0", "--output", "json"]
    began = time.perf_counter()
    with subprocess.Popen([*command, "--warehouse", folder / "warehouse"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        link = json.loads(process.stdout.readline())["link"]
        with urllib.request.urlopen(link) as page:
            page.read()
        yield Opened(link.rstrip("/"), time.perf_counter() - began, process.pid)
        process.terminate()


def ask(base: str, path: str, words: dict[str, Any]) -> float:
    """Seconds until the whole page is read."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"{base}{path}?{urlencode({'table': TABLE, **words})}") as page:
        page.read()
    return time.perf_counter() - began


def measure(given: Asked, folder: Path, report: Report) -> None:
    """Ask each question once on a fresh explorer, and then again."""
    first: list[float] = []
    memory = 0
    cold: dict[str, list[float]] = {name: [] for name in QUESTIONS}
    warm: dict[str, list[float]] = {name: [] for name in QUESTIONS}
    for _ in range(given.rounds):
        settled()
        with explorer(folder) as opened:
            first.append(opened.seconds)
            for times in (cold, warm):
                for name, (path, words, _) in QUESTIONS.items():
                    times[name].append(ask(opened.base, path, words))
                    print(f"  {name:42} {times[name][-1]:.3f}", flush=True)
            memory = max(memory, opened.memory)
    lines = [["the first page after the command", _against(first, 2.5), ""]]
    lines += [
        [name, _against(cold[name], QUESTIONS[name][2]), _against(warm[name], QUESTIONS[name][2])]
        for name in QUESTIONS
    ]
    report.data |= {"first": first, "cold": cold, "warm": warm, "memory_mb": memory}
    report.table(
        "Seconds from a request to its last byte",
        ["question", "asked first", "asked again"],
        lines,
        f"The explorer took at most {memory} MB. In brackets the seconds that it may take, where a goal was set.",
    )


def _against(times: list[float], goal: float | None) -> str:
    told = spread(times)
    holds = goal is not None and statistics.median(times) <= goal
    return told if goal is None else f"{told} ({'holds' if holds else 'missed'}: {goal})"


def main() -> None:
    """Make the history, measure, and write the results."""
    given = asked(__doc__)
    count = int(RECORDS * given.scale)
    report = Report("explorer", "The explorer on a history of 4 M versions", given)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    with scratch("explorer") as folder:
        make(folder, count, given.scale)
        measure(given, folder, report)
    report.write()


if __name__ == "__main__":
    main()
