"""R51, R54: the plan on Spark gives the rule's events, on random logs of every strategy, a thousand and more.

Many logs are one table here: `d` is part of every key, so that one delivery of Spark's is a delivery to each.
"""

import math
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import pytest
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
from backstory.strategies.events.log import Event, Rejected, Row
from backstory.strategies.events.plan import close_gaps, merge_delivery, number_events, order
from backstory.strategies.events.rule import ingest
from backstory.strategies.events.terms import Encoding, Moment, OnConflict, Op, Strategy, Terms

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
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
OP, OBSERVED = Encoding.OP, Encoding.OBSERVED
KEY = ("d", "k")
TERMS = {
    "append": Terms(Strategy.APPEND),
    "ledger": Terms(Strategy.LEDGER, KEY, time_at=1),
    "ledger literal": Terms(Strategy.LEDGER, KEY),
    "ledger required": Terms(Strategy.LEDGER, KEY, time_at=1, time_required=True),
    "ledger error": Terms(Strategy.LEDGER, KEY, on_conflict=OnConflict.ERROR),
    "ledger correct": Terms(Strategy.LEDGER, KEY, on_conflict=OnConflict.CORRECT, encoding=OP),
    "ledger correct time": Terms(
        Strategy.LEDGER, KEY, time_at=1, on_conflict=OnConflict.CORRECT, encoding=OP
    ),
    "snapshot": Terms(Strategy.SNAPSHOT, KEY, encoding=OP),
    "snapshot observed": Terms(Strategy.SNAPSHOT, KEY, encoding=OBSERVED),
    "snapshot compare": Terms(Strategy.SNAPSHOT, KEY, encoding=OBSERVED, compare=("x",), compare_time=False),
    "snapshot time": Terms(Strategy.SNAPSHOT, KEY, time_at=0, time_required=True, encoding=OBSERVED),
    "upsert": Terms(Strategy.UPSERT, KEY, encoding=OP),
    "upsert time": Terms(Strategy.UPSERT, KEY, time_at=1, time_required=True, encoding=OBSERVED),
    "upsert sequence": Terms(Strategy.UPSERT, KEY, encoding=OP, sequence="x"),
    "changelog": Terms(Strategy.CHANGELOG, KEY, encoding=OP),
    "changelog schema": Terms(Strategy.CHANGELOG, KEY, encoding=OP, strict=False),
}
LOGS, DELIVERIES = 120, 3


def second(number):
    return None if number is None else EPOCH + timedelta(seconds=number)


class Lives:
    """Many logs under the same terms, by the rule; and what each is sent."""

    def __init__(self, terms, seed):
        self.terms, self.chance = terms, random.Random(seed)
        self.logs = {number: [] for number in range(LOGS)}

    def deliveries(self):
        return {number: self.delivery(number) for number in self.logs}

    def delivery(self, number):
        chance, strategy = self.chance, self.terms.strategy
        if strategy is Strategy.CHANGELOG and chance.random() < 0.8:
            return self.changes(number)
        rows = [self.row(number) for _ in range(chance.choice([0, 1, 2, 3, 5]))]
        if strategy in {Strategy.LEDGER, Strategy.SNAPSHOT} and chance.random() < 0.8:
            # Mostly one row a key, so that not everything is refused.
            rows = list({(row.values["k"], row.time): row for row in rows}.values())
            rows = list({row.values["k"]: row for row in rows if row.values["k"] is not None}.values())
            rows += rows[: chance.choice([0, 0, 1])]
        known = self.logs[number]
        if known and chance.random() < 0.5:
            again = chance.choice(known)
            rows.append(Row(chance.choice([again.time, None]), again.values, chance.choice([0, 0, 1, 3])))
        return rows

    def row(self, number):
        chance, strategy = self.chance, self.terms.strategy
        values = {
            "d": number,
            "k": chance.choice(["a", "b", "c", "é", None] if chance.random() < 0.1 else ["a", "b", "c", "é"]),
            "a b.`c": chance.choice(["x", "y", "", None]),
            "x": chance.choice([0.0, -0.0, 1.5, float("nan"), None]),
        }
        missing = [None] if chance.random() < (0.05 if self.terms.time_required else 0.5) else []
        time = second(chance.choice([*missing, 1, 2, 3]))
        odd = chance.random() < 0.05
        ops = {Strategy.UPSERT: [0, 0, 1, 3], Strategy.CHANGELOG: [0, 1, 2, 3]}.get(strategy, [0])
        return Row(
            time,
            values,
            chance.choice([2, 7, None]) if odd and strategy is Strategy.UPSERT else chance.choice(ops),
        )

    def changes(self, number):
        """Changes that are mostly well formed."""
        last = {event.values["k"]: event for event in self.logs[number]}
        now = {key: event for key, event in last.items() if event.op is not Op.RETRACT}
        rows = []
        for _ in range(self.chance.choice([0, 1, 2])):
            row = self.row(number)
            event = now.get(row.values["k"])
            if row.values["k"] is None or event is None:
                rows.append(Row(row.time, row.values, 0))
            elif self.chance.random() < 0.4:
                rows.append(Row(self.chance.choice([None, event.time]), event.values, 1))
            else:
                rows += [Row(event.time, event.values, 2), Row(row.time, row.values, 3)]
            now.pop(row.values["k"], None)
        return rows

    def by_the_rule(self, deliveries, moment):
        """For each log its new events, or None where it refuses; and the counts of all."""
        counts, found = Counter(), {}
        for number, rows in deliveries.items():
            try:
                made = ingest(self.logs[number], rows, self.terms, moment)
            except Rejected:
                found[number] = None
                continue
            found[number] = made.events
            counts += made.counts
        return found, counts


def plain(value):
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def told(op, time, values):
    return (int(op), time.replace(tzinfo=UTC), *(plain(values[field.name]) for field in ROW))


def frame(spark, rows):
    return spark.createDataFrame(rows, SIDES)


def untimed(lives, deliveries):
    return any(row.time is None for rows in deliveries.values() for row in rows)


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


@pytest.mark.parametrize("name", TERMS)
def test_the_plan_gives_the_rules_events(spark, name):
    terms = TERMS[name]
    lives = Lives(terms, name)
    refused = 0
    for number in range(DELIVERIES):
        moment = Moment(second(1000 + number), second(100 + 10 * number), second(2) if number else None)
        deliveries = lives.deliveries()
        expected, counts = lives.by_the_rule(deliveries, moment)
        found, bad, told_counts, offsets = by_the_plan(spark, lives, deliveries, moment, 1 + number)
        assert bad == {log for log, events in expected.items() if events is None}
        for log, events in expected.items():
            if events is not None:
                assert found[log] == [told(e.op, e.time, e.values) for e in events], (log, deliveries[log])
                lives.logs[log] += [
                    Event(len(lives.logs[log]) + place, e.op, e.system_time, e.time, e.values)
                    for place, e in enumerate(events)
                ]
        assert offsets == list(range(len(offsets)))
        if not bad:
            assert +told_counts == +counts
        refused += len(bad)
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
