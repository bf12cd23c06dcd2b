"""Sift the sides of a plan: records that are the same on all sides are counted instead of planned.

Keys are hashed into many buckets. Each bucket adds up the fingerprints of one side's rows and subtracts the
fingerprints of the other side's rows. Zero means that both sides have the same rows. The rows are read twice.
If the driver cannot hold a fingerprint for each row of a frame, Spark's tasks add them up by key.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import functions as sf

from backstory.engine.plans import KeepRows, LocalSide, SideRows
from backstory.engine.row_buffers import RowBuffer
from backstory.formats.batch_file import source_changed
from backstory.formats.memory import Memory, MemoryLease, TooLarge
from backstory.spark.versions import arrow_of, persist_on_disk
from backstory.stores.iceberg.frames import frame_of, hold_memory_of_rows
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.iceberg.workers import freeze_imports
from backstory.stores.metadata.values import truths_of
from backstory.stores.table_files import read_ahead
from backstory.strategies.fingerprints import Fingerprints, duckdb_in_memory
from backstory.strategies.frames import fingerprint
from backstory.strategies.keys import mix_bits
from backstory.strategies.part_plan import PartPlan, Whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# If 1 % of the records differ, about 2 % of the buckets differ.
RECORDS_IN_BUCKET: Final = 2
LEAST_BUCKETS, MOST_BUCKETS = 1 << 10, 1 << 26
BYTES_OF_BUCKET: Final = 16
# Digests may take this fraction of the memory, as a divisor.
SHARE: Final = 4
DIGESTS: Final = "digests of buckets"
SIFTED: Final = "more rows than a step: planned where fingerprints differ"
LOG = structlog.get_logger()
Plan = Callable[[Mapping[str, pa.Table], Whole], PartPlan]


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """The columns of a side to compare, in all rows or in the rows whose column `where` is true.

    Rows are always planned if a `required` column is NULL, or if a string is longer than `lengths` allows. A
    row whose column `takes_back` contains one of the given numbers cancels another row.
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
    """The number of rows of a side and, by column, the number of values that are not NULL.

    `content` is the sum of the fingerprints of all its rows, including planned rows.
    """

    rows: int = 0
    values: Counter[str] = field(default_factory=Counter)
    content: int = 0


@dataclass(frozen=True, slots=True)
class SiftTerms:
    """The terms of a sift: pairs of sides to compare, and the values to count.

    Two rows are the same if the compared columns of both are equal. `count_unchanged` returns the counts that
    a plan of the unchanged rows would have, from the row counts by side. `counted_columns` are columns by
    side whose values may be counted; `columns_to_count` chooses some of them by the counts of a plan.
    """

    pairs: Sequence[tuple[ComparedSide, ComparedSide]]
    count_unchanged: "Callable[[Mapping[str, RowCounts]], Mapping[str, int]]"
    counted_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns_to_count: "Callable[[Mapping[str, int]], Mapping[str, Sequence[str]]]" = lambda _: {}

    def of_side(self, name: str) -> list[tuple[int, int, ComparedSide]]:
        """The comparisons that include a side: number of the pair, position in it, and columns."""
        return [
            (number, place, compared)
            for number, pair in enumerate(self.pairs)
            for place, compared in enumerate(pair)
            if compared.side == name
        ]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The digests of buckets of keys, two numbers for each bucket."""

    halves: np.ndarray
    adding: Lock = field(default_factory=Lock)

    @classmethod
    def for_rows(cls, count: int, memory: Memory) -> "Buckets":
        """Make buckets for this many rows, within the limits of the memory."""
        most = max(1, min(MOST_BUCKETS, memory.most // SHARE // BYTES_OF_BUCKET))
        wanted = max(LEAST_BUCKETS, count // RECORDS_IN_BUCKET)
        return cls(np.zeros((2, min(wanted, most)), np.uint64))

    def of_keys(self, numbers: np.ndarray) -> np.ndarray:
        """The bucket number of each key, from the upper half of its hash."""
        half = np.uint64(32)
        return ((numbers >> half) * np.uint64(self.halves.shape[1]) >> half).view(np.int64)

    def add(self, buckets: np.ndarray, prints: np.ndarray) -> None:
        """Add the fingerprints of rows to the rows' buckets."""
        with self.adding:
            for half, added in zip(self.halves, prints, strict=True):
                np.add.at(half, buckets, added)

    def differing(self) -> np.ndarray:
        """A mask of the buckets whose rows differ between the sides."""
        return np.asarray(self.halves.any(axis=0))


def counts_of_unchanged(
    terms: SiftTerms, totals: Mapping[str, RowCounts], counts: Mapping[str, int]
) -> Counter[str]:
    """The counts of the rows that are in no part, computed from the `counts` of all parts."""
    rest = {}
    for name, total in totals.items():
        values = {
            column: count - counts.get(_count_name(name, column), 0) for column, count in total.values.items()
        }
        rest[name] = RowCounts(total.rows - counts.get(_count_name(name), 0), Counter(values), total.content)
    return Counter(terms.count_unchanged(rest))


def with_counts(plan: Plan, terms: SiftTerms) -> Plan:
    """Wrap a plan so that its counts include the numbers of rows and of non-NULL values by side."""
    return partial(_plan_and_count, plan, terms.counted_columns)


def _plan_and_count(
    plan: Plan, columns_by_side: Mapping[str, Sequence[str]], part: Mapping[str, pa.Table], whole: Whole
) -> PartPlan:
    counts = {_count_name(name): len(rows) for name, rows in part.items()}
    for name, columns in columns_by_side.items():
        counts |= {_count_name(name, column): _count_values(part[name][column]) for column in columns}
    return plan(part, whole) + PartPlan(counts=counts)


def _count_name(side: str, column: str = "") -> str:
    return f"planned {side} {column}"


def _count_values(values: pa.ChunkedArray) -> int:
    return len(values) - values.null_count


def sift_sides(
    terms: SiftTerms,
    key: Sequence[str],
    sides: Mapping[str, LocalSide],
    buckets: Buckets,
    lease: MemoryLease,
) -> tuple[Mapping[str, RowCounts], Mapping[str, LocalSide]]:
    """The counts of all rows by side, and the sides without the rows that are the same on all of them.

    The lease holds the digests of buckets and, during the first reading, the bucket of each row. Errors in
    reading the sides are raised.
    """
    lease.hold(DIGESTS, buckets.halves.nbytes)
    with ExitStack() as spilled, ThreadPoolExecutor(len(sides)) as pool:
        numbers = {name: RowBuffer(f"buckets of {name}", lease, spilled) for name in sides}
        read = pool.map(lambda name: _add_side(buckets, terms, name, sides[name], key, numbers[name]), sides)
        totals = dict(zip(sides, read, strict=True))
        differing = buckets.differing()
        masks = {name: _row_mask(differing, buffer) for name, buffer in numbers.items()}
    lease.hold(DIGESTS, sum(mask.nbytes for mask in masks.values()))
    count = int(differing.sum())
    LOG.info(SIFTED, buckets=len(differing), differing=count)
    if not count:
        empty = {name: SideRows(side.rows.schema, lambda: ()) for name, side in sides.items()}
        return totals, {name: replace(side, rows=empty[name]) for name, side in sides.items()}
    keeps = {name: partial(_rows_in, mask) for name, mask in masks.items()}
    return totals, {name: _side_left(side, keeps[name]) for name, side in sides.items()}


def _row_mask(differing: np.ndarray, numbers: RowBuffer) -> pa.ChunkedArray:
    """A bit for each row, which records whether its bucket differs. The buckets' numbers are released."""
    masks = [pa.array(differing[np.asarray(part[NUMBER])]) for part in numbers.tables()]
    numbers.clear()
    return pa.chunked_array(masks, pa.bool_())


def _side_left(side: LocalSide, keep: KeepRows) -> LocalSide:
    """The side without the rows that are the same on all sides."""
    if side.select is not None:
        return LocalSide(side.select(keep))

    def rows_left(rows: SideRows) -> SideRows:
        return SideRows(rows.schema, lambda: keep(_read_ahead(rows)))

    assert side.columns is not None
    columns = side.columns
    return replace(side, rows=rows_left(side.rows), columns=lambda names: rows_left(columns(names)))


def _rows_in(mask: pa.ChunkedArray, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows for which the mask is true. The mask has a bit for each row, in the order of the tables.

    Raises Failed if the tables have more or fewer rows than the mask has bits.
    """
    count = 0
    for rows in tables:
        mine = mask.slice(count, len(rows))
        count += len(rows)
        if len(mine) < len(rows):
            break
        yield rows.filter(mine)
    if count != len(mask):
        raise source_changed()


def _read_ahead(rows: SideRows) -> Iterator[pa.Table]:
    with ThreadPoolExecutor(1) as pool:
        yield from read_ahead(pool, [lambda: iter(rows.tables())], 1)


def _add_side(
    buckets: Buckets,
    terms: SiftTerms,
    name: str,
    side: LocalSide,
    key: Sequence[str],
    numbers: RowBuffer,
) -> RowCounts:
    """Add the fingerprints of a side's rows to the buckets, or subtract them.

    The bucket of each row is added to `numbers`.
    """
    pairs, counted, prints = terms.of_side(name), terms.counted_columns.get(name, ()), Fingerprints()
    names = dict.fromkeys(
        [*key, *(column for _, _, compared in pairs for column in compared.columns_to_read), *counted]
    )
    total, values, content = 0, Counter[str](), 0
    assert side.columns is not None
    for rows in _read_ahead(side.columns([*names])):
        total += len(rows)
        values.update({column: _count_values(rows[column]) for column in counted})
        compared_columns = {number: compared.columns for number, _, compared in pairs}
        keys, halves_of_pairs = prints.of(rows, key, compared_columns)
        row_buckets = buckets.of_keys(keys)
        for (_, place, compared), halves in zip(pairs, halves_of_pairs, strict=True):
            included = np.True_ if compared.where is None else truths_of(rows[compared.where])
            content += int((halves[0] * included).sum())
            planned = _rows_to_plan(rows, key, compared)
            if planned.any():  # no row of the other side has such a fingerprint
                halves[:, planned] = mix_bits(halves[:, planned] + np.uint64(1 + place))
            if compared.takes_back is not None:
                name_of_op, ops = compared.takes_back
                taken_back = np.asarray(pc.is_in(rows[name_of_op], value_set=pa.array(ops, pa.int32())))
                halves[:, taken_back] = np.negative(halves[:, taken_back])
            signed = np.negative(halves) if place else halves
            buckets.add(row_buckets, signed * included)
        numbers.add(pa.table({NUMBER: row_buckets.astype(np.uint32)}))
    return RowCounts(total, values, content % (1 << 64))


def _rows_to_plan(rows: pa.Table, key: Sequence[str], compared: ComparedSide) -> np.ndarray:
    """A mask of rows that are always planned."""
    planned = np.zeros(len(rows), bool)
    for name in {*key, *compared.required}:
        if rows[name].null_count:
            planned |= np.asarray(rows[name].combine_chunks().is_null())
    for name, most in compared.lengths.items():
        planned |= truths_of(pc.greater(pc.utf8_length(rows[name]), most))
    return planned


# Columns of hashed rows: the hash of a key, the halves of a fingerprint, whether sums subtract it, whether it
# counts as a row of its side, and the number of its side. No column of a side has these names.
NUMBER: Final = "number"
HALVES: Final = ("h0", "h1")
MINUS, COUNTED, SIDE = "minus", "counted", "side"
# The column of the sums of a part.
SUMS: Final = "sums"
# The memory for one row of these columns: in Java, in Arrow and in DuckDB.
BYTES_OF_HASHED_ROW: Final = 64
# If a larger share of the records differs, all rows are planned.
MOST_DIFFERING: Final = 0.3
# Up to this many key hashes are broadcast to all tasks.
MOST_SENT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FrameSift:
    """The frames of sides, without the rows that are the same on all sides.

    About `share` of all rows remains. `rows_left` is the number of remaining rows by side.
    """

    frames: "Mapping[str, DataFrame]"
    totals: Mapping[str, RowCounts]
    share: float
    rows_left: Mapping[str, int]


# The number of differing keys, and for each side the number of rows, their content, and the rows left.
_Sums = tuple[int, Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class _FrameOfSide:
    """A frame with columns numbered in schema order."""

    frame: "DataFrame"
    schema: pa.Schema

    def column(self, name: str) -> "Column":
        return sf.col(self._column_name(name))

    def type(self, name: str) -> "DataType":
        return self.frame.schema[self._column_name(name)].dataType

    def _column_name(self, name: str) -> str:
        return f"c{self.schema.get_field_index(name)}"


def sift_frames(
    terms: SiftTerms,
    key: Sequence[str],
    frames: "Mapping[str, DataFrame]",
    schemas: Mapping[str, pa.Schema],
    store: IcebergStore,
    stack: ExitStack,
) -> FrameSift:
    """The frames without the rows that are the same. Rows that Spark keeps are released with `stack`.

    The driver collects the fingerprints of all rows if its memory suffices. Otherwise tasks add them up,
    which requires sending all of them.
    """
    sides = {name: _FrameOfSide(frame, schemas[name]) for name, frame in frames.items()}
    hashed = (_hashed_rows(terms, key, name, side) for name, side in sides.items())
    hashed = (rows.withColumn(SIDE, sf.lit(place)) for place, rows in enumerate(hashed))
    rows = reduce(lambda one, other: one.union(other), hashed)
    try:
        numbers, (count, sums) = _find_differing_here(store, frames, rows)
    except TooLarge:
        numbers, (count, sums) = _find_differing_in_tasks(len(sides), rows, stack)
    LOG.info("records sifted by fingerprints", differing=count)
    totals = {
        name: RowCounts(total, content=content % (1 << 64))
        for name, (total, content, _) in zip(sides, sums, strict=True)
    }
    share = count / max(1, *(counts.rows for counts in totals.values()))
    if share > MOST_DIFFERING:
        return FrameSift(frames, totals, 1, {name: counts.rows for name, counts in totals.items()})
    numbers = sf.broadcast(numbers) if count <= MOST_SENT else numbers
    numbered = {name: side.frame.withColumn(NUMBER, _number(key, side)) for name, side in sides.items()}
    left = {name: frame.join(numbers, NUMBER, "left_semi").drop(NUMBER) for name, frame in numbered.items()}
    rows_left = {name: left_of_side for name, (*_, left_of_side) in zip(sides, sums, strict=True)}
    return FrameSift(left, totals, share, rows_left)


def _find_differing_here(
    store: IcebergStore, frames: "Mapping[str, DataFrame]", rows: "DataFrame"
) -> "tuple[DataFrame, _Sums]":
    """The hashes of keys whose rows may differ, found by the driver, and their `_Sums`.

    Raises TooLarge if the driver cannot hold the hashed rows.
    """
    if not store.memory.most:
        raise TooLarge
    count = sum(frame.count() for frame in frames.values())
    with store.memory.lease() as lease:
        hold_memory_of_rows(store, lease, DIGESTS, count * BYTES_OF_HASHED_ROW)
        numbers, sums = _differing_keys(len(frames), arrow_of(rows))
    return frame_of(store, pa.table({NUMBER: numbers})), sums


def _find_differing_in_tasks(sides: int, rows: "DataFrame", stack: ExitStack) -> "tuple[DataFrame, _Sums]":
    """The hashes of keys whose rows may differ, found by Spark's tasks, and their `_Sums`.

    Each task finds them in its own part of the keys.
    """
    # Almost every key has one row on a side, so rows are sent before they are added up.
    parts = rows.repartition(NUMBER)
    answers = persist_on_disk(
        parts.mapInArrow(partial(_differing_keys_of_part, sides), f"{NUMBER} bigint, {SUMS} string")
    )
    stack.callback(answers.unpersist)
    texts = arrow_of(answers.where(sf.col(SUMS).isNotNull()).select(SUMS))[SUMS].to_pylist()
    counts, sides_of_parts = zip((0, [(0, 0, 0)] * sides), *map(json.loads, texts), strict=True)
    sums = [tuple(map(sum, zip(*side, strict=True))) for side in zip(*sides_of_parts, strict=True)]
    return answers.where(sf.col(SUMS).isNull()).select(NUMBER), (sum(counts), sums)


def _differing_keys_of_part(sides: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task, the hashes of keys whose rows may differ, and a last row with their `_Sums` as JSON."""
    freeze_imports()
    if rows := list(batches):
        numbers, sums = _differing_keys(sides, pa.Table.from_batches(rows), threads=1)
        texts = pa.array([*[None] * len(numbers), json.dumps(sums)], pa.string())
        numbers = pa.concat_arrays([numbers, pa.nulls(1, numbers.type)])
        yield from pa.table({NUMBER: numbers, SUMS: texts}).to_batches()


def _differing_keys(sides: int, hashed: pa.Table, threads: int | None = None) -> tuple[pa.Array, _Sums]:
    """The hashes of keys whose fingerprints do not add up to 0, and their `_Sums`.

    The content of a side is the sum of the first halves of its fingerprints.
    """
    own = [f"count(*) FILTER (WHERE {SIDE} = {place} AND {COUNTED})" for place in range(sides)]
    sums = [f"sum(CASE WHEN {MINUS} THEN -({half}::HUGEINT) ELSE {half} END)" for half in HALVES]
    differ = " OR ".join(f"{sum_of_half} <> 0" for sum_of_half in sums)
    query = f"SELECT {NUMBER}, {', '.join(own)} FROM hashed GROUP BY {NUMBER} HAVING {differ}"  # noqa: S608
    whole = f"SELECT {SIDE}, count(*), {sums[0]} FROM hashed WHERE {COUNTED} GROUP BY {SIDE}"  # noqa: S608
    with duckdb_in_memory(threads) as connection:
        connection.register("hashed", hashed)
        numbers, *counts = connection.sql(query).to_arrow_table().columns
        totals = {place: total for place, *total in connection.sql(whole).fetchall()}
    left = (int(np.asarray(count).sum()) for count in counts)
    sums_of_sides = [(*totals.get(place, (0, 0)), rows) for place, rows in enumerate(left)]
    return numbers.combine_chunks(), (len(numbers), sums_of_sides)


def count_values(
    totals: Mapping[str, RowCounts],
    frames: "Mapping[str, DataFrame]",
    schemas: Mapping[str, pa.Schema],
    columns: Mapping[str, Sequence[str]],
) -> dict[str, RowCounts]:
    """Add the number of non-NULL values in each given column to the row counts of each side."""
    counts = dict(totals)
    for name, names in columns.items():
        if names:
            side = _FrameOfSide(frames[name], schemas[name])
            row = side.frame.agg(*(sf.count(side.column(column)) for column in names)).collect()[0]
            values = Counter(dict(zip(names, row, strict=True)))
            counts[name] = replace(totals[name], values=values)
    return counts


def _number(key: Sequence[str], side: _FrameOfSide) -> "Column":
    """A 64-bit hash of a row's key."""
    return sf.xxhash64(*map(side.column, key))


def _hashed_rows(terms: SiftTerms, key: Sequence[str], name: str, side: _FrameOfSide) -> "DataFrame":
    """The key hash and the fingerprint of each row of a side, for each pair that includes the side.

    The column `minus` is true for rows to subtract, and `counted` for a row in the first of these pairs.
    """
    number, rows = _number(key, side).alias(NUMBER), []
    for turn, (pair, place, compared) in enumerate(terms.of_side(name)):
        values = [*_fingerprint(pair, place, key, compared, side), sf.lit(turn == 0).alias(COUNTED)]
        rows.append((values, compared.where))
    if len(rows) == 1 and rows[0][1] is None:
        return side.frame.select(number, *rows[0][0])
    structs = [
        sf.struct(*values) if where is None else sf.when(side.column(where), sf.struct(*values))
        for values, where in rows
    ]
    exploded = side.frame.select(number, sf.explode(sf.array_compact(sf.array(*structs))).alias("row"))
    return exploded.select(NUMBER, *(sf.col(f"row.{column}") for column in (*HALVES, MINUS, COUNTED)))


def _fingerprint(
    pair: int, place: int, key: Sequence[str], compared: ComparedSide, side: _FrameOfSide
) -> "list[Column]":
    """The halves of a row's fingerprint, and whether sums subtract it."""
    halves = fingerprint([(side.column(name), side.type(name)) for name in (*key, *compared.columns)], pair)
    lacking = [side.column(name).isNull() for name in dict.fromkeys([*key, *compared.required])]
    long = [
        sf.coalesce(sf.length(side.column(name)) > most, sf.lit(False))
        for name, most in compared.lengths.items()
    ]
    planned = reduce(or_, [*lacking, *long])  # no row of the other side has such a fingerprint
    halves = [sf.when(planned, sf.xxhash64(half, sf.lit(1 + place))).otherwise(half) for half in halves]
    minus = sf.lit(bool(place))
    if compared.takes_back is not None:
        column, numbers = compared.takes_back
        minus = sf.coalesce(side.column(column).isin(*numbers), sf.lit(False)) != minus
    return [*(half.alias(name) for half, name in zip(halves, HALVES, strict=True)), minus.alias(MINUS)]
