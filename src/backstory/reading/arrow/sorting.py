"""Rows in one order, as Spark sorts: NULL first, NaN last, texts by their bytes.

The first rows of an answer in the order of their key, out of a table of any size.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.reading.arrow.knowledge import KnownTable
from backstory.reading.frames.versions import shown_key
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import Between, OneOf, Search
from backstory.stores.metadata.table_rows import MOST_VALUES, is_small, least_values, number_of_rows
from backstory.stores.metadata.values import booleans, integers, scalar
from backstory.strategies.values import ranks, sorted_by


def sort_rows(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """The rows by these columns, where they have them, and then by all others."""
    names = [name for name in first if name in rows.column_names]
    others = (ranks(rows[name]) for name in rows.column_names if name not in names)
    places = sort_places([ranks(rows[name]) for name in names], rows.num_rows, lambda: others)
    return rows.take(integers(places))


def sort_places(
    numbers: Sequence[np.ndarray], size: int, others: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The places of so many rows in the order of their numbers, and of other ones if these do not suffice."""
    order = sorted_by(numbers, size)
    if equals_next([each[order] for each in numbers], size).any():
        order = sorted_by([*numbers, *others()], size)
    return order


def equals_next(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """For each of so many rows but the last, whether the next one has the same numbers."""
    same = np.ones(max(size - 1, 0), bool)
    for each in numbers:
        same &= each[1:] == each[:-1]
    return same


def are_after(rows: pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """Whether each row is behind the row with these values, in the order of their columns."""
    behind, same = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name, value in values.items():
        type_ = rows.schema.field(name).type
        border = pa.repeat(scalar(value, type_), 1)
        numbers = ranks(pa.chunked_array([*rows[name].chunks, border], type_))
        behind |= same & (numbers[:-1] > numbers[-1])
        same &= numbers[:-1] == numbers[-1]
    return booleans(behind)


# A record has some versions, and some are not true: so many rows are read for each that is wanted.
ROWS_FOR_ONE: Final = 8
FEWEST: Final = 1_000
# So many rows are answered from as fast as some of them.
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
    """Rows of the answer, the first `limit` in the order of their key among them; all rows for None.

    `sure` is what all rows of the answer have, and `after` a key behind which they stand; of a record in the
    answer all rows are read. Of a large table the records with the least keys are read; where most of these
    are not in the answer, the columns of key and `sure` are looked through for the keys that are.
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
    """The answer for the records with the least keys, for more of them until there are so many rows.

    Raises Unreadable where that is no way to the rows.
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
    """The answer for the first records that have a row with what is sure, for more until there are enough."""
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
    """The columns by which rows are sorted; none where they are not the key's, or were others then."""
    now, then = shown_key(known.table.shape), shown_key(known.shape)
    return list(known.shape.key) if then and now == then else []
