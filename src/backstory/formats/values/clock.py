"""Times of day and durations as integers of their declared unit (section 1.9)."""

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.cells import INTEGER, TIME, UnreadableCell, first_failing

_MIDNIGHT = "1970-01-01T"
_SHORT = {"s", "ms"}


def count_units(values: pa.Array, unit: str) -> pa.Array:
    """Arrow's times of day or durations as integers of the unit.

    Raises pa.ArrowInvalid if digits would be lost.
    """
    if pa.types.is_duration(values.type):
        return values.cast(pa.duration(unit)).cast(pa.int64())
    if unit in _SHORT:
        return values.cast(pa.time32(unit)).cast(pa.int32()).cast(pa.int64())
    return values.cast(pa.time64(unit)).cast(pa.int64())


def clock_times(text: pa.Array, unit: str) -> pa.Array:
    """Strings like `12:30:00.5`, or integers, as integers of the unit since midnight.

    Raises UnreadableCell for the first cell that is neither, or has more digits than the unit allows.
    """

    def convert(cells: pa.Array) -> pa.Array:
        whole = pc.match_substring_regex(cells, INTEGER)
        if not pc.all(pc.or_(whole, pc.match_substring_regex(cells, TIME)), min_count=0).as_py():
            raise pa.ArrowInvalid("a cell is not a time")
        numbers, clocks = pc.if_else(whole, cells, None), pc.if_else(whole, None, cells)
        instants = pc.binary_join_element_wise(_MIDNIGHT, clocks, "").cast(pa.timestamp("ns"))
        return pc.coalesce(numbers.cast(pa.int64()), instants.cast(pa.timestamp(unit)).cast(pa.int64()))

    try:
        return convert(text)
    except pa.ArrowInvalid:
        raise UnreadableCell(first_failing(text, convert)) from None
