"""A delivery planned in Spark's tasks: its rows and the stored ones by bucket of the key."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import structlog

from backstory.engine.planned import Planned, PlanTerms
from backstory.engine.sift import counting, settled_counts
from backstory.engine.task_sift import count_values, sift_frames
from backstory.engine.wire import Wire, with_numbered_files
from backstory.model.places import FILE
from backstory.spark.on_disk import persist_on_disk
from backstory.spark.versions import checkpoint_on_disk
from backstory.stores.iceberg.frames import (
    BUCKET,
    TaggedRows,
    bucket_of,
    buckets_for,
    bytes_of,
    side_rows,
    tag_sides,
)
from backstory.stores.iceberg.literals import instant, literal
from backstory.stores.iceberg.positions import file_code, positions_by_path, positions_of
from backstory.stores.iceberg.workers import carry_errors, freeze_imports
from backstory.stores.port import StoredTable
from backstory.strategies.part_plan import PartPlan, PlanSums, as_they_are

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Buckets = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]
ROWS: Final = "rows of a bucket"
# Of a longer side the bounds of the keys that it must have are asked first.
LONG: Final = 100_000
# Fewer rows than these are planned at once: a sift is two more queries.
SIFTED_FROM: Final = 200_000
LOG = structlog.get_logger()


@dataclass(frozen=True)
class TaskPlan:
    """What tasks planned: rows are frames, in which files are numbers; `beside` are rows without a plan."""

    terms: PlanTerms
    sums: PlanSums
    answers: "DataFrame | None"
    beside: "Mapping[str, DataFrame]"

    def rows(self, kind: str) -> "DataFrame | None":
        """The rows of a kind; None where there are none."""
        if not self.sums.added[kind]:
            return None
        frames = [self.beside[kind]] if kind in self.beside else []
        if self.answers is not None:
            frames.append(Wire(self.terms.kinds).rows(self.answers, kind))
        return reduce(lambda one, other: one.union(other), frames)

    def places(self, kind: str, table: StoredTable) -> Any:
        """The positions of stored rows by the path of their file; None where there are none."""
        rows = self.rows(kind)
        if rows is None:
            return None
        positions = positions_of(rows, self.sums.added[kind])
        return positions_by_path(self.terms.spark_store, table, positions, self.terms.salt)


def plan_in_tasks(terms: PlanTerms, kept: ExitStack) -> Planned:
    """The plan of a delivery; what Spark keeps of it goes with `kept`.

    Rows of one key are planned in one task, whose memory holds a bucket of them. Without a key each batch of
    rows is planned for itself.
    """
    if terms.first_in_tasks is not None and (first := terms.first_in_tasks(kept)) is not None:
        return TaskPlan(terms, first.sums, None, first.rows)
    answers, sums = _answers(terms, kept)
    return TaskPlan(terms, sums, answers, {})


def _answers(terms: PlanTerms, kept: ExitStack) -> "tuple[DataFrame | None, PlanSums]":
    """The answers of all tasks, None for none, and their sums."""
    frames, by, share = _frames(terms, kept), terms.sift, 1.0
    if by is None or max(side.count or 0 for side in terms.sides.values()) < SIFTED_FROM:
        return _answers_of(terms, frames, share, kept)
    schemas = {name: side.schema for name, side in terms.sides.items()}
    sift = sift_frames(by, terms.key, frames, schemas, kept)
    answers, sums = None, PlanSums()
    if sift.share:
        named = {name: replace(side, count=sift.totals[name].rows) for name, side in terms.sides.items()}
        counted = replace(terms, plan=counting(terms.plan, by), sides=named)
        answers, sums = _answers_of(counted, sift.frames, sift.share, kept)
    totals = count_values(sift.totals, frames, schemas, by.needed(sums.counts))
    sums.counts.update(settled_counts(by, totals, sums.counts))
    return answers, sums


def _answers_of(
    terms: PlanTerms, frames: "Mapping[str, DataFrame]", share: float, kept: ExitStack
) -> "tuple[DataFrame, PlanSums]":
    """The answers to these frames, which have about such a share of the rows of the sides."""
    wire, (tagged, buckets) = Wire(terms.kinds), _tagged_rows(terms, frames, share)
    sides = {
        name: (tagged.shared[name][1:], with_numbered_files(side.schema))
        for name, side in terms.sides.items()
    }
    task = partial(_plan_batches, terms.plan, sides, wire, buckets_of if terms.key else _tables)
    rows = by_bucket(tagged.rows, buckets) if terms.key else tagged.rows
    answers = rows.mapInArrow(task, wire.spark_schema)
    if terms.checkpointed:
        answers = checkpoint_on_disk(answers)
    else:
        answers = persist_on_disk(answers)
        kept.callback(answers.unpersist)
    sums, parts = PlanSums(), wire.sums(answers)
    for each in parts:
        sums.join(each)
    LOG.info("buckets of keys", table=str(terms.table), buckets=len(parts), most_rows=sums.greatest.get(ROWS))
    return answers, sums


def _frames(terms: PlanTerms, kept: ExitStack) -> "dict[str, DataFrame]":
    """The frames of all sides, in numbered columns; those that are read twice are kept."""
    met = {side.meets for side in terms.sides.values()}
    frames: dict[str, DataFrame] = {}
    for name, side in terms.sides.items():
        frame = side.frame()
        frame = frame.toDF(*(f"c{place}" for place in range(len(side.schema))))
        if not side.cached and (name in met or (side.count is None and terms.key)):
            frame = persist_on_disk(frame)
            kept.callback(frame.unpersist)
        frames[name] = frame
    for name, side in terms.sides.items():
        if side.meets is not None:
            frames[name] = _semi_join(terms, name, frames[name], frames[side.meets])
    return frames


def _semi_join(terms: PlanTerms, name: str, frame: "DataFrame", other: "DataFrame") -> "DataFrame":
    """The rows of a side that have a key of the other one."""
    side = terms.sides[name]
    assert side.meets is not None
    mine, theirs = (_key_columns(terms, each) for each in (name, side.meets))
    if (side.count or 0) > LONG:
        frame = within_bounds(frame, other, mine, theirs)
    keys = other.select(*theirs).distinct().toDF(*(f"k{place}" for place in range(len(theirs))))
    same = (frame[each].eqNullSafe(keys[f"k{place}"]) for place, each in enumerate(mine))
    return frame.join(keys, reduce(and_, same), "left_semi")


def within_bounds(
    frame: "DataFrame", other: "DataFrame", mine: Sequence[str], theirs: Sequence[str]
) -> "DataFrame":
    """The rows between the least and the greatest key: where keys grow, old files are not read."""
    from pyspark.sql.functions import col, count_if, unix_micros
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import min as least
    from pyspark.sql.types import DateType, DecimalType, IntegralType, StringType, TimestampType

    bounds: list[tuple[str, Column, Callable[[Any], Column]]] = []
    for name, key in zip(mine, theirs, strict=True):
        type_ = other.schema[key].dataType
        if isinstance(type_, TimestampType):  # Python would bring it into the zone of this machine
            bounds.append((name, unix_micros(key), instant))
        elif isinstance(type_, IntegralType | DecimalType | StringType | DateType):  # floats have NaN
            bounds.append((name, col(key), literal))
    if not bounds:
        return frame
    asked = (each(value) for _, value, _ in bounds for each in (least, greatest, _lacking(count_if)))
    row = other.agg(*(each.alias(f"b{place}") for place, each in enumerate(asked))).collect()[0]
    for place, (name, _, built) in enumerate(bounds):
        low, high, lacking = row[3 * place : 3 * place + 3]
        if low is not None and not lacking:
            frame = frame.where(col(name).between(built(low), built(high)))
    return frame


def _lacking(count_if: "Callable[[Column], Column]") -> "Callable[[Column], Column]":
    return lambda value: count_if(value.isNull())


def _key_columns(terms: PlanTerms, name: str) -> list[str]:
    schema = terms.sides[name].schema
    return [f"c{schema.get_field_index(each)}" for each in terms.key]


def _tagged_rows(terms: PlanTerms, frames: "Mapping[str, DataFrame]", share: float) -> tuple[TaggedRows, int]:
    """The rows of all sides in one frame, each with its bucket; and how many buckets there are."""
    from pyspark.sql.functions import col, lit

    count, size = (int(share * each) for each in _sizes(terms, frames)) if terms.key else (0, 0)
    buckets, sides = buckets_for(count, size), {}
    for name, frame in frames.items():
        names = terms.sides[name].schema.names
        values = (
            file_code(terms.salt, f"c{place}") if each == FILE else col(f"c{place}")
            for place, each in enumerate(names)
        )
        keys = [col(each) for each in _key_columns(terms, name)]
        bucket = bucket_of(keys, buckets) if keys else lit(0).cast("bigint").alias(BUCKET)
        sides[name] = frame.select(bucket, *values)
    tagged = tag_sides(sides)
    (shared,) = {columns[0] for columns in tagged.shared.values()}
    rows = tagged.rows.withColumnRenamed(shared, BUCKET)
    return replace(tagged, rows=rows), buckets


def by_bucket(rows: "DataFrame", buckets: int) -> "DataFrame":
    """The rows of each bucket, which they have as a column, behind each other in one partition.

    An empty partition starts Python too, so there are no more of them than buckets.
    """
    parted = rows.repartition(1) if buckets == 1 else rows.repartition(BUCKET)
    return parted.sortWithinPartitions(BUCKET)


def _sizes(terms: PlanTerms, frames: "Mapping[str, DataFrame]") -> tuple[int, int]:
    """About how many rows and bytes all sides have, if a side that meets another has as many as that."""
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
    buckets: Buckets,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The plans of the buckets of a partition; each side has its columns among those that sides share."""
    freeze_imports()
    for rows in buckets(batches):
        with carry_errors():
            part = {
                name: side_rows(rows, number, shared, schema.names).cast(schema)
                for number, (name, (shared, schema)) in enumerate(sides.items())
            }
            planned: PartPlan = plan(part, as_they_are)
        yield from wire.encode(replace(planned, greatest={**planned.greatest, ROWS: len(rows)}))


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of each batch."""
    for batch in batches:
        yield pa.Table.from_batches([batch])


def buckets_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of each bucket, which lie behind each other."""
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
