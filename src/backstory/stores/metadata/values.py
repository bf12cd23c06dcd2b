"""Values between Python and Arrow without pandas, which pyarrow's own ways would load, in half a second."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from backstory.model.instant import EPOCH


def integers(values: Sequence[int | None] | np.ndarray, type_: pa.DataType | None = None) -> pa.Array:
    """The numbers as 64 bits each, NULL where there is none; `type_` is another type of that width."""
    if isinstance(values, np.ndarray):
        data, valid = values.astype(np.int64), None
    else:
        known = [each is not None for each in values]
        data = np.fromiter((each or 0 for each in values), np.int64, len(values))
        valid = None if all(known) else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(type_ or pa.int64(), len(values), [valid, pa.py_buffer(data)])


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, as `to_pylist` gives them; maps as dictionaries."""
    columns = [_values(each) for each in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        micros = column.cast(pa.int64()).to_pylist()
        return [None if each is None else EPOCH + timedelta(microseconds=each) for each in micros]
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return found
