"""Values that their type has no room for, with all that is in them (section 1.9).

Arrow holds more than a table of ours: any number as a UInt8, days of the year 10000, NULL in a list whose
items are required.
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
    pa.timestamp("us", "UTC"): (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
}


class Unfit(NamedTuple):
    """The row of a value that its type does not hold, the value, and the field that it is of."""

    row: int
    value: pa.Scalar
    field: pa.Field


def first_unfit(values: pa.Array, field: pa.Field) -> Unfit | None:
    """The first value that its type does not hold, or one in it; None if all are good.

    NULL in a required column is not looked at, in a required field of what is nested it is.
    """
    row = first_unfit_row(values, field)
    if row is not None:
        return Unfit(row, values[row], field)
    found = [_first_in(*part) for part in _parts(values, field)] if pa.types.is_nested(field.type) else []
    return min((each for each in found if each), key=lambda each: each.row, default=None)


def first_unfit_row(values: pa.Array, field: pa.Field) -> int | None:
    """The first value that its type does not hold, whatever is in it; None if all are good."""
    good = _good(values, field)
    row = -1 if good is None else pc.index(good, False).as_py()
    return None if row < 0 else row


def _good(values: pa.Array, field: pa.Field) -> pa.Array | None:
    """Which of the values are good; None if all of the Arrow type are."""
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
    """The first one of some values that lie in those of `rows`."""
    if not field.nullable and inner.null_count:
        place = pc.index(inner.is_null(), True).as_py()
        return Unfit(int(rows[place]), inner[place], field)
    found = first_unfit(inner, field)
    return found and found._replace(row=int(rows[found.row]))


def _parts(values: pa.Array, field: pa.Field) -> Iterator[tuple[pa.Array, pa.Field, np.ndarray]]:
    """What is in structs, lists and maps: values, their field, and for each the row that it is in."""
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
    """Maps as lists of key and value: Arrow takes the ones apart, and not the others."""
    type_ = maps.type
    return maps.cast(pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)])))
