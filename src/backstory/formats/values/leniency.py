"""What a door lets a cell lose on its way into a column: nothing, but for what its specification allows."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.cells import UnreadableCell, parse, parse_rounding
from backstory.model.types import ColumnType, Kind

# Digits of a second that microseconds do not hold.
_FINER: Final = r"\.\d{6}\d*[1-9]"
_TIMES: Final = {Kind.NAIVE_TIME, Kind.UTC_DATETIME, Kind.NAIVE_DATETIME}


@dataclass(frozen=True, slots=True)
class Leniency:
    """Whether decimals are rounded half-even to their column's scale, and times cut to the microsecond.

    What is not allowed is refused: of two values that become one, one would be silently wrong (E1).
    """

    rounds: bool = False
    cuts: bool = False


# A delivery's decimals passed through doubles on their way (F18), and its instants are cut (F6).
DELIVERED: Final = Leniency(rounds=True, cuts=True)
EXACT: Final = Leniency()


def parsed(text: pa.Array, type_: ColumnType, leniency: Leniency) -> tuple[pa.Array, int]:
    """The cells as values of the type, and how many were rounded; UnreadableCell for one that is none."""
    if type_.kind in _TIMES and not leniency.cuts:
        row = pc.index(pc.match_substring_regex(text, _FINER), pa.scalar(True)).as_py()
        if row >= 0:
            raise UnreadableCell(row)
    return parse_rounding(text, type_) if leniency.rounds else (parse(text, type_), 0)
