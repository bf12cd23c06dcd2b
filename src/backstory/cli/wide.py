"""A table as wide as the terminal: whole, clipped, or record by record."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

GAP = 2
CLIPPED = 24  # what is clipped shows at least so much


def lay_out(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> RenderableType:
    """The rows as a table that fits; without a `width` nothing is clipped.

    Where even clipped cells would not fit, each record is shown by itself, a line a column.
    """
    widths = [max(map(cell_len, (name, *cells))) for name, *cells in zip(names, *rows, strict=True)]
    fitting = widths if width is None else _fitting(widths, width)
    if fitting is None:
        return Group(*(part for number, row in enumerate(rows, 1) for part in _record(number, names, row)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, room in zip(names, fitting, strict=True):
        table.add_column(Text(name), width=room, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _fitting(widths: Sequence[int], width: int) -> list[int] | None:
    """The widths, the largest made smaller until all fit; None if they would show too little."""
    found = list(widths)
    while (excess := sum(found) + GAP * (len(found) - 1) - width) > 0:
        largest = max(found)
        if largest <= CLIPPED:
            return None
        second = max((each for each in found if each < largest), default=0)
        found[found.index(largest)] = max(largest - excess, min(second, largest - 1), CLIPPED)
    return found


def _record(number: int, names: Sequence[str], row: Sequence[str]) -> list[RenderableType]:
    longest = max(map(cell_len, names))
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(width=longest, style="bold")
    lines.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        lines.add_row(Text(name), Text(value))
    return [Rule(str(number), align="left", style="dim"), lines]
