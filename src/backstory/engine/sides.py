"""The sides of a plan: the rows of a delivery, and the stored rows that they meet.

The rows of several sides together: all at once where the driver can hold them, else in parts by key.

The parts of a large delivery that meets no stored rows, in the order of its rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import structlog

from backstory.engine.spill import Spill
from backstory.formats.memory import Memory, MemoryLease, TooLarge, typed_size
from backstory.stores.read_ahead import read_ahead
from backstory.strategies.keys import key_numbers, key_parts
from backstory.strategies.part_plan import Whole, as_they_are

PARTS: Final = 16
# Parts of parts of parts hold all that a disk does, unless a key has most of the rows.
DEEPEST: Final = 3
LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SideRows:
    """The rows of a side, some at a time, each time anew."""

    schema: pa.Schema
    tables: Callable[[], Iterable[pa.Table]]


def parts_by_key(
    sides: Mapping[str, SideRows],
    key: Sequence[str],
    lease: MemoryLease,
    *,
    spills: bool = True,
    spread: bool = False,
) -> Iterator[Mapping[str, pa.Table]]:
    """The sides' rows, as one part or in several; all rows of a key are in one part.

    Bytes are counted as they are read. What the lease cannot hold is spilled, or with `spread` everything.
    The rows of a part are the caller's until the next one is asked for. Raises TooLarge where even a part
    of parts is too large, or without `spills` where not all rows can be held.
    """
    yield from _parts(sides, key, lease, depth=0, spills=spills, spread=spread)


def _parts(
    sides: Mapping[str, SideRows],
    key: Sequence[str],
    lease: MemoryLease,
    *,
    depth: int,
    spills: bool,
    spread: bool,
) -> Iterator[Mapping[str, pa.Table]]:
    held: dict[str, list[pa.Table]] = {name: [] for name in sides}
    reading = {name: iter(each.tables()) for name, each in sides.items()}
    try:
        if not spread and _hold(reading, held, lease):
            yield {name: _concat_side(each, held.pop(name)) for name, each in sides.items()}
            return
    finally:
        _release(lease, sides)
    if depth == DEEPEST or (depth == 0 and not spills):
        raise TooLarge
    with ExitStack() as kept:
        spill = Spill(kept)
        for name, tables in reading.items():
            for table in chain(_drain(held[name]), tables):
                _spread(spill, name, table, key, depth)
        if depth == 0:
            LOG.info("more rows than driver-memory holds: planned in parts", parts=PARTS)
        for part in range(PARTS):
            there = {
                name: SideRows(each.schema, _reader(spill, (name, part))) for name, each in sides.items()
            }
            yield from _parts(there, key, lease, depth=depth + 1, spills=True, spread=False)
            for name in sides:
                spill.drop((name, part))


def _hold(
    reading: Mapping[str, Iterator[pa.Table]], held: Mapping[str, list[pa.Table]], lease: MemoryLease
) -> bool:
    """Read the sides as far as the lease can hold them; whether it can hold all."""
    for name, tables in reading.items():
        size = 0
        for table in tables:
            held[name].append(table)
            size += table.nbytes
            try:
                lease.hold(name, size)
            except TooLarge:
                return False
    return True


def _spread(spill: Spill, name: str, rows: pa.Table, key: Sequence[str], depth: int) -> None:
    """Put rows to those of their parts, in their order."""
    parts = key_parts(rows, key, PARTS, salt=depth)
    order = np.argsort(parts, kind="stable")
    ends = np.searchsorted(parts[order], np.arange(PARTS + 1))
    sorted_rows = rows.take(pa.array(order))
    for part in range(PARTS):
        spill.put((name, part), sorted_rows.slice(ends[part], ends[part + 1] - ends[part]))


def _reader(spill: Spill, name: tuple[str, int]) -> Callable[[], Iterator[pa.Table]]:
    return lambda: spill.rows(name)


def _concat_side(side: SideRows, tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([side.schema.empty_table(), *tables]).unify_dictionaries()


def _drain(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, each forgotten when it is given."""
    tables.reverse()
    while tables:
        yield tables.pop()


def _release(lease: MemoryLease, sides: Iterable[str]) -> None:
    for name in sides:
        lease.hold(name, 0)


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class LocalSide:
    """Rows of a side that the driver reads from files or memory; reading raises Unreadable where it cannot.

    `rows` may lack columns that `whole` gives for some of them. `columns` gives all rows in fewer columns of
    these names: with it large sides are sifted. `chosen` gives those that a function chooses by their keys;
    it is there where columns are computed. `is_empty` is true only where nothing is stored.
    """

    rows: SideRows
    whole: Whole = as_they_are
    columns: Callable[[Sequence[str]], SideRows] | None = None
    select: Callable[[Callable[[pa.Table], pa.Array]], SideRows] | None = None
    is_empty: bool = False


def no_local_rows(_lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
    """The rows of a side that only Spark reads."""
    return None


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one side of a plan.

    `frame` makes a frame of the columns of `schema`, in their order. `local` gives the rows without Spark,
    None where only Spark reads them; it is called with the side that this one meets. `size` is what the rows
    of the frame may take of the driver's memory, None where only the frame's plan tells; `count` is about how
    many they are, None where Spark must count. `meets` names a side before this one: of this one only rows
    count that have a key of that one. `cached` is true if the frame's rows are computed once however often
    they are read.
    """

    schema: pa.Schema
    frame: "Callable[[], DataFrame]"
    local: Callable[[MemoryLease, LocalSide | None], LocalSide | None] = no_local_rows
    size: int | None = None
    count: int | None = None
    meets: str | None = None
    cached: bool = False


def empty_side(schema: pa.Schema) -> LocalSide:
    """A side without rows."""
    return LocalSide(SideRows(schema, lambda: ()), is_empty=True)


# The rows of so many steps may be in memory: those read ahead, and what becomes of them.
STEPS_HELD: Final = 16


class KeyInTwoParts(Exception):
    """Rows of one key were in two parts."""


@contextmanager
def parts_in_order(
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
        parts = ({name: rows, **beside} for rows in _require_keys_once(tables, key, lease))
        yield read_ahead(pool, [lambda: parts], 1)


def _require_keys_once(
    tables: Iterator[pa.Table], key: Sequence[str], lease: MemoryLease
) -> Iterator[pa.Table]:
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
        raise KeyInTwoParts
