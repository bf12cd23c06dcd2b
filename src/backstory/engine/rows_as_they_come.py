"""The parts of a large delivery that meets no stored rows, in the order of its rows."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from backstory.engine.sides import LocalSide
from backstory.formats.memory import Memory, MemoryLease, typed_size
from backstory.stores.read_ahead import read_ahead
from backstory.strategies.keys import key_numbers

LOG = structlog.get_logger()
# The rows of so many steps may be in memory: those read ahead, and what becomes of them.
STEPS_HELD: Final = 16


class KeyAgain(Exception):
    """Rows of one key were in two parts."""


@contextmanager
def rows_as_they_come(
    key: Sequence[str], sides: Mapping[str, LocalSide], memory: Memory
) -> Iterator[Iterator[Mapping[str, pa.Table]]]:
    """The rows of the first side, read once, in parts that memory holds; the other sides are empty.

    Iterating raises KeyAgain at the end if rows of one key were in two parts, and TooLarge where the memory
    cannot hold a number for each key.
    """
    (name, coming), *others = sides.items()
    beside = {other: side.rows.schema.empty_table() for other, side in others}
    width = sum(typed_size(1, side.rows.schema.types, 0) for side in sides.values())
    count = max(1, memory.most // STEPS_HELD // width)
    with memory.lease() as lease, ThreadPoolExecutor(1) as pool:
        tables = (
            table.slice(first, count)
            for table in coming.rows.tables()
            for first in range(0, len(table), count)
        )
        parts = ({name: rows, **beside} for rows in _with_keys_once(tables, key, lease))
        yield read_ahead(pool, [lambda: parts], 1)


def _with_keys_once(tables: Iterator[pa.Table], key: Sequence[str], lease: MemoryLease) -> Iterator[pa.Table]:
    numbers, size = [np.zeros(0, np.uint64)], 0
    for rows in tables:
        numbers.append(np.unique(key_numbers(rows, key)))
        lease.hold("numbers of keys", sum(each.nbytes for each in numbers))
        before, size = size, rows.nbytes
        lease.hold("parts", before + size)
        yield rows
    if len(numbers) > 2:  # noqa: PLR2004
        LOG.info("more rows than a step: planned as they come", steps=len(numbers) - 1)
    every = np.sort(np.concatenate(numbers))
    if (every[1:] == every[:-1]).any():
        raise KeyAgain
