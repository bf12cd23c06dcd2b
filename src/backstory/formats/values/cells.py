"""Parsers that convert text cells to typed values, a column at a time (section 3.3, decisions F6, F11, F18).

Base64, decimal commas, rounding to a scale, and exact strings for floats are computed for all cells at once.
"""

import math
import re
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, DecimalException
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import arrow_type
from backstory.model.types import MAX_PRECISION, ColumnType, Kind

_COMMA_NUMBER: Final = r"^[+-]?(\d+(,\d+)?|,\d+)$"
_BETWEEN: Final = "\x00"


def with_points(cells: pa.Array) -> pa.Array:
    """The cells with points and commas swapped. Thus `1.5` and `1.234,5` become invalid numbers."""
    marked = pc.replace_substring(cells, ".", _BETWEEN)
    return pc.replace_substring(pc.replace_substring(marked, ",", "."), _BETWEEN, ",")


def are_numbers(cells: pa.Array) -> bool:
    """Whether all cells are numbers, with or without a decimal comma. No cell may be NULL."""
    # The first cell rules out most columns.
    return all(pc.all(pc.match_substring_regex(some, _COMMA_NUMBER)).as_py() for some in (cells[:1], cells))


def have_commas(cells: pa.Array) -> bool:
    """Whether any cell has a comma."""
    return bool(pc.any(pc.match_substring(cells, ",")).as_py())


DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def round_to_scale(text: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """Strings as decimals rounded half-even to the column's scale, and the number of rounded cells (F18).

    Raises pa.ArrowInvalid if a string is not a decimal, or has too many digits before the point.
    """
    try:
        # Cast through a wider decimal, because Arrow checks the digits of the string, not of the value.
        return text.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(arrow_type(type_)), 0
    except pa.ArrowInvalid:
        pass
    # The wide type has room for a short string without an exponent on both sides of the point.
    odd = pc.or_(pc.match_substring_regex(text, "[eE]"), pc.greater(pc.utf8_length(text), MAX_PRECISION))
    odd = pc.fill_null(odd, False)
    plain = pc.if_else(odd, None, text).cast(pa.decimal256(2 * MAX_PRECISION, MAX_PRECISION))
    values, lost = half_even(plain, type_)
    if not pc.any(odd).as_py():
        return values, lost
    cells = [_rounded_cell(cell, type_) for cell in text.filter(odd).to_pylist()]
    exact = pa.array([value for value, _ in cells], arrow_type(type_))
    return pc.replace_with_mask(values, odd, exact), lost + sum(cut for _, cut in cells)


def half_even(wide: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """76-digit decimals, rounded half-even to the column's scale, and the number of rounded values."""
    near = pc.round(wide, type_.scale, "half_to_even")
    exact = near.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(arrow_type(type_))
    return exact, pc.sum(pc.not_equal(near, wide), min_count=0).as_py()


def _rounded_cell(text: str, type_: ColumnType) -> tuple[Decimal, bool]:
    """A string of any length, rounded, and whether it lost a digit. This slow path is for rare cells."""
    if not DECIMAL.fullmatch(text):
        raise pa.ArrowInvalid("a cell is not a decimal")
    context = Context(type_.precision, ROUND_HALF_EVEN, MIN_EMIN, MAX_EMAX)
    try:
        number = Decimal(text)
        near = number.quantize(Decimal((0, (1,), -type_.scale)), context=context)
    except DecimalException:
        raise pa.ArrowInvalid("a decimal does not fit its column") from None
    return near, near != number


_EXACT_DIGITS = 15  # every normal float keeps this many digits
_LEAST = 2.0**-1022  # smaller floats keep fewer digits
_ALL = 800  # more digits than any float has
# Strings that may lose digits: long ones, and ones with a large exponent.
_DOUBTFUL = rf"^.{{{_EXACT_DIGITS + 1},}}$|[eE][+-]?\d{{3,}}$"
_ZERO = frozenset("-+.0")


def shortest_texts(floats: pa.Array) -> pa.Array:
    """For each float, the shortest string that identifies it at its width, such as 0.1."""
    if not pa.types.is_float16(floats.type):
        return floats.cast(pa.string())
    singles = floats.cast(pa.float32())
    halves = np.asarray(floats.fill_null(np.float16(0))).astype(str)  # Arrow cannot print these
    # A whole number keeps all its digits: 65504 is not 65500.
    whole = pc.equal(singles, pc.trunc(singles))
    return pc.if_else(whole, singles.cast(pa.string()), pa.array(halves, pa.string()))


def all_kept(texts: pa.Array) -> bool:
    """Whether floats keep all digits of the numbers. The strings may include `NaN` and `Inf`, but no NULL."""
    doubtful = texts.filter(pc.match_substring_regex(texts, _DOUBTFUL))
    # Nearly all of them are the string that a program prints for a float.
    printed = pc.equal(doubtful.cast(pa.float64()).cast(pa.string()), doubtful)
    return all(map(is_kept, doubtful.filter(pc.invert(printed)).to_pylist()))


def all_kept_single(texts: pa.Array) -> bool:
    """Whether every number is the value or the printed form of a 32-bit float. No string may be NULL."""
    wide, single = texts.cast(pa.float64()), texts.cast(pa.float32())
    printed = single.cast(pa.string()).cast(pa.float64())
    equal = pc.or_(pc.equal(single.cast(pa.float64()), wide), pc.equal(printed, wide))
    return bool(pc.all(pc.or_(equal, pc.is_nan(wide))).as_py())


def is_kept(text: str) -> bool:
    """Whether a float keeps all digits of the number."""
    value = float(text)
    if text in {repr(value), f"{value:.17g}"}:  # the form of nearly all programs
        return True
    if not math.isfinite(value):
        return not any(letter.isdigit() for letter in text)
    if value == 0:
        return set(text.lower().partition("e")[0]) <= _ZERO
    number = Decimal(text)
    digits = len(number.as_tuple().digits)
    if digits <= _EXACT_DIGITS and abs(value) >= _LEAST:
        return True
    return number in {Decimal(repr(value)), Decimal(f"{value:.{min(digits, _ALL) - 1}e}")}


# Groups of four characters, and at most one last group that is padded.
_BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def decode_base64(text: pa.Array) -> pa.Array:
    """The decoded bytes of each cell. A cell that is not valid base64 keeps its own UTF-8 bytes (F11)."""
    raw = text.cast(pa.binary())
    valid = pc.if_else(pc.match_substring_regex(text, _BASE64), raw, None).to_pylist()
    decoded = pa.array([None if cell is None else a2b_base64(cell) for cell in valid], pa.binary())
    return pc.coalesce(decoded, raw)


def invalid_base64(text: pa.Array) -> int:
    """The number of cells that are not valid base64."""
    return int(pc.match_substring_regex(text, _BASE64).false_count)


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
    convert = _PARSERS.get(type_.kind, _text)
    if type_.kind in _TRIMMED:
        with suppress(pa.ArrowInvalid):  # hardly any column has blanks
            return convert(text, type_)
        text = _trim_blanks(text)
    return convert_cells(text, lambda cells: convert(cells, type_))


def parse_rounding(text: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """The cells as in `parse`, with decimals rounded half-even, and the number of rounded cells (F18)."""
    if type_.kind is not Kind.DECIMAL:
        return parse(text, type_), 0
    return convert_cells(_trim_blanks(text), lambda cells: round_to_scale(cells, type_))


def rounded_to(decimals: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """Decimals rounded as in `parse_rounding`, and the number of rounded values.

    The decimals may have any precision and scale.
    """
    wide = pa.decimal256(2 * MAX_PRECISION, max(decimals.type.scale, type_.scale))
    return convert_cells(decimals, lambda cells: half_even(cells.cast(wide), type_))


def convert_cells(cells: pa.Array, convert: Callable[[pa.Array], Values]) -> Values:
    """The converted cells. Raises UnreadableCell for the first cell that cannot be converted."""
    try:
        return convert(cells)
    except pa.ArrowInvalid:
        raise UnreadableCell(first_failing(cells, convert)) from None


def null_where_empty(text: pa.Array) -> pa.Array:
    """The cells, with NULL in place of empty cells. Only text types have an empty value (O27)."""
    is_empty = pc.equal(text, "")
    return pc.if_else(is_empty, pa.scalar(None, text.type), text) if is_empty.true_count else text


def require_years(times: pa.Array | pa.ChunkedArray, day: int) -> None:
    """Raise pa.ArrowInvalid if a year is not in 0001 to 9999. `day` is the number of units in a day."""
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


def require_all(holds: pa.Array) -> None:
    """Raise pa.ArrowInvalid if any flag is false."""
    if not pc.all(holds, min_count=0).as_py():
        raise pa.ArrowInvalid("a value does not fit")


def _boolean(text: pa.Array, _type: ColumnType) -> pa.Array:
    lower = pc.utf8_lower(text)
    true = pc.equal(lower, "true")
    require_all(pc.or_(true, pc.equal(lower, "false")))
    return true


def _integer(text: pa.Array, type_: ColumnType) -> pa.Array:
    if not pc.all(pc.ascii_is_decimal(text), min_count=0).as_py():
        # Arrow reads 0x1F as 31; the contract allows decimal digits only.
        text = _trim_blanks(text)
        require_all(pc.match_substring_regex(text, INTEGER))
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
    require_all(pc.or_(pc.invert(pc.is_nan(value)), spelled))
    beyond = pc.and_(pc.is_inf(value), pc.invert(spelled))
    if not pc.any(beyond).as_py():
        return value
    exact = text.cast(pa.float64())
    if type_.kind is Kind.DOUBLE:
        raise pa.ArrowInvalid("beyond the range of a double")
    require_all(pc.or_(pc.invert(beyond), pc.less_equal(pc.abs(exact), FLOAT_MAX_AS_PRINTED)))
    greatest = pc.multiply(pc.sign(exact), FLOAT_MAX).cast(pa.float32())
    return pc.if_else(beyond, greatest, value)


def _date(text: pa.Array, _type: ColumnType) -> pa.Array:
    value = text.cast(pa.date32())
    require_years(value.cast(pa.int32()), 1)
    return value


def _timestamp(text: pa.Array, type_: ColumnType) -> pa.Array:
    """Convert strings to timestamps in microseconds. Further digits are cut off, never rounded (F6).

    A time without a zone counts as UTC. In a column without zones, a `Z` is ignored.
    """
    target = arrow_type(type_)
    try:
        value = text.cast(target)
    except pa.ArrowInvalid:
        cut = pc.replace_substring_regex(text, BEYOND_MICROSECONDS, r"\1")
        if type_.kind is Kind.UTC_DATETIME:
            has_zone = pc.match_substring_regex(cut, ZONE)
            cut = pc.if_else(has_zone, cut, pc.binary_join_element_wise(cut, "Z", ""))
        else:
            cut = pc.replace_substring_regex(cut, "[Zz]$", "")
        value = cut.cast(target)
    require_years(value.cast(pa.int64()), DAY)
    return value


def _time(text: pa.Array, _type: ColumnType) -> pa.Array:
    """Convert strings to the form `HH:MM:SS`, with up to six decimal places and no trailing zeros (F18)."""
    require_all(pc.match_substring_regex(text, TIME))
    full = pc.replace_substring_regex(text, r"^(\d\d:\d\d)$", r"\1:00")
    micros = pc.replace_substring_regex(full, BEYOND_MICROSECONDS, r"\1")
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(micros, "0"), ".")
    return pc.if_else(pc.match_substring(micros, "."), trimmed, micros)


_PARSERS: dict[Kind, Callable[[pa.Array, ColumnType], pa.Array]] = {
    Kind.BOOLEAN: _boolean,
    Kind.SHORT: _integer,
    Kind.INT: _integer,
    Kind.LONG: _integer,
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _double,
    Kind.DOUBLE: _double,
    Kind.NAIVE_DATE: _date,
    Kind.NAIVE_DATETIME: _timestamp,
    Kind.UTC_DATETIME: _timestamp,
    Kind.NAIVE_TIME: _time,
    Kind.BINARY: lambda text, _: decode_base64(text),
}

# Types whose values may have blanks around them, as in Arrow's parser.
_TRIMMED = {
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
    """Convert Arrow's times of day or durations to counts of the unit.

    Raises pa.ArrowInvalid if digits would be lost.
    """
    if pa.types.is_duration(values.type):
        return values.cast(pa.duration(unit)).cast(pa.int64())
    if unit in _SHORT:
        return values.cast(pa.time32(unit)).cast(pa.int32()).cast(pa.int64())
    return values.cast(pa.time64(unit)).cast(pa.int64())


def clock_times(text: pa.Array, unit: str) -> pa.Array:
    """Convert strings like `12:30:00.5`, or integers, to counts of the unit since midnight.

    Raises UnreadableCell for the first cell that is neither, or has more digits than the unit allows.
    """

    def convert(cells: pa.Array) -> pa.Array:
        whole = pc.match_substring_regex(cells, INTEGER)
        require_all(pc.or_(whole, pc.match_substring_regex(cells, TIME)))
        numbers, clocks = pc.if_else(whole, cells, None), pc.if_else(whole, None, cells)
        instants = pc.binary_join_element_wise(_MIDNIGHT, clocks, "").cast(pa.timestamp("ns"))
        return pc.coalesce(numbers.cast(pa.int64()), instants.cast(pa.timestamp(unit)).cast(pa.int64()))

    return convert_cells(text, convert)
