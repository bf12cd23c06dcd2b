"""R51, R54: the plan on Spark gives the rule's events, on random logs of every strategy.

By the rule logs grow; before a release each delivery is planned too, else the last one, and each on the driver.

Many logs are one table here: `d` is part of every key, so that one delivery of Spark's is a delivery to each.
"""

import random
from collections import defaultdict

import pytest
from depth import DEPTH, deep
from event_lives import EPOCH, TERMS, Lives, moment_of, second, told
from pyspark.sql.functions import expr
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from backstory.strategies.events.columns import prune_log
from backstory.strategies.events.plan import close_gaps, merge_delivery, number_events, order
from backstory.strategies.events.terms import Moment, Strategy

ROW = StructType(
    [
        StructField("d", IntegerType()),
        StructField("k", StringType()),
        StructField("a b.`c", StringType()),
        StructField("x", DoubleType()),
    ]
)
SIDES = StructType(
    [
        StructField("op", IntegerType()),
        StructField("time", TimestampType()),
        StructField("row", ROW),
        StructField("place", LongType()),
    ]
)
LOGS, DELIVERIES = 120, 3
# Before a release all; at the gate those whose terms hold more than the others of their strategy.
CONTAINED = () if DEPTH == "laws" else ("ledger literal", "ledger required", "ledger correct", "snapshot observed", "upsert")  # fmt: skip


def frame(spark, rows):
    return spark.createDataFrame(rows, SIDES)


def by_the_plan(spark, lives, deliveries, moment, partitions):
    logged = [
        (int(event.op), event.time, tuple(event.values.values()), event.offset)
        for events in lives.logs.values()
        for event in events
    ]
    delivered = [
        (row.op, row.time, tuple(row.values.values())) for rows in deliveries.values() for row in rows
    ]
    delivered = [(*row, place) for place, row in enumerate(delivered)]
    came = frame(spark, delivered).repartition(partitions)
    log = prune_log(frame(spark, logged), came, lives.terms) if logged else None
    found = defaultdict(list)
    with merge_delivery(log, came, lives.terms, moment) as made:
        bad = {row["d"] for row in made.events.where("op < 0").select("row.d").distinct().collect()}
        events = made.events.where("op >= 0")
        with number_events(events, made.rows, order(lives.terms, ROW), 0) as placed:
            rows = placed.orderBy("offset").select("op", "time", "row", "offset").collect()
        counts = made.counts
    for row in rows:
        found[row["row"]["d"]].append(told(row["op"], row["time"], row["row"].asDict()))
    return found, bad, counts, [row["offset"] for row in rows]


@pytest.mark.parametrize("name", [name for name in TERMS if name not in CONTAINED])
def test_the_plan_gives_the_rules_events(spark, name):
    terms = TERMS[name]
    lives = Lives(terms, random.Random(name), LOGS)
    refused = 0
    for number in range(DELIVERIES):
        moment = moment_of(number)
        deliveries = lives.deliveries()
        expected, counts = lives.by_the_rule(deliveries, moment)
        refused += list(expected.values()).count(None)
        if number >= DELIVERIES - deep(laws=DELIVERIES, gate=1):
            found, bad, told_counts, offsets = by_the_plan(spark, lives, deliveries, moment, 1 + number)
            assert bad == {log for log, events in expected.items() if events is None}
            for log, events in expected.items():
                if events is not None:
                    assert found[log] == [told(e.op, e.time, e.values) for e in events], (
                        log,
                        deliveries[log],
                    )
            assert offsets == list(range(len(offsets)))
            if not bad:
                assert +told_counts == +counts
        lives.grow(expected)
    assert sum(map(len, lives.logs.values()))
    assert refused or terms.strategy is Strategy.APPEND or not terms.strict


def test_gaps_between_partitions_are_closed(spark):
    from pyspark.sql.functions import monotonically_increasing_id

    rows = spark.range(0, 100, numPartitions=7).where("id % 3 = 0")
    rows = rows.withColumn("place", monotonically_increasing_id())
    found = close_gaps(rows, "place", 5).collect()
    assert [(row["id"], row["place"]) for row in found] == [(3 * n, 5 + n) for n in range(34)]


@pytest.mark.parametrize("partitions", [1, 3, 200])
def test_offsets_do_not_depend_on_partitions(spark, partitions, monkeypatch):  # R15, R96
    monkeypatch.setattr("backstory.strategies.events.plan.ROWS_IN_PARTITION", 40)
    rows = [(0, second(n % 7), (n % 5, str(n % 11), None, float(n % 3)), n) for n in range(300)]
    with (
        merge_delivery(
            None, frame(spark, rows).repartition(partitions), TERMS["append"], Moment(EPOCH, EPOCH)
        ) as made,
        number_events(made.events, made.rows, order(TERMS["append"], ROW), 7) as placed,
    ):
        assert placed.rdd.getNumPartitions() == 8
        found = placed.orderBy("offset").collect()
    assert [row["offset"] for row in found] == list(range(7, 307))
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    keys = [(row["time"], row["row"]["d"], row["row"]["k"].encode(), row["row"]["x"]) for row in found]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("name", "kept"), [("ledger literal", 3), ("upsert", 3), ("snapshot", 9), ("append", 9)]
)
def test_old_rows_of_a_log_are_not_looked_at(spark, name, kept):
    """Those with other keys, but in a snapshot, which retracts them."""
    logged = frame(spark, [(0, second(n), (n, "d", None, 0.0), n) for n in range(9)])
    came = frame(spark, [(0, None, (n, "d", None, 0.0), n) for n in (6, 8)])

    assert kept == prune_log(logged, came, TERMS[name]).count()


def test_all_rows_are_looked_at_where_keys_are_others_each_time(spark):
    logged = frame(spark, [(0, second(n), (n, "d", None, 0.0), n) for n in range(9)])
    came = logged.where("row.d = 6").withColumn("row", expr("named_struct('d', int(6 + rand()), 'k', 'd')"))

    assert logged.count() == prune_log(logged, came, TERMS["ledger literal"]).count()


@pytest.mark.parametrize(("times", "kept"), [((6, 8), 3), ((6, None), 9)])
def test_old_times_are_not_looked_at_where_each_row_has_one(spark, times, kept):
    logged = frame(spark, [(0, second(n), (1, "d", None, 0.0), n) for n in range(9)])
    came = frame(spark, [(0, time and second(time), (1, "d", None, 0.0), n) for n, time in enumerate(times)])

    assert kept == prune_log(logged, came, TERMS["ledger"]).count()


@pytest.mark.parametrize("old", ["date_add(DATE'1086-01-01', int(place))", "TIMESTAMP'1086-01-01' + make_interval(0, 0, 0, int(place))"])  # fmt: skip
def test_old_times_are_looked_at_in_whatever_year(spark, old):
    """Also before October 1582, where Java's old calendar is some days off."""
    logged = frame(spark, [(0, None, (1, "d", None, 0.0), n) for n in range(9)]).withColumn("time", expr(old))

    assert prune_log(logged, logged.where("place IN (6, 8)"), TERMS["ledger"]).count() == 3


def test_each_side_is_read_once(spark):
    rows = [(0, second(1), (1, str(n), None, 0.0), n) for n in range(5)]
    plan = merge_delivery(frame(spark, rows), frame(spark, rows), TERMS["snapshot"], Moment(EPOCH, EPOCH))
    with plan as made:
        told = made.events._jdf.queryExecution().withCachedData().cacheBuilder().cachedPlan().toString()
    assert told.count("Scan ExistingRDD") in {2, 4}  # adaptive plans tell themselves twice
