"""Copies of tables in an object store, against the same copies of tables on this machine.

Run `make bench ONLY=objects`, or `python -m benchmarks.objects [--scale 0.1] [--rounds 3]`. Whole processes
of `backstory snapshot` take turns. They load a million rows of 8 columns of ordinary width from a Parquet
file. The steps are a first load; 1 % changed, 0.5 % new, 0.5 % gone; nothing changed. The store is the tests'
moto server, which uses processors of this machine. `scripts/setup.sh --tests` installs it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.asked import Asked, asked, scratch
from benchmarks.quiet import settled
from benchmarks.report import Report, ratio, spread

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from object_store import BUCKET, MOTO, ObjectStore, serving_objects  # the tests' own server

ROWS: Final = 1_000_000
GOAL: Final = 1.5
STEPS: Final = ("first load", "1 % changed", "nothing changed")
COPY: Final = """COPY (
SELECT id, md5(id::text)[:16] AS name, md5('e' || id)[:20] || '@example.com' AS email, md5('c' || id)[:9] AS city,
    (hash(id) % 100000000 / 100)::decimal(12, 2) AS credit, date '2020-01-01' + (hash(-id) % 2000)::int AS since,
    timestamp '2024-01-01' + to_seconds((hash(id + 7) % 30000000)::int) AS seen,
    md5((CASE WHEN id % 100 = {moved} THEN 'm' ELSE 'n' END) || id) AS note
FROM range({first}, {last}) AS of_ids(id)) TO '{file}' (FORMAT parquet, COMPRESSION zstd)"""


def write_copies(folder: Path, rows: int) -> tuple[Path, Path]:
    """Write the first copy and the second one."""
    few, files = rows // 200, (folder / "first.parquet", folder / "second.parquet")
    for file, first, moved in zip(files, (0, few), (-1, 7), strict=True):
        duckdb.sql(COPY.format(moved=moved, first=first, last=rows + first, file=file))
    return files


def write_settings(folder: Path, objects: ObjectStore) -> Path:
    """Write the configuration of a warehouse with tables in the store and a catalog in a file."""
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/lake.db?busy_timeout=60000",
        "jdbc.schema-version": "V1",
        "warehouse": f"s3://{BUCKET}/w",
        **objects.reached,
    }
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in catalog.items())
    file = folder / "lake.toml"
    file.write_text(
        f'[catalog]\n{lines}\n[spark]\n"spark.jars.packages" = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"\n'
    )
    return file


def run(given: Asked) -> None:
    """Measure both places in turn, and write `objects.json` and `objects.md`."""
    rows = int(ROWS * given.scale)
    report = Report("objects", f"Copies of {rows:,} rows in an object store", given)
    if not MOTO.exists():
        report.say("Not measured", "moto is not installed: run `scripts/setup.sh --tests`.")
        report.write()
        return
    with scratch("objects") as folder, serving_objects(folder) as objects:
        first, second = write_copies(folder, rows)
        lake = write_settings(folder, objects)
        places = {
            "files of this machine": ["--warehouse", folder / "here"],
            "object store": ["--config", lake],
        }
        seconds: dict[str, dict[str, list[float]]] = {place: {} for place in places}
        requests: dict[str, int] = {}
        for number in range(given.rounds):
            for step, file in zip(STEPS, (first, second, second), strict=True):
                for place, words in places.items():
                    settled()
                    with objects.counting() as asked_for:
                        took = _load(folder, file, number, words)
                    seconds[place].setdefault(step, []).append(took)
                    requests[step] = len(asked_for) or requests.get(step, 0)
                    print(f"  {step:16} {place:22} {took:.2f} s, {len(asked_for)} requests", flush=True)
            _tell(report, seconds, requests)


def _load(folder: Path, file: Path, number: int, words: list[object]) -> float:
    command = [Path(sys.executable).with_name("backstory"), "snapshot", file, "--into", f"a.t{number}"]
    began = time.perf_counter()
    subprocess.run(
        [*map(str, [*command, "--key", "id", "--quiet", *words])],
        check=True,
        cwd=folder,
        env={**os.environ, "BACKSTORY_CONFIG": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def _tell(report: Report, seconds: dict[str, dict[str, list[float]]], requests: dict[str, int]) -> None:
    here, there = seconds.values()
    lines = []
    for step in STEPS:
        times = ratio(here[step], there[step]) or 0.0
        verdict = "holds" if times <= GOAL else "missed"
        told = f"{spread(there[step])} = {times:.2f} × ({verdict}: {GOAL})"
        lines.append([step, spread(here[step]), told, requests[step]])
    report.table("Whole processes", ["", *seconds, "requests"], lines)
    report.data |= {"seconds": seconds, "requests": requests}
    report.write()


if __name__ == "__main__":
    sys.exit(run(asked(__doc__)))
