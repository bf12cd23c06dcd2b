"""The versions known at each row's own time, for records with many statements: both plans agree."""

import random

from backstory.reading.joins import Join, join_statements
from backstory.reading.lifetimes import STATED_FROM, STATED_TO

ENDS = ("valid_from", "valid_to", STATED_FROM, STATED_TO)


def told_in_order(key, count):
    """The statements of a life in order, each open until the next one, with some late ones."""
    rows = []
    for number in range(count):
        rows.append((key, f"{key}{number}", number, None, number, number + 1))
        rows.append((key, f"{key}{number}", number, number + 1, number + 1, None))
    return rows[:-1]


def told_by_chance(key, count, chance):
    """Random rectangles without overlap, in columns of the plane."""
    rows = []
    borders = sorted(chance.sample(range(count), count // 2))
    for start, end in zip(borders, [*borders[1:], None], strict=True):
        times = sorted(chance.sample(range(count), 3))
        rows += [
            (key, f"{key}{start}.{since}", start, end, since, until)
            for since, until in zip(times, [*times[1:], None], strict=True)
            if chance.random() < 0.8
        ]
    return rows


def second(number):
    return None if number is None else number * 1_000_000


def test_v98_of_records_that_were_told_of_often_rows_see_what_pairs_see(spark):
    """A row has at most one match, or none if nothing was known. NULL matches nothing."""
    chance = random.Random(11)
    told = [
        *told_in_order("often", 40),
        *told_by_chance("chance", 30, chance),
        ("once", "o", 5, None, 5, None),
    ]
    keys, times = ["often", "often", "chance", "once", "never", None], [None, *range(-1, 45)]
    asks = [
        (number, chance.choice(keys), chance.choice(times), chance.choice(times)) for number in range(600)
    ]
    stamp = "timestamp_micros({0}) AS `{0}`".format
    history = spark.createDataFrame(
        [(*row[:2], *map(second, row[2:])) for row in told],
        f"k string, v string, {', '.join(f'`{name}` bigint' for name in ENDS)}",
    ).selectExpr("k", "v", *(f"timestamp_micros(`{name}`) AS `{name}`" for name in ENDS))
    frame = spark.createDataFrame(
        [(*row[:2], *map(second, row[2:])) for row in asks], "id int, k string, at bigint, known bigint"
    ).selectExpr("id", "k", stamp("at"), stamp("known"))

    def holds(row, at, known):
        _, _, start, end, since, until = row
        return (
            start <= at and (end is None or at < end) and since <= known and (until is None or known < until)
        )

    expected = {
        number: [
            row[1] for row in told if row[0] == key and None not in (at, known) and holds(row, at, known)
        ]
        for number, key, at, known in asks
    }
    assert max(map(len, expected.values())) == 1
    names = ["id", "k", "at", "known", "v"]
    asked = Join(frame, history, ["k"], "at", ["v"], names, known_at="known")
    for few in (8, 10_000):
        rows = join_statements(asked, few).select("id", "v").collect()
        assert len(rows) == len(asks)
        assert {row["id"]: [row["v"]] if row["v"] else [] for row in rows} == expected
