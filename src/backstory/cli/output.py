"""The output of commands: one table for people, or one document for programs.

Errors name options as Python arguments. The command line prints them as flags, and a project run prints them
as fields of its file.
"""

import ast
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from backstory.errors import BackstoryError
from backstory.model.instant import iso
from backstory.model.values import as_json, as_yaml, cell_text

if TYPE_CHECKING:
    from backstory.engine.run_context import Rehearsals

# `name=value` in backticks, as `backstory.errors.option` writes it.
_OPTION: Final = re.compile(r"`([a-z][a-z_]*)=([^`]*)`")
_ERROR: Final = {"code", "message", "keys", "remedy"}


def in_flags(text: str) -> str:
    """The message with its options as flags. For example, `` `dry_run=True` `` becomes `` `--dry-run` ``."""
    return _OPTION.sub(lambda option: f"`{_flag(option[1], option[2])}`", text)


def in_fields(text: str, fields: Collection[str]) -> str:
    """The message with these options as YAML fields.

    For example, `` `at='2026'` `` becomes `` `at: "2026"` ``.
    """
    return _OPTION.sub(
        lambda option: f"`{_field(option[1], option[2])}`" if option[1] in fields else option[0], text
    )


def error_in_flags(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document, with flags for options in the messages of its `error`."""
    return _reword_error(document, in_flags)


def error_in_fields(document: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The document, with YAML fields for these options in the messages of its `error`."""
    return _reword_error(document, partial(in_fields, fields=fields))


def _reword_error(document: Mapping[str, Any], reword: Callable[[str], str]) -> dict[str, Any]:
    error = document.get("error")
    if not isinstance(error, Mapping) or set(error) != _ERROR:
        return dict(document)
    changed = {name: reword(error[name]) for name in ("message", "remedy")}
    return {**document, "error": {**error, **changed}}


def _value(argument: str) -> Any:
    try:
        return ast.literal_eval(argument)
    except (SyntaxError, ValueError):  # such as `at=TIME`, or nothing
        return argument


def _flag(name: str, argument: str) -> str:
    value = _value(argument)
    flag = f"--{name.replace('_', '-')}"
    if value is True or value == "":
        return flag
    if isinstance(value, Mapping):
        value = [shlex.quote(f"{key}={item}") for key, item in value.items()]
    if isinstance(value, str):
        return f"{flag} {shlex.quote(value)}"
    return f"{flag} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _field(name: str, argument: str) -> str:
    return f"{name}: {as_yaml(_value(argument))}" if argument else f"{name}:"


GAP = 2
LINES = 2  # in a cell; longer texts are clipped
CLIPPED = 16  # the fewest characters that are left of a clipped text
# Part of a time, a number or an identifier would be a wrong value, so these values are never clipped.
_WHOLE: Final = re.compile(r"[-+:.\dTZeE ]+|–|true|false|NaN|[0-9a-f-]{36}")


def lay_out(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> RenderableType:
    """The rows as a table of at most this width. Without a width, nothing is clipped.

    Long strings are folded into two lines or clipped, but headings, times and numbers are not. If the columns
    still do not fit, each record is printed separately, with one line per column.
    """
    columns = list(zip(names, *rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    least = [_least_width(column) for column in columns]
    fitting = widths if width is None else _fit(widths, least, width)
    if fitting is None:
        return Group(
            *(
                part
                for number, row in enumerate(rows, 1)
                for part in (Rule(str(number), align="left", style="dim"), lay_out_one(names, row))
            )
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, room in zip(columns, fitting, strict=True):
        folds = all(_fits_folded(cell, room) for cell in column)
        table.add_column(Text(column[0]), width=room, no_wrap=not folds, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def lay_out_one(names: Sequence[str], row: Sequence[str]) -> RenderableType:
    """One record as a table with one line per column."""
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(width=max(map(cell_len, names)), style="bold")
    lines.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        lines.add_row(Text(name), Text(value))
    return lines


def _fits_folded(cell: str, room: int) -> bool:
    """Whether a cell fits into `LINES` lines of this width without breaking a word."""
    return len(wrap(cell, room)) <= LINES and max(map(cell_len, cell.split()), default=0) <= room


def _least_width(column: Sequence[str]) -> int:
    heading, *cells = map(cell_len, column)
    whole = [cell_len(cell) for cell in column[1:] if _WHOLE.fullmatch(cell)]
    return max(heading, min(max(cells, default=0), CLIPPED), *whole, 0)


def _fit(widths: Sequence[int], least: Sequence[int], width: int) -> list[int] | None:
    """The widths, with the largest reduced until all fit, or None if a column would be too narrow."""
    rooms = list(widths)
    while (excess := sum(rooms) + GAP * (len(rooms) - 1) - width) > 0:
        large = [place for place, room in enumerate(rooms) if room > least[place]]
        if not large:
            return None
        largest = max(large, key=lambda place: rooms[place])
        others = (rooms[place] for place in large if rooms[place] < rooms[largest])
        following = max(others, default=0)
        rooms[largest] = max(rooms[largest] - excess, min(following, rooms[largest] - 1), least[largest])
    return rooms


Output = Literal["table", "json", "csv"]

UNLIMITED = 1 << 16
NOTHING_WRITTEN = "Dry run: nothing was written."
console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def choose_output(output: Output | None) -> Output:
    """The requested output format. By default, it is a table on a terminal, or else JSON."""
    return output or ("table" if sys.stdout.isatty() else "json")


def show(
    rows: Sequence[Mapping[str, Any]], output: Output, columns: Sequence[str] = (), *, wide: bool = False
) -> None:
    """Print the rows. `columns` are the headings, which are needed if there may be no rows.

    A table fits the terminal, unless `wide` is true.
    """
    names = list(columns) or list(rows[0] if rows else ())
    if output == "json":
        sys.stdout.write(as_json([error_in_flags(row) for row in rows]) + "\n")
    elif output == "csv":
        sys.stdout.write(_csv_line(names))
        sys.stdout.writelines(_csv_line([row.get(name) for name in names]) for row in rows)
    else:
        cells = [[_cell_of(name, row.get(name)) for name in names] for row in rows]
        _draw(lay_out(names, cells, line_width(wide=wide)), wide=wide)


def add_error_column(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns, followed by `error` if a row has one."""
    return (*columns, *(["error"] if any("error" in row for row in rows) else []))


def drop_idle_columns(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], optional: Collection[str]
) -> list[str]:
    """The columns, without the optional columns that are empty or 0 in every row."""
    return [name for name in columns if name not in optional or any(row.get(name) for row in rows)]


def _csv_line(values: Sequence[object]) -> str:
    """A line of CSV. An empty string is in quotes and NULL is not, so that readers can distinguish them."""
    cells = ["" if value is None else _quote(cell_text(value, "")) for value in values]
    return (",".join(cells) or '""') + "\n"


def _quote(text: str) -> str:
    bare = text and not any(letter in text for letter in ',"\r\n')
    return text if bare else '"' + text.replace('"', '""') + '"'


def show_document(document: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(as_json(error_in_flags(document)) + "\n")


def show_one(record: Mapping[str, Any], output: Output, *, wide: bool = False) -> None:
    """Print one record: a JSON document, a CSV row or, for people, a line for each field and list item.

    Lines fit the terminal, unless `wide` is true.
    """
    if output == "json":
        show_document(record)
    elif output == "csv":
        show([record], output)
    else:
        cells = [_cell_in_lines(name, value) for name, value in record.items()]
        _draw(lay_out_one(list(record), cells), wide=wide)


def line_width(*, wide: bool) -> int | None:
    """The width of the terminal, or None for no limit, if `wide` is true or there is no terminal."""
    return console.width if console.is_terminal and not wide else None


def _draw(table: RenderableType, *, wide: bool = False) -> None:
    before = console.width
    if line_width(wide=wide) is None:
        console.width = UNLIMITED
    console.print(table)
    if line_width(wide=wide) is None:
        console.width = before


def show_error(error: BackstoryError, output: Output) -> None:
    """Print an error, as JSON on standard output, or else as lines on standard error."""
    if output == "json":
        sys.stdout.write(as_json(error_in_flags({"error": error.to_dict()})) + "\n")
        return
    print_error(error.to_dict())


def print_error(error: Mapping[str, Any], where: str = "") -> None:
    """Print an error's code, message, keys and remedy as lines on standard error."""
    print_line(f"{where}{error['code']}: {in_flags(error['message'])}")
    if error["keys"]:
        print_line(f"  keys: {', '.join(map(str, error['keys']))}")
    if error["remedy"]:
        print_line(f"  {in_flags(error['remedy'])}")


def print_line(text: str) -> None:
    """Print a line on standard error. On a terminal, it is folded at spaces, and the rest is indented."""
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


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    for line in lines:
        console.print(line, markup=False)


def print_changes(changes: "Rehearsals") -> None:
    """Print the changes that a dry run would have committed, one line per table."""
    print_lines(f"{table}: {'; '.join(lines)}" for table, lines in changes)


def short_time(instant: datetime | str | None) -> str:
    """An instant to the second, or `none` for None."""
    if instant is None:
        return "none"
    return f"{(instant if isinstance(instant, str) else iso(instant))[:19]}Z"


def with_short_times(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The row, with the named times cut to the second. A time of None is kept."""
    return {**row, **{name: row[name] and short_time(row[name]) for name in names}}


def _cell_in_lines(name: str, value: object) -> str:
    """A cell of a record that is printed separately. A list of strings has one line per string."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return "\n".join(value) or "–"
    return _cell_of(name, value)


def _cell_of(name: str, value: object) -> str:
    """A cell for people. Counts of 0 are omitted."""
    if name == "counts" and isinstance(value, dict):
        return ", ".join(f"{outcome} {count}" for outcome, count in value.items() if count) or "–"
    return cell_text(value, "–")
