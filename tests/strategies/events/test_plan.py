"""R51, R54: The plan gives the rule's events, on random logs of every strategy, in every way of planning.

Many logs are in one table: `d` is part of every key, so one delivery of the plan is a delivery to each. The
rule's logs grow. Spark plans the last delivery, or each before a release.
"""

import random
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from depth import DEPTH, deep
from event_lives import COLUMNS, EPOCH, TERMS, Lives, moment_of, plain_event, second
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from backstory.doors.odf.sides import DELIVERED, LOGGED, plan_part
from backstory.engine.plans import PlanTerms, Side
from backstory.engine.tasks import plan_in_tasks
from backstory.model.table import TableName
from backstory.stores.iceberg import frames
from backstory.strategies.events.plan import EVENTS, events_schema, outcomes_of, plan_events, sample_keys
from backstory.strategies.events.sides import OP, PLACE, TIME, parted_by, sorted_places
from backstory.strategies.events.terms import EventTerms, Moment, RowProblem, Strategy
from backstory.strategies.frames import close_gaps, number_data, number_events, sort_order
from backstory.strategies.keys import key_parts
from backstory.strategies.part_plan import PlanSums

FIELDS = StructType(
    [
        StructField("d", IntegerType()),
        StructField("k", StringType()),
        StructField("a b.`c", StringType()),
        StructField("x", DoubleType()),
    ]
)
SIDES = StructType(
    [
        StructField(OP, IntegerType()),
        StructField(TIME, TimestampType()),
        StructField(PLACE, LongType()),
        *(StructField(f"c{number}", field.dataType) for number, field in enumerate(FIELDS)),
    ]
)
INSTANT = pa.timestamp("us", "UTC")
TYPES = (pa.int32(), pa.string(), pa.string(), pa.float64())
SIDE = pa.schema([(OP, pa.int32()), (TIME, INSTANT), (PLACE, pa.int64()), *zip(COLUMNS, TYPES, strict=True)])
DELIVERIES = 3
# Tasks and the driver use one function. Before a release all run; at the gate, the cases of each strategy
# that cover most.
OF_GATE = (
    "append",
    "ledger correct time",
    "snapshot compare",
    "upsert time",
    "upsert sequence",
    "changelog schema",
)
IN_TASKS = TERMS if DEPTH == "laws" else OF_GATE


def frame(spark, rows):
    return spark.createDataFrame(rows, SIDES)


def side(rows):
    return pa.Table.from_pylist(
        [dict(zip((OP, TIME, PLACE), row, strict=True)) | values for *row, values in rows], SIDE
    )


def sides_of(lives, deliveries):
    """The rows of all logs, and of a delivery to each: op, time, place and values."""
    logged = [
        (int(event.op), event.time, event.offset, event.values)
        for events in lives.logs.values()
        for event in events
    ]
    rows = [row for rows in deliveries.values() for row in rows]
    return logged, [(row.op, row.time, place, row.values) for place, row in enumerate(rows)]


def by_the_plan(lives, deliveries, moment, parts):
    """The events of each log, the logs with a problem, and the counts."""
    logged, delivered = map(side, sides_of(lives, deliveries))
    key = parted_by(lives.terms)
    numbers = [key_parts(rows, key, parts) if key else np.zeros(len(rows)) for rows in (logged, delivered)]
    plans = []
    for part in range(parts):
        log, came = (
            rows.filter(pa.array(each == part))
            for rows, each in zip((logged, delivered), numbers, strict=True)
        )
        plans.append(plan_events(log, came, lives.terms, moment))
    events, sums = pa.concat_tables(plan.rows[EVENTS] for plan in plans), PlanSums()
    for plan in plans:
        sums.add(plan)
    by_log = defaultdict(list)
    placed = events.take(pa.array(sorted_places(events, lives.terms)))
    for event in placed.to_pylist():
        by_log[event["d"]].append(plain_event(event[OP], event[TIME], event))
    bad = {key["d"] for problem in RowProblem for key in sample_keys(sums, problem)}
    return by_log, bad, Counter(outcomes_of(sums))


@pytest.mark.parametrize("parts", [1, 7], ids=["whole", "in parts"])
@pytest.mark.parametrize("name", TERMS)
def test_plans_give_the_events_of_the_rule(name, parts):
    terms = TERMS[name]
    lives = Lives(terms, random.Random(name), deep(laws=1200, gate=120))
    for number in range(DELIVERIES):
        moment = moment_of(number)
        deliveries = lives.deliveries()
        expected, counts = lives.by_the_rule(deliveries, moment)
        by_log, bad, told_counts = by_the_plan(lives, deliveries, moment, parts)
        refused = {log for log, events in expected.items() if events is None}
        if terms.key:
            assert bad <= refused
            assert bool(bad) == bool(refused)
        for log, events in expected.items():
            if events is not None:
                assert by_log[log] == [plain_event(e.op, e.time, e.values) for e in events], (
                    log,
                    deliveries[log],
                )
        if not refused:
            assert +told_counts == +counts
        lives.grow(expected)
    assert sum(map(len, lives.logs.values()))


@contextmanager
def in_tasks(store, logged, came, terms, moment):
    """The plan of two frames in Spark's tasks: its outcome, and its events as a frame."""
    sides = {DELIVERED: Side(SIDE, lambda: came)}
    if logged is not None and terms.looks_back:
        meets = None if terms.strategy is Strategy.SNAPSHOT else DELIVERED
        sides[LOGGED] = Side(SIDE, lambda: logged, meets=meets)
    key = parted_by(terms) if terms.looks_back else ()
    plan = partial(plan_part, terms, moment, ())
    terms = PlanTerms(store, TableName("odf", "events"), sides, key, {EVENTS: events_schema(SIDE)}, plan)
    with ExitStack() as stack:
        planned = plan_in_tasks(terms, stack)
        rows = planned.rows(EVENTS)
        yield planned.sums, None if rows is None else number_data(rows, len(FIELDS))


def by_tasks(store, lives, deliveries, moment, partitions):
    """The same in tasks, with Spark's offsets."""
    logged, delivered = (
        [(op, time, place, *values.values()) for op, time, place, values in rows]
        for rows in sides_of(lives, deliveries)
    )
    came = frame(store.spark, delivered).repartition(partitions)
    log = frame(store.spark, logged) if logged else None
    by_log, rows = defaultdict(list), []
    with in_tasks(store, log, came, lives.terms, moment) as (sums, events):
        bad = {key["d"] for problem in RowProblem for key in sample_keys(sums, problem)}
        if events is not None:
            with number_events(events, sums.counts[EVENTS], sort_order(lives.terms, FIELDS), 0) as placed:
                rows = placed.orderBy("offset").collect()
    for row in rows:
        values = {name: row[f"c{number}"] for number, name in enumerate(COLUMNS)}
        by_log[values["d"]].append(plain_event(row[OP], row[TIME], values))
    return by_log, bad, Counter(outcomes_of(sums)), [row["offset"] for row in rows]


@pytest.mark.parametrize("name", IN_TASKS)
def test_plans_in_tasks_give_the_events_of_the_rule(store, monkeypatch, name):
    """Tasks plan buckets of a few rows, or batches if rows are independent."""
    monkeypatch.setattr(frames, "ROWS_IN_BUCKET", 100)
    monkeypatch.setattr("backstory.engine.tasks.FEW", 0)
    terms = TERMS[name]
    lives = Lives(terms, random.Random(name), 120)
    for number in range(DELIVERIES):
        moment = moment_of(number)
        deliveries = lives.deliveries()
        expected, counts = lives.by_the_rule(deliveries, moment)
        if number >= DELIVERIES - deep(laws=DELIVERIES, gate=1):
            by_log, bad, told_counts, offsets = by_tasks(store, lives, deliveries, moment, 1 + number)
            refused = {log for log, events in expected.items() if events is None}
            if terms.key:
                assert bad <= refused
                assert bool(bad) == bool(refused)
            for log, events in expected.items():
                if events is not None:
                    assert by_log[log] == [plain_event(e.op, e.time, e.values) for e in events], (
                        log,
                        deliveries[log],
                    )
            assert offsets == list(range(len(offsets)))
            if not refused:
                assert +told_counts == +counts
        lives.grow(expected)
    assert sum(map(len, lives.logs.values()))


def test_sides_may_differ_in_their_nullability():
    """A query declares nullability for each column, and a table for none."""
    rows = [(0, second(1), 0, dict.fromkeys(COLUMNS) | {"d": 1, "k": "a"})]
    strict = pa.schema([field.with_nullable(field.name not in {OP, "d"}) for field in SIDE])
    made = plan_events(
        side(rows), side(rows).cast(strict), TERMS["upsert"], Moment(second(2), second(2), None, 1)
    )
    assert (len(made.rows[EVENTS]), made.counts["unchanged"]) == (0, 1)


def test_float_keys_are_equal_in_every_plan(store):
    """0.0 equals -0.0 and NaN equals NaN, in any division of the rows."""
    terms = EventTerms(Strategy.UPSERT, ("x",))
    moment = Moment(EPOCH, EPOCH, None, 3)
    keys = ((0.0, float("nan"), 1.5), (-0.0, float("-nan"), 1.5))
    stored, came = ([(0, EPOCH, n, (1, "a", None, key)) for n, key in enumerate(each)] for each in keys)
    values = [
        side([(*row, dict(zip(COLUMNS, cells, strict=True))) for *row, cells in each])
        for each in (stored, came)
    ]
    parts = [key_parts(rows, ["x"], 16).tolist() for rows in values]
    assert parts[0] == parts[1]
    assert plan_events(*values, terms, moment).counts["unchanged"] == 3
    frames = [frame(store.spark, [(*system, *values) for *system, values in each]) for each in (stored, came)]
    with in_tasks(store, *frames, terms, moment) as (sums, _):
        assert (sums.counts[EVENTS], sums.counts["unchanged"]) == (0, 3)


def test_offsets_of_several_partitions_have_no_gaps(spark):
    from pyspark.sql.functions import monotonically_increasing_id

    rows = spark.range(0, 100, numPartitions=7).where("id % 3 = 0")
    rows = rows.withColumn("place", monotonically_increasing_id())
    numbered_rows = close_gaps(rows, "place", 5).collect()
    assert [(row["id"], row["place"]) for row in numbered_rows] == [(3 * n, 5 + n) for n in range(34)]


@pytest.mark.parametrize("partitions", [1, 3, 20])
def test_offsets_do_not_depend_on_partitions(store, partitions, monkeypatch):  # R15, R96
    monkeypatch.setattr("backstory.strategies.frames.ROWS_IN_PARTITION", 40)
    rows = [(0, second(n % 7), n, n % 5, str(n % 11), None, float(n % 3)) for n in range(300)]
    with (
        in_tasks(
            store,
            None,
            frame(store.spark, rows).repartition(partitions),
            TERMS["append"],
            Moment(EPOCH, EPOCH),
        ) as (sums, events),
        number_events(events, sums.counts[EVENTS], sort_order(TERMS["append"], FIELDS), 7) as placed,
    ):
        assert placed.rdd.getNumPartitions() == 8
        numbered_rows = placed.orderBy("offset").collect()
    assert [row["offset"] for row in numbered_rows] == list(range(7, 307))
    assert [row[TIME] for row in numbered_rows] == sorted(row[TIME] for row in numbered_rows)
    keys = [(row[TIME], row["c0"], row["c1"].encode(), row["c3"]) for row in numbered_rows]
    assert keys == sorted(keys)
