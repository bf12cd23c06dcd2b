"""Casts of Arrow values that keep every value equal, or fail (E1)."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.digits import round_to_scale, shortest_texts
from backstory.model.types import ColumnType, Kind

_WIDEST: Final = 76
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def cast_same(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values as another type.

    Raises pa.ArrowInvalid if a value has no equal in that type. A float means its shortest printed number: a
    32-bit 72.1 is 72.1 in 64 bits and as a decimal.
    """
    stored, t = values.type, pa.types
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
        return values.cast(pa.decimal256(_WIDEST, type_.scale)).cast(type_)
    if t.is_integer(type_) and t.is_decimal(stored):
        return values.cast(pa.decimal256(_WIDEST, 0)).cast(type_)
    return _round_trip(values, type_)


def has_text(type_: pa.DataType) -> bool:
    """Whether the type is Arrow's UUID or JSON. Tables have no such types, and store their text."""
    return isinstance(type_, pa.UuidType | pa.JsonType)


def _texts_of(values: pa.ExtensionArray) -> pa.Array:
    """The text of JSON, and UUIDs as 36 characters with small letters, as databases print them."""
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
    """Floats as another type, by their printed numbers."""
    t = pa.types
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
    if not _equal(back, values):
        raise pa.ArrowInvalid("a value does not fit")
    return built


def _same_within(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Structs, lists and maps with each nested value cast."""
    t = pa.types
    if t.is_struct(type_):
        inner = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        parts = [cast_same(inner[field.name], field.type) for field in type_]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())
    lists = values
    if t.is_map(type_):  # Arrow flattens maps only as lists of their entries
        entry = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        lists = values.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    nothing = values.is_null()
    if not t.is_map(type_):
        return pa.ListArray.from_arrays(
            ends, cast_same(lists.flatten(), type_.value_type), type_, mask=nothing
        )
    keys, items = lists.flatten().flatten()
    return pa.MapArray.from_arrays(
        ends, cast_same(keys, type_.key_type), cast_same(items, type_.item_type), type_, mask=nothing
    )


def _shown_decimals(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Floats as decimals, by their printed numbers. Raises pa.ArrowInvalid for NaN and infinity."""
    decimals, lost = round_to_scale(
        shortest_texts(values), ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    )
    if lost:
        raise pa.ArrowInvalid("a value does not fit")
    return decimals.cast(type_)


def _whole_numbers(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Floats as integers. Arrow's own cast refuses whole numbers beyond 53 bits."""
    wide = cast_same(values, pa.float64())
    signed = not pa.types.is_unsigned_integer(type_)
    bound = 2.0 ** (type_.bit_width - signed)
    inside = pc.and_(pc.greater_equal(wide, -bound if signed else 0.0), pc.less(wide, bound))
    if not pc.all(pc.and_(inside, pc.equal(pc.floor(wide), wide)), min_count=0).as_py():
        raise pa.ArrowInvalid("a value does not fit")
    return wide.cast(type_, safe=False)


def _equal(back: pa.Array, values: pa.Array) -> bool:
    if pa.types.is_nested(values.type):
        return bool(back.equals(values))
    equal = pc.equal(back, values)
    if pa.types.is_floating(values.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    return bool(pc.all(equal, min_count=0).as_py())
