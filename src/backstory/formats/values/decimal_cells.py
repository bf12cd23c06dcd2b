"""Decimals in the scale of their column: the digits beyond it are rounded half-even, exactly (F18)."""

import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, DecimalException

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import arrow_type
from backstory.model.types import MAX_PRECISION, ColumnType

DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def rounded(text: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """Texts as decimals of the column's scale, rounded half-even, and how many lost a digit by that (F18).

    Raises pa.ArrowInvalid for a text that is no decimal, and for more digits before the point than fit.
    """
    try:
        # By way of a wider decimal: Arrow checks the digits of the text, not those of the value.
        return text.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(arrow_type(type_)), 0
    except pa.ArrowInvalid:
        pass
    # A short text without an exponent has as many digits on either side of its point as the wide type.
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
    """The same for decimals of 76 digits, at least as many behind the point as the column has."""
    near = pc.round(wide, type_.scale, "half_to_even")
    exact = near.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(arrow_type(type_))
    return exact, pc.sum(pc.not_equal(near, wide), min_count=0).as_py()


def _rounded_cell(text: str, type_: ColumnType) -> tuple[Decimal, bool]:
    """The same for one text of any length, and whether a digit was lost; slow, for what is rare."""
    if not DECIMAL.fullmatch(text):
        raise pa.ArrowInvalid("a cell is not a decimal")
    context = Context(type_.precision, ROUND_HALF_EVEN, MIN_EMIN, MAX_EMAX)
    try:
        number = Decimal(text)
        near = number.quantize(Decimal((0, (1,), -type_.scale)), context=context)
    except DecimalException:
        raise pa.ArrowInvalid("a decimal does not fit its column") from None
    return near, near != number
