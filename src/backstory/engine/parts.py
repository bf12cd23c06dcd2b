"""The rows of several sides together: all at once where the driver can hold them, else in parts by key."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from backstory.engine.spill import Spill
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.strategies.keys import key_parts

PARTS: Final = 16
# Parts of parts of parts hold all that a disk does, unless a key has most of the rows.
DEEPEST: Final = 3
LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a side, some at a time, each time anew."""

    schema: pa.Schema
    tables: Callable[[], Iterable[pa.Table]]


def parts_by_key(
    sides: Mapping[str, Rows],
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
    sides: Mapping[str, Rows],
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
            yield {name: _joined(each, held.pop(name)) for name, each in sides.items()}
            return
    finally:
        _release(lease, sides)
    if depth == DEEPEST or (depth == 0 and not spills):
        raise TooLarge
    with ExitStack() as kept:
        spill = Spill(kept)
        for name, tables in reading.items():
            for table in chain(_emptied(held[name]), tables):
                _spread(spill, name, table, key, depth)
        if depth == 0:
            LOG.info("more rows than driver-memory holds: planned in parts", parts=PARTS)
        for part in range(PARTS):
            there = {name: Rows(each.schema, _reader(spill, (name, part))) for name, each in sides.items()}
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


def _joined(side: Rows, tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([side.schema.empty_table(), *tables]).unify_dictionaries()


def _emptied(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, each forgotten when it is given."""
    tables.reverse()
    while tables:
        yield tables.pop()


def _release(lease: MemoryLease, sides: Iterable[str]) -> None:
    for name in sides:
        lease.hold(name, 0)
