"""Rows in one order, as Spark sorts: NULL first, NaN last, texts by their bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from backstory.stores.metadata.values import booleans, integers, scalar
from backstory.strategies.codes import ranks, sorted_by


def in_order(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """The rows by these columns, where they have them, and then by all others."""
    names = [name for name in first if name in rows.column_names]
    others = (ranks(rows[name]) for name in rows.column_names if name not in names)
    places = places_in_order([ranks(rows[name]) for name in names], rows.num_rows, lambda: others)
    return rows.take(integers(places))


def places_in_order(
    numbers: Sequence[np.ndarray], size: int, others: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The places of so many rows in the order of their numbers, and of other ones if these do not suffice."""
    order = sorted_by(numbers, size)
    if neighbours_alike([each[order] for each in numbers], size).any():
        order = sorted_by([*numbers, *others()], size)
    return order


def neighbours_alike(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """For each of so many rows but the last, whether the next one has the same numbers."""
    same = np.ones(max(size - 1, 0), bool)
    for each in numbers:
        same &= each[1:] == each[:-1]
    return same


def are_behind(rows: pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """Whether each row is behind the row with these values, in the order of their columns."""
    behind, same = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name, value in values.items():
        type_ = rows.schema.field(name).type
        border = pa.repeat(scalar(value, type_), 1)
        numbers = ranks(pa.chunked_array([*rows[name].chunks, border], type_))
        behind |= same & (numbers[:-1] > numbers[-1])
        same &= numbers[:-1] == numbers[-1]
    return booleans(behind)
