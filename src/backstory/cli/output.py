"""What a command answers with: one table for people, or one document for programs."""

import sys
from collections.abc import Collection, Mapping, Sequence
from textwrap import wrap
from typing import Any, Literal

from rich.console import Console, RenderableType

from backstory.cli.flags import error_in_flags, in_flags
from backstory.cli.wide import lay_out, lay_out_one
from backstory.errors import BackstoryError
from backstory.model.json_text import as_json, cell_text

Output = Literal["table", "json", "csv"]

WIDE = 1 << 16
console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def chosen(output: Output | None) -> Output:
    """The output asked for: a table on a terminal, else JSON."""
    return output or ("table" if sys.stdout.isatty() else "json")


def show(
    rows: Sequence[Mapping[str, Any]], output: Output, columns: Sequence[str] = (), *, wide: bool = False
) -> None:
    """Print the rows; `columns` names the columns of a table that may have no rows.

    A table fits the terminal, unless it shall be `wide`.
    """
    names = list(columns) or list(rows[0] if rows else ())
    if output == "json":
        sys.stdout.write(as_json([error_in_flags(row) for row in rows]) + "\n")
    elif output == "csv":
        sys.stdout.write(_line(names))
        sys.stdout.writelines(_line([row.get(name) for name in names]) for row in rows)
    else:
        cells = [[_cell_of(name, row.get(name)) for name in names] for row in rows]
        _draw(lay_out(names, cells, room(wide=wide)), wide=wide)


def and_error(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns, and behind them what kept a row from being told, where something did."""
    return (*columns, *(["error"] if any("error" in row for row in rows) else []))


def without_idle(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], optional: Collection[str]
) -> list[str]:
    """The columns without those of the optional ones that are empty or 0 in every row."""
    return [name for name in columns if name not in optional or any(row.get(name) for row in rows)]


def _line(values: Sequence[object]) -> str:
    """A line of CSV: an empty text is in quotes, NULL is not, as the readers of files have it."""
    cells = ["" if value is None else _quoted(cell_text(value, "")) for value in values]
    return (",".join(cells) or '""') + "\n"


def _quoted(text: str) -> str:
    bare = text and not any(letter in text for letter in ',"\r\n')
    return text if bare else '"' + text.replace('"', '""') + '"'


def show_document(document: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(as_json(error_in_flags(document)) + "\n")


def show_one(record: Mapping[str, Any], output: Output, *, wide: bool = False) -> None:
    """Print one record: for people a line for each field, and for each item of a list; JSON as a document.

    Lines are as wide as the terminal, unless they shall be `wide`.
    """
    if output == "json":
        show_document(record)
    elif output == "csv":
        show([record], output)
    else:
        cells = [_in_lines(name, value) for name, value in record.items()]
        _draw(lay_out_one(list(record), cells), wide=wide)


def room(*, wide: bool) -> int | None:
    """The width that lines have; None where nothing is cut or folded: what is no terminal has no width."""
    return console.width if console.is_terminal and not wide else None


def _draw(table: RenderableType, *, wide: bool = False) -> None:
    """Print a table as wide as it is laid out."""
    before = console.width
    if room(wide=wide) is None:
        console.width = WIDE
    console.print(table)
    if room(wide=wide) is None:
        console.width = before


def show_error(error: BackstoryError, output: Output) -> None:
    """Print an error: as JSON on standard output, else as lines on standard error."""
    if output == "json":
        sys.stdout.write(as_json(error_in_flags({"error": error.to_dict()})) + "\n")
        return
    tell_error(error.to_dict())


def tell_error(error: Mapping[str, Any], where: str = "") -> None:
    """Print an error's code, message, keys and remedy as lines on standard error."""
    tell_line(f"{where}{error['code']}: {in_flags(error['message'])}")
    if error["keys"]:
        tell_line(f"  keys: {', '.join(map(str, error['keys']))}")
    if error["remedy"]:
        tell_line(f"  {in_flags(error['remedy'])}")


def tell_line(text: str) -> None:
    """Print a line on standard error; a terminal gets it folded at blanks, with what follows indented."""
    if errors.is_terminal:
        indent = text[: len(text) - len(text.lstrip())]
        text = "\n".join(
            wrap(
                text,
                errors.width,
                subsequent_indent=f"{indent}  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    errors.print(text, markup=False)


def _in_lines(name: str, value: object) -> str:
    """The same of one record alone: a list has a line for each of its texts."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return "\n".join(value) or "–"
    return _cell_of(name, value)


def _cell_of(name: str, value: object) -> str:
    """A cell for people; of counts, only those that are not 0."""
    if name == "counts" and isinstance(value, dict):
        return ", ".join(f"{outcome} {count}" for outcome, count in value.items() if count) or "–"
    return cell_text(value, "–")
