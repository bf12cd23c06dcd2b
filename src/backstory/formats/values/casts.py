"""Casts between column types.

`cast` follows the rules of section 2.6 (F18); `exact_cast` allows no loss at all.
"""

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import arrow_type
from backstory.formats.values.cells import UnreadableCell, parse, require_all
from backstory.formats.values.exactly import can_become, cast_exactly, cast_same
from backstory.formats.values.texts import TextForms, all_are, parser
from backstory.model.types import MAX_PRECISION, TEXT_KINDS, ColumnType, Kind, are_related

_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
_TIMES = frozenset({Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})


class DoesNotFit(ValueError):
    """A value that the new type cannot represent exactly."""


def cast(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    """Cast the values to `arrow_type(new)`.

    Text is read and written as in batch files (section 3.3). BINARY and text are converted byte for byte.
    Times without a zone count as UTC. Only DOUBLE to FLOAT may round, but not to zero. Any other loss of
    digits and any value out of range raise DoesNotFit.
    """
    try:
        fitted = _cast(values, old, new)
    except (pa.ArrowInvalid, UnreadableCell):
        raise DoesNotFit from None
    if fitted.null_count != values.null_count:
        raise DoesNotFit
    return fitted


def _cast(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    if new.kind in TEXT_KINDS:
        text = _text_of(values, old)
        return parse(text, new) if new.kind is Kind.NAIVE_TIME else text
    if old.kind in TEXT_KINDS:
        return values.cast(pa.binary()) if new.kind is Kind.BINARY else parse(values, new)
    if new.kind in _TIMES:
        return _time(values, new)
    if new.kind is Kind.DECIMAL:
        return _decimal(values, old, new)
    if new.kind in _FLOATS:
        return _float(values, old, new)
    return _integer(values, old, new)


def _text_of(values: pa.Array, old: ColumnType) -> pa.Array:
    """The values as strings in the form of section 3.3, without redundant zeros."""
    text = values.cast(pa.string())
    if old.kind is Kind.DECIMAL:
        return _trim_zeros(_without_exponents(values, text))
    if old.kind in _FLOATS:
        named = pc.replace_substring_regex(text, "^nan$", "NaN")
        return pc.replace_substring_regex(named, "inf$", "Infinity")
    if old.kind in {Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}:
        return _trim_zeros(pc.replace_substring(text, " ", "T"))
    return text


def _trim_zeros(text: pa.Array) -> pa.Array:
    shorter = pc.replace_substring_regex(text, r"(\.\d*?)0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(shorter, r"\.(Z?)$", r"\1")


def _without_exponents(values: pa.Array, text: pa.Array) -> pa.Array:
    """Decimals as strings without the exponents that Arrow writes for small values."""
    small = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(small).as_py():
        return text
    digits = pa.array([format(value, "f") for value in values.filter(small).to_pylist()], pa.string())
    return pc.replace_with_mask(text, small, digits)


def _time(values: pa.Array, new: ColumnType) -> pa.Array:
    instants = values.cast(pa.timestamp("us"))
    if new.kind is not Kind.NAIVE_DATE:
        return instants.cast(arrow_type(new))
    days = instants.cast(pa.date32(), safe=False)
    require_all(pc.equal(days.cast(pa.timestamp("us")), instants))
    return days


def _decimal(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    if old.kind is Kind.DECIMAL:
        # Arrow checks the digits of the values only if a cast reduces the precision.
        return values.cast(pa.decimal256(2 * MAX_PRECISION, new.scale)).cast(arrow_type(new))
    return parse(_text_of(values, old), new)


def _float(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    if (old.kind, new.kind) == (Kind.FLOAT, Kind.DOUBLE):
        return cast_same(values, arrow_type(new))
    if old.kind in _FLOATS:
        nearest = values.cast(arrow_type(new))
        require_all(pc.equal(pc.is_finite(nearest), pc.is_finite(values)))
        require_all(pc.equal(pc.equal(nearest, 0), pc.equal(values, 0)))
        return nearest
    nearest = parse(_text_of(values, old), new)
    require_all(pc.equal(_cast(nearest, new, old), values))
    return nearest


def _integer(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    if old.kind in _FLOATS:
        require_all(pc.is_finite(values))
        values = cast_same(values, pa.float64())
    if new.kind is Kind.SHORT:
        values = values.cast(pa.int16())
    return values.cast(arrow_type(new))


def exact_cast(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    """Cast the values to `arrow_type(new)`.

    Raises DoesNotFit if a value would change. Numbers are compared as they are printed: 0.1 is 0.1 as a float
    and as a decimal. A string is a number, a day or a time only if a CSV cell with the same string is. For
    example, `007` and a number with too many digits are not numbers. A number becomes its shortest string.
    Times without a zone are UTC. No string becomes bytes, because it could be base64 or any encoding.
    """
    values = values.cast(arrow_type(old))
    if values.null_count == len(values):
        return pa.nulls(len(values), arrow_type(new))
    if not are_related(old, new) or (old.kind in TEXT_KINDS and new.kind is Kind.BINARY):
        raise DoesNotFit
    if new.kind in TEXT_KINDS or Kind.BINARY in {old.kind, new.kind}:
        return cast(values, old, new)
    field = pa.field("", arrow_type(new))
    try:
        if old.kind not in TEXT_KINDS:
            if not can_become(values.type, field):
                raise DoesNotFit
            return cast_exactly(values, field)
        if not all_are(values.drop_null(), field.type, TextForms()):
            raise DoesNotFit
        return parser(field, TextForms())(values)
    except (pa.ArrowInvalid, UnreadableCell):
        raise DoesNotFit from None


def misfits(values: pa.Array, old: ColumnType, new: ColumnType, most: int) -> list[int]:
    """The indexes of the first values that do not fit the new type, at most `most`."""
    try:
        exact_cast(values, old, new)
    except DoesNotFit:
        if len(values) == 1:
            return [0]
        half = len(values) // 2
        places = misfits(values[:half], old, new, most)
        if len(places) < most:
            places += [half + place for place in misfits(values[half:], old, new, most - len(places))]
        return places
    return []
