"""Numbers that are written with a decimal comma: `1,5` is one and a half."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_NUMBER: Final = r"^[+-]?(\d+(,\d+)?|,\d+)$"
_BETWEEN: Final = "\x00"


def with_points(cells: pa.Array) -> pa.Array:
    """The cells with points for commas and commas for points: so `1.5` and `1.234,5` are no numbers."""
    marked = pc.replace_substring(cells, ".", _BETWEEN)
    return pc.replace_substring(pc.replace_substring(marked, ",", "."), _BETWEEN, ",")


def are_numbers(cells: pa.Array) -> bool:
    """Whether all cells, none of which is NULL, are numbers, with a decimal comma or without."""
    # One cell tells most of what a column is not.
    return all(pc.all(pc.match_substring_regex(some, _NUMBER)).as_py() for some in (cells[:1], cells))


def have_commas(cells: pa.Array) -> bool:
    """Whether one of the cells has a comma."""
    return bool(pc.any(pc.match_substring(cells, ",")).as_py())
