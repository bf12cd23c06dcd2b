"""Rows in an order; those that the driver cannot hold together are spread over ranges of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.engine.held_rows import HeldRows
from backstory.engine.spill import Spill
from backstory.model.change import Pieces

# What is sorted together, and written as a file.
ROWS_IN_RANGE: Final = 1_000_000
BYTES_IN_RANGE: Final = 1 << 28
# The rows of a table by which the ends of ranges are chosen.
SAMPLE: Final = 1_000

Order = Callable[[pa.Table], np.ndarray]


def sorted_rows(held: HeldRows, order: Order, kept: ExitStack) -> pa.Table | Pieces:
    """The rows in their order; `order` gives the places of a table's rows in it, equal ones as they stand.

    What is spilled goes with `kept`.
    """
    if not held.spilled and held.size <= BYTES_IN_RANGE:
        return _sorted(pa.concat_tables(held.tables()), order)
    count = max(held.count // ROWS_IN_RANGE, held.size // BYTES_IN_RANGE) + 1
    ends, spill = _ends(held, order, count), Spill(kept)
    for rows in held.tables():
        places = order(pa.concat_tables([rows, ends]))
        own = places < len(rows)
        stops = np.append(np.flatnonzero(~own) - np.arange(len(ends)), len(rows))
        parts, start = rows.take(pa.array(places[own])), 0
        for number, stop in enumerate(stops):
            spill.put(number, parts.slice(start, stop - start))
            start = stop
    return Pieces(lambda: _ranges(spill, count, order))


def _ends(held: HeldRows, order: Order, count: int) -> pa.Table:
    """Rows that part the others into about so many ranges of about one size."""
    few = [
        rows.take(pa.array(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.int64)))
        for rows in held.tables()
    ]
    sample = _sorted(pa.concat_tables(few), order)
    return sample.take(pa.array(np.arange(1, count) * len(sample) // count))


def _ranges(spill: Spill, count: int, order: Order) -> Iterator[pa.Table]:
    for number in range(count):
        if tables := list(spill.rows(number)):
            yield _sorted(pa.concat_tables(tables), order)


def _sorted(rows: pa.Table, order: Order) -> pa.Table:
    return rows.take(pa.array(order(rows)))
