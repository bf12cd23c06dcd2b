"""The same three loads by every contestant, in turn: a first load, 1 % changed, nothing changed.

Run `make bench ONLY=peers`, or `python -m benchmarks.peers.run [--scale 0.1] [--full]`. Scale 1 is 300,000 rows of
8 columns, with `--full` 1 M. All read one Iceberg table and write Iceberg tables of one catalog, on Spark with the
same settings. Warm: each in a process that has loaded once before. Whole: each load a process of its own, as a user
calls it. The numbers of rows that must be there afterwards are counted.
"""

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.asked import Asked, asked, scratch
from benchmarks.peers.contestants import PATIENCE, Contestant, Failed, contestants
from benchmarks.peers.ground import NOBODY, Ground, environ, settle
from benchmarks.report import Report, ratio, spread

STEPS: Final = ("first load", "1 % changed", "nothing changed")
WHOLE: Final = 100  # tables of whole processes have numbers from here
Seconds = dict[str, dict[str, list[float]]]


def in_turn(
    ground: Ground,
    everybody: list[Contestant],
    number: int,
    act: Callable[[Contestant, int], float],
    found: Seconds,
) -> None:
    """One round into the tables of a number; who fails takes no further part."""
    for step, moved in zip(STEPS, (NOBODY, 7, 7), strict=True):
        ground.copy(moved)
        for each in everybody:
            if each.failed is not None:
                continue
            try:
                took = act(each, number)
            except (Failed, OSError) as stop:
                each.failed = f"{step}: {stop}"
                print(f"  {each.name}: {each.failed}", flush=True)
                continue
            found.setdefault(each.name, {}).setdefault(step, []).append(took)
            print(f"  {number:4} {step:16} {each.name:60} {took:7.2f} s", flush=True)


def whole(folder: Path) -> Callable[[Contestant, int], float]:
    """One load as a process of its own: its seconds from outside."""

    def act(each: Contestant, number: int) -> float:
        began = time.perf_counter()
        try:
            done = subprocess.run(
                each.command(number),
                cwd=folder / "cwd" / each.schema,
                env=environ(folder),
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"no end in {PATIENCE} s") from None
        if done.returncode:
            raise Failed(f"ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
        return time.perf_counter() - began

    return act


def rounds(given: Asked, until: float, first: int, play: Callable[[int], None], *, warming: bool) -> None:
    """Play rounds while there is time for one more like the last."""
    last = 0.0
    for number in range(given.rounds + warming):
        if number and time.time() + last > until:
            break
        began = time.time()
        play(first + number)
        last = time.time() - began


def judged(ground: Ground, each: Contestant, number: int) -> dict[str, Any]:
    """Whether the table holds the versions it must, its files, and the bytes that its commits wrote."""
    table = f"backstory.{each.schema}.{each.of.replace('NUMBER', str(number))}"
    stored = table
    if each.schema == "mesh":  # what is asked for is a view over a table of SQLMesh's own
        names = ground.spark.sql(
            f"SHOW TABLES IN backstory.sqlmesh__mesh LIKE '*customer_{number}__*'"
        ).collect()
        stored = f"backstory.sqlmesh__mesh.`{names[0]['tableName']}`"
    changed = len(range(7, ground.rows, 100))
    found: dict[str, Any] = {}
    if each.still_open is not None:
        versions, still = ground.one(f"SELECT count(*), count_if({each.still_open}) FROM {table}")
        found["right"] = (versions, still) == (ground.rows + changed, ground.rows)
        found["versions"], found["open"] = versions, still
    written, added = ground.one(
        "SELECT sum(coalesce(summary['added-files-size'], 0)), sum(coalesce(summary['added-data-files'], 0) + "
        f"coalesce(summary['added-delete-files'], 0)) FROM {stored}.snapshots"
    )
    (files,) = ground.one(f"SELECT count(*) FROM {stored}.files")
    return {**found, "bytes_written": int(written or 0), "files_written": int(added or 0), "files": files}


def told(
    report: Report, warm: Seconds, wholes: Seconds, judgements: dict[str, Any], everybody: list[Contestant]
) -> None:
    """Bring what is found so far into the report."""
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


def run(given: Asked) -> None:
    """Play warm rounds and rounds of whole processes, and write `peers.json` and `peers.md`."""
    rows = int((1_000_000 if given.full else 300_000) * given.scale)
    title = f"Against peers and the floor: {rows:,} rows of 8 columns"
    report = Report("peers-full" if given.full else "peers", title, given)
    with scratch("peers") as folder:
        numbers = [*range(given.rounds + 1), *range(WHOLE, WHOLE + given.rounds)]
        ground = settle(folder, rows, numbers, "4g" if given.full else "2g")
        everybody = contestants(folder)
        report.versions |= _versions()
        warm: Seconds = {}
        wholes: Seconds = {}
        judgements: dict[str, Any] = {}

        def tell() -> None:
            told(report, warm, wholes, judgements, everybody)

        half = time.time() + given.left * 0.45
        try:
            _warm_rounds(ground, everybody, given, half, warm)
            tell()
            for each in everybody:
                with contextlib.suppress(Exception):
                    judgements[each.name] = judged(ground, each, 0)
            tell()
            _whole_rounds(ground, everybody, given, wholes)
        finally:
            for each in everybody:
                each.stop()
            tell()
        ground.warehouse.close()


def _warm_rounds(
    ground: Ground, everybody: list[Contestant], given: Asked, until: float, warm: Seconds
) -> None:
    for each in everybody:
        try:
            if each.failed is None:
                each.start(ground.folder)
        except Failed as stop:
            each.failed = f"start: {stop}"
    try:
        rounds(
            given, until, 0,
            lambda number: in_turn(ground, everybody, number, lambda each, n: each.load(n), warm),
            warming=True,
        )  # fmt: skip
    finally:
        for each in everybody:
            each.stop()
    for steps in warm.values():
        for values in steps.values():
            if len(values) > 1:
                del values[0]  # the first round warms up


def _whole_rounds(ground: Ground, everybody: list[Contestant], given: Asked, wholes: Seconds) -> None:
    act = whole(ground.folder)
    playing = [each for each in everybody if each.still_open is not None]
    rounds(
        given, given.until, WHOLE,
        lambda number: in_turn(ground, playing, number, act, wholes),
        warming=False,
    )  # fmt: skip


def _versions() -> dict[str, str]:
    from benchmarks.venvs import environment

    return {
        name: number for peer in ("dbt", "sqlmesh") for name, number in environment(peer).versions.items()
    }


if __name__ == "__main__":
    run(asked(__doc__))
