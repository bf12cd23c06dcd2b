"""Checks for values that the declared type does not allow, including nested values (section 1.9).

Arrow types allow more values: any number as a UInt8, days of the year 10000, NULL in a list with required
items.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.expected import NULL, RANGES, TIME, inner_fields, kind_of, length, unit

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
    """The row of the first invalid value, without a check of nested values, or None if all are valid."""
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
    return _is_between(values, *_YEARS[values.type]) if values.type in _YEARS else None


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
    """The values nested in structs, lists and maps.

    Each part has its field, and the outer row for each value.
    """
    type_ = field.type
    if pa.types.is_struct(type_):
        rows, inner = np.flatnonzero(values.is_valid()), values.drop_null().flatten()
    else:
        lists = _entries(values) if pa.types.is_map(type_) else values
        rows = np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0))
        inner = lists.flatten().flatten() if pa.types.is_map(type_) else [lists.flatten()]
    for part, within in zip(inner, inner_fields(field), strict=True):
        yield part, within, rows


def _entries(maps: pa.MapArray) -> pa.ListArray:
    """Maps as lists of key-value structs, because Arrow flattens lists but not maps."""
    type_ = maps.type
    return maps.cast(pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)])))
