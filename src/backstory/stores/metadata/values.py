"""Conversions of values between Python and Arrow."""

import math
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import leaf_types, map_leaves
from backstory.formats.values.exactly import cast_same
from backstory.model.instant import EPOCH

if TYPE_CHECKING:
    from pyroaring import BitMap64


def truths_of(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The booleans as a NumPy array, with False for NULL."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def mask_of_visible(deleted: "BitMap64 | None", rows: int) -> pa.Array | None:
    """A mask of a file's rows that are not deleted, or None if no row is deleted."""
    if deleted is None:
        return None
    mask = np.ones(rows, dtype=bool)
    mask[np.asarray(deleted.to_array())] = False
    return pa.array(mask)


def whole_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The non-NULL integers of a column."""
    values = column.drop_null().cast(pa.int64()).combine_chunks()
    return np.frombuffer(values.buffers()[1] or b"", np.int64)[values.offset : values.offset + len(values)]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as `to_pylist` returns them. Maps are dictionaries."""
    columns = [values_of(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as `to_pylist` returns them. Maps are dictionaries, and all NaN are one object.

    A map that no dictionary can hold, because a key is nested or repeated, is a list of pairs. A 32-bit float
    becomes the number that its string shows. A time outside of Python's years becomes a string.
    """
    try:
        return _values(column)
    except (OverflowError, ValueError):  # a year before 1 or after 9999, which Python's times lack
        times = column.type
        counted = _values(column.cast(map_leaves(times, _counted_type)))
        return [_with_times(value, times) for value in counted]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if value is None else EPOCH + timedelta(microseconds=value) for value in micros]
    shown = map_leaves(column.type, lambda leaf: pa.float64() if pa.types.is_floating(leaf) else leaf)
    if shown != column.type:
        column = pa.chunked_array([cast_same(chunk, shown) for chunk in column.chunks], shown)
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError):  # a repeated key, or a nested one
        values = column.to_pylist()
    return list(map(_one_nan, values)) if any(map(pa.types.is_floating, leaf_types(column.type))) else values


def _counted_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _with_times(value: Any, type_: pa.DataType) -> Any:
    """A value with times, or times as strings, instead of the days and microseconds since 1970."""
    t = pa.types
    if value is None:
        return None
    if t.is_struct(type_):
        return {field.name: _with_times(value[field.name], field.type) for field in type_}
    if t.is_map(type_):
        pairs = value.items() if isinstance(value, dict) else value
        shown = [
            (_with_times(key, type_.key_type), _with_times(item, type_.item_type)) for key, item in pairs
        ]
        return dict(shown) if isinstance(value, dict) else shown
    if t.is_list(type_):
        return [_with_times(element, type_.value_type) for element in value]
    return _time(value, type_) if t.is_date(type_) or t.is_timestamp(type_) else value


def _time(counted: int, type_: pa.DataType) -> date | str:
    try:
        if pa.types.is_date(type_):
            return EPOCH.date() + timedelta(days=counted)
        time = EPOCH + timedelta(microseconds=counted)
        return time if type_.tz else time.replace(tzinfo=None)
    except OverflowError:
        # A time that Python cannot represent, as a string with an ISO 8601 year: `-0043-03-15`.
        shown = str(np.datetime64(counted, "D" if pa.types.is_date(type_) else "us"))
        zone = "" if pa.types.is_date(type_) or type_.tz is None else "Z"
        year, month, rest = shown.removesuffix(".000000").rsplit("-", 2)
        return f"{int(year):+05d}-{month}-{rest}{zone}"


def _one_nan(value: Any) -> Any:
    """The value with the same object for every NaN, so that any two NaN values are identical."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, dict):
        return {key: _one_nan(item) for key, item in value.items()}
    return type(value)(map(_one_nan, value)) if isinstance(value, list | tuple) else value
