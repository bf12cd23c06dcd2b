"""What a command answers with: one table for people, or one document for programs."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from rich.console import Console, RenderableType

from backstory.cli.wide import lay_out
from backstory.errors import BackstoryError

Output = Literal["table", "json", "csv"]

WIDE = 1 << 16
console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def chosen(output: Output | None) -> Output:
    """The output asked for: a table on a terminal, else JSON."""
    return output or ("table" if sys.stdout.isatty() else "json")


def show(rows: Sequence[Mapping[str, Any]], output: Output, columns: Sequence[str] = ()) -> None:
    """Print the rows; `columns` names the columns of a table that may have no rows."""
    names = list(columns) or list(rows[0] if rows else ())
    if output == "json":
        sys.stdout.write(json.dumps([dict(row) for row in rows], default=plain, ensure_ascii=False) + "\n")
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(row.get(name), "") for name in names] for row in rows)
    else:
        cells = [[_cell(row.get(name), "–") for name in names] for row in rows]
        _draw(lay_out(names, cells, console.width if console.is_terminal else None))


def show_document(document: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(dict(document), default=plain, ensure_ascii=False) + "\n")


def _draw(table: RenderableType) -> None:
    """Print a table; what is no terminal has no width, and nothing is folded there."""
    before = console.width
    if not console.is_terminal:
        console.width = WIDE
    console.print(table)
    if not console.is_terminal:
        console.width = before


def show_error(error: BackstoryError, output: Output) -> None:
    """Print an error: as JSON on standard output, else as lines on standard error."""
    if output == "json":
        sys.stdout.write(json.dumps({"error": error.to_dict()}, default=plain) + "\n")
        return
    tell_error(error.to_dict())


def tell_error(error: Mapping[str, Any], where: str = "") -> None:
    """Print an error's code, message, keys and remedy as lines on standard error."""
    errors.print(f"{where}{error['code']}: {error['message']}", markup=False)
    if error["keys"]:
        errors.print(f"  keys: {', '.join(map(str, error['keys']))}", markup=False)
    if error["remedy"]:
        errors.print(f"  {error['remedy']}", markup=False)


def plain(value: object) -> object:
    """A value as JSON has it: instants in UTC with a Z, decimals and bytes as text."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    return str(value) if isinstance(value, Decimal) else repr(value)


def _cell(value: object, null: str) -> str:
    if value is None:
        return null
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items() if count)
    return str(plain(value)) if isinstance(value, datetime | bytes | bytearray) else str(value)
