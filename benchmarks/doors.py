"""The benchmarks of single doors as workloads, which keep their output as a page.

`python -m benchmarks.doors historize|native|fivetran|odf|tables|changes` runs the program with that name at
its published size. `--scale` applies if the program takes a number of rows.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.asked import Asked, asked_of, parser
from benchmarks.report import Report

HERE: Final = Path(__file__).parent
MILLION: Final = 1_000_000
TITLES: Final = {
    "historize": "Histories by a model, against statements by hand",
    "native": "Native snapshots, against statements by hand",
    "fivetran": "The Fivetran destination, against the floor",
    "odf": "Event logs, against statements by hand",
    "tables": "Many tables at once",
    "changes": "The feed of changes: bytes read",
}
TOLD: Final = re.compile(r"[:/=]|median")


def command(name: str, given: Asked) -> list[str]:
    """The program and its arguments."""
    rows = str(int(MILLION * given.scale))
    arguments = {
        "historize": [str(given.rounds), rows],
        "native": [str(given.rounds), rows],
        "odf": [str(given.rounds), rows],
        "tables": ["speed"],
        "changes": [rows],
    }
    program = {"tables": "many_tables"}.get(name, name)
    return [sys.executable, str(HERE / f"{program}.py"), *arguments.get(name, [])]


def run(name: str, given: Asked) -> None:
    """Run the program; write each line with a figure to the page at once."""
    report = Report(name, TITLES[name], given)
    lines: list[str] = []
    with subprocess.Popen(command(name, given), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.strip() and TOLD.search(line):
                lines.append(line.rstrip())
                report.say("What it told", "```", *lines, "```")
                report.data["lines"] = lines
                report.write()
    if process.returncode:
        raise SystemExit(process.returncode)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("name", choices=TITLES)
    found = arguments.parse_args()
    run(found.name, asked_of(found))
