"""A full copy beside what is stored: records that are the same on both sides need no plan.

Keys fall into many buckets. In each, the fingerprints of the rows of one side are added up, and those of the
other are subtracted: zero is left where both have the same rows. These are counted, the others are planned.

The same sift by Spark: one query adds up the fingerprints of the rows of each key.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from threading import Lock
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from backstory.engine.sides import LocalSide, SideRows
from backstory.formats.memory import Memory, MemoryLease
from backstory.spark.versions import persist_on_disk
from backstory.stores.read_ahead import read_ahead
from backstory.strategies.fingerprints import Fingerprints
from backstory.strategies.frames import fingerprint, observed_counts
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
    def columns_to_read(self) -> list[str]:
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
    count_unchanged: "Callable[[Mapping[str, RowCounts]], Mapping[str, int]]"
    counted_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns_to_count: "Callable[[Mapping[str, int]], Mapping[str, Sequence[str]]]" = lambda _: {}

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

    def count_unchanged(self, counts: Counter[str]) -> Counter[str]:
        """The counts of the plan of all other rows, by the counts of all parts that were planned."""
        return counts_of_unchanged(self.terms, self.totals, counts)


def counts_of_unchanged(
    terms: SiftTerms, totals: Mapping[str, RowCounts], counts: Mapping[str, int]
) -> Counter[str]:
    """The counts of the plan of rows that no part has, by the `counts` of all parts."""
    rest = {}
    for name, total in totals.items():
        values = {
            each: count - counts.get(_count_name(name, each), 0) for each, count in total.values.items()
        }
        rest[name] = RowCounts(total.rows - counts.get(_count_name(name), 0), Counter(values), total.content)
    return Counter(terms.count_unchanged(rest))


def with_counts(plan: Plan, terms: SiftTerms) -> Plan:
    """The same plan, which also counts the rows of each side, and their values that are not NULL."""
    return partial(_plan_and_count, plan, terms.counted_columns)


def _plan_and_count(
    plan: Plan, counted: Mapping[str, Sequence[str]], part: Mapping[str, pa.Table], whole: Whole
) -> PartPlan:
    counts = {_count_name(name): len(rows) for name, rows in part.items()}
    for name, columns in counted.items():
        counts |= {_count_name(name, each): _count_values(part[name][each]) for each in columns}
    return plan(part, whole) + PartPlan(counts=counts)


def _count_name(side: str, column: str = "") -> str:
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


def _rows_left(side: LocalSide, chosen: Callable[[pa.Table], pa.Array], *, some: bool) -> SideRows:
    """The rows of a side that may differ; it is not read where none does."""
    if not some:
        return SideRows(side.rows.schema, lambda: ())
    if side.select is not None:
        return side.select(chosen)
    return SideRows(side.rows.schema, partial(_map_tables, lambda rows: rows.filter(chosen(rows)), side.rows))


def _map_tables(make: Callable[[pa.Table], pa.Table], rows: SideRows) -> Iterator[pa.Table]:
    with ThreadPoolExecutor(1) as pool:
        yield from map(make, read_ahead(pool, [lambda: iter(rows.tables())], 1))


def _add_side(
    buckets: Buckets, terms: SiftTerms, name: str, side: LocalSide, key: Sequence[str]
) -> RowCounts:
    """Add the rows of a side to the digests of buckets, or subtract them."""
    pairs, counted, prints = terms.of_side(name), terms.counted_columns.get(name, ()), Fingerprints()
    names = dict.fromkeys(
        [*key, *(column for _, _, each in pairs for column in each.columns_to_read), *counted]
    )
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


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# A number for a key, and quarters of fingerprints. Columns of sides have other names.
NUMBER: Final = "number"
QUARTERS: Final = ("q0", "q1", "q2", "q3")
CONTENT: Final = "content"
# Where more of the records differ, all rows are planned.
MOST_DIFFERING: Final = 0.3
# The numbers of so many keys are sent to all tasks.
MOST_SENT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FrameSift:
    """The frames of sides without the rows that are the same on all; about a `share` of all rows is left."""

    frames: "Mapping[str, DataFrame]"
    totals: Mapping[str, RowCounts]
    share: float


@dataclass(frozen=True, slots=True)
class _FrameOfSide:
    """A frame with columns that are numbered in the order of the schema."""

    frame: "DataFrame"
    schema: pa.Schema

    def column(self, name: str) -> "Column":
        from pyspark.sql.functions import col

        return col(self._column_name(name))

    def type(self, name: str) -> "DataType":
        return self.frame.schema[self._column_name(name)].dataType

    def _column_name(self, name: str) -> str:
        return f"c{self.schema.get_field_index(name)}"


def sift_frames(
    terms: SiftTerms,
    key: Sequence[str],
    frames: "Mapping[str, DataFrame]",
    schemas: Mapping[str, pa.Schema],
    kept: ExitStack,
) -> FrameSift:
    """The frames without the rows that are the same. What Spark keeps goes with `kept`."""
    from pyspark.sql.functions import broadcast, col
    from pyspark.sql.functions import sum as total

    sides = {name: _FrameOfSide(frame, schemas[name]) for name, frame in frames.items()}
    own = {name: f"n{place}" for place, name in enumerate(sides)}
    sums = [*QUARTERS, *own.values(), CONTENT]
    rows = reduce(
        lambda one, other: one.union(other),
        (_fingerprint_rows(terms, key, name, side, own) for name, side in sides.items()),
    )
    digests = rows.groupBy(NUMBER).agg(*(total(each).alias(each) for each in sums))
    all_rows = f"all rows {uuid4()}"  # one query may be in the plan of another
    digests = digests.observe(all_rows, *(total(each).alias(each) for each in (*own.values(), CONTENT)))
    other = reduce(or_, (col(each) != 0 for each in QUARTERS))
    differing = persist_on_disk(digests.where(other).select(NUMBER))
    kept.callback(differing.unpersist)
    many = differing.count()
    counts = observed_counts(differing)[all_rows]
    totals = {name: RowCounts(counts[own[name]], content=counts[CONTENT]) for name in frames}
    LOG.info("records sifted by fingerprints", differing=many)
    share = many / max(1, *(each.rows for each in totals.values()))
    if share > MOST_DIFFERING:
        return FrameSift(frames, totals, 1)
    numbers = broadcast(differing) if many <= MOST_SENT else differing
    numbered = {name: side.frame.withColumn(NUMBER, _number(key, side)) for name, side in sides.items()}
    left = {name: rows.join(numbers, NUMBER, "left_semi").drop(NUMBER) for name, rows in numbered.items()}
    return FrameSift(left, totals, share)


def count_values(
    totals: Mapping[str, RowCounts],
    frames: "Mapping[str, DataFrame]",
    schemas: Mapping[str, pa.Schema],
    columns: Mapping[str, Sequence[str]],
) -> dict[str, RowCounts]:
    """The counts of rows with those of the values of these columns, by side."""
    from pyspark.sql.functions import count

    counts = dict(totals)
    for name, names in columns.items():
        if names:
            side = _FrameOfSide(frames[name], schemas[name])
            row = side.frame.agg(*(count(side.column(each)) for each in names)).collect()[0]
            values = Counter(dict(zip(names, row, strict=True)))
            counts[name] = replace(totals[name], values=values)
    return counts


def _number(key: Sequence[str], side: _FrameOfSide) -> "Column":
    """A number of 64 bits for the key of a row."""
    from pyspark.sql.functions import xxhash64

    return xxhash64(*map(side.column, key))


def _fingerprint_rows(
    terms: SiftTerms, key: Sequence[str], name: str, side: _FrameOfSide, own: Mapping[str, str]
) -> "DataFrame":
    """For each row of a side, and each pair that it is in, the number of its key and its fingerprint.

    In the first of these pairs the row counts in the column of its side.
    """
    from pyspark.sql.functions import array, array_compact, col, explode, lit, struct, when

    number, rows = _number(key, side).alias(NUMBER), []
    for turn, (pair, place, compared) in enumerate(terms.of_side(name)):
        quarters = _quarters(pair, place, key, compared, side)
        counts = [
            lit(int(turn == 0 and each == name)).cast("bigint").alias(column) for each, column in own.items()
        ]
        content = quarters[0] if turn == 0 and name == next(iter(own)) else lit(0).cast("bigint")
        named = (value.alias(quarter) for value, quarter in zip(quarters, QUARTERS, strict=True))
        rows.append(([*named, *counts, content.alias(CONTENT)], compared.where))
    if len(rows) == 1 and rows[0][1] is None:
        return side.frame.select(number, *rows[0][0])
    structs = [
        struct(*values) if where is None else when(side.column(where), struct(*values))
        for values, where in rows
    ]
    exploded = side.frame.select(number, explode(array_compact(array(*structs))).alias("row"))
    return exploded.select(NUMBER, *(col(f"row.{each}") for each in (*QUARTERS, *own.values(), CONTENT)))


def _quarters(
    pair: int, place: int, key: Sequence[str], compared: ComparedSide, side: _FrameOfSide
) -> "list[Column]":
    """A fingerprint as four numbers of 32 bits, whose sums do not overflow; they are negative on one side."""
    from pyspark.sql.functions import coalesce, length, lit, shiftrightunsigned, when, xxhash64

    halves = fingerprint([(side.column(name), side.type(name)) for name in (*key, *compared.columns)], pair)
    lacking = [side.column(name).isNull() for name in dict.fromkeys([*key, *compared.required])]
    long = [coalesce(length(side.column(name)) > most, lit(False)) for name, most in compared.lengths.items()]
    planned = reduce(or_, [*lacking, *long])  # no row of the other side has such a fingerprint
    halves = [when(planned, xxhash64(half, lit(1 + place))).otherwise(half) for half in halves]
    sign = lit(-1 if place else 1)
    if compared.takes_back is not None:
        column, numbers = compared.takes_back
        sign = when(side.column(column).isin(*numbers), -sign).otherwise(sign)
    low = lit(0xFFFFFFFF)
    return [sign * part for half in halves for part in (half.bitwiseAND(low), shiftrightunsigned(half, 32))]
