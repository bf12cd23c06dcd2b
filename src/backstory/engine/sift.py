"""A full copy beside what is stored: records that are the same on both sides need no plan.

Keys fall into many buckets. In each, the fingerprints of the rows of one side are added up, and those of the
other are subtracted: zero is left where both have the same rows. These are counted, the others are planned.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from backstory.engine.parts import Rows
from backstory.engine.sides import LocalSide
from backstory.formats.memory import Memory, MemoryLease
from backstory.stores.read_ahead import read_ahead
from backstory.strategies.fingerprints import Fingerprints
from backstory.strategies.keys import mix_bits
from backstory.strategies.part_plan import PartPlan, Whole

# If one record of a hundred differs, about one bucket of fifty does.
RECORDS_IN_BUCKET: Final = 2
LEAST_BUCKETS, MOST_BUCKETS = 1 << 10, 1 << 24
BYTES_OF_BUCKET: Final = 16
# Digests may take such a part of the memory.
SHARE: Final = 8
DIGESTS: Final = "digests of buckets"
SIFTED: Final = "more rows than a step: planned where fingerprints differ"
LOG = structlog.get_logger()
Plan = Callable[[Mapping[str, pa.Table], Whole], PartPlan]


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """What is compared of a side: its rows count where `where` is true, all do without it.

    Rows are planned in any case if a `required` column is NULL, or a text longer than `lengths` allows. A row
    takes another one back if the column of `takes_back` has one of the numbers there.
    """

    side: str
    columns: Sequence[str]
    required: Sequence[str]
    where: str | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)
    takes_back: tuple[str, Sequence[int]] | None = None

    @property
    def needed(self) -> list[str]:
        """The columns to read."""
        others = [self.where, self.takes_back and self.takes_back[0]]
        return [*dict.fromkeys([*self.columns, *self.required, *self.lengths, *filter(None, others)])]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows a side has, and by column how many of their values are not NULL.

    `content` is the sum of the fingerprints of all rows of a side, planned ones among them.
    """

    rows: int = 0
    values: Counter[str] = field(default_factory=Counter)
    content: int = 0


@dataclass(frozen=True, slots=True)
class SiftTerms:
    """Pairs of sides whose rows are the same where the columns of both are, in their order.

    `counted` are the columns of sides whose values may be counted, `needed` those of them whose counts matter
    beside these counts of a plan. `settled` gives the counts of the plan of rows that are the same on all
    sides, by side.
    """

    pairs: Sequence[tuple[ComparedSide, ComparedSide]]
    settled: "Callable[[Mapping[str, RowCounts]], Mapping[str, int]]"
    counted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needed: "Callable[[Mapping[str, int]], Mapping[str, Sequence[str]]]" = lambda _: {}

    def of_side(self, name: str) -> list[tuple[int, int, ComparedSide]]:
        """What is compared of a side: the number of the pair, its place in it, and the columns."""
        return [
            (number, place, each)
            for number, pair in enumerate(self.pairs)
            for place, each in enumerate(pair)
            if each.side == name
        ]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The digests of buckets of keys, two numbers for each."""

    halves: np.ndarray
    adding: Lock = field(default_factory=Lock)

    @classmethod
    def for_rows(cls, count: int, memory: Memory) -> "Buckets":
        """Buckets for so many rows, as many as the memory allows."""
        most = max(1, min(MOST_BUCKETS, memory.most // SHARE // BYTES_OF_BUCKET))
        wanted = max(LEAST_BUCKETS, count // RECORDS_IN_BUCKET)
        return cls(np.zeros((2, 1 << (min(wanted, most).bit_length() - 1)), np.uint64))

    def of_keys(self, numbers: np.ndarray) -> np.ndarray:
        """The bucket of each key."""
        return (numbers & np.uint64(self.halves.shape[1] - 1)).view(np.int64)

    def add(self, numbers: np.ndarray, prints: np.ndarray) -> None:
        """Add fingerprints of rows to the buckets of their keys."""
        buckets = self.of_keys(numbers)
        with self.adding:
            for half, each in zip(self.halves, prints, strict=True):
                np.add.at(half, buckets, each)

    def differing(self) -> np.ndarray:
        """Which buckets have other rows on one side than on the other."""
        return np.asarray(self.halves.any(axis=0))


@dataclass(frozen=True, slots=True)
class Sift:
    """The sides of a plan without the rows that are the same on all of them.

    `totals` counts all rows of each side.
    """

    terms: SiftTerms
    totals: Mapping[str, RowCounts]
    sides: Mapping[str, LocalSide]

    def settled(self, counts: Counter[str]) -> Counter[str]:
        """The counts of the plan of all other rows, by the counts of all parts that were planned."""
        return settled_counts(self.terms, self.totals, counts)


def settled_counts(
    terms: SiftTerms, totals: Mapping[str, RowCounts], counts: Mapping[str, int]
) -> Counter[str]:
    """The counts of the plan of rows that no part has, by the `counts` of all parts."""
    rest = {}
    for name, total in totals.items():
        values = {each: count - counts.get(_planned(name, each), 0) for each, count in total.values.items()}
        rest[name] = RowCounts(total.rows - counts.get(_planned(name), 0), Counter(values), total.content)
    return Counter(terms.settled(rest))


def counting(plan: Plan, terms: SiftTerms) -> Plan:
    """The same plan, which also counts the rows of each side, and their values that are not NULL."""
    return partial(_plan_and_count, plan, terms.counted)


def _plan_and_count(
    plan: Plan, counted: Mapping[str, Sequence[str]], part: Mapping[str, pa.Table], whole: Whole
) -> PartPlan:
    counts = {_planned(name): len(rows) for name, rows in part.items()}
    for name, columns in counted.items():
        counts |= {_planned(name, each): _count_values(part[name][each]) for each in columns}
    return plan(part, whole) + PartPlan(counts=counts)


def _planned(side: str, column: str = "") -> str:
    return f"planned {side} {column}"


def _count_values(values: pa.ChunkedArray) -> int:
    return len(values) - values.null_count


def sift_sides(
    terms: SiftTerms,
    key: Sequence[str],
    sides: Mapping[str, LocalSide],
    memory: Memory,
    lease: MemoryLease,
    count: int,
) -> Sift:
    """The sides without the rows that are the same; `count` is about how many rows a side has.

    The lease holds the digests of buckets. Raises what reading the sides raises.
    """
    buckets = Buckets.for_rows(count, memory)
    lease.hold(DIGESTS, buckets.halves.nbytes)
    with ThreadPoolExecutor(len(sides)) as pool:
        read = pool.map(lambda name: _add_side(buckets, terms, name, sides[name], key), sides)
        totals = dict(zip(sides, read, strict=True))
    differing = buckets.differing()
    lease.hold(DIGESTS, differing.nbytes)
    LOG.info(SIFTED, buckets=len(differing), differing=int(differing.sum()))

    prints = Fingerprints()

    def chosen(rows: pa.Table) -> pa.Array:
        numbers, _ = prints.of(rows, key, ())
        return pa.array(differing[buckets.of_keys(numbers)])

    some = bool(differing.any())
    left = {name: replace(side, rows=_rows_left(side, chosen, some=some)) for name, side in sides.items()}
    return Sift(terms, totals, left)


def _rows_left(side: LocalSide, chosen: Callable[[pa.Table], pa.Array], *, some: bool) -> Rows:
    """The rows of a side that may differ; it is not read where none does."""
    if not some:
        return Rows(side.rows.schema, lambda: ())
    if side.chosen is not None:
        return side.chosen(chosen)
    return Rows(side.rows.schema, partial(_map_tables, lambda rows: rows.filter(chosen(rows)), side.rows))


def _map_tables(make: Callable[[pa.Table], pa.Table], rows: Rows) -> Iterator[pa.Table]:
    with ThreadPoolExecutor(1) as pool:
        yield from map(make, read_ahead(pool, [lambda: iter(rows.tables())], 1))


def _add_side(
    buckets: Buckets, terms: SiftTerms, name: str, side: LocalSide, key: Sequence[str]
) -> RowCounts:
    """Add the rows of a side to the digests of buckets, or subtract them."""
    pairs, counted, prints = terms.of_side(name), terms.counted.get(name, ()), Fingerprints()
    names = dict.fromkeys([*key, *(column for _, _, each in pairs for column in each.needed), *counted])
    total, values, content = 0, Counter[str](), 0
    assert side.columns is not None
    for rows in _map_tables(lambda each: each, side.columns([*names])):
        total += len(rows)
        values.update({each: _count_values(rows[each]) for each in counted})
        for number, place, compared in pairs:
            chosen = rows
            if compared.where is not None:
                chosen = rows.filter(pc.fill_null(rows[compared.where], False))
            keys, halves = prints.of(chosen, key, compared.columns, salt=number)
            content += int(halves[0].sum())
            planned = _rows_to_plan(chosen, key, compared)
            if planned.any():  # no row of the other side has such a fingerprint
                halves[:, planned] = mix_bits(halves[:, planned] + np.uint64(1 + place))
            if compared.takes_back is not None:
                name_of_op, numbers = compared.takes_back
                taken_back = np.asarray(pc.is_in(chosen[name_of_op], value_set=pa.array(numbers, pa.int32())))
                halves[:, taken_back] = np.negative(halves[:, taken_back])
            buckets.add(keys, np.negative(halves) if place else halves)
    return RowCounts(total, values, content % (1 << 64))


def _rows_to_plan(rows: pa.Table, key: Sequence[str], compared: ComparedSide) -> np.ndarray:
    """Which rows are planned in any case."""
    planned = np.zeros(len(rows), bool)
    for name in {*key, *compared.required}:
        if rows[name].null_count:
            planned |= np.asarray(rows[name].combine_chunks().is_null())
    for name, most in compared.lengths.items():
        planned |= np.asarray(pc.fill_null(pc.greater(pc.utf8_length(rows[name]), most), False))
    return planned
