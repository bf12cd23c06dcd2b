"""Exact conversions between Arrow types, and the table type for an Arrow type (B25)."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.expected import DURATION, TIME, kind_of, unit
from backstory.formats.values.cells import count_units
from backstory.formats.values.same import cast_same, has_text
from backstory.formats.values.texts import TextForms, parser


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type, of the two, that holds the values of both, or None if neither does."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        return max(one, other, key=lambda type_: type_.precision)
    families = (pa.types.is_integer, pa.types.is_floating)
    if any(family(one) and family(other) for family in families):
        return max(one, other, key=lambda type_: type_.bit_width)
    return None


_INSTANT, _NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
_WIDEST = 38


def plain_type(type_: pa.DataType, *, naive: bool = False) -> pa.DataType | None:
    """The table type that holds all values of an Arrow type, or None if no table type does.

    A time without a zone stays without one if `naive` is set; otherwise it is UTC.
    """
    t = pa.types
    if t.is_nested(type_):
        return _plain_nested(type_, naive=naive)
    if naive and t.is_timestamp(type_) and type_.tz is None:
        return _NAIVE
    for fits, ours in _PLAIN.items():
        if fits(type_):
            return ours
    if t.is_decimal(type_) and (digits := type_.precision - min(type_.scale, 0)) <= _WIDEST:
        return pa.decimal128(digits, max(type_.scale, 0))  # tables have no negative scale
    return plain_type(type_.value_type, naive=naive) if t.is_dictionary(type_) else None


def _plain_nested(type_: pa.DataType, *, naive: bool) -> pa.DataType | None:
    t = pa.types
    if t.is_struct(type_):
        inner = [(field.name, plain_type(field.type, naive=naive)) for field in type_]
        return None if any(kind is None for _, kind in inner) else pa.struct(inner)
    if t.is_map(type_):
        key, item = (plain_type(part, naive=naive) for part in (type_.key_type, type_.item_type))
        return None if key is None or item is None else pa.map_(key, item)
    if _is_list(type_):
        item = plain_type(type_.value_type, naive=naive)
        return None if item is None else pa.list_(item)
    return None


def all_optional(type_: pa.DataType) -> pa.DataType:
    """The type with all nested fields optional, because Arrow requires fields even in a NULL struct."""
    t = pa.types
    if t.is_struct(type_):
        return pa.struct([(field.name, all_optional(field.type)) for field in type_])
    if t.is_map(type_):
        return pa.map_(all_optional(type_.key_type), all_optional(type_.item_type))
    return pa.list_(all_optional(type_.value_type)) if t.is_list(type_) else type_


def can_become(type_: pa.DataType, field: pa.Field) -> bool:
    """Whether values of the type may fit the field. `cast_exactly` checks each value."""
    target, t = field.type, pa.types
    if t.is_dictionary(type_):
        return can_become(type_.value_type, field)
    if type_ == target or t.is_null(type_):
        return True
    if t.is_time(type_) or t.is_duration(type_):
        return kind_of(field) == (TIME if t.is_time(type_) else DURATION)
    if t.is_nested(type_) or t.is_nested(target):
        return _nested_can_become(type_, target)
    if _is_text(type_) and not _is_bytes(target):
        return not t.is_null(target)
    return any(source(type_) and goal(target) for source, goal in _MAY)


def _nested_can_become(type_: pa.DataType, target: pa.DataType) -> bool:
    t = pa.types
    if t.is_struct(type_) and t.is_struct(target):
        ours = {field.name: field for field in target}
        names = [field.name for field in type_]
        # A field that one of them lacks would become NULL or be lost.
        same = sorted(names) == sorted(ours) and len(ours) == len(names)
        return same and all(_inner_can_become(field.type, ours[field.name]) for field in type_)
    if t.is_map(type_) and t.is_map(target):
        return _inner_can_become(type_.key_type, target.key_field) and _inner_can_become(
            type_.item_type, target.item_field
        )
    return _is_list(type_) and t.is_list(target) and _inner_can_become(type_.value_type, target.value_field)


def _inner_can_become(type_: pa.DataType, field: pa.Field) -> bool:
    """Whether values of a nested type may fit the field. Strings inside are not parsed."""
    return can_become(type_, field) and (not _is_text(type_) or _is_text(field.type))


def cast_exactly(values: pa.Array, field: pa.Field) -> pa.Array:
    """Cast the values to the field's `all_optional` type.

    Times are cut to the microsecond. The types must satisfy `can_become`. Raises UnreadableCell or
    pa.ArrowInvalid if a value would change.
    """
    target, t = all_optional(field.type), pa.types
    if t.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if all_optional(values.type) == target or t.is_null(values.type):
        return values.cast(target)
    if _is_text(values.type) and not _is_text(target) and not _is_bytes(target):
        return parser(field, TextForms())(values.cast(pa.string()))
    if t.is_time(values.type) or t.is_duration(values.type):
        return count_units(values, unit(field))
    if t.is_timestamp(values.type) and values.type.unit == "ns" and t.is_timestamp(target):
        # Floor, because a cast rounds up before 1970. Use UTC, because local clocks repeat an hour.
        values = pc.floor_temporal(in_utc(values), unit="microsecond")
    if t.is_nested(target):
        # Copy the slice, because Arrow also casts the values outside it.
        values = values.take(pa.array(range(len(values)), pa.int64()))
        values = values.cast(_fill_null_types(values.type, target))
    printed = _is_text(target) and not has_text(values.type)
    return values.cast(target) if printed else cast_same(values, target)


def in_utc(values: pa.Array) -> pa.Array:
    """Times of any zone in UTC, with the same numbers. Times without a zone are unchanged."""
    return values.cast(pa.timestamp(values.type.unit, "UTC")) if values.type.tz else values


def _fill_null_types(type_: pa.DataType, target: pa.DataType) -> pa.DataType:
    """The type, with null types replaced by the target's types. No cast can convert a value back to null."""
    t = pa.types
    if t.is_null(type_):
        return target
    if t.is_struct(type_):
        return pa.struct(
            [(field.name, _fill_null_types(field.type, target.field(field.name).type)) for field in type_]
        )
    if t.is_map(type_):
        return pa.map_(
            _fill_null_types(type_.key_type, target.key_type),
            _fill_null_types(type_.item_type, target.item_type),
        )
    return pa.list_(_fill_null_types(type_.value_type, target.value_type)) if _is_list(type_) else type_


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def _is_bytes(type_: pa.DataType) -> bool:
    t = pa.types
    fixed = t.is_fixed_size_binary(type_) and not t.is_decimal(type_)
    return bool(t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_) or fixed)


def _is_list(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_))


def _is_number(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


def _is_printed(type_: pa.DataType) -> bool:
    return _is_number(type_) or pa.types.is_boolean(type_) or pa.types.is_date(type_) or _is_bytes(type_)


def _is_day(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


_MAY: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = [
    (_is_number, _is_number),
    (_is_day, _is_day),
    (_is_printed, _is_text),
    (has_text, _is_text),
    (_is_text, _is_bytes),
    (_is_bytes, _is_bytes),
    (pa.types.is_boolean, pa.types.is_boolean),
]

_PLAIN: dict[Callable[[pa.DataType], bool], pa.DataType] = {
    pa.types.is_boolean: pa.bool_(),
    lambda t: t in {pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()}: pa.int32(),
    lambda t: t in {pa.int64(), pa.uint32()}: pa.int64(),
    pa.types.is_uint64: pa.decimal128(20, 0),
    lambda t: t in {pa.float16(), pa.float32()}: pa.float32(),
    pa.types.is_float64: pa.float64(),
    pa.types.is_date: pa.date32(),
    pa.types.is_timestamp: _INSTANT,
    _is_text: pa.string(),
    has_text: pa.string(),
    _is_bytes: pa.binary(),
    pa.types.is_null: pa.null(),
}
