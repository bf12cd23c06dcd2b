"""The wider of two types of one family."""

import pyarrow as pa


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of the two that holds the values of both, if one does."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        return max(one, other, key=lambda each: each.precision)
    families = (pa.types.is_integer, pa.types.is_floating)
    if any(family(one) and family(other) for family in families):
        return max(one, other, key=lambda each: each.bit_width)
    return None
