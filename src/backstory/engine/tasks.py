"""Plan a delivery in Spark's tasks: delivered and stored rows by bucket of the key.

All tasks return answers in one form: rows by kind, and sums. Rows of all kinds share the form's columns of
each type, so most columns of a row have values. The columns are numbered, because some names have a special
meaning in Spark.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, DecimalType, IntegralType, StringType, TimestampType

from backstory.engine.driver import plan_collected, result_of_rows, sizes_of_rows
from backstory.engine.plans import PlanResult, PlanTerms, Side
from backstory.engine.sift import (
    FrameSift,
    SiftTerms,
    count_values,
    counts_of_unchanged,
    sift_frames,
    with_counts,
)
from backstory.formats.memory import TooLarge, unpacked_size
from backstory.model.layout import FILE
from backstory.spark.versions import arrow_of, checkpoint_on_disk, persist_on_disk, with_offsets
from backstory.stores.iceberg.frames import (
    BUCKET,
    BYTES_IN_BUCKET,
    bucket_of,
    buckets_for,
    bytes_of,
    is_kept,
    shared_names,
    side_rows,
    tag_sides,
)
from backstory.stores.iceberg.literals import instant, literal
from backstory.stores.iceberg.positions import file_code
from backstory.stores.iceberg.workers import carry_errors, freeze_imports
from backstory.strategies.part_plan import PartPlan, PlanSums, as_they_are

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KIND, SUMS = "kind", "sums"
# The kind of the row with the sums of a part.
SUM: Final = -1
ROWS_IN_BATCH: Final = 1 << 16


@dataclass(frozen=True)
class Wire:
    """The form of answers that contain rows of these kinds. Each kind has its own schema.

    Files are `numbered` if Spark keeps the answers, because a path may be the largest part of a row.
    """

    kinds: Mapping[str, pa.Schema]
    numbered: bool = True

    @cached_property
    def _schemas(self) -> dict[str, pa.Schema]:
        return {kind: self.in_tasks(schema) for kind, schema in self.kinds.items()}

    def in_tasks(self, schema: pa.Schema) -> pa.Schema:
        """The schema of rows in tasks, where a number may represent a file."""
        if not self.numbered or FILE not in schema.names:
            return schema
        return schema.set(schema.get_field_index(FILE), pa.field(FILE, pa.int64()))

    @cached_property
    def _columns(self) -> dict[str, dict[str, pa.DataType]]:
        """For each kind, the shared columns of its rows with their types, in the order of its schema."""
        known: dict[str, int] = {}
        return {
            kind: dict(zip(shared_names(map(str, schema.types), known), schema.types, strict=True))
            for kind, schema in self._schemas.items()
        }

    def columns(self, kind: str) -> list[str]:
        """The shared columns of one kind's rows, in the order of that kind's schema."""
        return [*self._columns[kind]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the form as an Arrow schema."""
        head = [(KIND, pa.int32()), (SUMS, pa.binary())]
        columns = {name: type_ for own in self._columns.values() for name, type_ in own.items()}
        return pa.schema([*head, *columns.items()])

    def encode(self, plan: PartPlan) -> Iterator[pa.RecordBatch]:
        """Convert the result of a part to this form."""
        sums = PlanSums().add(plan)
        for number, (kind, schema) in enumerate(self._schemas.items()):
            if (rows := plan.rows.get(kind)) is not None and len(rows):
                values = rows.select(schema.names).cast(schema).columns
                columns = dict(zip(self.columns(kind), values, strict=True))
                yield from self._batches(number, len(rows), columns)
        yield from self._batches(SUM, 1, {SUMS: pa.array([_pack_sums(sums)], pa.binary())})

    def _batches(
        self, number: int, count: int, columns: Mapping[str, pa.ChunkedArray | pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        columns_by_name = {KIND: pa.repeat(pa.scalar(number, pa.int32()), count), **columns}
        values = [columns_by_name.get(column.name, pa.nulls(count, column.type)) for column in self.schema]
        yield from pa.table(values, schema=self.schema).to_batches(max_chunksize=ROWS_IN_BATCH)

    def rows(self, answers: "DataFrame", kind: str) -> "DataFrame":
        """The rows of one kind in the answers, with that kind's column names."""
        number = [*self.kinds].index(kind)
        rows = answers.where(sf.col(KIND) == number).select(*self.columns(kind))
        return rows.toDF(*self.kinds[kind].names)

    def sums(self, answers: "DataFrame") -> list[PlanSums]:
        """The sums of each part."""
        packed = arrow_of(answers.where(sf.col(KIND) == SUM).select(SUMS))
        return _unpack_sums(packed[SUMS])

    def collect(self, answers: "DataFrame") -> "tuple[list[PlanSums], dict[str, pa.Table]]":
        """The sums of each part, and the rows of each kind."""
        collected = arrow_of(answers)
        rows = {}
        for number, (kind, schema) in enumerate(self._schemas.items()):
            own = collected.filter(pc.equal(collected[KIND], number)).select(self.columns(kind))
            rows[kind] = own.rename_columns(schema.names).cast(schema)
        return _unpack_sums(collected[SUMS].drop_null()), rows


def _pack_sums(sums: PlanSums) -> bytes:
    # A pickled slice would contain all rows of its table.
    samples = {kind: rows.take(np.arange(len(rows))) for kind, rows in sums.samples.items()}
    return pickle.dumps(replace(sums, samples=samples))


def _unpack_sums(packed: pa.ChunkedArray) -> list[PlanSums]:
    return [pickle.loads(bytes_) for bytes_ in packed.to_pylist()]  # noqa: S301 - written by tasks of ours


SplitBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]
ROWS: Final = "rows of a bucket"
# A longer side is first restricted to the range of the keys that it must match.
LONG: Final = 100_000
# With fewer rows, all rows are planned, because a sift needs two more queries.
SIFTED_FROM: Final = 200_000
# The driver collects the answers to rows of up to this many bytes, which are one bucket.
FEW: Final = BYTES_IN_BUCKET
LOG = structlog.get_logger()


def plan_in_tasks(terms: PlanTerms, stack: ExitStack) -> PlanResult:
    """Plan a delivery in Spark's tasks.

    Rows that Spark keeps are released with `stack`. All rows of a key are planned in one task, whose memory
    holds one bucket. Without a key, each batch of rows is planned separately.
    """
    frames, by = _frames(terms, stack), terms.sift
    if by is not None and max(side.count or 0 for side in terms.sides.values()) >= SIFTED_FROM:
        return _plan_sifted(terms, by, _frames_to_plan(terms, frames), stack)
    if _are_few(terms, frames):
        return _plan_few(terms, _frames_to_plan(terms, frames))
    if terms.first_in_tasks is not None and (first := terms.first_in_tasks(stack)) is not None:
        return first
    return _plan_buckets(terms, _frames_to_plan(terms, frames), 1, stack)


def _are_few(terms: PlanTerms, frames: "Mapping[str, DataFrame]") -> bool:
    """Whether all rows are so few that the driver may collect their answers."""
    if terms.only_tasks or not terms.key:
        return False
    size = 0
    for name, side in terms.sides.items():
        own = _size_of_side(side, frames[name])
        if own is None or (size := size + own) > FEW:
            return False
    return True


def _size_of_side(side: Side, frame: "DataFrame") -> int | None:
    """An upper bound of the memory for a side's rows, or None if unknown. Rows kept by Spark are counted."""
    if side.size is not None or not is_kept(frame):
        return side.size
    count = frame.count()  # Spark has the bytes of rows that it keeps once it has computed them
    return unpacked_size(count, len(side.schema), 0) + bytes_of(frame)


def _plan_few(terms: PlanTerms, frames: "Mapping[str, DataFrame]") -> PlanResult:
    """Plan few rows in one task, and collect its answers with the same query."""
    wire = Wire(terms.kinds, numbered=False)
    parts, rows = wire.collect(_answer_frame(terms, wire, frames, 1))
    return result_of_rows(PlanSums().join(*parts), rows)


def _plan_sifted(
    terms: PlanTerms, by: SiftTerms, frames: "Mapping[str, DataFrame]", stack: ExitStack
) -> PlanResult:
    """Plan the records that may differ, on the driver if it can hold their rows, and count all others."""
    schemas = {name: side.schema for name, side in terms.sides.items()}
    sift = sift_frames(by, terms.key, frames, schemas, terms.spark_store, stack)
    counted = {name: replace(side, count=sift.totals[name].rows) for name, side in terms.sides.items()}
    planned = _plan_left(replace(terms, plan=with_counts(terms.plan, by), sides=counted), sift, stack)
    totals = count_values(sift.totals, frames, schemas, by.columns_to_count(planned.sums.counts))
    planned.sums.counts.update(counts_of_unchanged(by, totals, planned.sums.counts))
    return planned


def _plan_left(terms: PlanTerms, sift: FrameSift, stack: ExitStack) -> PlanResult:
    """The plan of the rows that a sift leaves."""
    if not sift.share:
        return PlanResult(PlanSums(), dict.fromkeys(terms.kinds))
    if not terms.only_tasks:
        sizes = sizes_of_rows(terms, sift.frames, sift.rows_left)
        if sum(sizes.values()) <= FEW:
            # With a coalesce instead, one task would also read all rows of both sides.
            return _plan_few(terms, {name: rows.repartition(1) for name, rows in sift.frames.items()})
        with suppress(TooLarge):
            return plan_collected(terms, sift.frames, sizes, stack)
    return _plan_buckets(terms, sift.frames, sift.share, stack)


def _plan_buckets(
    terms: PlanTerms, frames: "Mapping[str, DataFrame]", share: float, stack: ExitStack
) -> PlanResult:
    """Plan the rows of these frames, which have about `share` of all rows, by bucket."""
    wire, (count, size) = Wire(terms.kinds), _sizes(terms, frames) if terms.key else (0, 0)
    answers = _answer_frame(terms, wire, frames, buckets_for(int(share * count), int(share * size)))
    if terms.checkpointed:
        answers = checkpoint_on_disk(answers)
    else:
        answers = persist_on_disk(answers)
        stack.callback(answers.unpersist)
    parts = wire.sums(answers)
    sums = PlanSums().join(*parts)
    LOG.info("buckets of keys", table=str(terms.table), buckets=len(parts), most_rows=sums.greatest.get(ROWS))
    rows = {kind: wire.rows(answers, kind) if sums.added[kind] else None for kind in terms.kinds}
    return PlanResult(sums, rows, terms)


def _answer_frame(
    terms: PlanTerms, wire: Wire, frames: "Mapping[str, DataFrame]", buckets: int
) -> "DataFrame":
    """The frame of the answers for the rows of all sides."""
    rows, shared = _tagged_rows(terms, wire, frames, buckets)
    sides = {name: (shared[name][1:], wire.in_tasks(side.schema)) for name, side in terms.sides.items()}
    task = partial(_plan_batches, terms.plan, sides, wire, buckets_of if terms.key else _tables)
    if terms.key:
        rows = by_bucket(rows, buckets) if wire.numbered else rows.coalesce(1)
    return rows.mapInArrow(task, from_arrow_schema(wire.schema, prefer_timestamp_ntz=True))


def _frames(terms: PlanTerms, stack: ExitStack) -> "dict[str, DataFrame]":
    """The frames of all sides, with numbered columns. A frame that is read twice is kept on disk."""
    met = {side.meets for side in terms.sides.values()}
    frames: dict[str, DataFrame] = {}
    for name, side in terms.sides.items():
        frame = side.frame()
        if not side.repeatable and (name in met or (side.count is None and terms.key)):
            frame = persist_on_disk(frame)
            stack.callback(frame.unpersist)
        frames[name] = frame.toDF(*(f"c{place}" for place in range(len(side.schema))))
    return frames


def _frames_to_plan(terms: PlanTerms, frames: "Mapping[str, DataFrame]") -> "dict[str, DataFrame]":
    """The frames with only the rows to plan. A side that meets another side keeps only keys of that side."""
    met = {name: side.meets for name, side in terms.sides.items() if side.meets is not None}
    return {
        **frames,
        **{name: _semi_join(terms, name, frames[name], frames[other]) for name, other in met.items()},
    }


def _semi_join(terms: PlanTerms, name: str, frame: "DataFrame", other: "DataFrame") -> "DataFrame":
    """The rows of a side whose key is in the other side."""
    side = terms.sides[name]
    assert side.meets is not None
    mine, theirs = (_key_columns(terms, side_name) for side_name in (name, side.meets))
    if (side.count or 0) > LONG:
        frame = within_bounds(frame, other, mine, theirs)
    keys = other.select(*theirs).distinct().toDF(*(f"k{place}" for place in range(len(theirs))))
    same = (frame[column].eqNullSafe(keys[f"k{place}"]) for place, column in enumerate(mine))
    return frame.join(keys, reduce(and_, same), "left_semi")


def within_bounds(
    frame: "DataFrame", other: "DataFrame", mine: Sequence[str], theirs: Sequence[str]
) -> "DataFrame":
    """The rows between the smallest and the greatest key of `other`.

    Files with only other keys are not read.
    """
    bounds: list[tuple[str, Column, Callable[[Any], Column]]] = []
    for name, key in zip(mine, theirs, strict=True):
        type_ = other.schema[key].dataType
        if isinstance(type_, TimestampType):  # Python would convert it to the time zone of this machine
            bounds.append((name, sf.unix_micros(key), instant))
        elif isinstance(type_, IntegralType | DecimalType | StringType | DateType):  # floats have NaN
            bounds.append((name, sf.col(key), literal))
    if not bounds:
        return frame
    aggregates = (
        aggregate(value)
        for _, value, _ in bounds
        for aggregate in (sf.min, sf.max, lambda key: sf.count_if(key.isNull()))
    )
    row = other.agg(*(value.alias(f"b{place}") for place, value in enumerate(aggregates))).collect()[0]
    for place, (name, _, built) in enumerate(bounds):
        low, high, lacking = row[3 * place : 3 * place + 3]
        if low is not None and not lacking:
            frame = frame.where(sf.col(name).between(built(low), built(high)))
    return frame


def _key_columns(terms: PlanTerms, name: str) -> list[str]:
    schema = terms.sides[name].schema
    return [f"c{schema.get_field_index(column)}" for column in terms.key]


def _tagged_rows(
    terms: PlanTerms, wire: Wire, frames: "Mapping[str, DataFrame]", buckets: int
) -> "tuple[DataFrame, dict[str, list[str]]]":
    """The rows of all sides in one frame, each with its bucket, and the columns of each side."""
    sides = {}
    for name, frame in frames.items():
        names = terms.sides[name].schema.names
        values = (
            file_code(terms.salt, f"c{place}") if column == FILE and wire.numbered else sf.col(f"c{place}")
            for place, column in enumerate(names)
        )
        keys = [sf.col(column) for column in _key_columns(terms, name)]
        bucket = bucket_of(keys, buckets) if buckets > 1 else sf.lit(0).cast("bigint").alias(BUCKET)
        sides[name] = frame.select(bucket, *values)
    rows, shared = tag_sides(sides)
    (first,) = {columns[0] for columns in shared.values()}
    return rows.withColumnRenamed(first, BUCKET), shared


def by_bucket(rows: "DataFrame", buckets: int) -> "DataFrame":
    """The rows with each bucket in one partition, sorted by bucket.

    Empty partitions also start Python, so there are no more partitions than buckets.
    """
    if buckets == 1:
        return rows.repartition(1)
    return rows.repartition(BUCKET).sortWithinPartitions(BUCKET)


def _sizes(terms: PlanTerms, frames: "Mapping[str, DataFrame]") -> tuple[int, int]:
    """The approximate number of rows and bytes of all sides.

    A side that meets another side is assumed to have the size of that side.
    """
    count = size = 0
    meeting = 1 + sum(side.meets is not None for side in terms.sides.values())
    for name, side in terms.sides.items():
        if side.meets is None:
            count += frames[name].count() if side.count is None else side.count
            size += bytes_of(frames[name])
    return meeting * count, meeting * size


def _plan_batches(
    plan: Any,
    sides: Mapping[str, tuple[Sequence[str], pa.Schema]],
    wire: Wire,
    buckets: SplitBatches,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Plan the buckets of a partition. Each side has its own part of the shared columns."""
    freeze_imports()
    for rows in buckets(map(with_offsets, batches)):
        with carry_errors():
            part = {
                name: side_rows(rows, number, shared, schema.names).cast(schema)
                for number, (name, (shared, schema)) in enumerate(sides.items())
            }
            planned: PartPlan = plan(part, as_they_are)
        yield from wire.encode(replace(planned, greatest={**planned.greatest, ROWS: len(rows)}))


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of each batch, as tables."""
    for batch in batches:
        yield pa.Table.from_batches([batch])


def buckets_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of each bucket. Rows of the same bucket must be adjacent."""
    gathered: list[pa.RecordBatch] = []
    last = None
    for batch in batches:
        if not batch.num_rows:
            continue
        buckets = np.asarray(batch.column(BUCKET))
        edges = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(buckets)]
        for start, stop in pairwise(edges):
            if gathered and buckets[start] != last:
                yield pa.Table.from_batches(gathered)
                gathered = []
            last = buckets[start]
            gathered.append(batch.slice(start, stop - start))
    if gathered:
        yield pa.Table.from_batches(gathered)
