"""What a column's values have to be: its type as the manifest calls it, and its range (section 1.9)."""

import json
from decimal import Decimal
from typing import Any

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
_TYPE = b"odf"  # the metadata in which a field keeps its type
# The types whose Arrow type holds more than they do.
_RANGES = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint8": (0, (1 << 8) - 1),
    "uint16": (0, (1 << 16) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1),
}


def told(field: pa.Field) -> str:
    """The type of a field, as messages name it."""
    type_ = field.type
    if pa.types.is_nested(type_):
        return str(type_).split("<", maxsplit=1)[0].capitalize()
    kind = _declared(field).get("kind", _ARROW.get(type_, str(type_)))
    # UInt64 is stored as a decimal, and a decimal is more than its name.
    if pa.types.is_decimal(type_) and kind.lower() not in _RANGES:
        return f"Decimal({type_.precision}, {type_.scale})"
    return str(kind)


def is_narrow(field: pa.Field) -> bool:
    """Whether the field's Arrow type holds more than its type does."""
    return _kind(field) in {*_RANGES, "null"}


def within_range(values: pa.Array, field: pa.Field) -> int | None:
    """The first value that its type's range does not hold; None if all are good."""
    kind = _kind(field)
    if kind == "null":
        return _first(values.is_null())
    if kind not in _RANGES:
        return None
    least, greatest = (_scalar(bound, values.type) for bound in _RANGES[kind])
    return _first(pc.and_(pc.greater_equal(values, least), pc.less_equal(values, greatest)))


def child(field: pa.Field, within: pa.Field, key: str = "") -> pa.Field:
    """A field of a struct or, with its `key`, of a list or map, under the name that messages give it.

    It keeps its own type out of those that the metadata of the outer field tell of.
    """
    declared = _declared(field)
    if key:
        inner = declared.get(key)
    else:
        fields = declared.get("fields", ())
        inner = next((each.get("type") for each in fields if each.get("name") == within.name), None)
    made = within.with_name(f"{field.name}.{_NAMES.get(key, within.name)}")
    return made if inner is None else made.with_metadata({_TYPE: json.dumps(inner)})


_NAMES = {"itemType": "element", "keyType": "key", "valueType": "value"}


def _first(good: pa.Array) -> int | None:
    row = pc.index(good, False).as_py()
    return None if row < 0 else row


def _scalar(bound: int, type_: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(type_):
        return pa.scalar(Decimal(bound), pa.decimal128(20, 0))
    return pa.scalar(bound, pa.int64())


def _kind(field: pa.Field) -> str:
    return str(_declared(field).get("kind", "")).lower()


def _declared(field: pa.Field) -> dict[str, Any]:
    """The field's type in the manifest, without its Option; empty if it is not kept."""
    kept = (field.metadata or {}).get(_TYPE)
    type_: Any = json.loads(kept) if kept else {}
    while isinstance(type_, dict) and str(type_.get("kind", "")).lower() == "option":
        type_ = type_.get("inner")
    return type_ if isinstance(type_, dict) else {"kind": str(type_)}
