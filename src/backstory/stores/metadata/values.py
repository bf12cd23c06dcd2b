"""Values between Python and Arrow without pandas, which pyarrow's own ways would load, in half a second."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.same import same
from backstory.model.instant import EPOCH

if TYPE_CHECKING:
    from pyroaring import BitMap64


def integers(values: Sequence[int | None] | np.ndarray, type_: pa.DataType | None = None) -> pa.Array:
    """The numbers as 64 bits each, NULL where there is none; `type_` is another type of that width."""
    if isinstance(values, np.ndarray):
        data, valid = values.astype(np.int64), None
    else:
        known = [each is not None for each in values]
        data = np.fromiter((each or 0 for each in values), np.int64, len(values))
        valid = None if all(known) else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(type_ or pa.int64(), len(values), [valid, pa.py_buffer(data)])


def booleans(values: np.ndarray) -> pa.Array:
    """The truths as Arrow has them."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def without_nulls(truths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The truths with NULL as no."""
    return pc.coalesce(truths, booleans(np.zeros(1, bool))[0])


def truths_of(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The truths as NumPy has them, NULL as no."""
    told = without_nulls(values).cast(pa.uint8())
    whole = told.combine_chunks() if isinstance(told, pa.ChunkedArray) else told
    buffer = whole.buffers()[1] or b""
    return np.frombuffer(buffer, np.uint8)[whole.offset : whole.offset + len(whole)].astype(bool)


def mask_of_visible(hidden: "BitMap64", rows: int) -> pa.Array:
    """Which rows of a file are not hidden."""
    found = np.ones(rows, dtype=bool)
    found[np.asarray(hidden.to_array())] = False
    return booleans(found)


def whole_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The whole numbers of a column that there are."""
    found = column.drop_null().cast(pa.int64()).combine_chunks()
    return np.frombuffer(found.buffers()[1] or b"", np.int64)[found.offset : found.offset + len(found)]


def text_scalar(value: str) -> pa.Scalar:
    """A text as a value of Arrow's."""
    return _of_bytes(value.encode(), pa.string())


def scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """A value of Python's as one of Arrow's, of the type of its column."""
    if isinstance(value, bytes):
        return _of_bytes(value, type_)
    if isinstance(value, datetime):
        micros = (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
        return integers([micros], type_)[0]
    if isinstance(value, date):
        return integers([(value - EPOCH.date()).days])[0].cast(pa.int32()).cast(type_)
    if isinstance(value, float):
        return pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(np.array([value]))])[0].cast(type_)
    written = format(value, "f") if isinstance(value, Decimal) else str(value).lower()
    return text_scalar(value) if isinstance(value, str) else text_scalar(written).cast(type_)


def _of_bytes(value: bytes, type_: pa.DataType) -> pa.Scalar:
    ends = np.array([0, len(value)], np.int32)
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(ends), pa.py_buffer(value)])[0]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, as `to_pylist` gives them; maps as dictionaries."""
    columns = [values_of(each) for each in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, as `to_pylist` gives them; maps as dictionaries, each NaN as the same one.

    A float of 32 bits is the number that its text shows; a time beyond Python's years is its text.
    """
    try:
        return _values(column)
    except (OverflowError, ValueError):  # a year before 1 or after 9999, of which Python has no times
        times = column.type
        return [_with_times(each, times) for each in _values(column.cast(_with_leaves(times, _counted_type)))]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if each is None else EPOCH + timedelta(microseconds=each) for each in micros]
    shown = _with_leaves(column.type, _shown_type)
    if shown != column.type:
        column = pa.chunked_array([same(each, shown) for each in column.chunks], shown)
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return list(map(_one_nan, found)) if _has_floats(column.type) else found


def _shown_type(type_: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_floating(type_) else type_


def _counted_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _with_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with others where nothing is nested any more."""
    t = pa.types
    if t.is_struct(type_):
        return pa.struct([each.with_type(_with_leaves(each.type, leaf)) for each in type_])
    if t.is_map(type_):
        return pa.map_(
            type_.key_field.with_type(_with_leaves(type_.key_type, leaf)),
            type_.item_field.with_type(_with_leaves(type_.item_type, leaf)),
        )
    if t.is_list(type_):
        return pa.list_(type_.value_field.with_type(_with_leaves(type_.value_type, leaf)))
    return leaf(type_)


def _with_times(value: Any, type_: pa.DataType) -> Any:
    """A value whose days and instants are counted from 1970 on, with them as times, or else as texts."""
    t = pa.types
    if value is None:
        return None
    if t.is_struct(type_):
        return {each.name: _with_times(value[each.name], each.type) for each in type_}
    if t.is_map(type_):
        pairs = value.items()
        return {_with_times(key, type_.key_type): _with_times(each, type_.item_type) for key, each in pairs}
    if t.is_list(type_):
        return [_with_times(each, type_.value_type) for each in value]
    return _time(value, type_) if t.is_date(type_) or t.is_timestamp(type_) else value


def _time(counted: int, type_: pa.DataType) -> date | str:
    try:
        if pa.types.is_date(type_):
            return EPOCH.date() + timedelta(days=counted)
        time = EPOCH + timedelta(microseconds=counted)
        return time if type_.tz else time.replace(tzinfo=None)
    except OverflowError:
        return _text_of_time(counted, type_)


def _text_of_time(counted: int, type_: pa.DataType) -> str:
    """The text of a time that Python has none for, its year as ISO 8601 has it: `-0043-03-15`."""
    plain = type_ if pa.types.is_date(type_) else pa.timestamp("us")
    shown = str(pa.scalar(counted, _counted_type(type_)).cast(plain).cast(pa.string()))
    zone = "" if pa.types.is_date(type_) or type_.tz is None else "Z"
    sign = "" if shown.startswith("-") else "+"
    return f"{sign}{shown.replace(' ', 'T').removesuffix('.000000')}{zone}"


def _has_floats(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return _has_floats(type_.key_type) or _has_floats(type_.item_type)
    inner = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_floating(type_) or any(map(_has_floats, inner))


def _one_nan(value: Any) -> Any:
    """The value with the one NaN that equals itself, by identity: rows that have it can be compared."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, dict):
        return {key: _one_nan(each) for key, each in value.items()}
    return list(map(_one_nan, value)) if isinstance(value, list) else value
