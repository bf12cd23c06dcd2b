"""Declared column types, and checks for values that these types do not allow (section 1.9).

Arrow types allow more values. Examples are any number as a UInt8, days of the year 10000, text that is not
UTF-8, and NULL in a list with required items.
"""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ARROW = {
    pa.bool_(): "Bool",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date",
    pa.timestamp("us", "UTC"): "Timestamp",
    pa.string(): "String",
    pa.binary(): "Binary",
    pa.null(): "Null",
}
_TYPE = b"odf"  # the metadata key of a field's declared type
TIME, DURATION, NULL = "time", "duration", "null"
# The integers whose Arrow type has a wider range than the declared type.
RANGES = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint8": (0, (1 << 8) - 1),
    "uint16": (0, (1 << 16) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1),
}
_NARROW = {*RANGES, TIME, NULL}
_UNITS = {"second": "s", "millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}
_UNIT = "Millisecond"


def type_name(field: pa.Field) -> str:
    """The type of a field in error messages, such as `Decimal(10, 2)`."""
    type_, declared = field.type, _declared_type(field)
    name = str(declared.get("kind", _ARROW.get(type_, str(type_))))
    if pa.types.is_nested(type_):
        name = str(type_).split("<", maxsplit=1)[0].capitalize()
    if name.lower() in {TIME, DURATION}:
        return f"{name}({declared.get('unit', _UNIT)})"
    # UInt64 is stored as a decimal; the name of a decimal includes precision and scale.
    if pa.types.is_decimal(type_) and name.lower() not in RANGES:
        return f"Decimal({type_.precision}, {type_.scale})"
    fixed = length(field)
    return name if fixed is None else f"{name}({fixed})"


def kind_of(field: pa.Field) -> str:
    """The type's name in the manifest, in lower case, or an empty string if no type is declared."""
    return _kind(_declared_type(field))


def unit(field: pa.Field) -> str:
    """Arrow's name for the unit of a Time or a Duration."""
    return _UNITS[str(_declared_type(field).get("unit", _UNIT)).lower()]


def length(field: pa.Field) -> int | None:
    """The number of bytes or items that a value must have, or None if any length is valid."""
    return _declared_type(field).get("fixedLength")


def is_narrow(field: pa.Field) -> bool:
    """Whether the Arrow type of the field, or of a nested one, allows more values than the declared type."""
    narrow = kind_of(field) in _NARROW or length(field) is not None
    return narrow or (pa.types.is_nested(field.type) and any(map(is_narrow, inner_fields(field))))


def child_field(field: pa.Field, within: pa.Field, key: str = "") -> pa.Field:
    """A nested field of a struct, list or map, under its name in messages.

    `key` selects the nested type of a list or map. The nested field's metadata contain its declared type,
    which is taken from the outer field's metadata.
    """
    declared = _declared_type(field)
    if key:
        inner = declared.get(key)
    else:
        fields = declared.get("fields", ())
        inner = next((child.get("type") for child in fields if child.get("name") == within.name), None)
    built = within.with_name(f"{field.name}.{_NAMES.get(key, within.name)}")
    return built if inner is None else built.with_metadata({_TYPE: json.dumps(inner)})


def inner_fields(field: pa.Field) -> list[pa.Field]:
    """The fields inside a nested field, under their names in messages. A map has a key and a value."""
    type_ = field.type
    if pa.types.is_struct(type_):
        return [child_field(field, child) for child in type_]
    if pa.types.is_map(type_):
        return [
            child_field(field, type_.key_field, "keyType"),
            child_field(field, type_.item_field, "valueType"),
        ]
    return [child_field(field, type_.value_field, "itemType")]


_NAMES = {"itemType": "element", "keyType": "key", "valueType": "value"}


def _kind(declared: dict[str, Any]) -> str:
    return str(declared.get("kind", "")).lower()


def _declared_type(field: pa.Field) -> dict[str, Any]:
    """The field's type in the manifest, without its Option, or an empty dictionary if no type is declared."""
    declared = (field.metadata or {}).get(_TYPE)
    return _without_option(json.loads(declared)) if declared else {}


def _without_option(type_: Any) -> dict[str, Any]:
    """The document of a type, without the Option that encloses it."""
    while isinstance(type_, dict) and _kind(type_) == "option":
        type_ = type_.get("inner")
    return type_ if isinstance(type_, dict) else {"kind": str(type_)}


_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_YEARS: dict[pa.DataType, tuple[Any, Any]] = {
    pa.date32(): (date.min, date.max),
    pa.timestamp("us"): (datetime.min, datetime.max),  # noqa: DTZ901 - the type has no zone
    pa.timestamp("us", "UTC"): (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
}


class Unfit(NamedTuple):
    """A value that its declared type does not allow, with its row and its field."""

    row: int
    value: pa.Scalar
    field: pa.Field

    @property
    def is_bad_text(self) -> bool:
        """Whether the value is text that is not UTF-8."""
        is_text = pa.types.is_string(self.field.type) and kind_of(self.field) != NULL
        return is_text and self.value.is_valid


def first_unfit(values: pa.Array, field: pa.Field) -> Unfit | None:
    """The first invalid value, which may be nested in another value, or None if all are valid.

    NULL is checked in a required nested field, but not in a required column.
    """
    row = first_unfit_row(values, field)
    if row is not None:
        return Unfit(row, values[row], field)
    nested = [_first_in(*part) for part in _parts(values, field)] if pa.types.is_nested(field.type) else []
    return min((unfit for unfit in nested if unfit), key=lambda unfit: unfit.row, default=None)


def first_unfit_row(values: pa.Array, field: pa.Field) -> int | None:
    """The row of the first invalid value, or None if all are valid. Nested values are not checked."""
    good = _good(values, field)
    row = -1 if good is None else pc.index(good, False).as_py()
    return None if row < 0 else row


def _good(values: pa.Array, field: pa.Field) -> pa.Array | None:
    """Whether each value is valid, or None if every value of the Arrow type is valid."""
    declared, fixed = kind_of(field), length(field)
    if fixed is not None:
        is_list = pa.types.is_list(values.type)
        return pc.equal(pc.list_value_length(values) if is_list else pc.binary_length(values), fixed)
    if declared == NULL:
        return values.is_null()
    if declared == TIME:
        return _is_between(values, 0, _DAY[unit(field)] - 1)
    if declared in RANGES:
        return _is_between(values, *RANGES[declared])
    if pa.types.is_string(values.type):
        return _is_utf8(values)
    return _is_between(values, *_YEARS[values.type]) if values.type in _YEARS else None


def _is_utf8(values: pa.Array) -> pa.Array | None:
    """Whether each text is UTF-8, or None if all are. Arrow checks neither views nor Parquet files."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        texts = values.cast(pa.binary()).to_pylist()
        return pa.array([text is None or text == text.decode(errors="replace").encode() for text in texts])
    return None


def _is_between(values: pa.Array, least: Any, greatest: Any) -> pa.Array:
    if pa.types.is_decimal(values.type):
        least, greatest = Decimal(least), Decimal(greatest)
    elif pa.types.is_integer(values.type):
        values = values.cast(pa.int64())
    bounds = (pa.scalar(bound, values.type) for bound in (least, greatest))
    return pc.and_(pc.greater_equal(values, next(bounds)), pc.less_equal(values, next(bounds)))


def _first_in(inner: pa.Array, field: pa.Field, rows: np.ndarray) -> Unfit | None:
    """The first invalid nested value. `rows` has the outer row of each value."""
    if not field.nullable and inner.null_count:
        place = pc.index(inner.is_null(), True).as_py()
        return Unfit(int(rows[place]), inner[place], field)
    unfit = first_unfit(inner, field)
    return unfit and unfit._replace(row=int(rows[unfit.row]))


def _parts(values: pa.Array, field: pa.Field) -> Iterator[tuple[pa.Array, pa.Field, np.ndarray]]:
    """The values nested in structs, lists and maps, each with its field and the outer row of each value."""
    type_ = field.type
    if pa.types.is_struct(type_):
        rows, inner = np.flatnonzero(values.is_valid()), values.drop_null().flatten()
    else:
        lists = map_entries(values) if pa.types.is_map(type_) else values
        rows = np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0))
        inner = lists.flatten().flatten() if pa.types.is_map(type_) else [lists.flatten()]
    for part, within in zip(inner, inner_fields(field), strict=True):
        yield part, within, rows


def map_entries(maps: pa.MapArray) -> pa.ListArray:
    """Convert maps to lists of key-value structs, because Arrow flattens lists but not maps."""
    type_ = maps.type
    return maps.cast(pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)])))
