"""Another separator that a CSV may have: where its header stays whole, and its rows would be even with it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from backstory.errors import BackstoryError, Refused
from backstory.formats.csv.options import CsvOptions
from backstory.formats.csv.source import CsvSource
from backstory.formats.csv.table import csv_table

TAB: Final = "\t"
SEPARATORS: Final = (";", TAB, "|", ",")


def refuse_whole_header(source: CsvSource, options: CsvOptions, remedy: Callable[[str], str]) -> None:
    """Raise Refused where the header is one column, and another separator splits header and rows evenly.

    `remedy` is what to do, by the option's value for that separator. Raises what the first piece is refused
    for, too.
    """
    if (better := _better(source, options)) is not None:
        raise Refused(
            "wrong-separator",
            f"{source.name}, line 1: the header is one column, and another separator splits it.",
            f"Nothing was written; {remedy('tab' if better == TAB else better)}.",
        )


def _better(source: CsvSource, options: CsvOptions) -> str | None:
    if csv_table(source, options).width > 1:
        return None
    others = (each for each in SEPARATORS if each not in {options.separator, options.quote, options.escape})
    return next((each for each in others if _is_even(source, replace(options, separator=each))), None)


def _is_even(source: CsvSource, options: CsvOptions) -> bool:
    table = csv_table(source, options)
    if table.width == 1:
        return False
    try:
        if (piece := next(table.pieces(), None)) is not None:
            table.texts(piece, [0])
    except BackstoryError:
        return False
    return True
