"""Each row of a frame with the version at its own time, as in a range join in plain Python."""

import random

import pandas as pd
import pytest
from committing import make
from remembering import E13, day, number, remembered
from tables_as_text import table

from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.reading.frames import table_in_session
from backstory.reading.joins import IN_ORDER, Join, has_short_histories, join_pairs, join_statements
from backstory.reading.lifetimes import STATED_FROM, STATED_TO
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.table import Table

ORDERS = """id k v     at    known
             1 k order 5     5
             2 k order 10    1
             3 k order 12.5  3
             4 k order 17    2
             5 k order 17    3
             6 k order 20    2
             7 k order 25    1
             8 k order -     3
             9 - order 12    3
            10 z order 12    3
            11 k order 17    -
"""


@pytest.fixture
def orders(spark):
    rows = [
        (
            row["id"],
            row["k"],
            row["v"],
            *(None if row[name] is None else day(row[name]) for name in ("at", "known")),
        )
        for row in table(ORDERS)
    ]
    return spark.createDataFrame(rows, "id INT, k STRING, v STRING, at TIMESTAMP, known TIMESTAMP")


def matches(frame):
    return {
        row["id"]: row["v_2"] and f"{row['v_2']}[{number(row['valid_from'])},{number(row['valid_to'])})"
        for row in frame.toArrow().to_pylist()
    }


def test_a_join_matches_rows_with_the_version_at_their_own_time(store, orders):
    """By E13, intervals are half-open, NULL in key or time matches nothing, and a used name gets a number."""
    history = remembered(store, "joined", E13)
    joined = history.join_as_of(orders, on="k", at="at")
    assert joined.columns == [*orders.columns, "v_2", "valid_from", "valid_to"]
    assert [field.dataType for field in joined.schema][:5] == [field.dataType for field in orders.schema]
    answers = {
        1: None, 2: "a[10,15)", 3: "a[10,15)", 4: "c[15,20)", 5: "c[15,20)", 6: "b[20,)", 7: "b[20,)",
        8: None, 9: None, 10: None, 11: "c[15,20)",
    }  # fmt: skip
    assert matches(joined) == answers
    inner = history.join_as_of(orders, on=["k"], at="at", how="inner")
    assert matches(inner) == {key: value for key, value in answers.items() if value}
    earlier = history.join_as_of(orders, on="k", at="at", known_at=day(2), how="inner")
    assert matches(earlier) == {
        2: "a[10,20)", 3: "a[10,20)", 4: "a[10,20)", 5: "a[10,20)", 6: "b[20,)", 7: "b[20,)", 11: "a[10,20)",
    }  # fmt: skip


def test_a_join_matches_rows_with_versions_known_at_their_own_time(store, orders):  # V98
    history = remembered(store, "joined_known", E13)
    joined = history.join_as_of(orders, on="k", at="at", known_at="known")
    assert matches(joined) == {
        1: None, 2: "a[10,)", 3: "a[10,15)", 4: "a[10,20)", 5: "c[15,20)", 6: "b[20,)", 7: "a[10,)",
        8: None, 9: None, 10: None, 11: None,
    }  # fmt: skip
    assert joined.columns == [*orders.columns, "v_2", "valid_from", "valid_to"]


def test_invalid_joins_are_wrong_usage(spark, store, orders):
    history = remembered(store, "joinless", E13)
    other = orders.withColumnRenamed("k", "key")
    for frame, options, message in (
        (orders, {"on": "id", "at": "at"}, "The key of"),
        (other, {"on": "k", "at": "at"}, "exactly one column 'k'"),
        (orders, {"on": "k", "at": "time"}, "exactly one column 'time'"),
        (orders.selectExpr("*", "1 AS x", "2 AS x"), {"on": "k", "at": "at"}, "exactly one column 'x'"),
        (pd.DataFrame({"k": ["a"], "at": [day(1)]}), {"on": "k", "at": "at"}, "pandas.DataFrame cannot be"),
        (orders, {"on": "k", "at": "v"}, "not a time"),
        (orders.selectExpr("k", "cast(at AS TIMESTAMP_NTZ) AS at"), {"on": "k", "at": "at"}, "not a time"),
        (orders.selectExpr("1 AS k", "at"), {"on": "k", "at": "at"}, "k is of type int"),
        (orders, {"on": "k", "at": "at", "how": "outer"}, "how must be left or inner, not 'outer'"),
    ):
        with pytest.raises(UsageError, match=message):
            history.join_as_of(frame, **options)
    name = TableName("reading", "joinless_history")
    drop(store, name)
    ends = (
        ("_fivetran_start", Kind.UTC_DATETIME),
        ("_fivetran_end", Kind.UTC_DATETIME),
        ("_fivetran_active", Kind.BOOLEAN),
    )
    columns = tuple(Column(each, ColumnType(kind)) for each, kind in (("k", Kind.STRING), *ends))
    make(store, Shape(name, columns, ("k",), Layout.FIVETRAN_HISTORY))
    with pytest.raises(UsageError, match="when each row was recorded"):
        Table(store, name).join_as_of(orders, on="k", at="at", known_at="known")


def test_either_join_plan_equals_the_range_join(spark, store):
    """Many short lives with absences, and a long one: either plan finds the same pairs as a comparison of
    all."""
    chance = random.Random(7)
    lives = {f"k{number}": chance.sample(range(40), chance.randint(1, 7)) for number in range(40)}
    # The sample of `has_short_histories` contains more than 8 of its 1,200 versions, whatever the order of
    # rows.
    lives["hot"] = range(2400)
    versions = [
        (key, start, end)
        for key, borders in lives.items()
        for start, end in list(zip(sorted(borders), [*sorted(borders)[1:], None], strict=True))[::2]
    ]
    lines = (f"{key} v {start} {'~' if end is None else end} 1 ~ ~ ~ ~" for key, start, end in versions)
    native = remembered(store, "pairs", "\n".join(lines))
    facts = [(chance.choice([*lives, "hot", "absent"]), chance.randint(-1, 41)) for _ in range(400)]
    frame = spark.createDataFrame(
        [(number, key, day(at)) for number, (key, at) in enumerate(facts)], "id INT, k STRING, at TIMESTAMP"
    )

    def expected(key, at):
        return [
            day(start)
            for owner, start, end in versions
            if owner == key and start <= at and (end is None or at < end)
        ]

    wanted = [(number, start) for number, fact in enumerate(facts) for start in expected(*fact) or [None]]
    history = table_in_session(store, native.name).versions()
    join = Join(frame, history, ["k"], "at", [VALID_FROM, VALID_TO], ["id", "k", "at", VALID_FROM, VALID_TO])
    for rows in (native.join_as_of(frame, on="k", at="at"), join_pairs(join), join.ask_in_order(IN_ORDER)):
        pairs = rows.select("id", VALID_FROM).orderBy("id").toArrow().to_pylist()
        assert [tuple(row.values()) for row in pairs] == wanted
    assert not has_short_histories(store, existing(store, native.name))


def test_short_histories_are_joined_without_a_window_unless_disordered(store):
    """The plan is an equi-join with one sort per side. If versions overlap, each row occurs once."""
    lines = [f"k{n % 100} v{n // 100} {n // 100} {n // 100 + 1} 1 ~ ~ ~ ~" for n in range(300)]
    history = remembered(store, "few", "\n".join([*lines, "k1 wide 0 99 1 ~ ~ ~ ~"]))
    frame = store.spark.createDataFrame([("k1", day(1))], "k STRING, at TIMESTAMP")

    def joined():
        rows = history.join_as_of(frame, on="k", at="at")
        return "Window" in rows._jdf.queryExecution().optimizedPlan().toString(), rows

    assert has_short_histories(store, existing(store, history.name))
    assert joined()[0] is False
    name = store.sql_name(history.name)
    store.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('backstory.disorder' = 'true')")
    ordered, rows = joined()
    assert ordered
    assert [row["v"] for row in rows.collect()] == ["v1"]


ENDS = ("valid_from", "valid_to", STATED_FROM, STATED_TO)


def told_in_order(key, count):
    """The statements of a life in order, each open until the next one, with some late ones."""
    rows = []
    for nth in range(count):
        rows.append((key, f"{key}{nth}", nth, None, nth, nth + 1))
        rows.append((key, f"{key}{nth}", nth, nth + 1, nth + 1, None))
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


def test_v98_records_with_many_statements_join_like_all_pairs(spark):
    """A row has at most one match, or none if nothing was known. NULL matches nothing."""
    chance = random.Random(11)
    statements = [
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
        [(*row[:2], *map(second, row[2:])) for row in statements],
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
            row[1]
            for row in statements
            if row[0] == key and None not in (at, known) and holds(row, at, known)
        ]
        for number, key, at, known in asks
    }
    assert max(map(len, expected.values())) == 1
    names = ["id", "k", "at", "known", "v"]
    join = Join(frame, history, ["k"], "at", ["v"], names, known_at="known")
    for few in (8, 10_000):
        rows = join_statements(join, few).select("id", "v").collect()
        assert len(rows) == len(asks)
        assert {row["id"]: [row["v"]] if row["v"] else [] for row in rows} == expected
