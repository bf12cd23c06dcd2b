"""R51, R54: the plan on the driver gives the rule's events, on random logs of every strategy."""

import random
from collections import defaultdict

import pyarrow as pa
import pytest
from depth import deep
from event_lives import COLUMNS, TERMS, Lives, moment_of, second, told

from backstory.strategies.events.arrow.plan import merge_tables
from backstory.strategies.events.arrow.sides import side_of
from backstory.strategies.events.terms import Moment

INSTANT = pa.timestamp("us", "UTC")
ROW = pa.struct(list(zip(COLUMNS, (pa.int32(), pa.string(), pa.string(), pa.float64()), strict=True)))
SIDES = pa.schema([("op", pa.int32()), ("time", INSTANT), ("row", ROW), ("place", pa.int64())])
DELIVERIES = 3


def side(rows):
    return side_of(pa.Table.from_pylist([dict(zip(SIDES.names, row, strict=True)) for row in rows], SIDES))


def by_the_plan(lives, deliveries, moment):
    logged = side(
        [
            (int(event.op), event.time, event.values, event.offset)
            for events in lives.logs.values()
            for event in events
        ]
    )
    rows = [row for rows in deliveries.values() for row in rows]
    delivered = side([(row.op, row.time, row.values, place) for place, row in enumerate(rows)])
    made = merge_tables(logged if len(logged.data) else None, delivered, lives.terms, moment)
    found = defaultdict(list)
    events = made.events
    for op, time, values in zip(
        *(each.to_pylist() for each in (events.ops, events.times, events.data)), strict=True
    ):
        found[values["d"]].append(told(op, time, values))
    bad = {key["d"] for problem, count in made.problems.items() if count for key in made.keys(problem)}
    return found, bad, made.counts


@pytest.mark.parametrize("name", TERMS)
def test_the_plan_on_the_driver_gives_the_rules_events(name):
    terms = TERMS[name]
    lives = Lives(terms, random.Random(name), deep(laws=1200, gate=120))
    for number in range(DELIVERIES):
        moment = moment_of(number)
        deliveries = lives.deliveries()
        expected, counts = lives.by_the_rule(deliveries, moment)
        found, bad, told_counts = by_the_plan(lives, deliveries, moment)
        refused = {log for log, events in expected.items() if events is None}
        if terms.key:
            assert bad <= refused
            assert bool(bad) == bool(refused)
        for log, events in expected.items():
            if events is not None:
                assert found[log] == [told(e.op, e.time, e.values) for e in events], (log, deliveries[log])
        if not refused:
            assert +told_counts == +counts
        lives.grow(expected)


def test_sides_may_differ_in_what_can_be_null():
    """A query says so of each column that it makes, a table of none."""
    rows = [(0, second(1), dict.fromkeys(COLUMNS) | {"d": 1, "k": "a"}, 0)]
    inner = pa.struct([field.with_nullable(field.name != "d") for field in ROW])
    told = pa.schema([("op", pa.int32()), ("time", INSTANT), ("row", inner), ("place", pa.int64())])
    strict = pa.schema([field.with_nullable(field.name == "time") for field in told])
    delivered = pa.Table.from_pylist([dict(zip(strict.names, row, strict=True)) for row in rows], strict)
    made = merge_tables(
        side(rows), side_of(delivered), TERMS["upsert"], Moment(second(2), second(2), None, 1)
    )
    assert (made.rows, made.counts["unchanged"]) == (0, 1)
