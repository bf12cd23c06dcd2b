"""Rows in Spark's order (NULL first, NaN last, texts by their bytes), and the first rows of large tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.reading.arrow.knowledge import KnownTable
from backstory.reading.histories import shown_key
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import Between, OneOf, Search
from backstory.stores.metadata.table_rows import MOST_VALUES, is_small, least_values, number_of_rows
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


# Rows read for each row of the answer, because few versions of a record are true.
ROWS_FOR_ONE: Final = 8
FEWEST: Final = 1_000
# The most rows that are read as fast as a part of them.
FEW: Final = 20_000
NO_SEARCHES: Final[Mapping[str, Any]] = {}

Answer = Callable[[KnownTable], pa.Table]


def first_rows(
    known: KnownTable,
    limit: int | None,
    answer: Answer,
    sure: Mapping[str, Search] = NO_SEARCHES,
    after: Mapping[str, Any] = NO_SEARCHES,
) -> pa.Table:
    """Rows of an answer, including the first `limit` in the order of their key; all rows for None.

    All rows of the answer pass the searches `sure` and have a key after `after`. All rows of a record are
    read. In a large table the records with the least keys are read. If few of them are in the answer, the
    columns of the key and of `sure` are searched for its keys.
    """
    snapshot = known.snapshot
    names = _key_names(known)
    if limit is None or snapshot is None or not names or known.searches:
        return answer(known)
    if is_small(snapshot) and int(number_of_rows(snapshot) or 0) <= FEW:
        return answer(known)
    try:
        return _of_least_keys(known, names[0], limit, answer, sure, after)
    except Unreadable:
        if is_small(snapshot):
            return answer(known)
        if not sure and len(names) == 1:
            raise
    return _of_candidates(known, names, limit, answer, sure, after)


def _of_least_keys(
    known: KnownTable,
    name: str,
    limit: int,
    answer: Answer,
    sure: Mapping[str, Search],
    after: Mapping[str, Any],
) -> pa.Table:
    """The answer for the records with the least keys, more until it has `limit` rows.

    Raises Unreadable if few of these records are in the answer.
    """
    assert known.snapshot is not None
    least = after.get(name)
    count = max(limit * ROWS_FOR_ONE, FEWEST)
    fields = list(known.fields)
    while (span := least_values(known.files, known.snapshot, fields, name, count, least)) is not None:
        rows = answer(replace(known, searches={name: span}))
        if rows.num_rows >= limit:
            return rows
        if sure:
            raise Unreadable("few rows of the answer among those with the least keys")
        count *= ROWS_FOR_ONE
    return answer(known if least is None else replace(known, searches={name: Between(least)}))


def _of_candidates(
    known: KnownTable,
    names: list[str],
    limit: int,
    answer: Answer,
    sure: Mapping[str, Search],
    after: Mapping[str, Any],
) -> pa.Table:
    """The answer for the first records with a row that passes `sure`, more until it has `limit` rows."""
    first = names[0]
    searches = {**({first: Between(after[first])} if first in after else {}), **sure}
    keys = known.files.rows(known.snapshot, known.fields, names, MOST_VALUES, searches or None)
    if after:
        keys = keys.filter(are_after(keys, after))
    if any(keys[name].null_count for name in names):
        raise Unreadable("NULL in a key")
    in_order = [(name, "ascending") for name in names]
    while True:
        places = pc.select_k_unstable(keys, min(limit, keys.num_rows), in_order)
        rows = answer(replace(known, searches={name: OneOf(keys[name].take(places)) for name in names}))
        if rows.num_rows >= limit or len(places) == keys.num_rows:
            return rows
        limit *= ROWS_FOR_ONE


def _key_names(known: KnownTable) -> list[str]:
    """The key's columns in the table, by which rows are sorted; empty if readers show another key."""
    now, then = shown_key(known.table.shape), shown_key(known.shape)
    return list(known.shape.key) if then and now == then else []
