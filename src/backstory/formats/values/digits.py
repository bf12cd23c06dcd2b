"""Digits of numbers: decimal commas, decimals rounded to their scale (F18), and exact strings for floats."""

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, DecimalException
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import arrow_type
from backstory.model.types import MAX_PRECISION, ColumnType

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
    """Whether one of the cells has a comma."""
    return bool(pc.any(pc.match_substring(cells, ",")).as_py())


DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def round_to_scale(text: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """Strings as decimals rounded half-even to the column's scale, and the number of rounded cells (F18).

    Raises pa.ArrowInvalid if a string is not a decimal, or has too many digits before the point.
    """
    try:
        # Cast by way of a wider decimal, because Arrow checks the digits of the string, not of the value.
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
    """Decimals of 76 digits, rounded half-even to the column's scale, and the number of rounded ones."""
    near = pc.round(wide, type_.scale, "half_to_even")
    exact = near.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(arrow_type(type_))
    return exact, pc.sum(pc.not_equal(near, wide), min_count=0).as_py()


def _rounded_cell(text: str, type_: ColumnType) -> tuple[Decimal, bool]:
    """One string of any length, rounded, and whether it lost a digit.

    It is slow, so only rare cells use it.
    """
    if not DECIMAL.fullmatch(text):
        raise pa.ArrowInvalid("a cell is not a decimal")
    context = Context(type_.precision, ROUND_HALF_EVEN, MIN_EMIN, MAX_EMAX)
    try:
        number = Decimal(text)
        near = number.quantize(Decimal((0, (1,), -type_.scale)), context=context)
    except DecimalException:
        raise pa.ArrowInvalid("a decimal does not fit its column") from None
    return near, near != number


_SURE = 15  # every normal float keeps this many digits
_LEAST = 2.0**-1022  # smaller floats keep fewer digits
_ALL = 800  # more digits than any float has
# Strings that may lose digits: long ones, and ones with a large exponent.
_DOUBTFUL = rf"^.{{{_SURE + 1},}}$|[eE][+-]?\d{{3,}}$"
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
    if digits <= _SURE and abs(value) >= _LEAST:
        return True
    return number in {Decimal(repr(value)), Decimal(f"{value:.{min(digits, _ALL) - 1}e}")}
