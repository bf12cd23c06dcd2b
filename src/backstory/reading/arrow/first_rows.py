"""The first rows of an answer in the order of their key, out of a table of any size."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from backstory.reading.arrow.knowledge import KnownTable
from backstory.reading.frames.versions import shown_key
from backstory.stores.metadata.least_values import least_values
from backstory.stores.metadata.rows import is_small

# A record has some versions, and some are not true: so many rows are read for each that is wanted.
ROWS_FOR_ONE: Final = 8
FEWEST: Final = 1_000


def first_rows(known: KnownTable, limit: int | None, answer: Callable[[KnownTable], pa.Table]) -> pa.Table:
    """Rows of the answer, the first `limit` in the order of their key among them; all rows for None.

    Of a large table the records with the least keys are read, more of them until they have so many rows.
    """
    snapshot = known.snapshot
    name = _first_of_key(known)
    if limit is None or snapshot is None or name is None or known.columns or is_small(snapshot):
        return answer(known)
    count = max(limit * ROWS_FOR_ONE, FEWEST)
    while (span := least_values(known.files, snapshot, list(known.fields), name, count)) is not None:
        rows = answer(replace(known, columns={name: span}))
        if rows.num_rows >= limit:
            return rows
        count *= ROWS_FOR_ONE
    return answer(known)


def _first_of_key(known: KnownTable) -> str | None:
    """The column by which rows are sorted first; None where it is not the key's, or was another one then."""
    now, then = shown_key(known.table.shape), shown_key(known.shape)
    return known.shape.key[0] if then and now[:1] == then[:1] else None
