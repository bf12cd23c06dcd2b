"""A delivered state against the stored one: two Arrow tables, matched by key."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.keys import flagged, key_codes, last_of

ColumnOf: TypeAlias = Callable[[str], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Matched:
    """What a delivery makes of what is stored, as places of rows in the two tables.

    `appeared` are places of delivered rows, `vanished` and `kept` of stored ones, the latter out of the scope
    of deletes. `changed` and `same` have both: the delivered row's and beside it the stored one's.
    """

    appeared: pa.Array
    changed: tuple[pa.Array, pa.Array]
    vanished: pa.Array
    kept: pa.Array
    same: tuple[pa.Array, pa.Array]

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """The records that appeared, changed, vanished, vanished out of scope, and are the same."""
        both, alone = (self.changed[0], self.same[0]), (self.vanished, self.kept)
        return len(self.appeared), len(both[0]), len(alone[0]), len(alone[1]), len(both[1])

    @property
    def nothing(self) -> bool:
        """Whether the stored state is the delivered one already."""
        return not (len(self.appeared) or len(self.changed[0]) or len(self.vanished))


def matched(
    delivered: pa.Table, stored: pa.Table, key: Sequence[str], compared: Sequence[str], scope: pa.ChunkedArray
) -> Matched | None:
    """Match the two by the key's columns; a record changed if one of the columns `compared` did.

    `scope` tells of each stored row whether it counts when it vanished. None if a side has rows without
    a key, or two of one key.
    """
    if any(each[name].null_count for each in (delivered, stored) for name in key):
        return None
    (left, right), count = key_codes([delivered, stored], key)
    if any(np.bincount(each, minlength=1).max() > 1 for each in (left, right)):
        return None
    place = last_of(right, count)[left]
    there, gone = place >= 0, ~flagged(left, count)[right]
    mine, theirs = np.flatnonzero(there), place[there]
    changed = np.zeros(len(mine), bool)
    if compared:
        changed = _changed(_at(delivered, mine), _at(stored, theirs), compared)
    counts = np.asarray(pc.fill_null(scope.combine_chunks(), False))
    return Matched(
        pa.array(np.flatnonzero(~there)),
        (pa.array(mine[changed]), pa.array(theirs[changed])),
        pa.array(np.flatnonzero(gone & counts)),
        pa.array(np.flatnonzero(gone & ~counts)),
        (pa.array(mine[~changed]), pa.array(theirs[~changed])),
    )


def _changed(mine: ColumnOf, theirs: ColumnOf, names: Sequence[str]) -> np.ndarray:
    """Which rows are two in one of the columns; a thread looks at one column of both sides."""
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        found = list(pool.map(lambda name: _apart(mine(name), theirs(name)), names))
    return np.asarray(reduce(pc.or_, found))


def _at(rows: pa.Table, places: np.ndarray) -> ColumnOf:
    """The columns of the rows at these places, each taken when it is asked for."""
    if _all(rows, places):
        return rows.column
    chosen = pa.array(places)
    return lambda name: rows[name].take(chosen)


def taken(rows: pa.Table, places: np.ndarray | pa.Array) -> pa.Table:
    """The rows at these places, which often are all of them in their order, or none."""
    if _all(rows, places):
        return rows
    return rows.take(pa.array(places)) if len(places) else rows.schema.empty_table()


def _all(rows: pa.Table, places: np.ndarray | pa.Array) -> bool:
    return len(places) == len(rows) and bool((np.diff(np.asarray(places)) == 1).all())


def differ(pairs: Iterable[tuple[pa.ChunkedArray, pa.ChunkedArray]]) -> pa.Array | None:
    """For each row whether a pair of its values are two; None without pairs."""
    told = [_apart(left, right) for left, right in pairs]
    return reduce(pc.or_, told).combine_chunks() if told else None


def _apart(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether values are not the same, as Spark takes it: NULL is NULL, and NaN is NaN."""
    same = pc.or_(pc.fill_null(pc.equal(left, right), False), pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):
        neither = pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False)
        same = pc.or_(same, neither)
    return pc.invert(same)
