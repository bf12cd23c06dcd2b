"""The cost of a full copy: tables of several sizes are loaded with copies that change more or less of them.

Run `make bench ONLY=growth`, or `python -m benchmarks.growth.run [--scale 0.1] [--full]`. A copy is compared
by the driver or by Spark's tasks. Each way has its own model of seconds, bytes, files and jobs. It is fitted
on these runs, and checked on a table of another size.
"""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import backstory
from benchmarks.asked import Asked, asked, scratch
from benchmarks.charts import lines
from benchmarks.growth.model import Model, Run, fitted, off
from benchmarks.peers.ground import ROWS
from benchmarks.report import Report

SIZES: Final = (30_000, 100_000, 300_000)
CHECKED: Final = 200_000
# The percentage of records that each copy changes; the first copy makes the table.
MOVED: Final = (0, 1, 10, 2, 40)
MEASURED: Final = ("seconds", "bytes", "files", "jobs")
CONFIGURATION: Final = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "4g"
"spark.sql.shuffle.partitions" = "4"
"""
# The driver compares copies that fit its memory; with little memory Spark's tasks compare every copy.
WAYS: Final = {"the driver": "", "Spark's tasks": '[delivery]\ndriver-memory = "8m"\n'}
COPY: Final = (
    "SELECT id, name, email, if(pmod(id, 100) < {moved}, 'copy {number}', city) AS city, credit, since, seen, note "
    "FROM ({rows})"
)


def copies(warehouse: Any, records: int) -> Iterator[Run]:
    """Load the copies into a new table; yield the costs of each but the first."""
    spark, table = warehouse.spark, f"growth.of_{records}"
    jobs = spark.sparkContext._jsc.sc().dagScheduler()
    rows, versions = ROWS.format(moved=-1, first=0, last=records), 0
    for number, moved in enumerate(MOVED):
        query = COPY.format(moved=moved, number=number, rows=rows)
        path = f"backstory.source.copy_{records}"
        spark.sql(f"CREATE OR REPLACE TABLE {path} USING iceberg AS {query}")
        before, began = jobs.numTotalJobs(), time.perf_counter()
        receipt = warehouse.snapshot(spark.table(path), into=table, key="id")
        took, ran = time.perf_counter() - began, jobs.numTotalJobs() - before
        touched = receipt.counts["changed"]
        if number:
            yield {
                "records": records, "versions": versions, "touched": touched, "seconds": took, "jobs": ran,
                **written(spark, table),
            }  # fmt: skip
        versions += touched


def written(spark: Any, table: str) -> dict[str, float]:
    """Bytes and files that the newest commit added."""
    row = spark.sql(
        "SELECT coalesce(summary['added-files-size'], 0), coalesce(summary['added-data-files'], 0) + "
        f"coalesce(summary['added-delete-files'], 0) FROM backstory.{table}.snapshots ORDER BY committed_at DESC LIMIT 1"
    ).collect()[0]
    return {"bytes": float(row[0]), "files": float(row[1])}


def told(report: Report, ways: dict[str, tuple[list[Run], list[Run]]]) -> dict[str, dict[str, Model]]:
    """Write the runs of each way, its models and their errors."""
    models = {way: {of: fitted(runs, of) for of in MEASURED} for way, (runs, _) in ways.items()}
    report.table(
        "Measured",
        ["compared by", "records", "closed versions", "touched keys", *MEASURED],
        [
            [way, *(_cell(run[name]) for name in ("records", "versions", "touched", *MEASURED))]
            for way, (runs, checked) in ways.items()
            for run in [*runs, *checked]
        ],
    )
    rows = [
        [way, of, model.told(), f"{off(model, ways[way][0]):.0%}", f"{off(model, ways[way][1]):.0%}"]
        for way, found in models.items()
        for of, model in found.items()
    ]
    report.table(
        "The model",
        [
            "compared by",
            "of",
            "is",
            "off where it was fitted",
            f"off on {CHECKED:,} records, which it was not fitted on",
        ],
        rows,
        "A copy is read whole, so seconds grow with its records; what is written grows with what changed. The driver "
        "compares what a sixth of `[delivery] driver-memory` holds at once, and larger copies in steps or parts; the "
        "second rows are of copies that are left to Spark's tasks.",
    )
    report.data |= {
        "runs": {way: runs for way, (runs, _) in ways.items()},
        "checked": {way: checked for way, (_, checked) in ways.items()},
        "models": {way: {of: model.parts for of, model in found.items()} for way, found in models.items()},
    }
    return models


def _cell(value: float) -> str:
    return f"{value:.2f}" if value != int(value) else f"{int(value):,}"


def drawn(
    report: Report, models: dict[str, dict[str, Model]], ways: dict[str, tuple[list[Run], list[Run]]]
) -> None:
    """Draw curves next to the page: seconds by records, bytes by touched keys."""
    for of, by, across in (("seconds", "records", "records of a copy"), ("bytes", "touched", "touched keys")):
        series = {}
        for way, (runs, checked) in ways.items():
            every = [*runs, *checked]
            measured = [(float(run[by]), float(run[of])) for run in every]
            series[way] = measured, [(float(run[by]), models[way][of].predicted(run)) for run in every]
        path = report.asked.results / f"growth-{of}.svg"
        path.write_text(lines(f"A full copy: {of} by {across}", across, of, series), "utf-8")
        report.say(f"{of.capitalize()} by {across}", f"![{of} by {across}]({path.name})")


def measured(folder: Path, more: str, factor: float) -> tuple[list[Run], list[Run]]:
    """The runs of one way in its own warehouse, and the runs that check its model."""
    folder.mkdir()
    (folder / "backstory.toml").write_text(CONFIGURATION + more)
    warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
    try:
        warehouse.spark.catalog.setCurrentCatalog("backstory")
        warehouse.spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.source")
        list(islice(copies(warehouse, int(SIZES[0] * factor * 0.9)), 2))  # warms up
        runs = [run for size in SIZES for run in copies(warehouse, int(size * factor))]
        return runs, list(copies(warehouse, int(CHECKED * factor)))
    finally:
        warehouse.close()


def run(given: Asked) -> None:
    """Measure, fit, check, and write `growth.json`, `growth.md` and the curves."""
    factor = given.scale * (4 if given.full else 1)
    report = Report("growth-full" if given.full else "growth", "What a full copy costs as things grow", given)
    ways: dict[str, tuple[list[Run], list[Run]]] = {}
    with scratch("growth") as folder:
        for way, more in WAYS.items():
            ways[way] = measured(folder / str(len(ways)), more, factor)
            drawn(report, told(report, ways), ways)
            report.write()


if __name__ == "__main__":
    run(asked(__doc__))
