"""Declared types of columns, with the manifest's type names, units and lengths (section 1.9)."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

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
    return _is_narrow(_declared_type(field))


def child_field(field: pa.Field, within: pa.Field, key: str = "") -> pa.Field:
    """A nested field of a struct, list or map, under its name in messages. `key` selects it in a list or map.

    Its metadata contain its declared type, taken from the metadata of the outer field.
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


def _is_narrow(declared: dict[str, Any]) -> bool:
    narrow = _kind(declared) in _NARROW or declared.get("fixedLength") is not None
    return narrow or any(map(_is_narrow, _inner(declared)))


def _inner(declared: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (_without_option(declared[key]) for key in _NAMES if key in declared)
    yield from (_without_option(child.get("type")) for child in declared.get("fields", ()))


def _kind(declared: dict[str, Any]) -> str:
    return str(declared.get("kind", "")).lower()


def _declared_type(field: pa.Field) -> dict[str, Any]:
    """The field's type in the manifest, without its Option, or an empty dictionary if no type is declared."""
    declared = (field.metadata or {}).get(_TYPE)
    return _without_option(json.loads(declared)) if declared else {}


def _without_option(type_: Any) -> dict[str, Any]:
    """The document of a type, without the Option around it."""
    while isinstance(type_, dict) and _kind(type_) == "option":
        type_ = type_.get("inner")
    return type_ if isinstance(type_, dict) else {"kind": str(type_)}
