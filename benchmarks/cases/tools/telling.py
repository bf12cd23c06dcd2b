"""The common part of the tools' programs: it reads the cases, and writes their outcomes.

A tool is a class with two methods. `bring(case, copy, number)` raises if the tool refuses a copy.
`rows(case)` returns a table's rows as texts: the cells of the case's columns, the start and the end.
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
    """A query for the copy's rows, each cell cast to its column's type."""
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
    """A text as a literal, or NULL."""
    return "NULL" if cell is None else "'" + cell.replace("'", "''") + "'"


def cells(row):
    """A row as texts."""
    return [None if cell is None else "NaN" if str(cell).lower() == "nan" else str(cell) for cell in row]


def table(case):
    """The name of a case's table."""
    return f"case_{CASES.index(case)}"


def first_line(stop):
    """An error's message as one short line."""
    told = " ".join(re.sub("\x1b\\[[0-9;]*m", "", str(stop)).split()).replace(str(FOLDER), "…")
    return f"{type(stop).__name__}: {told}"[:200]


def run(tool):
    """Load every copy of every case; write the outcomes."""
    found = {}
    for case in CASES:
        failed_at, error = None, None
        for number, copy in enumerate(case["copies"]):
            try:
                tool.bring(case, copy, number)
            except Exception as stop:  # noqa: BLE001 - any error of a tool is its refusal
                failed_at, error = number, first_line(stop)
                break
        found[case["name"]] = told(tool, case, failed_at, error)
        (FOLDER / "found.json").write_text(json.dumps(found), "utf-8")


def told(tool, case, failed_at, error):
    """The outcome of a case; an unreadable table is an error too."""
    try:
        rows = [cells(row) for row in tool.rows(case)]
    except Exception as stop:  # noqa: BLE001 - an unreadable table has no history
        rows, error = [], error or f"cannot be read: {first_line(stop)}"
    return {"failed_at": failed_at, "error": error, "rows": rows}
