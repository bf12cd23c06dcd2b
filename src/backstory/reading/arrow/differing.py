"""The differences of two states of a table: counted and grouped as a whole, told a page at a time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.values import alike
from backstory.reading.lives import value_text
from backstory.reading.rules.differences import Row, difference, in_order
from backstory.stores.metadata.values import integers, numbers, rows_of, truths_of, values_of, without_nulls

Difference = dict[str, Any]
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
# No row of a side.
NONE: Final = -1


@dataclass(frozen=True, slots=True)
class AlikeChange:
    """So many records that had one value in a column and have another, as people read them."""

    count: int
    column: str
    before: str
    after: str


class Differing(Protocol):
    """The records that differ."""

    def __len__(self) -> int: ...

    def kinds(self) -> Counter[str]:
        """How many records are of each kind."""

    def columns(self) -> Counter[str]:
        """In how many changed records each column differs."""

    def alike_changes(self, most: int) -> list[AlikeChange]:
        """The changes of values that several records have in common, the most frequent first."""

    def page(self, begin: int = 0, end: int | None = None) -> list[Difference]:
        """Some of the records, in the order of their keys."""


@dataclass(frozen=True)
class ListedDifferences:
    """Differences as the rule tells them."""

    every: Sequence[Difference]

    def __len__(self) -> int:
        return len(self.every)

    def kinds(self) -> Counter[str]:
        """How many records are of each kind."""
        return Counter(each["change"] for each in self.every)

    def columns(self) -> Counter[str]:
        """In how many changed records each column differs."""
        return Counter(name for each in self.every for name in each["changed"])

    def alike_changes(self, most: int) -> list[AlikeChange]:
        """The changes of values that several records have in common, the most frequent first."""
        counted = Counter(
            (name, value_text(each["before"][name]), value_text(each["after"][name]))
            for each in self.every
            for name in each["changed"]
        )
        return [AlikeChange(count, *change) for change, count in counted.most_common(most) if count > 1]

    def page(self, begin: int = 0, end: int | None = None) -> list[Difference]:
        """Some of the records, in the order of their keys."""
        return [dict(each) for each in in_order(self.every, ["key"])[begin:end]]


@dataclass(frozen=True)
class PairedDifferences:
    """The same as places of rows: of each record its row before and after, and which columns differ."""

    users: pa.Table
    key: Sequence[str]
    before: np.ndarray
    after: np.ndarray
    changed: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.before)

    @cached_property
    def _is(self) -> dict[str, np.ndarray]:
        added, removed = self.before == NONE, self.after == NONE
        return {ADDED: added, REMOVED: removed, CHANGED: ~added & ~removed}

    def of_kind(self, kind: str | None) -> "PairedDifferences":
        """Those of one kind; all for None, none for a kind that there is only in between."""
        if kind is None:
            return self
        chosen = self._is.get(kind, np.zeros(len(self), bool))
        changed = {name: mask[chosen] for name, mask in self.changed.items()}
        return PairedDifferences(self.users, self.key, self.before[chosen], self.after[chosen], changed)

    def kinds(self) -> Counter[str]:
        """How many records are of each kind."""
        return Counter({kind: int(mask.sum()) for kind, mask in self._is.items() if mask.any()})

    def columns(self) -> Counter[str]:
        """In how many changed records each column differs."""
        return Counter({name: int(mask.sum()) for name, mask in self.changed.items() if mask.any()})

    def alike_changes(self, most: int) -> list[AlikeChange]:
        """The changes of values that several records have in common, the most frequent first."""
        found = [change for name, mask in self.changed.items() for change in self._alike(name, mask, most)]
        return sorted(found, key=lambda each: -each.count)[:most]

    def _alike(self, name: str, mask: np.ndarray, most: int) -> list[AlikeChange]:
        if not mask.any():
            return []
        sides = [self.users[name].take(integers(side[mask])) for side in (self.before, self.after)]
        pairs = pa.table(dict(zip(("before", "after"), sides, strict=True)))
        if not pa.types.is_nested(pairs.schema.field(0).type):
            _, firsts, counts = np.unique(_numbers_of([pairs]), return_index=True, return_counts=True)
            most_frequent = np.argsort(-counts, kind="stable")[:most]
            pairs = pairs.take(integers(firsts[most_frequent]))
            return [
                AlikeChange(int(count), name, value_text(row["before"]), value_text(row["after"]))
                for row, count in zip(rows_of(pairs), counts[most_frequent], strict=True)
                if count > 1
            ]
        texts = Counter((value_text(row["before"]), value_text(row["after"])) for row in rows_of(pairs))
        return [AlikeChange(count, name, *pair) for pair, count in texts.most_common(most) if count > 1]

    def page(self, begin: int = 0, end: int | None = None) -> list[Difference]:
        """Some of the records, in the order of their keys."""
        some = np.where(self.before == NONE, self.after, self.before)
        keys = self.users.select(self.key).take(integers(some))
        in_order_of_keys = pc.sort_indices(keys, [(name, "ascending") for name in self.key])
        places = numbers(pa.chunked_array([in_order_of_keys]))[begin:end]
        before, after = (self._rows(side[places]) for side in (self.before, self.after))
        names = [
            [name for name, mask in self.changed.items() if mask[place]] if self._is[CHANGED][place] else []
            for place in places
        ]
        return [difference(*each[:2], self.key, each[2]) for each in zip(before, after, names, strict=True)]

    def _rows(self, places: np.ndarray) -> list[Row | None]:
        """The rows at these places; None where a side has none."""
        found = iter(rows_of(self.users.take(integers(places[places != NONE]))))
        return [None if place == NONE else next(found) for place in places]


def pair(
    users: pa.Table, key: Sequence[str], before: np.ndarray, after: np.ndarray
) -> PairedDifferences | None:
    """The records that differ between the rows at some places and those at others.

    None where the rule must pair them: a key that is not plain or has NULL, or that a side has twice.
    """
    sides = [users.select(key).take(integers(each)) for each in (before, after)]
    if not key or not all(is_plain(each.type) for each in sides[0].schema):
        return None
    if any(column.null_count for side in sides for column in side.columns):
        return None
    of_record = _numbers_of(sides)
    rows = [np.full(of_record.max(initial=NONE) + 1, NONE) for _ in sides]
    for found, places, records in zip(rows, (before, after), np.split(of_record, [len(before)]), strict=True):
        found[records] = places
        if (found != NONE).sum() < len(places):
            return None
    one, other = rows
    both = np.flatnonzero((one != NONE) & (other != NONE))
    changed = {}
    for name in (each for each in users.column_names if each not in key):
        mask = np.zeros(len(one), bool)
        mask[both] = _differ(*(users[name].take(integers(side[both])) for side in (one, other)))
        changed[name] = mask
    differing = (
        (one == NONE) | (other == NONE) | np.any([np.zeros(len(one), bool), *changed.values()], axis=0)
    )
    kept = {name: mask[differing] for name, mask in changed.items()}
    return PairedDifferences(users, list(key), one[differing], other[differing], kept)


def _numbers_of(sides: Sequence[pa.Table]) -> np.ndarray:
    """For each row of some tables, one behind the other, a number: that of its values."""
    found = np.zeros(sum(side.num_rows for side in sides), np.int64)
    for parts in zip(*(side.columns for side in sides), strict=True):
        column = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
        codes = numbers(pa.chunked_array([column.combine_chunks().dictionary_encode("encode").indices]))
        found = np.unique(found * (codes.max(initial=0) + 1) + codes, return_inverse=True)[1]
    return found


def is_plain(type_: pa.DataType) -> bool:
    """Whether Arrow tells and sorts values of the type as the rule does."""
    t = pa.types
    plain = (t.is_integer, t.is_string, t.is_boolean, t.is_date32, t.is_timestamp)
    return any(is_(type_) for is_ in plain)


def _differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """Where two values are not one: NULL is NULL, NaN is NaN, 0.0 is -0.0, and maps have no order."""
    if pa.types.is_nested(one.type):
        pairs = zip(values_of(one), values_of(other), strict=True)
        return np.array([a != b and alike(a) != alike(b) for a, b in pairs], bool)
    found = truths_of(
        pc.or_(pc.xor(pc.is_null(one), pc.is_null(other)), without_nulls(pc.not_equal(one, other)))
    )
    if pa.types.is_floating(one.type):
        found &= ~truths_of(pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return found
