"""A table as wide as the terminal: whole, clipped, or record by record."""

import re
from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

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
    least = [_least(column) for column in columns]
    fitting = widths if width is None else _fit(widths, least, width)
    if fitting is None:
        return Group(*(part for number, row in enumerate(rows, 1) for part in _record(number, names, row)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, room in zip(columns, fitting, strict=True):
        folds = all(_folds(cell, room) for cell in column)
        table.add_column(Text(column[0]), width=room, no_wrap=not folds, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def lay_out_one(names: Sequence[str], row: Sequence[str]) -> RenderableType:
    """One record by itself, a line a column."""
    return _lines(names, row)


def _folds(cell: str, room: int) -> bool:
    """Whether a cell fits into a few lines without breaking a word."""
    return len(wrap(cell, room)) <= LINES and max(map(cell_len, cell.split()), default=0) <= room


def _least(column: Sequence[str]) -> int:
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


def _record(number: int, names: Sequence[str], row: Sequence[str]) -> list[RenderableType]:
    return [Rule(str(number), align="left", style="dim"), _lines(names, row)]


def _lines(names: Sequence[str], row: Sequence[str]) -> Table:
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(width=max(map(cell_len, names)), style="bold")
    lines.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        lines.add_row(Text(name), Text(value))
    return lines
