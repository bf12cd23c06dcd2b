"""Values of Debezium's and Connect's logical types become what they mean, a column at a time.

Each function raises pa.ArrowInvalid or UnreadableCell for what is not of its type. What they mean is said in
Debezium's documentation of its connectors, under "Data type mappings".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.base64_cells import decode_base64, invalid_base64
from backstory.formats.values.cells import DAY, parse, require_years
from backstory.formats.values.texts import TextForms, parser
from backstory.model.types import MAX_PRECISION, ColumnType, Kind

Parameters = Mapping[str, Any]
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_HOUR, _MINUTE, _SECOND = 3_600_000_000, 60_000_000, 1_000_000
_WIDTH, _SIGN = 16, 0x80  # the bytes of a decimal of 38 digits, and the bit that makes it negative


def bytes_of(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """The bytes of base64."""
    if invalid_base64(text):
        raise pa.ArrowInvalid("a cell is not base64")
    return decode_base64(text)


def dates(days: pa.Array, _parameters: Parameters) -> pa.Array:
    """Days since 1970 as dates."""
    require_years(days, 1)
    return days.cast(pa.int32()).cast(pa.date32())


def timestamps(unit: str) -> Callable[[pa.Array, Parameters], pa.Array]:
    """Counts of a unit since 1970 as times without a zone; digits below a microsecond are cut off (F6)."""

    def values(counts: pa.Array, _parameters: Parameters) -> pa.Array:
        micros = _micros(counts, unit)
        require_years(micros, DAY)
        return micros.cast(pa.timestamp("us"))

    return values


def instants(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """ISO 8601 texts with an offset as instants."""
    return parser(pa.field("", pa.timestamp("us", "UTC")), TextForms())(text)


def clock_texts(unit: str) -> Callable[[pa.Array, Parameters], pa.Array]:
    """Counts of a unit since midnight as texts, `12:30:00.5`: tables have no times of day.

    MySQL's may be negative, and longer than a day.
    """

    def values(counts: pa.Array, _parameters: Parameters) -> pa.Array:
        micros = _micros(counts, unit)
        size = pc.abs_checked(micros)
        parts = [
            pc.utf8_lpad(_over(size, _HOUR), 2, "0"),
            pc.utf8_lpad(_over(size, _MINUTE, 60), 2, "0"),
            pc.utf8_lpad(_over(size, _SECOND, 60), 2, "0"),
        ]
        fraction = pc.utf8_rtrim(pc.utf8_lpad(_over(size, 1, _SECOND), 6, "0"), "0")
        fraction = pc.if_else(pc.equal(fraction, ""), "", pc.binary_join_element_wise(".", fraction, ""))
        sign = pc.if_else(pc.less(micros, 0), "-", "")
        clock = pc.binary_join_element_wise(*parts, ":")
        return pc.binary_join_element_wise(sign, clock, fraction, "")

    return values


def iso_dates(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """`2024-02-29Z` as dates."""
    return parse(_without_zone(text), ColumnType(Kind.NAIVE_DATE))


def iso_timestamps(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """`2024-02-29T12:00:00Z` as times without a zone: Debezium writes theirs as if they were UTC."""
    return parse(_without_zone(text), ColumnType(Kind.NAIVE_DATETIME))


def iso_clocks(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """`12:30:00.500Z` as the texts that `clock_texts` gives."""
    return parse(_without_zone(text), ColumnType(Kind.NAIVE_TIME))


def decimal_type(parameters: Parameters) -> pa.DataType:
    """The type of Connect's decimals; those whose precision is not said have as many digits as fit.

    Raises pa.ArrowInvalid for a scale that no type has.
    """
    scale = int(parameters.get("scale", 0))
    precision = min(int(parameters.get("connect.decimal.precision", MAX_PRECISION)), MAX_PRECISION)
    if scale < 0:  # Oracle's NUMBER(5, -2) counts hundreds
        return pa.decimal128(min(precision - scale, MAX_PRECISION), 0)
    if scale > MAX_PRECISION:
        raise pa.ArrowInvalid(f"a scale of {scale} digits")
    return pa.decimal128(max(precision, scale, 1), scale)


def decimals(text: pa.Array, parameters: Parameters) -> pa.Array:
    """Connect's decimals: base64 of the unscaled number, two's complement, high byte first."""
    if pa.types.is_decimal(text.type):
        return text  # written as numbers
    type_, scale = decimal_type(parameters), int(parameters.get("scale", 0))
    whole = _unscaled(bytes_of(text, parameters))
    if scale < 0:
        numbers = (number and number * 10**-scale for number in whole.to_pylist())
        return pa.array(numbers, type_)
    # The same bytes, with the point where the scale puts it.
    shifted = pa.decimal128(MAX_PRECISION, scale)
    return _within(pa.Array.from_buffers(shifted, len(whole), whole.buffers()), type_)


def variable_decimals(values: pa.Array, parameters: Parameters) -> pa.Array:
    """Decimals that have each its own scale, exactly as text: no type holds them all."""
    scales = values.field("scale").to_pylist()
    raw = bytes_of(values.field("value"), parameters).to_pylist()
    valid = values.is_valid().to_pylist()
    return pa.array(
        [
            _plain(int.from_bytes(number, "big", signed=True), scale)
            if here and number is not None and scale is not None
            else None
            for here, number, scale in zip(valid, raw, scales, strict=True)
        ],
        pa.string(),
    )


def _plain(unscaled: int, scale: int) -> str:
    if abs(scale) > _MOST_DIGITS:
        raise pa.ArrowInvalid(f"a scale of {scale} digits")
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


_MOST_DIGITS: Final = 20_000  # PostgreSQL's numeric has at most 16,383 behind the point


def _micros(counts: pa.Array, unit: str) -> pa.Array:
    counts = counts.cast(pa.int64())
    if unit == "ns":
        floored = np.floor_divide(counts.fill_null(0).to_numpy(zero_copy_only=False), 1_000)
        return pc.if_else(counts.is_valid(), pa.array(floored, pa.int64()), None)
    return pc.multiply_checked(counts, 1_000) if unit == "ms" else counts


def _over(micros: pa.Array, unit: int, most: int = 0) -> pa.Array:
    """How many of a unit there are in each, beyond those that make `most` of it."""
    units = pc.divide(micros, unit)
    if most:
        units = pc.subtract(units, pc.multiply(pc.divide(units, most), most))
    return units.cast(pa.string())


def _without_zone(text: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(text, "[Zz]$", "")


def _unscaled(raw: pa.Array) -> pa.Array:
    """Two's complements of any length as decimals of 38 digits; pa.ArrowInvalid where one does not fit."""
    raw = pa.concat_arrays([raw])
    count, filled = len(raw), raw.fill_null(b"\0")
    offsets = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset : filled.offset + count + 1]
    data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    if count and lengths.min() == 0:
        raise pa.ArrowInvalid("a number without a byte")
    signs = np.where(data[offsets[:-1]] & _SIGN, 0xFF, 0).astype(np.uint8)
    wide = np.repeat(signs[:, None], _WIDTH, axis=1)
    # Bytes are counted from the low end, which comes first in Arrow.
    rows = np.repeat(np.arange(count), lengths)
    from_end = np.repeat(offsets[1:], lengths) - 1 - np.arange(offsets[0], offsets[-1])
    bytes_ = data[offsets[0] : offsets[-1]]
    high = from_end >= _WIDTH
    if (bytes_[high] != signs[rows[high]]).any():
        raise pa.ArrowInvalid("a number has more than 38 digits")
    wide[rows[~high], from_end[~high]] = bytes_[~high]
    if ((wide[:, -1] ^ signs) & _SIGN).any():
        raise pa.ArrowInvalid("a number has more than 38 digits")
    numbers = pa.Array.from_buffers(
        pa.decimal128(MAX_PRECISION, 0), count, [None, pa.py_buffer(wide.tobytes())]
    )
    return pc.if_else(raw.is_valid(), _within(numbers, numbers.type), None)


def _within(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """The numbers as decimals of the type; pa.ArrowInvalid where one has more digits."""
    # Arrow looks at digits only where a cast makes the precision less.
    return numbers.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(type_)


_INT, _LONG, _TEXT = pa.int32(), pa.int64(), pa.string()
_SCALED: Final = pa.struct([("scale", _INT), ("value", _TEXT)])
# By name: the type of the values as JSON writes them, and what makes them what they mean.
LOGICAL: Final[dict[str, tuple[pa.DataType, Callable[[pa.Array, Parameters], pa.Array]]]] = {
    "io.debezium.time.Date": (_INT, dates),
    "io.debezium.time.Time": (_INT, clock_texts("ms")),
    "io.debezium.time.MicroTime": (_LONG, clock_texts("us")),
    "io.debezium.time.NanoTime": (_LONG, clock_texts("ns")),
    "io.debezium.time.Timestamp": (_LONG, timestamps("ms")),
    "io.debezium.time.MicroTimestamp": (_LONG, timestamps("us")),
    "io.debezium.time.NanoTimestamp": (_LONG, timestamps("ns")),
    "io.debezium.time.ZonedTimestamp": (_TEXT, instants),
    "io.debezium.time.IsoDate": (_TEXT, iso_dates),
    "io.debezium.time.IsoTime": (_TEXT, iso_clocks),
    "io.debezium.time.IsoTimestamp": (_TEXT, iso_timestamps),
    "io.debezium.data.VariableScaleDecimal": (_SCALED, variable_decimals),
    "org.apache.kafka.connect.data.Date": (_INT, dates),
    "org.apache.kafka.connect.data.Time": (_INT, clock_texts("ms")),
    "org.apache.kafka.connect.data.Timestamp": (_LONG, timestamps("ms")),
    DECIMAL: (_TEXT, decimals),
}
