"""The stored versions that count for a copy: those of each record before, at and after its instant."""

from functools import reduce

import numpy as np
import pyarrow as pa

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.strategies.copies.rows import OPEN, micros
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import (
    Side,
    Touched,
)
from backstory.strategies.keys import key_codes, keys_by_value, last_of


def rows_at(terms: CopyTerms, slice_: pa.Table) -> pa.Array:
    """Which versions of a slice are true at the copy's instant; in order these are the open ones, all."""
    if terms.in_order:
        return pa.repeat(True, len(slice_))
    return pa.array((micros(slice_[VALID_FROM]) <= terms.at) & (micros(slice_[VALID_TO]) > terms.at))


def spoilt_rows(terms: CopyTerms, slice_: pa.Table) -> pa.Table:
    """Rows of the records that have two versions at one instant (V119), a row of each such record.

    And of those with a version that never began, which no door writes.
    """
    (codes,), count = key_codes([keys_by_value(slice_, terms.key)], terms.key)
    if terms.in_order:
        together = [np.ones(len(slice_), bool)]
    else:
        start, end = micros(slice_[VALID_FROM]), micros(slice_[VALID_TO])
        together = [(start <= terms.at) & (end > terms.at), start < terms.at, end == OPEN]
    numbers = (np.bincount(codes[each], minlength=count) > 1 for each in together)
    never = np.bincount(codes[np.asarray(slice_[VALID_FROM].is_null())], minlength=count) > 0
    wrong = np.flatnonzero(reduce(np.logical_or, numbers, never))
    return slice_.take(pa.array(last_of(codes, count)[wrong]))


def touched_records(terms: CopyTerms, delivered: pa.Table, slice_: pa.Table) -> Touched:
    """Records beside their stored versions: a row for each key of either side.

    `delivered` has each key once, `slice_` whole versions with their places, of which no two of a key are
    of one of the three states.
    """
    sides = [keys_by_value(each, terms.key) for each in (delivered, slice_)]
    (mine, theirs), count = key_codes(sides, terms.key)
    there = np.zeros(count, bool)
    there[mine] = there[theirs] = True
    records = np.flatnonzero(there)
    everywhere = np.arange(len(slice_))
    if terms.in_order:
        before, replaced, after = everywhere, everywhere[:0], everywhere[:0]
    else:
        start, end = micros(slice_[VALID_FROM]), micros(slice_[VALID_TO])
        before, replaced = np.flatnonzero(start < terms.at), np.flatnonzero(start == terms.at)
        following = terms.following
        after = everywhere[:0]
        if following is not None:
            after = np.flatnonzero((start <= following) & (end > following))
    return Touched(
        _side(delivered, last_of(mine, count)[records]),
        *(_side(slice_, _places(theirs, count, each)[records]) for each in (before, replaced, after)),
    )


def _places(codes: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
    """For each code the place of its row among these, -1 where it has none."""
    places = np.full(count, -1, np.int64)
    places[codes[rows]] = rows
    return places


def _side(rows: pa.Table, places: np.ndarray) -> Side:
    has = places >= 0
    if has.all() and len(places) == len(rows) and (np.diff(places) == 1).all():
        return Side(rows, has)
    return Side(rows.take(pa.array(places, mask=~has)), has)
