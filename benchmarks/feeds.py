"""Feeds of changes onto 4 M and 16 M versions: in order, with late events, and a million at once (V82).

Run `make bench ONLY=feeds`, or `python -m benchmarks.feeds [--scale 0.1] [--rounds 3]`. They take turns with
a history batch of the Fivetran door that changes as many records. A million events at once take turns with a
MERGE by hand of prepared rows, which cannot handle late events.
"""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.stores.iceberg.store import IcebergStore
from backstory.warehouse import Warehouse
from benchmarks import fivetran
from benchmarks.asked import Asked, asked, scratch
from benchmarks.quiet import settled
from benchmarks.report import Report, ratio, spread

SIZES: Final = (10, 1_000, 10_000, 100_000)
VERSIONS: Final = 4  # of each record; the larger table has four times as many
DAY: Final = timedelta(days=1)
BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
FEED: Final = {"key": "id", "sequence_by": ["at", "lsn"]}
# Each table gets as many deliveries as the Fivetran door's table, so it has as many files.
SMALL, LATE, LARGE = "bench.feed_4m", "bench.feed_late", "bench.feed_16m"
Seconds = dict[str, list[float]]


def events(ids: np.ndarray, at: datetime, seed: int, late: float = 0) -> pa.Table:
    """One change of two columns for each of these records; the share `late` is at a time long before."""
    rng, count = np.random.default_rng(seed), len(ids)
    rows = fivetran.rows_of(ids, seed).select(["id", "name", "email"])
    times = np.full(count, np.datetime64(at.replace(tzinfo=None), "us"))
    past = rng.permutation(count)[: round(count * late)]
    times[past] = np.datetime64(BEGIN.replace(tzinfo=None), "us") + np.timedelta64(36, "h")
    rows = rows.append_column("at", pa.array(times).cast(pa.timestamp("us", "UTC")))
    return rows.append_column("lsn", pa.array(np.arange(count) + seed * 10**9))


class Ground:
    """The tables of feeds, the Fivetran door's table, and the table of the MERGE."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.keys, self.folder = keys, folder
        self.bench = fivetran.Bench(folder)
        self.warehouse = Warehouse(IcebergStore(self.bench.spark), embedded=False)
        self.at = BEGIN + 100 * DAY
        self.number = 0
        for table, versions in ((SMALL, VERSIONS), (LATE, VERSIONS), (LARGE, 4 * VERSIONS)):
            for version in range(versions):
                self._apply(self._whole(version), table)
        self.history = self.bench.definition("history", history=True)
        self.bench.definition("floor", history=True)
        for name in ("history", "floor"):
            fivetran.fill(self.bench, name)

    def _whole(self, version: int) -> pa.Table:
        ids = np.arange(self.keys)
        rows = fivetran.rows_of(ids, version).drop_columns([fivetran.SYNCED])
        rows = rows.set_column(5, "price", rows["price"].cast(pa.decimal128(12, 2)))
        few = events(ids, BEGIN + version * DAY, version)
        return rows.append_column("at", few["at"]).append_column("lsn", few["lsn"])

    def _apply(self, rows: pa.Table, table: str) -> None:
        path = self.folder / f"events-{time.monotonic_ns()}.parquet"
        pq.write_table(rows, path)
        self.warehouse.apply(str(path), into=table, **FEED)

    def acts(self, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The acts to measure for deliveries of one size, each with its own events in a prepared file."""
        rng = np.random.default_rng(count + self.number)
        self.number += 1
        self.at += DAY
        ids = np.sort(rng.choice(self.keys, min(count, self.keys), replace=False))
        sent = fivetran.changes(self.bench, ids, self.at)
        yield "Fivetran", lambda: self.bench.sender.send_files("bench", self.history, sent)
        for name, table, late in (("in order", SMALL, 0), ("1 % late", LATE, 0.01), ("onto 16 M", LARGE, 0)):
            self.at += DAY
            path = self.folder / f"events-{time.monotonic_ns()}.parquet"
            pq.write_table(events(ids, self.at, 100 + self.number + int(1000 * late), late), path)
            yield name, lambda p=path, t=table: self.warehouse.apply(str(p), into=t, **FEED)

    def at_once(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """One event for each record in one delivery, and the MERGE of prepared rows."""
        self.number += 1
        self.at += DAY
        ids = np.arange(self.keys)
        prepared = fivetran.prepare(self.bench, ids, self.at)
        more = "AND t._fivetran_start = s._fivetran_start"
        yield "MERGE by hand", lambda: fivetran.merge(self.bench, "floor", prepared, more)
        path = self.folder / "at-once.parquet"
        pq.write_table(events(ids, self.at, 100 + self.number), path)
        yield "apply", lambda: self.warehouse.apply(str(path), into=SMALL, **FEED)


def measure(given: Asked, acts: Callable[[], Iterator[tuple[str, Callable[[], Any]]]]) -> Seconds:
    """Seconds of each act in each round; the first round warms up."""
    found: Seconds = {}
    for number in range(given.rounds + 1):
        if number > 1 and time.time() > given.until:
            break
        for name, act in acts():
            settled()
            began = time.perf_counter()
            act()
            took = time.perf_counter() - began
            print(f"  {name:16} {took:6.2f} s{'' if number else ' (warms up)'}", flush=True)
            found.setdefault(name, [])
            if number:
                found[name].append(took)
    return found


def judged(found: Seconds, name: str, against: str, most: float) -> str:
    """Our seconds, their ratio to the other's, and whether it is within the bound."""
    times = ratio(found[against], found[name])
    if not times:
        return "–"
    return f"{spread(found[name])} = {times:.2f} ({'holds' if times <= most else 'missed'}: {most})"


def run(given: Asked) -> None:
    """Measure each size, and write `feeds.json` and `feeds.md`."""
    report = Report("feeds", "Feeds of changes onto 4 M and 16 M versions", given)
    keys = int(fivetran.MILLION * given.scale)
    with scratch("feeds") as folder:
        ground, lines = Ground(folder, keys), []
        for count in SIZES:
            print(f"{count:,} events", flush=True)
            found = measure(given, lambda n=count: ground.acts(n))
            report.data[str(count)] = found
            lines.append(
                [
                    f"{count:,}",
                    spread(found["Fivetran"]),
                    judged(found, "in order", "Fivetran", 1.2),
                    judged(found, "1 % late", "Fivetran", 1.5),
                    judged(found, "onto 16 M", "in order", 1.3),
                ]
            )
            report.table(
                "Deliveries",
                [
                    "events",
                    "Fivetran history batch",
                    "apply, in order",
                    "apply, 1 % late",
                    "onto 16 M versions",
                ],
                lines,
                "The first two are measured against the Fivetran batch, the last against 4 M versions.",
            )
            report.write()
        found = measure(given, ground.at_once)
        report.data["at once"] = found
        report.table(
            "A million at once",
            ["MERGE by hand", "apply"],
            [[spread(found["MERGE by hand"]), judged(found, "apply", "MERGE by hand", 1.0)]],
        )
        report.write()
        began = time.perf_counter()
        broken = [each for each in ground.warehouse.check(SMALL, LATE, LARGE) if each["violations"]]
        took = f"{time.perf_counter() - began:.0f} s"
        said = "finds nothing" if not broken else f"finds {broken}"
        report.say("Laws", f"`check` of the three tables {said}, in {took}.")
        report.write()


if __name__ == "__main__":
    sys.exit(run(asked(__doc__)))
