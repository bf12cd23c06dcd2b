"""Rows in an order; those that the driver cannot hold together are spread over ranges of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.engine.spill import Spill
from backstory.model.change import Pieces

# What is sorted together, and written as a file.
ROWS_IN_RANGE: Final = 1_000_000
BYTES_IN_RANGE: Final = 1 << 28
# The rows of a table by which the ends of ranges are chosen.
SAMPLE: Final = 1_000

Order = Callable[[pa.Table], np.ndarray]


def sorted_rows(rows: pa.Table | Pieces, order: Order, kept: ExitStack) -> pa.Table | Pieces:
    """The rows in their order; `order` gives the places of a table's rows in it, equal ones as they stand.

    What is spilled goes with `kept`.
    """
    if isinstance(rows, pa.Table):
        if rows.nbytes <= BYTES_IN_RANGE:
            return _sorted(rows, order)
        rows = Pieces(partial(_slices, rows))
    count = size = 0
    few = []
    for each in rows.tables():
        count, size = count + len(each), size + each.nbytes
        places = np.linspace(0, len(each) - 1, min(len(each), SAMPLE)).astype(np.int64)
        few.append(each.take(pa.array(places)))
    ranges = max(count // ROWS_IN_RANGE, size // BYTES_IN_RANGE) + 1
    sample, spill = _sorted(pa.concat_tables(few), order), Spill(kept)
    # Rows that part the others into ranges of about one size.
    ends = sample.take(pa.array(np.arange(1, ranges) * len(sample) // ranges))
    for each in rows.tables():
        places = order(pa.concat_tables([each, ends]))
        own = places < len(each)
        stops = np.append(np.flatnonzero(~own) - np.arange(len(ends)), len(each))
        parts, start = each.take(pa.array(places[own])), 0
        for number, stop in enumerate(stops):
            spill.put(number, parts.slice(start, stop - start))
            start = stop
    return Pieces(lambda: _ranges(spill, ranges, order))


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, len(rows), ROWS_IN_RANGE):
        yield rows.slice(first, ROWS_IN_RANGE)


def _ranges(spill: Spill, count: int, order: Order) -> Iterator[pa.Table]:
    for number in range(count):
        if tables := list(spill.rows(number)):
            yield _sorted(pa.concat_tables(tables), order)


def _sorted(rows: pa.Table, order: Order) -> pa.Table:
    return rows.take(pa.array(order(rows)))
