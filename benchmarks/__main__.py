"""Run every benchmark in its own process and within its time, and write results as they are found.

`make bench` and `make bench-full` run it:

    python -m benchmarks [--only peers,cases] [--full] [--scale 0.1] [--rounds 3] [--minutes 13]

If a workload fails or runs out of time, the others still run, and its results so far are kept. Each workload
writes one page and one JSON file to `benchmarks/results/`; `results/README.md` lists the pages.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.asked import Asked, asked_of, parser

GRACE: Final = 60  # extra seconds in which a workload may finish its current round


@dataclass(frozen=True)
class Workload:
    """A module to run and its share of all minutes; with `always` it runs without being named."""

    name: str
    module: str
    share: float
    about: str
    always: bool = True


WORKLOADS: Final = (
    Workload("peers", "benchmarks.peers.run", 0.50, "backstory, dbt, SQLMesh, a MERGE by hand and the floor"),
    Workload(
        "sizes", "benchmarks.peers.sizes", 0.3, "rows of ordinary width beyond what the driver can hold"
    ),
    Workload("history", "benchmarks.history.run", 0.12, "HistoryBench: days of sparse changes, audited"),
    Workload(
        "history_feed",
        "benchmarks.history.by_feed",
        0.12,
        "the same days as feeds, in order and shuffled",
        always=False,
    ),
    Workload("cases", "benchmarks.cases.run", 0.28, "the case book: right, refused, or silently wrong"),
    Workload(
        "kills", "benchmarks.cases.kills", 0.1, "a load killed in the middle and run again", always=False
    ),
    Workload("growth", "benchmarks.growth.run", 0.10, "what a load costs as keys, changes and versions grow"),
    Workload(
        "cluster", "benchmarks.growth.cluster", 0.1, "a standalone master against local[2]", always=False
    ),
    Workload(
        "historize",
        "benchmarks.doors historize",
        0.1,
        "a history load against statements by hand",
        always=False,
    ),
    Workload(
        "native", "benchmarks.doors native", 0.1, "a native snapshot against statements by hand", always=False
    ),
    Workload(
        "fivetran",
        "benchmarks.doors fivetran",
        0.1,
        "the Fivetran destination against the floor",
        always=False,
    ),
    Workload(
        "feeds",
        "benchmarks.feeds",
        0.1,
        "feeds of changes against the Fivetran door and a MERGE by hand",
        always=False,
    ),
    Workload(
        "nightly",
        "benchmarks.nightly",
        0.1,
        "a run of 200 tables, and a table of PostgreSQL against a file",
        always=False,
    ),
    Workload(
        "objects",
        "benchmarks.objects",
        0.1,
        "copies of tables in an object store against those of this machine",
        always=False,
    ),
    Workload("explorer", "benchmarks.explorer", 0.1, "pages of a history of 4 M versions", always=False),
    Workload("odf", "benchmarks.doors odf", 0.1, "event logs against statements by hand", always=False),
    Workload("tables", "benchmarks.doors tables", 0.1, "many tables at once", always=False),
    Workload(
        "reading",
        "benchmarks.reading.run",
        0.1,
        "as_of, join_as_of and check against what one writes by hand",
        always=False,
    ),
    Workload(
        "changes", "benchmarks.doors changes", 0.1, "bytes that the feed of changes reads", always=False
    ),
)


def played(workload: Workload, given: Asked) -> str:
    """Run a workload until it ends or its time is over, and return how it ended."""
    module, *words = workload.module.split()
    command = [sys.executable, "-m", module, *words, *given.words()]
    with tempfile.TemporaryDirectory(prefix="backstory-bench-", ignore_cleanup_errors=True) as folder:
        return _ended(
            subprocess.Popen(command, start_new_session=True, env=os.environ | {"TMPDIR": folder}), given
        )


def _ended(process: subprocess.Popen[bytes], given: Asked) -> str:
    try:
        code = process.wait(timeout=None if given.until == float("inf") else max(10.0, given.left + GRACE))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # also kills its workers and their Java, and no other process
        process.wait()
        return "out of time; what it found by then is kept"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return "done" if code == 0 else f"failed with {code}"


def contents(given: Asked, ended: dict[str, str]) -> None:
    """Write the list of all pages to the folder of results."""
    pages = sorted(given.results.glob("*.md"))
    lines = ["# What was measured last", ""]
    for page in pages:
        if page.name != "README.md":
            title = page.read_text("utf-8").splitlines()[0].removeprefix("# ")
            note = ended.get(page.stem.removesuffix("-full"), "done")
            lines.append(f"* [{title}]({page.name})" + ("" if note == "done" else f" ({note})"))
    (given.results / "README.md").write_text("\n".join([*lines, ""]), "utf-8")


def main() -> int:
    """Run the chosen workloads; return 1 if one failed, and 2 if a name is unknown."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="workloads by name, with commas")
    arguments.add_argument("--minutes", type=float, help="for all together; with --full as many as it takes")
    found = arguments.parse_args()
    given, names = asked_of(found), [name for name in found.only.split(",") if name]
    unknown = set(names) - {each.name for each in WORKLOADS}
    if unknown:
        told = ", ".join(each.name for each in WORKLOADS)
        sys.stderr.write(f"There is no workload {', '.join(sorted(unknown))}; there are {told}.\n")
        return 2
    chosen = [each for each in WORKLOADS if each.name in names or (not names and (each.always or given.full))]
    minutes = found.minutes or (None if given.full else 13.0)
    given.results.mkdir(parents=True, exist_ok=True)
    until = time.time() + 60 * minutes if minutes else float("inf")
    ended: dict[str, str] = {}
    for place, each in enumerate(chosen):
        if time.time() > until:
            ended[each.name] = "not begun: out of time"
            continue
        rest = sum(other.share for other in chosen[place:])
        own = time.time() + max(0.0, until - time.time()) * each.share / rest if minutes else until
        print(f"{each.name}: {each.about}", flush=True)
        began = time.time()
        ended[each.name] = played(each, replace(given, until=own))
        print(f"{each.name}: {ended[each.name]} after {time.time() - began:.0f} s\n", flush=True)
        contents(given, ended)
    for name, how in ended.items():
        print(f"{name:12} {how}")
    return 0 if all(how == "done" for how in ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
