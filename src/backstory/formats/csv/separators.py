"""Another separator that a CSV may have: where its header stays whole, and its rows would be even with it."""

from dataclasses import replace
from typing import Final

from backstory.errors import BackstoryError
from backstory.formats.csv.options import CsvOptions
from backstory.formats.csv.source import CsvSource
from backstory.formats.csv.table import csv_table

SEPARATORS: Final = (";", "\t", "|", ",")


def better_separator(source: CsvSource, options: CsvOptions) -> str | None:
    """The separator that splits the header and all rows of the first piece evenly, where this one does not.

    None where the header has several columns as it is. Raises what the first piece is refused for.
    """
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
