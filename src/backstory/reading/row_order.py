"""The order of rows: by their key, and then by all other values, so that equal answers look equal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from backstory.stores.metadata.values import booleans, integers, scalar
from backstory.strategies.values import ranks, sorted_by


def sort_rows(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """Sort rows by the columns of `first` that they have, then by all others."""
    names = [name for name in first if name in rows.column_names]
    others = (ranks(rows[name]) for name in rows.column_names if name not in names)
    places = sort_places([ranks(rows[name]) for name in names], rows.num_rows, lambda: others)
    return rows.take(integers(places))


def sort_places(
    numbers: Sequence[np.ndarray], size: int, others: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The places of `size` rows in the order of `numbers`, and of `others` if these have equal rows."""
    order = sorted_by(numbers, size)
    if equals_next([each[order] for each in numbers], size).any():
        order = sorted_by([*numbers, *others()], size)
    return order


def equals_next(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Whether each of `size` rows, except the last, has the same numbers as the next row."""
    same = np.ones(max(size - 1, 0), bool)
    for each in numbers:
        same &= each[1:] == each[:-1]
    return same


def are_after(rows: pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """Whether each row sorts after the row with these values."""
    behind, same = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name, value in values.items():
        type_ = rows.schema.field(name).type
        border = pa.repeat(scalar(value, type_), 1)
        numbers = ranks(pa.chunked_array([*rows[name].chunks, border], type_))
        behind |= same & (numbers[:-1] > numbers[-1])
        same &= numbers[:-1] == numbers[-1]
    return booleans(behind)
