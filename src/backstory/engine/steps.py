"""The rows of several sides together, in the order in which they come: no row is laid down on the way.

What comes and what is stored mostly have one order: that of the source's own key, or of the copy before.
Then each of many small parts finds its stored rows near each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from backstory.engine.parts import Rows
from backstory.formats.memory import Memory, MemoryLease, typed_size
from backstory.formats.unchanged import source_changed
from backstory.model.places import FILE, POSITION
from backstory.stores.read_ahead import read_ahead
from backstory.strategies.keys import dense_codes, key_numbers, places_near

# The rows of so many steps may be in memory: those of all sides, those read ahead, and what becomes of them.
STEPS_HELD: Final = 16
# A plan is taken to hold six times what its rows are (`formats.memory`), matching numbers three times.
LIGHTER: Final = 2
# Stored rows may be read so many times before it is better to lay all rows down by key.
MOST_READ: Final = 4
NUMBER: Final = "number"
LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ComingRows:
    """What comes: its `rows`, and their keys alone, in the same order."""

    rows: Rows
    keys: Rows


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """What is stored: the keys of all rows with their places, and a reader of all columns at some places."""

    keys: Rows
    at: Callable[[pa.Table], pa.Table]


class OutOfStep(Exception):
    """Rows of one key came in two parts."""


@dataclass(frozen=True, slots=True)
class _SideSteps:
    """The places of a stored side in the order of the steps, each of which ends at one of `ends`."""

    places: pa.Table
    ends: np.ndarray
    at: Callable[[pa.Table], pa.Table]

    def of_step(self, number: int) -> pa.Table:
        first, last = self.ends[number : number + 2]
        return self.at(self.places.slice(first, last - first))


@dataclass(frozen=True, slots=True)
class _Steps:
    """The stored sides by step, and how many steps there are."""

    sides: Mapping[str, _SideSteps]
    count: int


def is_small(memory: Memory, size: int | None) -> bool:
    """Whether what comes is no more than a step; so it is taken for where nobody knows its size."""
    return size is None or size < memory.most // STEPS_HELD


def rows_in_step(memory: Memory, sides: Iterable[Rows]) -> int:
    """So many rows that come make a step."""
    width = sum(typed_size(1, each.schema.types, 0) for each in sides)
    return max(1, memory.most // STEPS_HELD // width)


@contextmanager
def parts_in_step(
    name: str,
    coming: ComingRows,
    stored: Mapping[str, PlacedRows],
    key: Sequence[str],
    memory: Memory,
    count: int,
) -> Iterator[Iterator[Mapping[str, pa.Table]] | None]:
    """The sides' rows in parts of so many that come; all rows of a key are in one part.

    None where rows of one key come far apart, or stored rows lie in another order. Raises TooLarge where the
    memory cannot hold a number for each key; iterating, where it cannot hold two parts, and Failed where more
    or fewer rows come than before.
    """
    keys = {name: coming.keys, **{side: each.keys for side, each in stored.items()}}
    with memory.lease() as lease, ThreadPoolExecutor(pa.cpu_count()) as pool:
        read = pool.map(lambda side: _numbers_and_places(side, keys[side], key, lease), keys)
        keyed = dict(zip(keys, read, strict=True))
        expected, sides = len(keyed[name]), _in_steps(keyed, stored, count)
        del read, keyed  # of which the steps have the places
        if sides is None:
            yield None
            return
        rows = _of_length(coming.rows, count, expected)
        # A part is read while the one before it is in use.
        yield read_ahead(pool, [lambda: _parts(name, rows, sides, lease)], 1)


@contextmanager
def parts_as_they_come(
    name: str,
    coming: Rows,
    empty: Mapping[str, Rows],
    key: Sequence[str],
    memory: Memory,
    count: int,
) -> Iterator[Iterator[Mapping[str, pa.Table]]]:
    """The same where nothing is stored: the rows that come are read once, in parts of at most so many.

    Iterating raises OutOfStep at the end if rows of one key were in two parts.
    """
    with memory.lease() as lease, ThreadPoolExecutor(1) as pool:
        beside = {side: rows.schema.empty_table() for side, rows in empty.items()}
        tables = (
            table.slice(first, count) for table in coming.tables() for first in range(0, len(table), count)
        )
        yield read_ahead(pool, [lambda: _parts_alone(name, tables, beside, key, lease)], 1)


def _parts_alone(
    name: str,
    tables: Iterator[pa.Table],
    beside: Mapping[str, pa.Table],
    key: Sequence[str],
    lease: MemoryLease,
) -> Iterator[Mapping[str, pa.Table]]:
    numbers, size = [np.zeros(0, np.uint64)], 0
    for rows in tables:
        numbers.append(np.unique(key_numbers(rows, key)))
        lease.hold(NUMBER, sum(each.nbytes for each in numbers))
        before, size = size, rows.nbytes
        lease.hold("parts", before + size)
        yield {name: rows, **beside}
    _tell_steps(len(numbers) - 1)
    every = np.sort(np.concatenate(numbers))
    if (every[1:] == every[:-1]).any():
        raise OutOfStep


def _in_steps(keyed: Mapping[str, pa.Table], stored: Mapping[str, PlacedRows], count: int) -> _Steps | None:
    """The stored rows by step; `keyed` has first what comes. None where they are not in step."""
    coming, *sides = (np.asarray(each[NUMBER]) for each in keyed.values())
    steps = np.arange(len(coming)) // count
    if not _in_one_step_each(coming, steps):
        return None
    others = np.concatenate([coming[:0], *sides])
    places = places_near(coming, others)
    step_of = np.append(steps, -1)[places]
    absent, first_absent = places < 0, -(-len(coming) // count)
    codes = dense_codes(pa.chunked_array([pa.array(others[absent])]))
    step_of[absent] = first_absent + codes // count
    many = first_absent + -(-(int(codes.max(initial=-1)) + 1) // count)
    in_steps, first = {}, 0
    for (side, placed), mine in zip(stored.items(), sides, strict=True):
        step = step_of[first : first + len(mine)]
        stepped = _steps_of_side(keyed[side].drop_columns([NUMBER]), step, many, placed.at)
        if stepped is None:
            return None
        in_steps[side], first = stepped, first + len(mine)
    return _Steps(in_steps, many)


def _in_one_step_each(numbers: np.ndarray, steps: np.ndarray) -> bool:
    """Whether all rows of each number are in one step."""
    ordered = np.sort(numbers)
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeats):
        return True
    rows = np.flatnonzero(np.isin(numbers, repeats))
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    return bool((np.diff(steps[rows]) == 0)[np.diff(numbers[rows]) == 0].all())


def _numbers_and_places(name: str, side: Rows, key: Sequence[str], lease: MemoryLease) -> pa.Table:
    """The places of a side's rows, if they have any, and a number for the key of each.

    Keys that are whole numbers stay as they are; NULL is 0.
    """
    whole = len(key) == 1 and pa.types.is_integer(side.schema.field(key[0]).type)
    tables, size = list[pa.Table](), 0
    for rows in chain([side.schema.empty_table()], side.tables()):
        number = (
            pc.fill_null(rows[key[0]].cast(pa.int64()), 0)
            if whole
            else pa.array(key_numbers(rows, key).view(np.int64))
        )
        tables.append(rows.drop_columns([*key]).append_column(NUMBER, number))
        size += tables[-1].nbytes // LIGHTER
        lease.hold(name, size)
    return pa.concat_tables(tables).unify_dictionaries()


def _steps_of_side(
    places: pa.Table, step_of: np.ndarray, steps: int, at: Callable[[pa.Table], pa.Table]
) -> _SideSteps | None:
    """The stored rows by step; None where those of a step lie too far from each other."""
    once = _span(places, np.zeros(len(places)))
    if (step_of[1:] < step_of[:-1]).any():
        order = np.argsort(step_of, kind="stable")
        places, step_of = places.take(pa.array(order)), step_of[order]
    if _span(places, step_of) > MOST_READ * once:
        return None
    return _SideSteps(places, np.searchsorted(step_of, np.arange(steps + 1)), at)


def _span(places: pa.Table, step_of: np.ndarray) -> int:
    """How many rows lie between the first and the last one of each step, in each file."""
    if not len(places):
        return 0
    files = places[FILE].combine_chunks().indices.to_numpy(zero_copy_only=False)
    positions = places[POSITION].to_numpy()
    edges = np.flatnonzero((np.diff(files) != 0) | (np.diff(step_of) != 0))
    firsts, lasts = np.concatenate([[0], edges + 1]), np.concatenate([edges, [len(places) - 1]])
    return int((positions[lasts] - positions[firsts] + 1).sum())


def _parts(
    name: str, coming: Iterator[pa.Table], steps: _Steps, lease: MemoryLease
) -> Iterator[Mapping[str, pa.Table]]:
    _tell_steps(steps.count)
    size = 0
    with ThreadPoolExecutor(max(1, len(steps.sides))) as pool:
        for number in range(steps.count):
            beside = {side: pool.submit(each.of_step, number) for side, each in steps.sides.items()}
            part = {name: next(coming)} | {side: rows.result() for side, rows in beside.items()}
            before, size = size, sum(each.nbytes for each in part.values())
            lease.hold("parts", before + size)
            yield part
    next(coming)  # whether more rows come than before


def _tell_steps(count: int) -> None:
    if count > 1:
        LOG.info("more rows than a step: planned as they come", steps=count)


def _of_length(side: Rows, count: int, expected: int) -> Iterator[pa.Table]:
    """The same rows in tables of so many, but for the last one; behind them nothing, for ever."""
    kept, size, rest = list[pa.Table](), 0, expected
    for table in side.tables():
        kept.append(table)
        size += len(table)
        rest -= len(table)
        while size >= count and rest >= 0:
            whole = pa.concat_tables(kept)
            yield whole.slice(0, count)
            kept, size = [whole.slice(count)], size - count
    if rest:
        raise source_changed()
    yield from chain([pa.concat_tables(kept)] if size else [], repeat(side.schema.empty_table()))
