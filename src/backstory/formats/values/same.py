"""Values as those of another type, exactly: none of them is another value then, or all are refused (E1)."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_WIDEST: Final = 76


def same(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values as another type; pa.ArrowInvalid if one of them is none of it."""
    stored, t = values.type, pa.types
    if stored == type_:
        return values
    if t.is_float16(stored):
        stored = pa.float32()  # Arrow compares no shorter ones
        values = values.cast(stored)
    if t.is_decimal(type_) and t.is_integer(stored):
        # Arrow looks at the digits of values only where a cast makes the precision less.
        return values.cast(pa.decimal256(_WIDEST, type_.scale)).cast(type_)
    if t.is_integer(type_) and t.is_decimal(stored):
        return values.cast(pa.decimal256(_WIDEST, 0)).cast(type_)
    if t.is_integer(type_) and t.is_floating(stored):
        return _whole(values, type_)
    built = values.cast(type_)
    if not _equal(built.cast(stored), values):
        raise pa.ArrowInvalid("a value does not fit")
    return built


def _whole(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Floats as integers: Arrow refuses those beyond 53 bits, though they are whole."""
    wide = values.cast(pa.float64())
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
