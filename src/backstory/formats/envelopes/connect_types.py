"""Schemas of Kafka Connect's JSON converter, and decoders of the logical types of Connect and Debezium.

Each decoder converts a column and raises pa.ArrowInvalid or UnreadableCell for an invalid value. The types
are documented under "Data type mappings" of Debezium's connectors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.json.rows import DEEPEST
from backstory.formats.json.values import Number
from backstory.formats.produced import excerpt, repeated_names, typed_or_refused
from backstory.formats.values.cells import DAY, decode_base64, invalid_base64, parse, require_years
from backstory.formats.values.exactly import with_items
from backstory.formats.values.texts import TextForms, parser
from backstory.model.types import MAX_PRECISION, ColumnType, Kind

Parameters = Mapping[str, Any]
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_HOUR, _MINUTE, _SECOND = 3_600_000_000, 60_000_000, 1_000_000
_WIDTH, _SIGN = 16, 0x80  # the bytes of a decimal with 38 digits, and its sign bit


def bytes_of(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """Decode base64 strings. Raises pa.ArrowInvalid for an invalid string."""
    if invalid_base64(text):
        raise pa.ArrowInvalid("a cell is not base64")
    return decode_base64(text)


def dates(days: pa.Array, _parameters: Parameters) -> pa.Array:
    """Convert days since 1970 to dates."""
    require_years(days, 1)
    return days.cast(pa.int32()).cast(pa.date32())


def timestamps(counts: pa.Array, _parameters: Parameters, unit: str) -> pa.Array:
    """Convert counts since 1970 to times without a zone. Digits below a microsecond are cut (F6)."""
    micros = _micros(counts, unit)
    require_years(micros, DAY)
    return micros.cast(pa.timestamp("us"))


def instants(text: pa.Array, _parameters: Parameters) -> pa.Array:
    """Convert ISO 8601 strings with an offset to timestamps in UTC."""
    return parser(pa.field("", pa.timestamp("us", "UTC")), TextForms())(text)


def clock_texts(counts: pa.Array, _parameters: Parameters, unit: str) -> pa.Array:
    """Convert counts since midnight to strings like `12:30:00.5`.

    Tables have no type for times of day. MySQL's times may be negative and longer than a day.
    """
    micros = _micros(counts, unit)
    size = pc.abs_checked(micros)
    units = (_over(size, _HOUR), _over(size, _MINUTE, 60), _over(size, _SECOND, 60))
    clock = pc.binary_join_element_wise(*(pc.utf8_lpad(count, 2, "0") for count in units), ":")
    fraction = pc.utf8_rtrim(pc.utf8_lpad(_over(size, 1, _SECOND), 6, "0"), "0")
    fraction = pc.if_else(pc.equal(fraction, ""), "", pc.binary_join_element_wise(".", fraction, ""))
    sign = pc.if_else(pc.less(micros, 0), "-", "")
    return pc.binary_join_element_wise(sign, clock, fraction, "")


def iso_texts(text: pa.Array, _parameters: Parameters, kind: Kind) -> pa.Array:
    """Convert ISO 8601 strings like `2024-02-29T12:00:00Z` to values without a zone.

    Debezium writes such dates and times as if they were in UTC. Times of day have the form of `clock_texts`.
    """
    return parse(pc.replace_substring_regex(text, "[Zz]$", ""), ColumnType(kind))


def decimal_type(parameters: Parameters) -> pa.DataType:
    """The Arrow type for Connect's decimals, with the maximum number of digits if no precision is given.

    Raises pa.ArrowInvalid if the scale exceeds the maximum.
    """
    scale = int(parameters.get("scale", 0))
    precision = min(int(parameters.get("connect.decimal.precision", MAX_PRECISION)), MAX_PRECISION)
    if scale < 0:  # Oracle's NUMBER(5, -2) counts in hundreds
        return pa.decimal128(min(precision - scale, MAX_PRECISION), 0)
    if scale > MAX_PRECISION:
        raise pa.ArrowInvalid(f"a scale of {scale} digits")
    return pa.decimal128(max(precision, scale, 1), scale)


def decimals(text: pa.Array, parameters: Parameters) -> pa.Array:
    """Decode Connect's decimals.

    Each decimal is base64 of its unscaled number in two's complement, most significant byte first. Decimals
    that were written as numbers are unchanged.
    """
    if pa.types.is_decimal(text.type):
        return text  # written as numbers
    type_, scale = decimal_type(parameters), int(parameters.get("scale", 0))
    whole = _unscaled_integers(bytes_of(text, parameters))
    if scale < 0:
        numbers = (number and number * 10**-scale for number in whole.to_pylist())
        return pa.array(numbers, type_)
    # The same bytes with the scale applied.
    shifted = pa.decimal128(MAX_PRECISION, scale)
    return _within(pa.Array.from_buffers(shifted, len(whole), whole.buffers()), type_)


def variable_decimals(values: pa.Array, parameters: Parameters) -> pa.Array:
    """Convert decimals whose scale varies by value to exact strings, because no type holds them all."""
    scales = values.field("scale").to_pylist()
    raw = bytes_of(values.field("value"), parameters).to_pylist()
    valid = values.is_valid().to_pylist()
    return pa.array(
        [
            _plain_decimal(int.from_bytes(number, "big", signed=True), scale)
            if here and number is not None and scale is not None
            else None
            for here, number, scale in zip(valid, raw, scales, strict=True)
        ],
        pa.string(),
    )


def _plain_decimal(unscaled: int, scale: int) -> str:
    if abs(scale) > _MOST_DIGITS:
        raise pa.ArrowInvalid(f"a scale of {scale} digits")
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


_MOST_DIGITS: Final = 20_000  # PostgreSQL's numeric has at most 16,383 digits after the point


def _micros(counts: pa.Array, unit: str) -> pa.Array:
    counts = counts.cast(pa.int64())
    if unit == "ns":
        floored = np.floor_divide(counts.fill_null(0).to_numpy(zero_copy_only=False), 1_000)
        return pc.if_else(counts.is_valid(), pa.array(floored, pa.int64()), None)
    return pc.multiply_checked(counts, 1_000) if unit == "ms" else counts


def _over(micros: pa.Array, unit: int, most: int = 0) -> pa.Array:
    """The number of whole units in each value, as a string, modulo `most` if it is set."""
    units = pc.divide(micros, unit)
    if most:
        units = pc.subtract(units, pc.multiply(pc.divide(units, most), most))
    return units.cast(pa.string())


def _unscaled_integers(raw: pa.Array) -> pa.Array:
    """Convert integers in two's complement to decimals of 38 digits.

    Raises pa.ArrowInvalid if a number does not fit.
    """
    raw = pa.concat_arrays([raw])
    count, filled = len(raw), raw.fill_null(b"\0")
    offsets = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset : filled.offset + count + 1]
    data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    if count and lengths.min() == 0:
        raise pa.ArrowInvalid("a number without a byte")
    signs = np.where(data[offsets[:-1]] & _SIGN, 0xFF, 0).astype(np.uint8)
    wide = np.repeat(signs[:, None], _WIDTH, axis=1)
    # Bytes are counted from the low end, because Arrow's order is little-endian.
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
    """The numbers as decimals of the type. Raises pa.ArrowInvalid if one has too many digits."""
    # Arrow checks digits only if a cast reduces the precision.
    return numbers.cast(pa.decimal256(2 * MAX_PRECISION, type_.scale)).cast(type_)


_INT, _LONG, _TEXT = pa.int32(), pa.int64(), pa.string()
_SCALED: Final = pa.struct([("scale", _INT), ("value", _TEXT)])
# Logical types by name: the type of the values in JSON, and their decoder.
LOGICAL: Final[dict[str, tuple[pa.DataType, Callable[[pa.Array, Parameters], pa.Array]]]] = {
    "io.debezium.time.Date": (_INT, dates),
    "io.debezium.time.Time": (_INT, partial(clock_texts, unit="ms")),
    "io.debezium.time.MicroTime": (_LONG, partial(clock_texts, unit="us")),
    "io.debezium.time.NanoTime": (_LONG, partial(clock_texts, unit="ns")),
    "io.debezium.time.Timestamp": (_LONG, partial(timestamps, unit="ms")),
    "io.debezium.time.MicroTimestamp": (_LONG, partial(timestamps, unit="us")),
    "io.debezium.time.NanoTimestamp": (_LONG, partial(timestamps, unit="ns")),
    "io.debezium.time.ZonedTimestamp": (_TEXT, instants),
    "io.debezium.time.IsoDate": (_TEXT, partial(iso_texts, kind=Kind.NAIVE_DATE)),
    "io.debezium.time.IsoTime": (_TEXT, partial(iso_texts, kind=Kind.NAIVE_TIME)),
    "io.debezium.time.IsoTimestamp": (_TEXT, partial(iso_texts, kind=Kind.NAIVE_DATETIME)),
    "io.debezium.data.VariableScaleDecimal": (_SCALED, variable_decimals),
    "org.apache.kafka.connect.data.Date": (_INT, dates),
    "org.apache.kafka.connect.data.Time": (_INT, partial(clock_texts, unit="ms")),
    "org.apache.kafka.connect.data.Timestamp": (_LONG, partial(timestamps, unit="ms")),
    DECIMAL: (_TEXT, decimals),
}

Schema = Mapping[str, Any]
_WIRE: Final = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.string(),
}


class UnreadableSchema(ValueError):
    """A schema that cannot be read. The message contains the reason."""


def envelope_type(schema: Any, values: Sequence[Any] = ()) -> pa.DataType:
    """The Arrow type of messages as they are written in JSON.

    Raises UnreadableSchema if the schema is not a struct. Decimals are base64 strings, unless `values`
    contain numbers for them.
    """
    wire_type(schema)
    if schema["type"] != "struct":
        raise UnreadableSchema("it is not a struct")
    return wire_type(schema, numeric=_are_numbers(schema, values))


def wire_type(schema: Any, *, numeric: bool = False, depth: int = 0) -> pa.DataType:
    """The Arrow type of values as they are written in JSON, with bytes as strings.

    Decimals are numbers if `numeric` is set. Raises UnreadableSchema for an invalid schema.
    """
    wire = _wire_type(schema, numeric=numeric, depth=depth)
    name = schema.get("name")
    if not isinstance(name, str | None):
        raise UnreadableSchema(f"`{excerpt(name)}` is not a name")
    if name in LOGICAL and wire != LOGICAL[name][0]:
        raise UnreadableSchema(f"`{name}` is not written as {schema['type']}")
    return _decimal_type(schema) if numeric and name == DECIMAL else wire


def _wire_type(schema: Any, *, numeric: bool, depth: int) -> pa.DataType:
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        raise UnreadableSchema("a schema is not an object" if depth <= DEEPEST else "it is nested too deeply")
    type_ = schema.get("type")
    if type_ == "struct":
        return pa.struct(
            [(name, wire_type(field, numeric=numeric, depth=depth + 1)) for name, field in _fields(schema)]
        )
    if type_ == "array":
        return pa.list_(wire_type(schema.get("items"), numeric=numeric, depth=depth + 1))
    if type_ == "map":
        keys = wire_type(schema.get("keys"), depth=depth + 1)
        items = wire_type(schema.get("values"), depth=depth + 1)
        if keys != pa.string() or schema["values"].get("name") or items == pa.binary():
            raise UnreadableSchema("a map is not from text to plain values")
        return pa.map_(keys, items)
    if not isinstance(type_, str) or type_ not in _WIRE:
        raise UnreadableSchema(f"`{excerpt(type_)}` is not a type")
    return _WIRE[type_]


def _fields(schema: Schema) -> list[tuple[str, Schema]]:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, Mapping) for field in fields):
        raise UnreadableSchema("a struct has no fields")
    names = [field.get("field") for field in fields]
    if not all(isinstance(name, str) and type(name) is not Number for name in names):
        raise UnreadableSchema("a field has no name")
    if twice := repeated_names([str(name) for name in names]):
        raise UnreadableSchema(f"a struct has the field `{excerpt(twice[0])}` twice")
    return list(zip(map(str, names), fields, strict=True))


def _decimal_type(schema: Schema) -> pa.DataType:
    try:
        return decimal_type(_parameters(schema))
    except (pa.ArrowInvalid, ValueError, TypeError) as stop:
        raise UnreadableSchema(f"a decimal has {excerpt(stop)}") from None


def _parameters(schema: Schema) -> Mapping[str, Any]:
    parameters = schema.get("parameters")
    return parameters if isinstance(parameters, Mapping) else {}


def _are_numbers(schema: Schema, values: Sequence[Any]) -> bool:
    """Whether decimals are written as numbers instead of base64.

    Raises UnreadableSchema if both forms occur.
    """
    paths = list(_decimal_paths(schema))
    kinds = {type(cell) for value in values for path in paths for cell in _cells(value, path)}
    if {Number, str} <= kinds:
        raise UnreadableSchema("decimals are written in two ways, as numbers and as base64")
    return Number in kinds


def _decimal_paths(schema: Schema) -> Iterator[tuple[str | None, ...]]:
    """The paths to decimals in a schema. A part is a field's name, or None for the items of a list."""
    if schema.get("name") == DECIMAL:
        yield ()
    elif schema.get("type") == "struct":
        for name, field in _fields(schema):
            yield from ((name, *path) for path in _decimal_paths(field))
    elif schema.get("type") == "array":
        yield from ((None, *path) for path in _decimal_paths(schema["items"]))


def _cells(value: Any, path: tuple[str | None, ...]) -> Iterator[Any]:
    if not path:
        yield value
    elif isinstance(value, dict):
        yield from _cells(value.get(path[0]), path[1:])
    elif isinstance(value, list):
        for item in value:
            yield from _cells(item, path[1:])


def decode_logical(
    values: pa.Array, schema: Schema, column: str, name: str, place: Callable[[int], str]
) -> pa.Array:
    """Convert values of the wire type to the schema's logical type.

    Raises Refused if a value does not match the type.
    """
    if schema.get("type") == "struct" and schema.get("name") not in LOGICAL:

        def decode_field(part: pa.Array, field: Schema, inner: str) -> pa.Array:
            return decode_logical(part, field, f"{column}.{inner}", name, place)

        return _map_fields(values, schema, decode_field)

    def convert(cells: pa.Array) -> pa.Array:
        return _logical_values(cells, schema)

    try:
        type_ = convert(values.slice(0, 0)).type
    except (ValueError, TypeError) as stop:
        raise UnreadableSchema(f"`{excerpt(column)}`: {excerpt(stop)}") from None
    return typed_or_refused(values, pa.field(column, type_), convert, name, place)


def _logical_values(values: pa.Array, schema: Schema) -> pa.Array:
    """Convert nested values to the schema's logical type.

    Raises the errors of the decoders in `LOGICAL`, which do not name a row.
    """
    if schema.get("name") in LOGICAL:
        return LOGICAL[schema["name"]][1](values, _parameters(schema))
    if schema["type"] == "bytes":
        return bytes_of(values, {})
    if schema["type"] == "array":
        return with_items(values, _logical_values(values.flatten(), schema["items"]))
    if schema["type"] == "struct":
        return _map_fields(values, schema, lambda part, field, _name: _logical_values(part, field))
    return values


def _map_fields(
    values: pa.Array, schema: Schema, convert: Callable[[pa.Array, Schema, str], pa.Array]
) -> pa.Array:
    """Structs with each field converted. `convert` takes the values, the schema and the name of a field."""
    fields = _fields(schema)
    parts = [convert(part, field, name) for part, (name, field) in zip(values.flatten(), fields, strict=True)]
    names = [name for name, _ in fields]
    return pa.StructArray.from_arrays(parts, names, mask=values.is_null()) if parts else values
