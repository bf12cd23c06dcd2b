"""The feed on Spark equals the rule's: many small tables at once, with repeated rows."""

import itertools
import random
from datetime import UTC, datetime

import pytest
from depth import deep
from specification.change_feed import changes_of_commits, net

from backstory.model.change_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    NUMBER,
    SIGN,
    TIME,
    VERSION,
)
from backstory.reading.feeds import FeedRows, changes_query, feed_frame
from backstory.reading.lifetimes import SPARK

SCHEMA = (
    "life int, k int, v double, m map<string, array<double>>, "
    f"`{NUMBER}` bigint, `{VERSION}` bigint, `{TIME}` timestamp, `{SIGN}` tinyint"
)
NAN = float("nan")
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def lives(count):
    """The states of each table, commit by commit, with few and similar rows."""
    chance = random.Random(7)

    def row(life):
        entries = [("a", [chance.choice([0.0, -0.0, NAN])]), ("b", None)]
        chance.shuffle(entries)
        m = dict(entries) if chance.random() < 0.5 else None
        return {
            "life": life,
            "k": chance.randint(0, 2),
            "v": chance.choice([None, NAN, 0.0, -0.0, 1.0]),
            "m": m,
        }

    return [
        [[], *([row(life) for _ in range(chance.randint(0, 4))] for _ in range(4))] for life in range(count)
    ]


def key(row):
    return row["life"], row["k"]


def line(row, version, type_):
    plain = lambda value: None if value is None else value + 0.0  # noqa: E731 - 0.0 is -0.0
    m = row["m"] and sorted(
        (name, part and [plain(one) for one in part]) for name, part in dict(row["m"]).items()
    )
    return f"{row['life']} {version} {type_} {row['k']} {plain(row['v'])} {m}"


@pytest.mark.parametrize("netted", [False, True], ids=["each", "net"])
def test_the_plan_gives_the_rules_feed(spark, netted):
    """V105, V106: This includes rows that are rewritten unchanged, as by copy-on-write."""
    tables = lives(deep(400, 60))
    moved, expected = [], []
    for states in tables:
        for number in range(1, len(states)):
            for sign, rows in ((-1, states[number - 1]), (1, states[number])):
                moved += [(*row.values(), number, number, DAY, sign) for row in rows]
        changes = changes_of_commits(states, key)
        changes = net(changes, key) if netted else changes
        expected += [line(one.row, one.version, one.type) for one in changes]
    told = FeedRows({name: name for name in ("life", "k", "v", "m")}, ("life", "k"), lambda *_: "TRUE")
    frame = feed_frame(spark.createDataFrame(moved, SCHEMA), told, len(moved), net=netted, only_added=False)
    assert frame.columns == ["life", "k", "v", "m", CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
    rows = frame.toArrow().to_pylist()
    assert sorted(line(row, row[COMMIT_VERSION], row[CHANGE_TYPE]) for row in rows) == sorted(expected)
    # A preimage stands right before its postimage, and commits are in their order.
    for before, after in itertools.pairwise(rows):
        paired = before[CHANGE_TYPE] == "update_preimage"
        assert not paired or (key(before), "update_postimage") == (key(after), after[CHANGE_TYPE])
    if not netted:
        versions = [row[COMMIT_VERSION] for row in rows]
        assert versions == sorted(versions)


@pytest.mark.parametrize("netted", [False, True], ids=["each", "net"])
def test_names_with_braces_are_names(netted):
    assert "PARTITION BY `a{b}`" in changes_query(SPARK, ["a{b}"], ["{c}"], net=netted)
