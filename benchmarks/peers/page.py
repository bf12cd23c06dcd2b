"""The page of the peers: times, goals, rows and files, a chart, and the tools that could not take part."""

import statistics
from typing import Any, Final

from benchmarks.charts import bars
from benchmarks.peers.contestants import Contestant
from benchmarks.report import Report, ratio, spread

STEPS: Final = ("first load", "1 % changed", "nothing changed")
# How many times faster than dbt and SQLMesh backstory's snapshot must be, at 1 M rows.
GOALS: Final = {
    "Warm": {"first load": 2, "1 % changed": 8, "nothing changed": 15},
    "Whole processes": {"first load": 3, "1 % changed": 3, "nothing changed": 3},
}
Seconds = dict[str, dict[str, list[float]]]


def told(
    report: Report, warm: Seconds, wholes: Seconds, judgements: dict[str, Any], everybody: list[Contestant]
) -> None:
    """Write the results so far to the report."""
    for title, found in (("Warm", warm), ("Whole processes", wholes)):
        if not found:
            continue
        ours = found.get(everybody[0].name, {})
        rows = []
        for each in everybody:
            cells = []
            for step in STEPS:
                values = found.get(each.name, {}).get(step, [])
                times = ratio(ours.get(step, []), values)
                cells.append(
                    spread(values) + (f" = {times:.1f} ×" if times and each is not everybody[0] else "")
                )
            rows.append([each.name, *cells])
        count = max((len(values) for steps in found.values() for values in steps.values()), default=0)
        report.table(
            title,
            ["", *STEPS],
            rows,
            f"Medians of {count} rounds, in turn; in brackets the least and the greatest. × is how many times as long as `backstory snapshot`.",
        )
    if judgements:
        head = ["", "versions as they must be", "bytes written", "files written", "files"]
        rows = [
            [name, _right(j), f"{j['bytes_written']:,}", j["files_written"], j["files"]]
            for name, j in judgements.items()
        ]
        report.table("Rows, bytes and files of one table after the three loads", head, rows)
    both = {"Warm": warm, "Whole processes": wholes}
    goals(report, both, everybody)
    drawn(report, both, everybody)
    failed = [f"* {each.name}: {each.failed}" for each in everybody if each.failed]
    unable = "* dlt's `scd2`: it has no destination on Spark; its answers are in the case book, on DuckDB."
    report.say("Who could not take part", *failed, unable)
    report.data |= {"warm": warm, "whole": wholes, "tables": judgements}
    report.data["failed"] = {each.name: each.failed for each in everybody if each.failed}
    report.write()


def _right(judgement: dict[str, Any]) -> str:
    if "right" not in judgement:
        return "keeps none"
    return "yes" if judgement["right"] else f"no: {judgement['versions']}, {judgement['open']} open"


def goals(report: Report, found: dict[str, Seconds], everybody: list[Contestant]) -> None:
    """Write how many times faster than each peer it is, against the goals."""
    ours, peers = everybody[0], [each for each in everybody if each.schema in {"dbt", "mesh"}]
    rows = []
    for title, steps in GOALS.items():
        for step, goal in steps.items():
            mine = found[title].get(ours.name, {}).get(step, [])
            times = [ratio(mine, found[title].get(each.name, {}).get(step, [])) for each in peers]
            if any(times):
                cells = [
                    f"{each:.1f} ×: {'holds' if each >= goal else 'missed'}" if each else "–"
                    for each in times
                ]
                rows.append([f"{title}, {step}", *cells, f"{goal} ×"])
    if rows:
        head = [f"`{ours.name}` is faster than", *(each.name for each in peers), "at least"]
        report.table("Goals", head, rows, "Meant for 1 M rows on a machine that does nothing else.")


def drawn(report: Report, found: dict[str, Seconds], everybody: list[Contestant]) -> None:
    """Draw a chart of the medians next to the page."""
    groups = {
        f"{step}, {title.lower()}": {
            each.name: statistics.median(values)
            for each in everybody
            if (values := found[title].get(each.name, {}).get(step))
        }
        for title in GOALS
        for step in STEPS
    }
    groups = {name: values for name, values in groups.items() if values}
    if groups:
        path = report.asked.results / f"{report.name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        ours = [each.name for each in everybody if each.name.startswith("backstory")]
        path.write_text(bars(f"Seconds: {report.title}", groups, ours), "utf-8")
        report.say("Picture", f"![medians in seconds]({path.name})")
