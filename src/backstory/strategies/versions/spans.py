"""Versions as parallel arrays, and the chains in which an update takes what it leaves unmodified."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from backstory.model.instant import MILLISECOND
from backstory.strategies.keys import Codes
from backstory.strategies.versions.times import NEVER, NO_TIME

STORED, REPLACE, UPDATE = 0, 1, 2
TRUE, FALSE, NULL = 1, 0, -1


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of keys: `row` tells which of the cells' rows a version is written in."""

    row: np.ndarray
    kind: np.ndarray
    code: Codes
    start: np.ndarray
    end: np.ndarray
    active: np.ndarray

    @property
    def count(self) -> int:
        """The number of versions."""
        return len(self.row)

    def chosen(self, places: np.ndarray) -> Self:
        """The versions at these places, or where a mask is true."""
        return type(self)(
            *(getattr(self, name)[places] for name in ("row", "kind", "code", "start", "end", "active"))
        )

    def ended(self, end: np.ndarray, active: np.ndarray) -> Self:
        """The same versions with other ends and flags."""
        return replace(self, end=end, active=active)

    def disorderly(self) -> bool:
        """Whether versions of one key, sorted by start, overlap or have an active one before another."""
        same_key = self.code[1:] == self.code[:-1]
        known = self.start[1:] != NO_TIME
        overlap = (self.end[:-1] >= self.start[1:]) | (self.active[:-1] == TRUE)
        return bool((same_key & known & overlap).any())

    def by_start(self) -> Self:
        """Sorted by key, start, kind and row; versions without a start left out."""
        order = np.lexsort((self.row, self.kind, self.start, self.code))
        return self.chosen(order[self.start[order] != NO_TIME])


def make_room(stored: Versions, first: np.ndarray) -> tuple[Versions, np.ndarray, np.ndarray]:
    """Step 1 of section 5.2 on the stored versions.

    `first` holds s0 for each key's code, NEVER where the delivery names none. Gives the versions
    with those closed that reach s0, a mask of those that start at or after it and so go, and for
    each code the row of the first one that goes, -1 where none does.
    """
    s0 = first[stored.code]
    gone = stored.start >= s0
    reaching = ~gone & (s0 != NEVER) & ((stored.active == TRUE) | (stored.end >= s0))
    end = np.where(reaching, s0 - MILLISECOND, stored.end)
    active = np.where(reaching, FALSE, stored.active)
    removed = np.full(len(first), -1)
    going = stored.chosen(gone)
    latest_first = np.lexsort((going.row, -going.start))
    removed[going.code[latest_first]] = going.row[latest_first]
    return stored.ended(end, active), gone, removed


@dataclass(frozen=True, slots=True)
class Chains:
    """For sorted versions: which row each cell comes from, and which updates have no record.

    A chain is a version that knows all its cells and the updates built upon it. `base` is the row
    that a chain's head takes its unmodified cells from: a removed version's, or -1.
    """

    versions: Versions
    head: np.ndarray
    base: np.ndarray
    orphan: np.ndarray

    @classmethod
    def link(cls, versions: Versions, first: np.ndarray, removed: np.ndarray) -> Self:
        """Chains of versions that are sorted by key, start and kind (rules 1 to 3 of step 3, F16)."""
        count = versions.count
        before = np.maximum(np.arange(count) - 1, 0)
        same_key = versions.code == versions.code[before]
        same_key[:1] = False
        start, ended = versions.start, versions.end[before]
        s0 = first[versions.code]
        alive = (ended >= start - MILLISECOND) | ((s0 != NEVER) & (ended >= s0 - MILLISECOND))
        has_base = same_key & ((start == start[before]) | alive)
        update = versions.kind == UPDATE
        head = ~update | ~has_base
        base = np.where(update & head, removed[versions.code], -1)
        lost = update & head & (base < 0)
        own_head = np.maximum.accumulate(np.where(head, np.arange(count), 0))
        return cls(versions, head, base, lost[own_head] if count else lost)

    def source(self, known: np.ndarray) -> np.ndarray:
        """For each version the row that its cell of one column comes from, -1 for NULL.

        `known` tells for each row whether it carries a value; stored and replace rows always do.
        """
        rows = self.versions.row
        here = known[rows] | (self.versions.kind != UPDATE)
        given = np.where(here, rows, self.base)
        settled = here | self.head
        last = np.maximum.accumulate(np.where(settled, np.arange(len(rows)), 0))
        return given[last]

    def final(self) -> np.ndarray:
        """A mask of the versions that stand in the end: the last of each key and start.

        Stored versions that share a key and a start, against the law, all stay unless the delivery
        writes that start.
        """
        versions = self.versions.chosen(~self.orphan)
        differs = (versions.code[1:] != versions.code[:-1]) | (versions.start[1:] != versions.start[:-1])
        last = np.append(differs, True)[: versions.count]
        group = np.cumsum(np.append(0, last[:-1]))[: versions.count]
        stored = versions.kind[last][group] == STORED if versions.count else last
        mask = ~self.orphan
        mask[mask] = last | stored
        return mask
