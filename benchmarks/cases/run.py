"""The case book: every case for every installed tool, with the outcome right, refused or silently wrong.

Run `make bench ONLY=cases`, or `python -m benchmarks.cases.run`. Each tool runs in its own process and
environment. Only the plain rule (`rule.py`) determines the right outcome.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backstory.settings import Settings
from backstory.spark.session import session_properties
from benchmarks.asked import Asked, asked_of, parser, scratch
from benchmarks.cases.advice import ADVICE
from benchmarks.cases.book import BOOK, CELLS, CHANGES, COPIES, Case, told
from benchmarks.cases.rule import LOUD, NOT_ASKED, REFUSED, RIGHT, WRONG, outcome
from benchmarks.peers.ground import environ, write_conf
from benchmarks.report import Report, counted
from benchmarks.venvs import environment

TOOLS: Final = Path(__file__).parent / "tools"
PATIENCE: Final = 1500
MARKS: Final = {RIGHT: "right", REFUSED: "refused", WRONG: "**wrong**", LOUD: "failed", NOT_ASKED: "–"}


@dataclass(frozen=True)
class Tool:
    """A tool: its name, its program, the environment of a peer, and the inputs that it supports."""

    name: str
    program: str
    peer: str | None = None
    instants: bool = False
    where: str = "Spark, Iceberg"
    feeds: tuple[str, ...] = ()


EVERYBODY: Final = (
    Tool("backstory snapshot, apply", "by_backstory.py", instants=True, feeds=(CHANGES, CELLS, COPIES)),
    Tool("backstory historize", "by_model.py", instants=True),
    Tool("dbt snapshot", "by_dbt.py", "dbt", feeds=(CHANGES,)),
    Tool("SQLMesh SCD_TYPE_2", "by_sqlmesh.py", "sqlmesh", where="DuckDB", feeds=(CHANGES,)),
    Tool("dlt scd2", "by_dlt.py", "dlt", instants=True, where="DuckDB"),
    Tool("MERGE by hand", "by_hand.py", feeds=(CHANGES,)),
)


def put_to(tool: Tool, folder: Path) -> dict[str, Any] | str:
    """The outcome of each case, or the reason why the tool could not run."""
    python = Path(sys.executable)
    if tool.peer is not None:
        made = environment(tool.peer)
        if made.failed is not None:
            return made.failed
        python = made.python
    place = folder / tool.program.removesuffix(".py")
    prepared(place)
    with (place / "log").open("wb") as log:
        try:
            done = subprocess.run(
                [str(python), str(TOOLS / tool.program), str(place)],
                stdout=log, stderr=subprocess.STDOUT, cwd=place, env=environ(place), check=False, timeout=PATIENCE,
            )  # fmt: skip
            ended = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"no end in {PATIENCE} s"
    found = place / "found.json"
    if found.exists():
        return json.loads(found.read_text("utf-8"))
    return f"{ended}: {(place / 'log').read_text('utf-8', 'replace')[-600:]}"


def prepared(place: Path) -> None:
    """Make a warehouse, settings and the cases for one tool."""
    (place / "warehouse").mkdir(parents=True)
    (place / "warehouse" / "catalog.db").touch()
    lines = {"spark.master": "local[1]", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    text = "".join(f'"{name}" = "{value}"\n' for name, value in lines.items())
    (place / "backstory.toml").write_text(f"[spark]\n{text}")
    write_conf(place, session_properties(Settings(place / "warehouse", spark=lines)))
    (place / "cases.json").write_text(json.dumps(told()), "utf-8")


def judged(tool: Tool, case: Case, found: dict[str, Any]) -> str:
    """The outcome of a case, by the rule."""
    if (case.instants and not tool.instants) or (case.feed is not None and case.feed not in tool.feeds):
        return NOT_ASKED
    if found["failed_at"] is None and found["error"] is not None:
        return LOUD  # there was no refusal, and the table cannot be read
    return outcome(case, found["failed_at"], [tuple(row) for row in found["rows"]])


def tell(report: Report, outcomes: dict[str, dict[str, str] | str], raw: dict[str, Any]) -> None:
    """Write the table of cases by tool, and the messages of refusals."""
    asked_tools = [tool for tool in EVERYBODY if isinstance(outcomes.get(tool.name), dict)]
    rows = [
        [case.name, *(MARKS.get(outcomes[tool.name].get(case.name, ""), "?") for tool in asked_tools)]
        for case in BOOK
    ]
    sums = [
        "silently wrong",
        *(sum(v == WRONG for v in outcomes[tool.name].values()) for tool in asked_tools),
    ]
    report.table(
        "Outcomes",
        ["", *(f"{tool.name} ({tool.where})" for tool in asked_tools)],
        [*rows, sums],
        "right: the history that the plain rule gives. refused: an error, and the table as it was. wrong: no error, and "
        "another history. failed: an error, and the table neither as it was nor right. –: the tool cannot be told when a copy was so, or what the rows of a feed mean.",
    )
    unable = [f"* {name}: {why}" for name, why in outcomes.items() if isinstance(why, str)]
    if unable:
        report.say("Who could not be asked", *unable)
    for tool in asked_tools:
        errors = [
            f"* {name}: {each['error']}" for name, each in raw[tool.name].items() if each["error"] is not None
        ]
        if errors:
            report.say(f"What {tool.name} said when it refused", *errors)
    report.say("What their own pages advise", *ADVICE)
    report.data |= {"outcomes": outcomes, "raw": raw}
    report.write()


def run(given: Asked, names: list[str] | None = None) -> None:
    """Run every tool, two at once; write `cases.json` and `cases.md`."""
    report = Report("cases", f"The case book: {len(BOOK)} ordinary situations", given)
    outcomes: dict[str, dict[str, str] | str] = {}
    raw: dict[str, Any] = {}
    chosen = [tool for tool in EVERYBODY if names is None or tool.program.removesuffix(".py") in names]
    if names is not None:
        remembered(report, outcomes, raw)

    with scratch("cases") as folder, ThreadPoolExecutor(2) as pool:
        for tool, found in zip(chosen, pool.map(lambda tool: put_to(tool, folder), chosen), strict=True):
            if isinstance(found, str):
                outcomes[tool.name] = found
            else:
                raw[tool.name] = found
                outcomes[tool.name] = judgements(tool, found)
            for peer in filter(None, [tool.peer]):
                report.versions |= environment(peer).versions
            tell(report, outcomes, raw)
            told_here = outcomes[tool.name]
            print(
                f"  {tool.name}: {summed(told_here) if isinstance(told_here, dict) else told_here}",
                flush=True,
            )


def remembered(report: Report, outcomes: dict[str, dict[str, str] | str], raw: dict[str, Any]) -> None:
    """Add an earlier run's results for the tools that this run leaves out, judged again."""
    path = report.asked.results / "cases.json"
    if not path.exists():
        return
    earlier = json.loads(path.read_text("utf-8"))
    report.versions |= earlier["versions"]
    for tool in EVERYBODY:
        if tool.name in earlier["raw"]:
            raw[tool.name] = earlier["raw"][tool.name]
            outcomes[tool.name] = judgements(tool, raw[tool.name])


def judgements(tool: Tool, found: dict[str, Any]) -> dict[str, str]:
    """The outcome of each case that the tool ran."""
    return {case.name: judged(tool, case, found[case.name]) for case in BOOK if case.name in found}


def summed(found: dict[str, str]) -> str:
    """The number of cases with each outcome."""
    return counted({kind: list(found.values()).count(kind) for kind in MARKS if kind in found.values()})


def main() -> None:
    """Parse the arguments of every workload and `--tools`, and run."""
    arguments: argparse.ArgumentParser = parser(__doc__)
    arguments.add_argument("--tools", nargs="*", help="programs of benchmarks/cases/tools, without .py")
    found = arguments.parse_args()
    run(asked_of(found), found.tools)


if __name__ == "__main__":
    main()
