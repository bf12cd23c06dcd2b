"""Whether values are alike (V16): NULL is NULL, NaN is NaN, 0.0 is -0.0, and maps have no order."""

from collections.abc import Iterable
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.keys import ranks

Values: TypeAlias = pa.Array | pa.ChunkedArray


def alike(left: Values, right: Values) -> np.ndarray:
    """For each row whether the two values are one; both sides have one type and as many rows."""
    one, other = _joined(left), _joined(right)
    nothing = np.asarray(pc.and_(one.is_null(), other.is_null()))
    if pa.types.is_struct(one.type):
        fields = zip(one.flatten(), other.flatten(), strict=True)
        return nothing | _both(one, other) & reduce(np.logical_and, (alike(*each) for each in fields))
    if pa.types.is_map(one.type):
        return alike(entries(one), entries(other))
    if pa.types.is_list(one.type):
        return nothing | _both(one, other) & _lists_alike(one, other)
    same = pc.fill_null(pc.equal(one, other), False)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return nothing | np.asarray(same)


def rows_alike(pairs: Iterable[tuple[Values, Values]], count: int) -> np.ndarray:
    """For each of so many rows whether all the pairs of its values are one."""
    return reduce(np.logical_and, (alike(*each) for each in pairs), np.ones(count, bool))


def _joined(values: Values) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _both(one: pa.Array, other: pa.Array) -> np.ndarray:
    return np.asarray(pc.and_(one.is_valid(), other.is_valid()))


def _lists_alike(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Whether lists are as long and their items alike; what is NULL on a side may be told either way."""
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(each), -1)) for each in (one, other)]
    same = lengths[0] == lengths[1]
    rows = np.flatnonzero(same & (lengths[0] > 0))
    if len(rows):
        items = (each.take(pa.array(rows)).flatten() for each in (one, other))
        owners = np.repeat(rows, lengths[0][rows])
        same[owners[~alike(*items)]] = False
    return same


def entries(maps: pa.MapArray) -> pa.ListArray:
    """The entries of each map as a list of structs, in one order of their keys."""
    whole = pa.concat_arrays([maps.drop_null()])  # its entries begin where its memory does
    lengths = np.zeros(len(maps), np.int64)
    lengths[np.asarray(maps.is_valid())] = np.diff(np.asarray(whole.offsets))
    entries = pa.StructArray.from_arrays([whole.keys, whole.items], ["key", "item"])
    owners = np.repeat(np.arange(len(maps)), lengths)
    order = np.lexsort((_ranks(whole.keys), owners))
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(ends, entries.take(pa.array(order)), mask=maps.is_null())


def _ranks(keys: pa.Array) -> np.ndarray:
    """Numbers in one order of the keys, whatever map they are of."""
    if pa.types.is_nested(keys.type):  # so rare that a loop over them will do
        keys = pa.array([repr(each) for each in keys.to_pylist()], pa.string())
    return ranks(keys)
