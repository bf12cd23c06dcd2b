"""The plan in Spark's tasks: rows parted by a hash of their key, each bucket planned where it lies.

Both sides are frames with the columns `OP`, `TIME`, `PLACE`, and `ROW`, a struct of the data. What gathers on
the driver is a line of counts for each bucket, and a few rows that keys are told of.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from backstory.stores.iceberg.workers import carrying
from backstory.strategies.events.happened import Happened, SeenEvents, summed
from backstory.strategies.events.numbering import field
from backstory.strategies.events.plan import EventPlan, plan_events
from backstory.strategies.events.sides import LEAD, OP, PLACE, ROW, TIME, parted_by
from backstory.strategies.events.terms import EventTerms, Moment, Strategy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ROWS_IN_BUCKET: Final = 100_000
# What a row of a task's answer is: an event, a row that its key is told of, or what is told of all.
ACT, TOLD = "act", "told"
EVENT, SAMPLE, SUM = range(3)
SIDE: Final = (OP, TIME, PLACE)
EVENTS: Final = (OP, TIME, LEAD, PLACE)


@contextmanager
def plan_in_tasks(
    logged: "DataFrame | None", delivered: "DataFrame", terms: EventTerms, moment: Moment, rows: int
) -> Iterator[Happened]:
    """Compare a delivery with a log; `rows` are about those of both sides. Events are a frame.

    The delivery is read more than once: what may differ then is to be cached.
    """
    from pyspark.sql.functions import col, lit, pmod, struct, xxhash64

    fields = cast("StructType", delivered.schema[ROW].dataType)
    side, told = _sides(delivered, fields)
    task, shape = partial(_plan_rows, side, told, terms, moment), _spark(told, delivered, fields)
    came = numbered(delivered, fields)
    if terms.looks_back:
        log = came.limit(0) if logged is None else _of_keys(numbered(logged, fields), came, fields, terms)
        identity = _identity(fields, terms)
        bucket = pmod(xxhash64(*identity), lit(1 + rows // ROWS_IN_BUCKET))
        parts = (each.withColumn("bucket", bucket).groupBy("bucket") for each in (came, log))
        acts = next(parts).cogroup(next(parts)).applyInArrow(task, shape)
    else:
        acts = came.mapInArrow(partial(_plan_batches, task), shape)
    acts = acts.persist()
    try:
        few = acts.where(col(ACT) != EVENT).toArrow()
        sums = [json.loads(each) for each in few[TOLD].drop_null().to_pylist()]
        samples = few.filter(few[TOLD].is_null()).select(told.names[2:])
        row = struct(*(col(f"c{place}").alias(each.name) for place, each in enumerate(fields)))
        yield summed(
            acts.where(col(ACT) == EVENT).select(*EVENTS, row.alias(ROW)),
            (_seen(each) for each in sums),
            samples.rename_columns([*EVENTS, *fields.names]),
            terms,
            {},
        )
    finally:
        acts.unpersist()


def _sides(delivered: "DataFrame", fields: "StructType") -> tuple[pa.Schema, pa.Schema]:
    """The columns of a side in a task, by their own names, and those of its answer, by number."""
    from pyspark.sql.pandas.types import to_arrow_type

    time = to_arrow_type(delivered.schema[TIME].dataType)
    types = {OP: pa.int32(), TIME: time, LEAD: time, PLACE: pa.int64()}
    data = [to_arrow_type(each.dataType) for each in fields]
    side = [*((name, types[name]) for name in SIDE), *zip(fields.names, data, strict=True)]
    told = [(ACT, pa.int8()), (TOLD, pa.string()), *((name, types[name]) for name in EVENTS)]
    return pa.schema(side), pa.schema([*told, *((f"c{place}", each) for place, each in enumerate(data))])


def _spark(told: pa.Schema, delivered: "DataFrame", fields: "StructType") -> "StructType":
    """The columns of an answer as Spark has them."""
    from pyspark.sql import types as spark

    time = delivered.schema[TIME].dataType
    own = [spark.ByteType(), spark.StringType(), spark.IntegerType(), time, time, spark.LongType()]
    types = [*own, *(each.dataType for each in fields)]
    return spark.StructType([spark.StructField(*each) for each in zip(told.names, types, strict=True)])


def numbered(side: "DataFrame", fields: "StructType") -> "DataFrame":
    """The rows of a side, whose data columns are numbered: Spark takes no name of theirs for its syntax."""
    from pyspark.sql.functions import col

    data = (field(ROW, each.name).cast(each.dataType).alias(f"c{place}") for place, each in enumerate(fields))
    return side.select(col(OP).cast("int").alias(OP), TIME, col(PLACE).cast("long").alias(PLACE), *data)


def _identity(fields: "StructType", terms: EventTerms) -> "list[Column]":
    from pyspark.sql.functions import col

    numbers = {each.name: f"c{place}" for place, each in enumerate(fields)}
    return [col(numbers.get(name, name)) for name in parted_by(terms)]


def _of_keys(log: "DataFrame", came: "DataFrame", fields: "StructType", terms: EventTerms) -> "DataFrame":
    """The log's rows that a delivery meets: those of its keys, but in a snapshot, which is about all."""
    if terms.strategy is Strategy.SNAPSHOT:
        return log
    names = [f"key {place}" for place, _ in enumerate(parted_by(terms))]
    keys = came.select(*_identity(fields, terms)).distinct().toDF(*names)
    same = (each.eqNullSafe(keys[name]) for each, name in zip(_identity(fields, terms), names, strict=True))
    return log.join(keys, reduce(and_, same), "left_semi")


def _plan_batches(task: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from task(pa.Table.from_batches([batch])).to_batches()


def _plan_rows(
    side: pa.Schema,
    told: pa.Schema,
    terms: EventTerms,
    moment: Moment,
    came: pa.Table,
    log: pa.Table | None = None,
) -> pa.Table:
    with carrying():
        plan = plan_events(_side(log, side), _side(came, side) or side.empty_table(), terms, moment)
    rows = {EVENT: plan.events, SAMPLE: plan.samples}
    parts = [_acts(act, each.rename_columns(told.names[2:]), None, told) for act, each in rows.items()]
    nothing = pa.table([pa.nulls(1, each.type) for each in told], schema=told).select(told.names[2:])
    return pa.concat_tables([*parts, _acts(SUM, nothing, json.dumps(_sum(plan)), told)])


def _side(rows: pa.Table | None, side: pa.Schema) -> pa.Table | None:
    """The rows of a side, None for none: a bucket without rows may come without their columns."""
    if rows is None or not rows.num_rows:
        return None
    numbered = [*SIDE, *(f"c{place}" for place in range(len(side) - len(SIDE)))]
    return rows.select(numbered).rename_columns(side.names).cast(side)


def _acts(act: int, rows: pa.Table, sum_: str | None, told: pa.Schema) -> pa.Table:
    own = [
        pa.repeat(pa.scalar(act, pa.int8()), len(rows)),
        pa.repeat(pa.scalar(sum_, pa.string()), len(rows)),
    ]
    return pa.table([*own, *rows.columns], names=told.names).cast(told)


def _sum(plan: EventPlan) -> Any:
    return {"counts": plan.counts, "seen": [[op, *astuple(seen)] for op, seen in plan.seen.items()]}


def _seen(told: Any) -> tuple[dict[int, SeenEvents], dict[str, int]]:
    return {op: SeenEvents(*seen) for op, *seen in told["seen"]}, told["counts"]
