"""What a command answers with: one table for people, or one document for programs.

Options in texts: errors name them as Python's arguments, the command line as flags, a file as fields.

A table as wide as the terminal: whole, clipped, or record by record.

How people read the outcome of datasets: a line for each, and a summary.
"""

import ast
import re
import shlex
import sys
from collections import Counter
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

# `name=value` in backticks, as `backstory.errors.option` writes it.
_OPTION: Final = re.compile(r"`([a-z][a-z_]*)=([^`]*)`")
_ERROR: Final = {"code", "message", "keys", "remedy"}


def in_flags(text: str) -> str:
    """The text with its options as flags: `` `dry_run=True` `` becomes `` `--dry-run` ``."""
    return _OPTION.sub(lambda option: f"`{_flag(option[1], option[2])}`", text)


def in_fields(text: str, fields: Collection[str]) -> str:
    """The text with these options as a file has them: `` `at='2026'` `` becomes `` `at: "2026"` ``."""
    return _OPTION.sub(
        lambda option: f"`{_field(option[1], option[2])}`" if option[1] in fields else option[0], text
    )


def error_in_flags(document: Mapping[str, Any]) -> dict[str, Any]:
    """A record or document whose `error`, if it has one, names flags."""
    return _reword_error(document, in_flags)


def error_in_fields(document: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The same with these options as fields of a file."""
    return _reword_error(document, partial(in_fields, fields=fields))


def _reword_error(document: Mapping[str, Any], texts: Callable[[str], str]) -> dict[str, Any]:
    error = document.get("error")
    if not isinstance(error, Mapping) or set(error) != _ERROR:
        return dict(document)
    changed = {name: texts(error[name]) for name in ("message", "remedy")}
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
        value = [shlex.quote(f"{key}={each}") for key, each in value.items()]
    if isinstance(value, str):
        return f"{flag} {shlex.quote(value)}"
    return f"{flag} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _field(name: str, argument: str) -> str:
    return f"{name}: {as_yaml(_value(argument))}" if argument else f"{name}:"


GAP = 2
LINES = 2  # of a cell; a text that needs more is clipped
CLIPPED = 16  # at least this much of a clipped text is shown
# Times, numbers and identifiers: half of one says something else.
_WHOLE: Final = re.compile(r"[-+:.\dTZeE ]+|–|true|false|NaN|[0-9a-f-]{36}")


def lay_out(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> RenderableType:
    """The rows as a table that fits; without a `width` nothing is clipped.

    Texts go on in a second line or are clipped; headings, times and numbers are not. Where even that does not
    fit, each record is shown by itself, a line a column.
    """
    columns = list(zip(names, *rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    least = [_least_width(column) for column in columns]
    fitting = widths if width is None else _fit(widths, least, width)
    if fitting is None:
        return Group(
            *(part for number, row in enumerate(rows, 1) for part in _numbered_record(number, names, row))
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, room in zip(columns, fitting, strict=True):
        folds = all(_fits_folded(cell, room) for cell in column)
        table.add_column(Text(column[0]), width=room, no_wrap=not folds, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def lay_out_one(names: Sequence[str], row: Sequence[str]) -> RenderableType:
    """One record by itself, a line a column."""
    return _field_lines(names, row)


def _fits_folded(cell: str, room: int) -> bool:
    """Whether a cell fits into a few lines without breaking a word."""
    return len(wrap(cell, room)) <= LINES and max(map(cell_len, cell.split()), default=0) <= room


def _least_width(column: Sequence[str]) -> int:
    """How narrow a column may become."""
    heading, *cells = map(cell_len, column)
    whole = [cell_len(cell) for cell in column[1:] if _WHOLE.fullmatch(cell)]
    return max(heading, min(max(cells, default=0), CLIPPED), *whole, 0)


def _fit(widths: Sequence[int], least: Sequence[int], width: int) -> list[int] | None:
    """The widths, the largest made smaller until all fit; None if they would show too little."""
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


def _numbered_record(number: int, names: Sequence[str], row: Sequence[str]) -> list[RenderableType]:
    return [Rule(str(number), align="left", style="dim"), _field_lines(names, row)]


def _field_lines(names: Sequence[str], row: Sequence[str]) -> Table:
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(width=max(map(cell_len, names)), style="bold")
    lines.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        lines.add_row(Text(name), Text(value))
    return lines


Output = Literal["table", "json", "csv"]

UNLIMITED = 1 << 16
console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def choose_output(output: Output | None) -> Output:
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
        sys.stdout.write(_csv_line(names))
        sys.stdout.writelines(_csv_line([row.get(name) for name in names]) for row in rows)
    else:
        cells = [[_cell_of(name, row.get(name)) for name in names] for row in rows]
        _draw(lay_out(names, cells, line_width(wide=wide)), wide=wide)


def add_error_column(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns, and behind them what kept a row from being told, where something did."""
    return (*columns, *(["error"] if any("error" in row for row in rows) else []))


def drop_idle_columns(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], optional: Collection[str]
) -> list[str]:
    """The columns without those of the optional ones that are empty or 0 in every row."""
    return [name for name in columns if name not in optional or any(row.get(name) for row in rows)]


def _csv_line(values: Sequence[object]) -> str:
    """A line of CSV: an empty text is in quotes, NULL is not, as the readers of files have it."""
    cells = ["" if value is None else _quote(cell_text(value, "")) for value in values]
    return (",".join(cells) or '""') + "\n"


def _quote(text: str) -> str:
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
        cells = [_cell_in_lines(name, value) for name, value in record.items()]
        _draw(lay_out_one(list(record), cells), wide=wide)


def line_width(*, wide: bool) -> int | None:
    """The width that lines have; None where nothing is cut or folded: what is no terminal has no width."""
    return console.width if console.is_terminal and not wide else None


def _draw(table: RenderableType, *, wide: bool = False) -> None:
    """Print a table as wide as it is laid out."""
    before = console.width
    if line_width(wide=wide) is None:
        console.width = UNLIMITED
    console.print(table)
    if line_width(wide=wide) is None:
        console.width = before


def show_error(error: BackstoryError, output: Output) -> None:
    """Print an error: as JSON on standard output, else as lines on standard error."""
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


def _cell_in_lines(name: str, value: object) -> str:
    """The same of one record alone: a list has a line for each of its texts."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return "\n".join(value) or "–"
    return _cell_of(name, value)


def _cell_of(name: str, value: object) -> str:
    """A cell for people; of counts, only those that are not 0."""
    if name == "counts" and isinstance(value, dict):
        return ", ".join(f"{outcome} {count}" for outcome, count in value.items() if count) or "–"
    return cell_text(value, "–")


if TYPE_CHECKING:
    from backstory.doors.odf.door import Added, DatasetReceipt
    from backstory.engine.run_context import Rehearsals

OUTCOMES_OF_OPS = (("+A", "appended"), ("-C/+C", "corrected"), ("-R", "retracted"))
OTHER_OUTCOMES = ("unchanged", "conflicts", "late")
ADDED = {
    "added": "Added: {0}",
    "updated": "Updated: {0}",
    "unchanged": "Skipped: {0}: Already exists",
    "failed": "Failed: {0}",
}
SUMMARY = {
    "updated": "{0} dataset(s) updated",
    "up-to-date": "{0} dataset(s) up-to-date",
    "uncacheable": "{0} dataset(s) uncacheable",
    "disabled": "{0} dataset(s) without a source to ask",
    "failed": "Failed to update {0} dataset(s)",
}
NOTHING_WRITTEN = "Dry run: nothing was written."


def print_receipt(receipt: "DatasetReceipt") -> None:
    """Print a dataset's line, and what went wrong with it."""
    console.print(receipt_line(receipt), markup=False)
    if receipt.error is not None:
        print_error(receipt.error.to_dict(), f"{receipt.dataset}: ")


def receipt_line(receipt: "DatasetReceipt") -> str:
    """`cities: updated  +A 3  -C/+C 1  (2 unchanged)  offsets 4 to 8  watermark ...`."""
    counts = receipt.counts
    others = ", ".join(f"{counts[name]} {name}" for name in OTHER_OUTCOMES if counts[name])
    parts = [
        f"{receipt.dataset}: {receipt.status}",
        *(f"{symbol} {counts[name]}" for symbol, name in OUTCOMES_OF_OPS if counts[name]),
        f"({others})" if others else "",
        f"({receipt.hint})" if receipt.hint else "",
        "offsets {} to {}".format(*receipt.offsets) if receipt.offsets else "",
        _watermark_text(receipt) if receipt.status == "updated" else "",
    ]
    return "  ".join(filter(None, parts))


def _watermark_text(receipt: "DatasetReceipt") -> str:
    before, after = receipt.before, receipt.watermark
    if after is None:
        return ""
    return (
        f"watermark {short_time(after)}"
        if before == after
        else f"watermark {short_time(before)} -> {short_time(after)}"
    )


def short_time(instant: datetime | str | None) -> str:
    """An instant to the second; `none` if there is none."""
    if instant is None:
        return "none"
    return f"{(instant if isinstance(instant, str) else iso(instant))[:19]}Z"


def print_summary(receipts: Sequence["DatasetReceipt"], *, dry_run: bool) -> None:
    """Print how many datasets ended how."""
    counts: Counter[str] = Counter(receipt.status for receipt in receipts)
    for status, text in SUMMARY.items():
        if counts[status]:
            console.print(text.format(counts[status]))
    if not receipts:
        console.print("There are no datasets. Add one with `backstory add MANIFEST`.")
    if dry_run:
        console.print(NOTHING_WRITTEN)


def print_changes(changes: "Rehearsals") -> None:
    """Print what a dry run would have committed, table by table."""
    for table, lines in changes:
        console.print(f"{table}: {'; '.join(lines)}", markup=False)


def print_added(added: "Added") -> None:
    """Print what became of a manifest."""
    console.print(ADDED[added.status].format(added.dataset or added.file), markup=False)


def print_lints(all_added: Iterable["Added"]) -> None:
    """Print what the lints say of manifests, on standard error."""
    for added in all_added:
        for lint in added.lints:
            print_line(f"{lint.level} {lint.code}: {lint.place}: {lint.message}. {lint.remedy}".rstrip())
