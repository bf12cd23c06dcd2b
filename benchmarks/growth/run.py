"""What a full copy costs: tables of several sizes get copies that change more or less of them, one after the other.

Run `make bench ONLY=growth`, or `python -m benchmarks.growth.run [--scale 0.1] [--full]`. A model of seconds, bytes,
files and jobs is fitted on these runs and checked on a table of another size that it was not fitted on.
"""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import backstory
from benchmarks.asked import Asked, asked, scratch
from benchmarks.charts import lines
from benchmarks.growth.model import Model, Run, fitted, off
from benchmarks.peers.ground import ROWS
from benchmarks.report import Report

SIZES: Final = (30_000, 100_000, 300_000)
CHECKED: Final = 200_000
# Of a hundred records how many each copy moves; the first copy makes the table.
MOVED: Final = (0, 1, 10, 2, 40)
MEASURED: Final = ("seconds", "bytes", "files", "jobs")
CONFIGURATION: Final = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "4g"
"spark.sql.shuffle.partitions" = "4"
"""
COPY: Final = (
    "SELECT id, name, email, if(pmod(id, 100) < {moved}, 'copy {number}', city) AS city, credit, since, seen, note "
    "FROM ({rows})"
)


def copies(warehouse: Any, records: int) -> Iterator[Run]:
    """Bring the copies into a table of its own; what each took, the first left out."""
    spark, table = warehouse.spark, f"growth.of_{records}"
    jobs = spark.sparkContext._jsc.sc().dagScheduler()
    rows, versions = ROWS.format(moved=-1, rows=records), 0
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


def told(report: Report, runs: list[Run], checked: list[Run]) -> list[Model]:
    """The runs, the models and how far they are off."""
    models = [fitted(runs, of) for of in MEASURED]
    head = ["records", "closed versions", "touched keys", *MEASURED]
    report.table(
        "Measured",
        head,
        [[_cell(run[name]) for name in ("records", "versions", "touched", *MEASURED)] for run in runs],
    )
    rows = [
        [m.of, m.told(), f"{off(m, runs):.0%}", f"{off(m, checked):.0%}" if checked else "–"] for m in models
    ]
    report.table(
        "The model",
        ["of", "is", "off where it was fitted", f"off on {CHECKED:,} records, which it was not fitted on"],
        rows,
        "A copy is read whole, so seconds grow with its records; what is written grows with what changed.",
    )
    report.data |= {"runs": runs, "checked": checked, "models": {m.of: m.parts for m in models}}
    report.write()
    return models


def _cell(value: float) -> str:
    return f"{value:.2f}" if value != int(value) else f"{int(value):,}"


def drawn(report: Report, models: list[Model], runs: list[Run]) -> None:
    """Curves beside the page: seconds by records, bytes by touched keys."""
    by_name = {model.of: model for model in models}
    for of, by, across in (("seconds", "records", "records of a copy"), ("bytes", "touched", "touched keys")):
        measured = [(float(run[by]), float(run[of])) for run in runs]
        model = [(float(run[by]), by_name[of].predicted(run)) for run in runs]
        path = report.asked.results / f"growth-{of}.svg"
        path.write_text(lines(f"A full copy: {of} by {across}", across, of, {"": (measured, model)}), "utf-8")
        report.say(f"{of.capitalize()} by {across}", f"![{of} by {across}]({path.name})")
    report.write()


def run(given: Asked) -> None:
    """Measure, fit, check, and write `growth.json`, `growth.md` and the curves."""
    factor = given.scale * (4 if given.full else 1)
    report = Report("growth-full" if given.full else "growth", "What a full copy costs as things grow", given)
    with scratch("growth") as folder:
        (folder / "backstory.toml").write_text(CONFIGURATION)
        warehouse = backstory.open(folder / "warehouse", config=folder / "backstory.toml")
        warehouse.spark.catalog.setCurrentCatalog("backstory")
        warehouse.spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.source")
        list(islice(copies(warehouse, int(SIZES[0] * factor * 0.9)), 2))  # warms up
        runs = [run for size in SIZES for run in copies(warehouse, int(size * factor))]
        told(report, runs, [])
        checked = list(copies(warehouse, int(CHECKED * factor)))
        drawn(report, told(report, runs, checked), runs)
        warehouse.close()


if __name__ == "__main__":
    run(asked(__doc__))
