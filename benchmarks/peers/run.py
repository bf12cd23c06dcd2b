"""The same three loads by every contestant, in turn: a first load, 1 % changed, nothing changed.

Run `make bench ONLY=peers`, or `python -m benchmarks.peers.run [--scale 0.1] [--full]`. Scale 1 is 300,000
rows of 8 columns, with `--full` 1 M. All read one Iceberg table and write Iceberg tables of one catalog, on
Spark with the same settings. Warm loads run in a process that has loaded once before. Whole loads each run in
their own process, as users run them. Afterwards the numbers of rows are checked.
"""

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.asked import Asked, asked_of, parser, scratch
from benchmarks.peers.contestants import PATIENCE, Contestant, Failed, contestants
from benchmarks.peers.ground import NOBODY, Ground, settle
from benchmarks.peers.page import STEPS, Seconds, told
from benchmarks.quiet import settled
from benchmarks.report import Report

WHOLE: Final = 100  # the first number of the tables of whole processes
Act = Callable[[Contestant, int], float]


def in_turn(
    ground: Ground,
    everybody: list[Contestant],
    number: int,
    act: Act,
    found: Seconds,
    until: float = float("inf"),
) -> None:
    """Play one round into the tables of a number; no load begins after `until` or its contestant's failure.

    Each load waits until the machine is idle, because writing a copy and ending a load leave work behind.
    """
    for step, moved in zip(STEPS, (NOBODY, 7, 7), strict=True):
        ground.copy(moved)
        for each in everybody:
            bare = each.schema == "bare" and step != STEPS[0]  # a bare session does the same in every step
            if each.failed is not None or bare or time.time() > until:
                continue
            settled()
            try:
                took = act(each, number)
            except (Failed, OSError) as stop:
                each.failed = f"{step}: {stop}"
                each.stop()  # a contestant that hangs delays the others
                print(f"  {each.name}: {each.failed}", flush=True)
                continue
            found.setdefault(each.name, {}).setdefault(step, []).append(took)
            print(f"  {number:4} {step:16} {each.name:60} {took:7.2f} s", flush=True)


def whole(folder: Path) -> Act:
    """Run one load in its own process; its seconds are measured from outside."""

    def act(each: Contestant, number: int) -> float:
        began = time.perf_counter()
        try:
            done = subprocess.run(
                each.command(number),
                cwd=folder / "cwd" / each.schema,
                env=each.environ(folder),
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
    """Whether the table holds the right versions, its files, and the bytes that its commits wrote."""
    table = f"backstory.{each.schema}.{each.of.replace('NUMBER', str(number))}"
    stored = table
    if each.schema == "mesh":  # the table is a view over SQLMesh's own table
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


def run(given: Asked, who: list[str] | None = None) -> None:
    """Play warm rounds and rounds of whole processes, and write `peers.json` and `peers.md`."""
    rows = int((1_000_000 if given.full else 300_000) * given.scale)
    title = f"Against peers and the floor: {rows:,} rows of 8 columns"
    report = Report("peers-full" if given.full else "peers", title, given)
    with scratch("peers") as folder:
        numbers = [*range(given.rounds + 1), *range(WHOLE, WHOLE + given.rounds)]
        ground = settle(folder, rows, numbers, "3g" if given.full else "2g")
        everybody = [each for each in contestants(folder) if who is None or each.schema in who]
        report.versions |= _versions()
        warm: Seconds = {}
        wholes: Seconds = {}
        judgements: dict[str, Any] = {}

        def tell() -> None:
            told(report, _counted(warm), wholes, judgements, everybody)

        try:
            warm_rounds(ground, everybody, given, warm, tell)
            for each in everybody:
                with contextlib.suppress(Exception):
                    judgements[each.name] = judged(ground, each, 0)
            tell()
            whole_rounds(ground, everybody, given, wholes, tell)
        finally:
            for each in everybody:
                each.stop()
            tell()
        ground.warehouse.close()


def _counted(warm: Seconds) -> Seconds:
    """The seconds without the warm-up round, if there is another round."""
    return {
        name: {step: values[1:] or values for step, values in steps.items()} for name, steps in warm.items()
    }


def warm_rounds(
    ground: Ground, everybody: list[Contestant], given: Asked, warm: Seconds, tell: Callable[[], None]
) -> None:
    """Play rounds in workers that run throughout; they get less than half of the time."""
    until = time.time() + given.left * 0.45
    playing = [each for each in everybody if each.warm]
    for each in playing:
        try:
            if each.failed is None:
                each.start(ground.folder)
        except Failed as stop:
            each.failed = f"start: {stop}"

    def play(number: int) -> None:
        in_turn(ground, playing, number, lambda each, n: each.load(n), warm, until)
        tell()

    try:
        rounds(given, until, 0, play, warming=True)
    finally:
        for each in playing:
            each.stop()


def whole_rounds(
    ground: Ground, everybody: list[Contestant], given: Asked, wholes: Seconds, tell: Callable[[], None]
) -> None:
    """Play rounds of whole processes."""
    act = whole(ground.folder)
    playing = [each for each in everybody if each.whole]

    def play(number: int) -> None:
        in_turn(ground, playing, number, act, wholes, given.until)
        tell()

    rounds(given, given.until, WHOLE, play, warming=False)


def _versions() -> dict[str, str]:
    from benchmarks.venvs import environment

    return {
        name: number for peer in ("dbt", "sqlmesh") for name, number in environment(peer).versions.items()
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--who", nargs="*", help="native, rawcore, dbt, mesh, hand, floor, bare; without it all"
    )
    chosen = arguments.parse_args()
    run(asked_of(chosen), chosen.who)
