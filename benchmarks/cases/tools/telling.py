"""What every tool's program shares: the cases it is given, and how it tells what became of them.

A tool is a class with `bring(case, copy, number)` that raises for a copy that is refused, and `rows(case)` that gives
a table's rows: the cells of the case's columns, from when, to when, as texts.
"""

import json
import re
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
CASES = json.loads((FOLDER / "cases.json").read_text("utf-8"))


def names_of(case):
    """Every column of the case, the key first."""
    found = dict.fromkeys(name for copy in case["copies"] for name in copy["columns"])
    return [*case["key"], *(name for name in found if name not in case["key"])]


def quoted(name):
    """A name for Spark."""
    return "`" + name.replace("`", "``") + "`"


def select(copy, quote=quoted):
    """A query that gives the copy's rows, each cell cast to its column's type."""
    columns = list(copy["columns"].items())
    if not copy["rows"]:
        told = ", ".join(f"CAST(NULL AS {type_}) AS {quote(name)}" for name, type_ in columns)
        return f"SELECT {told} WHERE 1 = 0"
    return " UNION ALL ".join(
        "SELECT "
        + ", ".join(
            f"CAST({literal(cell)} AS {type_}) AS {quote(name)}"
            for cell, (name, type_) in zip(row, columns, strict=True)
        )
        for row in copy["rows"]
    )


def literal(cell):
    """A text, or NULL."""
    return "NULL" if cell is None else "'" + cell.replace("'", "''") + "'"


def cells(row):
    """A row as texts."""
    return [None if cell is None else "NaN" if str(cell).lower() == "nan" else str(cell) for cell in row]


def table(case):
    """A table's name for a case."""
    return f"case_{CASES.index(case)}"


def first_line(stop):
    """What an error says, in short."""
    told = " ".join(re.sub("\x1b\\[[0-9;]*m", "", str(stop)).split()).replace(str(FOLDER), "…")
    return f"{type(stop).__name__}: {told}"[:200]


def run(tool):
    """Bring every copy of every case; write what became of them."""
    found = {}
    for case in CASES:
        failed_at, error = None, None
        for number, copy in enumerate(case["copies"]):
            try:
                tool.bring(case, copy, number)
            except Exception as stop:  # noqa: BLE001 - whatever a tool raises is its refusal
                failed_at, error = number, first_line(stop)
                break
        found[case["name"]] = told(tool, case, failed_at, error)
        (FOLDER / "found.json").write_text(json.dumps(found), "utf-8")


def told(tool, case, failed_at, error):
    """What became of a case; a table that cannot be read is told as an error too."""
    try:
        rows = [cells(row) for row in tool.rows(case)]
    except Exception as stop:  # noqa: BLE001 - what cannot be read is no history
        rows, error = [], error or f"cannot be read: {first_line(stop)}"
    return {"failed_at": failed_at, "error": error, "rows": rows}
