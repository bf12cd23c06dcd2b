"""Parsers of text cells into typed values, a column at a time (section 3.3, decisions F6, F11, F18)."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import arrow_type
from backstory.formats.values.base64_cells import decode_base64
from backstory.formats.values.digits import half_even, round_to_scale
from backstory.model.types import MAX_PRECISION, ColumnType, Kind

FLOAT_MAX = float(np.finfo(np.float32).max)
# The contract prints the greatest float rounded up as 3.4028237E+38; this string means the greatest float.
FLOAT_MAX_AS_PRINTED = 3.4028237e38

INTEGER = r"^-?[0-9]+$"
NOT_FINITE = r"^(?i)[+-]?(nan|inf|infinity)$"
ZONE = r"(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
TIME = r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{1,9})?)?$"

_FIRST_DAY, _LAST_DAY = -719162, 2932896  # 0001-01-01 and 9999-12-31, in days from 1970-01-01
DAY = 86_400_000_000


Values = TypeVar("Values")


class UnreadableCell(ValueError):
    """A cell that does not match its column's type. `row` counts from 0 in the parsed array."""

    def __init__(self, row: int) -> None:
        super().__init__(f"cell {row}")
        self.row = row


def parse(text: pa.Array, type_: ColumnType) -> pa.Array:
    """The cells as values of `arrow_type(type_)`.

    NULL cells stay NULL. Raises UnreadableCell for the first cell that does not match the type.
    """
    if type_.kind in _BLANKS_ASIDE:
        text = _trim_blanks(text)
    return _convert(text, lambda cells: _PARSERS.get(type_.kind, _text)(cells, type_))


def parse_rounding(text: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """The cells as in `parse`, with decimals rounded half-even, and the number of rounded cells (F18)."""
    if type_.kind is not Kind.DECIMAL:
        return parse(text, type_), 0
    return _convert(_trim_blanks(text), lambda cells: round_to_scale(cells, type_))


def rounded_to(decimals: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """Decimals of any precision and scale, rounded as in `parse_rounding`, and the number of rounded ones."""
    wide = pa.decimal256(2 * MAX_PRECISION, max(decimals.type.scale, type_.scale))
    return _convert(decimals, lambda cells: half_even(cells.cast(wide), type_))


def _convert(cells: pa.Array, convert: Callable[[pa.Array], Values]) -> Values:
    try:
        return convert(cells)
    except pa.ArrowInvalid:
        raise UnreadableCell(first_failing(cells, convert)) from None


def null_where_empty(text: pa.Array) -> pa.Array:
    """The cells, with NULL for empty ones. Only text types have an empty value (O27)."""
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)


def parser_type(type_: ColumnType) -> pa.DataType:
    """The type with which Arrow's CSV parser reads a column.

    `finish` converts the result to the column's type.
    """
    if type_.kind in _LOOKED_AT:
        return pa.string()
    if type_.kind is Kind.DECIMAL:
        # The parser checks the digits of the text, then shifts by the scale without an overflow check.
        # The precision therefore leaves room for the shift.
        digits = MAX_PRECISION - type_.scale
        return pa.decimal128(digits, type_.scale) if digits >= type_.scale else pa.string()
    return arrow_type(type_)


def finish(column: pa.ChunkedArray, type_: ColumnType) -> pa.ChunkedArray:
    """A column that was parsed as its `parser_type`, converted to its own type.

    Raises pa.ArrowInvalid for a parsed value that the type does not allow.
    """
    match type_.kind:
        case _ if pa.types.is_string(column.type):
            chunks = [parse(chunk, type_) for chunk in column.chunks]
            return pa.chunked_array(chunks, type=arrow_type(type_))
        case Kind.FLOAT | Kind.DOUBLE:
            _require(pc.is_finite(column))
        case Kind.DECIMAL:
            # A cast checks the digits of the values only if it reduces the precision.
            column = column.cast(pa.decimal128(MAX_PRECISION, type_.scale))
        case Kind.NAIVE_DATE:
            require_years(column.cast(pa.int32()), 1)
        case Kind.UTC_DATETIME | Kind.NAIVE_DATETIME:
            require_years(column.cast(pa.int64()), DAY)
    return column.cast(arrow_type(type_))


def require_years(times: pa.Array | pa.ChunkedArray, day: int) -> None:
    """Raise pa.ArrowInvalid if a year is outside 0001 to 9999.

    `day` is the number of time units in a day.
    """
    bounds = pc.min_max(times)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < _FIRST_DAY * day or greatest >= (_LAST_DAY + 1) * day):
        raise pa.ArrowInvalid("a year is not between 0001 and 9999")


def first_failing(cells: pa.Array, convert: Callable[[pa.Array], object]) -> int:
    """The index of the first cell for which `convert` raises pa.ArrowInvalid, by binary search."""
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(cells[low:middle])
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _trim_blanks(text: pa.Array) -> pa.Array:
    return pc.utf8_trim(text, " \t")


def _text(text: pa.Array, _type: ColumnType) -> pa.Array:
    return text


def _require(holds: pa.Array) -> None:
    if not pc.all(holds, min_count=0).as_py():
        raise pa.ArrowInvalid("a cell is not of its type")


def _boolean(text: pa.Array, _type: ColumnType) -> pa.Array:
    lower = pc.utf8_lower(text)
    true = pc.equal(lower, "true")
    _require(pc.or_(true, pc.equal(lower, "false")))
    return true


def _integer(text: pa.Array, type_: ColumnType) -> pa.Array:
    if not pc.all(pc.ascii_is_decimal(text), min_count=0).as_py():
        # Arrow reads 0x1F as 31; the contract allows decimal digits only.
        text = _trim_blanks(text)
        _require(pc.match_substring_regex(text, INTEGER))
    if type_.kind is Kind.SHORT:
        return text.cast(pa.int16()).cast(pa.int32())
    return text.cast(arrow_type(type_))


def _decimal(text: pa.Array, type_: ColumnType) -> pa.Array:
    values, lost = round_to_scale(text, type_)
    if lost:
        raise pa.ArrowInvalid("a cell has more digits than its column")
    return values


def _double(text: pa.Array, type_: ColumnType) -> pa.Array:
    value = text.cast(arrow_type(type_))
    if pc.all(pc.is_finite(value), min_count=0).as_py():
        return value
    spelled = pc.match_substring_regex(text, NOT_FINITE)
    _require(pc.or_(pc.invert(pc.is_nan(value)), spelled))
    beyond = pc.and_(pc.is_inf(value), pc.invert(spelled))
    if not pc.any(beyond).as_py():
        return value
    exact = text.cast(pa.float64())
    if type_.kind is Kind.DOUBLE:
        raise pa.ArrowInvalid("beyond the range of a double")
    _require(pc.or_(pc.invert(beyond), pc.less_equal(pc.abs(exact), FLOAT_MAX_AS_PRINTED)))
    greatest = pc.multiply(pc.sign(exact), FLOAT_MAX).cast(pa.float32())
    return pc.if_else(beyond, greatest, value)


def _date(text: pa.Array, _type: ColumnType) -> pa.Array:
    value = text.cast(pa.date32())
    require_years(value.cast(pa.int32()), 1)
    return value


def _instant(text: pa.Array, type_: ColumnType) -> pa.Array:
    def add_zone(cells: pa.Array) -> pa.Array:
        bare = pc.invert(pc.match_substring_regex(cells, ZONE))
        return pc.if_else(bare, pc.binary_join_element_wise(cells, "Z", ""), cells)

    return _timestamp(text, type_, add_zone)


def _naive(text: pa.Array, type_: ColumnType) -> pa.Array:
    def remove_zone(cells: pa.Array) -> pa.Array:
        return pc.replace_substring_regex(cells, "[Zz]$", "")

    return _timestamp(text, type_, remove_zone)


def _timestamp(text: pa.Array, type_: ColumnType, mend: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Strings as timestamps in microseconds. Further digits are cut off, never rounded (F6)."""
    target = arrow_type(type_)
    try:
        value = text.cast(target)
    except pa.ArrowInvalid:
        cut = pc.replace_substring_regex(text, BEYOND_MICROSECONDS, r"\1")
        value = mend(cut).cast(target)
    require_years(value.cast(pa.int64()), DAY)
    return value


def _time(text: pa.Array, _type: ColumnType) -> pa.Array:
    """Strings in the form `HH:MM:SS`, with up to six digits of a second if they are not zero (F18)."""
    _require(pc.match_substring_regex(text, TIME))
    full = pc.replace_substring_regex(text, r"^(\d\d:\d\d)$", r"\1:00")
    micros = pc.replace_substring_regex(full, BEYOND_MICROSECONDS, r"\1")
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(micros, "0"), ".")
    return pc.if_else(pc.match_substring(micros, "."), trimmed, micros)


def _binary(text: pa.Array, _type: ColumnType) -> pa.Array:
    return decode_base64(text)


_PARSERS: dict[Kind, Callable[[pa.Array, ColumnType], pa.Array]] = {
    Kind.BOOLEAN: _boolean,
    Kind.SHORT: _integer,
    Kind.INT: _integer,
    Kind.LONG: _integer,
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _double,
    Kind.DOUBLE: _double,
    Kind.NAIVE_DATE: _date,
    Kind.NAIVE_DATETIME: _naive,
    Kind.UTC_DATETIME: _instant,
    Kind.NAIVE_TIME: _time,
    Kind.BINARY: _binary,
}

# These are first read as strings, because Arrow's parser accepts too much.
_LOOKED_AT = {Kind.SHORT, Kind.INT, Kind.LONG, Kind.BINARY, Kind.NAIVE_TIME}

# Arrow's parser ignores blanks around these; the parsers here do the same.
_BLANKS_ASIDE = {
    Kind.DECIMAL,
    Kind.FLOAT,
    Kind.DOUBLE,
    Kind.NAIVE_DATE,
    Kind.NAIVE_DATETIME,
    Kind.UTC_DATETIME,
}


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
