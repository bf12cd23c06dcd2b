"""Exact conversions between Arrow types, and from stored values to column types (E1, B25, section 3.4).

If cells need not be `exact`, decimals may be rounded half-even to the column's scale, and times cut to the
microsecond. The sender of such cells converts decimals to doubles (F18), and its times are cut (F6). Any
other loss is refused, because two different values would become the same value (E1).
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.expected import DURATION, TIME, kind_of, map_entries, unit
from backstory.formats.rows import arrow_type, is_list, map_leaves
from backstory.formats.values.cells import (
    DAY,
    UnreadableCell,
    convert_cells,
    count_units,
    parse,
    parse_rounding,
    require_all,
    require_years,
    round_to_scale,
    rounded_to,
    shortest_texts,
)
from backstory.formats.values.texts import TextForms, parser
from backstory.model.types import TEXT_KINDS, ColumnType, Kind

t: Final = pa.types
_WIDEST_256: Final = 76
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def cast_same(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast the values to another type without changing them.

    Raises pa.ArrowInvalid if a value has no equal value in that type. A float has the value of its shortest
    printed number: a 32-bit 72.1 is 72.1 in 64 bits and as a decimal.
    """
    stored = values.type
    if stored == type_:
        return values
    if t.is_nested(type_) and t.is_nested(stored):
        return _same_within(values, type_)
    if has_text(stored):
        values, stored = _texts_of(values), pa.string()
    if t.is_floating(stored):
        return _same_number(values, type_)
    if t.is_decimal(type_) and t.is_integer(stored):
        # Arrow checks the digits of values only if a cast reduces the precision.
        return values.cast(pa.decimal256(_WIDEST_256, type_.scale)).cast(type_)
    if t.is_integer(type_) and t.is_decimal(stored):
        return values.cast(pa.decimal256(_WIDEST_256, 0)).cast(type_)
    return _round_trip(values, type_)


def has_text(type_: pa.DataType) -> bool:
    """Whether the type is Arrow's UUID or JSON. Tables do not have these types, and store the text."""
    return isinstance(type_, pa.UuidType | pa.JsonType)


def _texts_of(values: pa.ExtensionArray) -> pa.Array:
    """The text of JSON values, and UUIDs as 36 characters in lower case, as databases print them."""
    if isinstance(values.type, pa.JsonType):
        return values.storage.cast(pa.string())
    count, stored = len(values), values.storage
    octets = np.frombuffer(stored.buffers()[1] or b"", np.uint8, 16 * count, 16 * stored.offset)
    digits = np.stack([_HEX[octets >> 4], _HEX[octets & 15]], axis=1).reshape(count, 32)
    text = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    ends = (36 * np.arange(count + 1)).astype(np.int32)
    texts = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text)])
    return pc.if_else(stored.is_valid(), texts, pa.scalar(None, pa.string()))


def _same_number(floats: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast floats to another type by their printed numbers."""
    if t.is_floating(type_) and floats.type.bit_width < type_.bit_width:
        return shortest_texts(floats).cast(type_)
    if t.is_decimal(type_):
        return _shown_decimals(floats, type_)
    if t.is_float16(floats.type):
        floats = floats.cast(pa.float32())  # Arrow compares no 16-bit floats
    return _whole_numbers(floats, type_) if t.is_integer(type_) else _round_trip(floats, type_)


def _round_trip(values: pa.Array, type_: pa.DataType) -> pa.Array:
    built = values.cast(type_)
    shown = pa.types.is_decimal(values.type) and pa.types.is_floating(type_)
    back = _shown_decimals(built, values.type) if shown else built.cast(values.type)
    require_all(_equal(back, values))
    return built


def _same_within(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast each nested value of structs, lists or maps."""
    if t.is_struct(type_):
        inner = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        parts = [cast_same(inner[field.name], field.type) for field in type_]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())
    if not t.is_map(type_):
        return with_items(values, cast_same(values.flatten(), type_.value_type), type_)
    lists = map_entries(values)
    keys, items = lists.flatten().flatten()
    keys, items = cast_same(keys, type_.key_type), cast_same(items, type_.item_type)
    return pa.MapArray.from_arrays(_list_ends(lists), keys, items, type_, mask=values.is_null())


def with_items(lists: pa.Array, items: pa.Array, type_: pa.DataType | None = None) -> pa.ListArray:
    """The lists with `items` in place of their own items, in the order of `flatten`."""
    return pa.ListArray.from_arrays(_list_ends(lists), items, type_, mask=lists.is_null())


def _list_ends(lists: pa.Array) -> pa.Array:
    """The offsets of lists, which are empty in place of NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def as_type(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast the values to a type that may have more fields in structs. Missing fields are NULL.

    Arrow's own cast needs the fields in the same order.
    """
    if values.type == type_:
        return values  # Arrow's cast to the same type garbles lists whose items are all NULL
    if pa.types.is_null(values.type):
        return values.cast(type_)
    if pa.types.is_struct(type_) and len(type_):
        own = dict(zip(values.type.names, values.flatten(), strict=True))
        nothing = pa.nulls(len(values))
        parts = [as_type(own.get(field.name, nothing), field.type) for field in type_]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())
    if pa.types.is_list(type_):
        return with_items(values, as_type(values.flatten(), type_.value_type), type_)
    return values.cast(type_)


def _shown_decimals(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast floats to decimals by their printed numbers. Raises pa.ArrowInvalid for NaN and infinity."""
    decimals, lost = round_to_scale(
        shortest_texts(values), ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    )
    if lost:
        raise pa.ArrowInvalid("a value does not fit")
    return decimals.cast(type_)


def _whole_numbers(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast floats to integers. Arrow's own cast refuses whole numbers beyond 53 bits."""
    wide = cast_same(values, pa.float64())
    signed = not pa.types.is_unsigned_integer(type_)
    bound = 2.0 ** (type_.bit_width - signed)
    inside = pc.and_(pc.greater_equal(wide, -bound if signed else 0.0), pc.less(wide, bound))
    require_all(pc.and_(inside, pc.equal(pc.floor(wide), wide)))
    return wide.cast(type_, safe=False)


def _equal(back: pa.Array, values: pa.Array) -> pa.Array:
    """Whether each value is equal in both arrays. Nested values are compared all at once."""
    if pa.types.is_nested(values.type):
        return pa.array([back.equals(values)])
    equal = pc.equal(back, values)
    if pa.types.is_floating(values.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    return equal


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Whichever of the two types holds the values of both, or None if neither does."""
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

    def plain_leaf(leaf: pa.DataType) -> pa.DataType:
        if naive and t.is_timestamp(leaf) and leaf.tz is None:
            return _NAIVE
        for fits, ours in _PLAIN.items():
            if fits(leaf):
                return ours
        if t.is_decimal(leaf) and (digits := leaf.precision - min(leaf.scale, 0)) <= _WIDEST:
            return pa.decimal128(digits, max(leaf.scale, 0))  # tables have no negative scale
        if t.is_dictionary(leaf):
            return map_leaves(leaf.value_type, plain_leaf)
        raise pa.ArrowTypeError

    try:
        return map_leaves(type_, plain_leaf)
    except pa.ArrowTypeError:
        return None


def all_optional(type_: pa.DataType) -> pa.DataType:
    """The type with all nested fields optional, because Arrow requires fields even in a NULL struct."""
    return map_leaves(type_, lambda leaf: leaf)


def merge_types(
    one: pa.DataType, other: pa.DataType, merge_leaf: Callable[[pa.DataType, pa.DataType], pa.DataType]
) -> pa.DataType:
    """The type of the values of both types. Structs have the fields of both, of type null where one lacks it.

    `merge_leaf` merges all types except two structs or two lists.
    """
    if t.is_struct(one) and t.is_struct(other):
        first, second = ({field.name: field.type for field in type_} for type_ in (one, other))
        return pa.struct(
            [
                (name, merge_types(first.get(name, pa.null()), second.get(name, pa.null()), merge_leaf))
                for name in first | second
            ]
        )
    if is_list(one) and is_list(other):
        return pa.list_(merge_types(one.value_type, other.value_type, merge_leaf))
    return merge_leaf(one, other)


def can_become(type_: pa.DataType, field: pa.Field) -> bool:
    """Whether values of the type may fit the field. `cast_exactly` checks each value."""
    target = field.type
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
    return is_list(type_) and t.is_list(target) and _inner_can_become(type_.value_type, target.value_field)


def _inner_can_become(type_: pa.DataType, field: pa.Field) -> bool:
    """Whether values of a nested type may fit the field. Strings inside are not parsed."""
    return can_become(type_, field) and (not _is_text(type_) or _is_text(field.type))


def cast_exactly(values: pa.Array, field: pa.Field) -> pa.Array:
    """Cast the values to the field's `all_optional` type.

    Times are cut to the microsecond. The types must satisfy `can_become`. Raises UnreadableCell or
    pa.ArrowInvalid if a value would change.
    """
    target = all_optional(field.type)
    if t.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if all_optional(values.type) == target or t.is_null(values.type):
        return values.cast(target)
    if _is_text(values.type) and not _is_text(target) and not _is_bytes(target):
        return parser(field, TextForms())(values.cast(pa.string()))
    if t.is_time(values.type) or t.is_duration(values.type):
        return count_units(values, unit(field))
    if t.is_decimal(values.type) and values.type.scale < 0 and t.is_decimal(target):
        return values.cast(target)  # no cast leads back to a negative scale
    if t.is_timestamp(values.type) and values.type.unit == "ns" and t.is_timestamp(target):
        # Floor, because a cast rounds up before 1970. Use UTC, because local clocks repeat an hour.
        values = pc.floor_temporal(in_utc(values), unit="microsecond")
    if t.is_nested(target):
        # Copy the slice, because Arrow also casts the values outside it.
        values = values.take(pa.array(range(len(values)), pa.int64()))
        values = values.cast(merge_types(values.type, target, _fill_null_type))
    printed = _is_text(target) and not has_text(values.type)
    return values.cast(target) if printed else cast_same(values, target)


def in_utc(values: pa.Array) -> pa.Array:
    """Times with a zone, relabeled as UTC without changing their numbers. Other times are unchanged."""
    return values.cast(pa.timestamp(values.type.unit, "UTC")) if values.type.tz else values


def _fill_null_type(type_: pa.DataType, target: pa.DataType) -> pa.DataType:
    """The type, with null types replaced by the target's types. No cast can convert a value back to null."""
    if t.is_map(type_):
        pairs = ((type_.key_type, target.key_type), (type_.item_type, target.item_type))
        return pa.map_(*(merge_types(*pair, _fill_null_type) for pair in pairs))
    return target if t.is_null(type_) else type_


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def _is_bytes(type_: pa.DataType) -> bool:
    fixed = t.is_fixed_size_binary(type_) and not t.is_decimal(type_)
    return bool(t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_) or fixed)


def is_number(type_: pa.DataType) -> bool:
    """Whether the values of the type are integers, floats or decimals."""
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


def _is_printed(type_: pa.DataType) -> bool:
    return is_number(type_) or pa.types.is_boolean(type_) or pa.types.is_date(type_) or _is_bytes(type_)


def _is_day(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


_MAY: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = [
    (is_number, is_number),
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

# Digits of a second beyond the microsecond.
_FINER: Final = r"\.\d{6}\d*[1-9]"
_TIMES: Final = {Kind.NAIVE_TIME, Kind.UTC_DATETIME, Kind.NAIVE_DATETIME}


def parse_leniently(text: pa.Array, type_: ColumnType, *, exact: bool) -> tuple[pa.Array, int]:
    """The cells as values of the type, and the number of rounded cells. Raises UnreadableCell."""
    if exact and type_.kind in _TIMES:
        row = pc.index(pc.match_substring_regex(text, _FINER), pa.scalar(True)).as_py()
        if row >= 0:
            raise UnreadableCell(row)
    return (parse(text, type_), 0) if exact else parse_rounding(text, type_)


_DAYS: Final = frozenset({Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})


def from_stored(cells: pa.Array, type_: ColumnType, *, exact: bool) -> tuple[pa.Array, int]:
    """The `bare` cells as values of the column's type, and the number of rounded decimals (F18).

    Strings are read as in CSV. Numbers keep their values. In a text column, a number, a day or an id becomes
    its printed form. Raises UnreadableCell for the first cell that has no such value or is of an incompatible
    type.
    """
    if t.is_null(cells.type):
        return pa.nulls(len(cells), arrow_type(type_)), 0
    if isinstance(cells.type, pa.UuidType) and type_.kind is Kind.STRING:
        cells = _texts_of(cells)
    if t.is_string(cells.type):
        return parse_leniently(cells, type_, exact=exact)
    if not _may_be(cells.type, type_):
        raise UnreadableCell(0)
    if type_.kind is Kind.DECIMAL and t.is_decimal(cells.type) and not exact:
        return rounded_to(cells, type_)
    if type_.kind in TEXT_KINDS or (type_.kind is Kind.DECIMAL and t.is_floating(cells.type)):
        # A float becomes its shortest string, which a CSV file would contain.
        return parse_leniently(convert_cells(cells, lambda part: part.cast(pa.string())), type_, exact=exact)
    return convert_cells(cells, lambda part: _convert_cells(part, type_, exact=exact)), 0


def bare(cells: pa.Array) -> pa.Array:
    """The cells without dictionary encoding, JSON type or large offsets.

    Raises pa.ArrowInvalid for text that is not UTF-8.
    """
    if t.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if isinstance(cells.type, pa.JsonType):
        cells = cells.storage
    if _is_text(cells.type):
        cells.validate(full=True)
        return cells.cast(pa.string())
    return cells.cast(pa.binary()) if _is_bytes(cells.type) else cells


def _may_be(stored: pa.DataType, type_: ColumnType) -> bool:
    """Whether the stored type and the column's type belong to the same family.

    Numbers and days are different families.
    """
    is_day = t.is_date(stored) or t.is_timestamp(stored)
    if type_.kind is Kind.NAIVE_TIME:
        return bool(t.is_time(stored))
    if type_.kind is Kind.NAIVE_DATETIME and t.is_timestamp(stored):
        return stored.tz is None
    if type_.kind in _DAYS:
        return bool(is_day)
    if type_.kind is Kind.BINARY:
        return bool(t.is_binary(stored))
    is_number = any(test(stored) for test in (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean))
    return is_number or (type_.kind in TEXT_KINDS and bool(is_day or t.is_binary(stored)))


def _convert_cells(cells: pa.Array, type_: ColumnType, *, exact: bool) -> pa.Array:
    if type_.kind is Kind.BINARY:
        return cells
    if type_.kind not in _DAYS:
        narrow = pa.int16() if type_.kind is Kind.SHORT else arrow_type(type_)
        return cast_same(cells, narrow).cast(arrow_type(type_))
    if t.is_timestamp(cells.type) and cells.type.unit == "ns" and not exact:
        # Floor to the microsecond, because a cast rounds up before 1970.
        cells = pc.floor_temporal(in_utc(cells), unit="microsecond")
    days = cast_same(cells, arrow_type(type_))
    is_date = type_.kind is Kind.NAIVE_DATE
    require_years(days.cast(pa.int32() if is_date else pa.int64()), 1 if is_date else DAY)
    return days
