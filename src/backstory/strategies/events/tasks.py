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

from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.buckets import plan_buckets
from backstory.stores.iceberg.workers import carrying
from backstory.strategies.events.happened import Happened, SeenEvents, sum_parts
from backstory.strategies.events.numbering import field
from backstory.strategies.events.plan import EventPlan, plan_events
from backstory.strategies.events.sides import LEAD, OP, PLACE, ROW, TIME, data_names, parted_by
from backstory.strategies.events.terms import EventTerms, Moment, Strategy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# What a row of a task's answer is: an event, a sample of a problem, or the sums of all, as JSON.
KIND, SUMS = "kind", "sums"
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
    from pyspark.sql.functions import col, struct

    fields = cast("StructType", delivered.schema[ROW].dataType)
    came, side = number_columns(delivered, fields), _side_schema(delivered, fields)
    answer = _answer_schema(side)
    task = partial(_plan_rows, side, answer, terms, moment)
    if terms.looks_back:
        log = _slice(logged, came, fields, terms)
        sides = [(each, _identity(fields, terms)) for each in (came, log)]
        answers = plan_buckets(sides, rows, task, _spark_schema(answer))
    else:
        answers = came.mapInArrow(partial(_plan_batches, task), _spark_schema(answer))
    answers = persist_on_disk(answers)
    try:
        few = answers.where(col(KIND) != EVENT).toArrow()
        sums = [_from_json(each) for each in few[SUMS].drop_null().to_pylist()]
        samples = few.filter(few[SUMS].is_null()).select(answer.names[2:])
        row = struct(*(col(f"c{place}").alias(each.name) for place, each in enumerate(fields)))
        events = answers.where(col(KIND) == EVENT).select(*EVENTS, row.alias(ROW))
        yield sum_parts(events, sums, samples.rename_columns([*EVENTS, *fields.names]), terms, {})
    finally:
        answers.unpersist()


def _side_schema(delivered: "DataFrame", fields: "StructType") -> pa.Schema:
    """The columns of a side in a task, by their own names."""
    from pyspark.sql.pandas.types import to_arrow_type

    own = [(OP, pa.int32()), (TIME, to_arrow_type(delivered.schema[TIME].dataType)), (PLACE, pa.int64())]
    return pa.schema([*own, *((each.name, to_arrow_type(each.dataType)) for each in fields)])


def _answer_schema(side: pa.Schema) -> pa.Schema:
    """The columns of a task's answer, data columns by number."""
    types = {OP: pa.int32(), TIME: side.field(TIME).type, LEAD: side.field(TIME).type, PLACE: pa.int64()}
    data = [(f"c{place}", side.field(name).type) for place, name in enumerate(data_names(side))]
    return pa.schema(
        [(KIND, pa.int8()), (SUMS, pa.string()), *((name, types[name]) for name in EVENTS), *data]
    )


def _spark_schema(answer: pa.Schema) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(answer, prefer_timestamp_ntz=True)


def number_columns(side: "DataFrame", fields: "StructType") -> "DataFrame":
    """The rows of a side, whose data columns are numbered: Spark takes no name of theirs for its syntax."""
    from pyspark.sql.functions import col

    data = (field(ROW, each.name).cast(each.dataType).alias(f"c{place}") for place, each in enumerate(fields))
    return side.select(col(OP).cast("int").alias(OP), TIME, col(PLACE).cast("long").alias(PLACE), *data)


def _identity(fields: "StructType", terms: EventTerms) -> "list[Column]":
    from pyspark.sql.functions import col

    numbers = {each.name: f"c{place}" for place, each in enumerate(fields)}
    return [col(numbers.get(name, name)) for name in parted_by(terms)]


def _slice(
    logged: "DataFrame | None", came: "DataFrame", fields: "StructType", terms: EventTerms
) -> "DataFrame":
    """The log's rows that a delivery meets: those of its keys, but in a snapshot, which is about all."""
    if logged is None:
        return came.limit(0)
    log = number_columns(logged, fields)
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
    answer: pa.Schema,
    terms: EventTerms,
    moment: Moment,
    came: pa.Table,
    log: pa.Table | None = None,
) -> pa.Table:
    """The answer of a task: events, samples, and a row with the sums."""
    with carrying():
        plan = plan_events(None if log is None else _side(log, side), _side(came, side), terms, moment)
    nothing = pa.table([pa.nulls(1, each.type) for each in answer][2:], names=answer.names[2:])
    parts = ((EVENT, None, plan.events), (SAMPLE, None, plan.samples), (SUM, _as_json(plan), nothing))
    return pa.concat_tables(_answer(answer, *each) for each in parts)


def _side(rows: pa.Table, side: pa.Schema) -> pa.Table:
    if not rows.num_columns:  # of a bucket without rows
        return side.empty_table()
    names = [*SIDE, *(f"c{place}" for place, _ in enumerate(data_names(side)))]
    return rows.select(names).rename_columns(side.names).cast(side)


def _answer(answer: pa.Schema, kind: int, sums: str | None, rows: pa.Table) -> pa.Table:
    own = (
        pa.repeat(pa.scalar(each, answer.field(name).type), len(rows))
        for name, each in ((KIND, kind), (SUMS, sums))
    )
    return pa.table([*own, *rows.columns], names=answer.names).cast(answer)


def _as_json(plan: EventPlan) -> str:
    return json.dumps([[[op, *astuple(seen)] for op, seen in plan.seen.items()], plan.counts])


def _from_json(text: str) -> tuple[dict[int, SeenEvents], dict[str, int]]:
    seen, counts = json.loads(text)
    return {op: SeenEvents(*numbers) for op, *numbers in seen}, counts
