"""The feed from tables by layout, and from many small tables as the rule gives it."""

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest
from committing import commit, make
from depth import deep
from feeding import EXPIRE, Fed
from memory_store.store import MemoryStore
from specification.change_feed import E16_CHANGES, E16_NET, E16_OF_CURRENT_ROWS, changes_of_commits, net

from backstory.errors import Refused, UsageError
from backstory.model.change import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    NUMBER,
    SIGN,
    TIME,
    VERSION,
    Change,
)
from backstory.model.instant import TMAX
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OWN_COLUMNS
from backstory.reading.feeds import FeedRows, changes_query, feed_frame, row_identity
from backstory.reading.lifetimes import SPARK
from backstory.reading.questions import SYSTEM_COLUMNS
from backstory.stores.tables import existing

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def at(number):
    return None if number is None else DAY + timedelta(days=number)


OWN = {each.name: each for each in OWN_COLUMNS}


def version(k, v, start, end=None, recorded=1, **memory):
    return {
        "k": k,
        "v": v,
        "valid_from": at(start),
        "valid_to": at(end),
        "is_current": end is None,
        "recorded_at": at(recorded),
        "_memory": memory or None,
    }


def test_E16_the_change_feed_skips_a_compaction(store):
    """V101, V104 to V106: Types, versions and times follow the row's columns. Memory rows are not included."""
    fed = Fed(store, "e16", {"k": "STRING", "v": "STRING", **OWN}, ("k",), Layout.VERSIONS)
    fed.change([version("k", "a", 10), version("m", "a", 10)])
    fed.change([version("k", "a", 10, 20, ended_at=at(2)), version("k", "b", 20, recorded=2)], "k = 'k'")
    fed.do(
        "CALL backstory.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    fed.change(
        [
            version("k", "a", 10, 10, role="past", ended_at=at(2)),
            version("k", "a", 10, 15, recorded=2, ended_at=at(4), end_before=at(20)),
            version("k", "c", 15, 20, recorded=4),
            version("m", "a", 10, 30, ended_at=at(4)),
            version("m", None, 30, 30, recorded=4, role="fact", kind="delete"),
        ],
        "v = 'a'",
    )

    stored = []

    def feed_lines(**options):
        with fed.table.changes(**options) as feed:
            rows = feed.frame.toArrow()
            fed.tell_the_same(feed, rows.to_pylist(), options)
        stored.append([{**row, COMMIT_VERSION: None, COMMIT_TIMESTAMP: None} for row in rows.to_pylist()])
        assert rows.column_names[-3:] == [CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
        assert "_memory" not in rows.column_names
        shown = [name for name in ("k", "v", "valid_from", "valid_to") if name in rows.column_names]
        days = lambda value: value if isinstance(value, str) else "-" if value is None else (value - DAY).days  # noqa: E731
        return [
            " ".join(map(str, (row[COMMIT_VERSION], row[CHANGE_TYPE], *(days(row[name]) for name in shown))))
            for row in rows.to_pylist()
        ]

    assert feed_lines() == E16_CHANGES
    assert feed_lines(since=1, net=True) == E16_NET
    assert feed_lines(current=True) == E16_OF_CURRENT_ROWS
    before, stored[:] = [*stored], []
    assert fed.small == 3
    fed.do(EXPIRE)
    with pytest.raises(Refused, match="have expired"):
        fed.table.changes(since=1)
    # V111: By time, the table returns the same rows forever, but their commits are unknown.
    assert {line.split()[0] for line in feed_lines()} == {"None"}
    feed_lines(since=at(1), net=True)
    feed_lines(current=True)
    assert stored == before


SYNCED = "_fivetran_synced:UTC_DATETIME _fivetran_deleted:BOOLEAN"
SENT_VERSION = "_fivetran_start:UTC_DATETIME _fivetran_end:UTC_DATETIME _fivetran_active:BOOLEAN"
LOADED = "row_hash:STRING load_run_id:STRING loaded_at:UTC_DATETIME"
HISTORY = "version_started_at:UTC_DATETIME version_ended_at:UTC_DATETIME version_state:STRING"
LAYOUTS = {
    Layout.FIVETRAN_LIVE: (f"id:LONG v:STRING {SYNCED}", ("id",)),
    Layout.FIVETRAN_HISTORY: (f"id:LONG v:STRING {SENT_VERSION}", ("id", "_fivetran_start")),
    Layout.HIST: (f"c_hist_key:STRING c_key:STRING id:LONG v:STRING {LOADED} {HISTORY}", ("c_hist_key",)),
    Layout.BASE: (f"c_key:STRING id:LONG v:STRING {LOADED}", ("id",)),
    Layout.ODF: ("offset:LONG op:INT id:LONG v:STRING", ("offset",)),
}
OFFSET = {SYSTEM_COLUMNS: '{"offset": "offset"}'}


def columns_of(layout):
    return dict(word.split(":") for word in LAYOUTS[layout][0].split())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_has_its_identity(layout):
    """V105: Only the table defines the identity, without rows."""
    store = MemoryStore()
    columns = tuple(Column(name, ColumnType(Kind[type_])) for name, type_ in columns_of(layout).items())
    name = TableName("feeds", "c_hist" if layout is Layout.HIST else "c")
    make(store, Shape(name, columns, ("id",), layout))
    commit(store, existing(store, name), Change(properties=OFFSET))
    assert row_identity(existing(store, name)) == LAYOUTS[layout][1]


def of_history(v, start, end, active):
    return {"id": 1, "v": v, "_fivetran_start": at(start), "_fivetran_end": end, "_fivetran_active": active}


def test_current_feeds_contain_only_live_rows_and_open_versions(store):
    """V104: Live rows that are not deleted, and open versions, with only the user's columns. A log has none."""
    live = Fed(store, "c_live", columns_of(Layout.FIVETRAN_LIVE), ("id",), Layout.FIVETRAN_LIVE)
    live.change([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    synced, deleted = {"_fivetran_synced": at(1)}, {"_fivetran_deleted": True}
    live.change([{"id": 1, "v": "a", **synced}, {"id": 2, "v": "b", **deleted}], "true")
    assert live.lines(since=1) == [
        "2 update_preimage 1 a None None",
        f"2 update_postimage 1 a {at(1)} None",
        "2 update_preimage 2 b None None",
        "2 update_postimage 2 b None True",
    ]
    assert live.lines(since=1, current=True) == ["2 delete 2 b"]
    history = Fed(store, "c_history", columns_of(Layout.FIVETRAN_HISTORY), ("id",), Layout.FIVETRAN_HISTORY)
    history.change([of_history("a", 1, TMAX, True), of_history("gone", 0, at(1), False)])
    history.change([of_history("a", 1, at(3), False), of_history("b", 3, TMAX, True)], "v = 'a'")
    assert [line.split()[:4] for line in history.lines(since=1)] == [
        ["2", "update_preimage", "1", "a"],
        ["2", "update_postimage", "1", "a"],
        ["2", "insert", "1", "b"],
    ]
    assert (live.small, history.small) == (2, 1)
    assert history.lines(current=True) == ["1 insert 1 a", "2 update_preimage 1 a", "2 update_postimage 1 b"]
    log = Fed(store, "c_log", columns_of(Layout.ODF), ("id",), Layout.ODF, **OFFSET)
    log.change([{"offset": 0, "op": 0, "id": 1, "v": "a"}])
    assert log.lines() == ["1 insert 0 0 1 a"]
    with pytest.raises(UsageError) as refused:
        log.table.changes(current=True)
    assert refused.value.code == "no-current"


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
def test_the_feed_plan_matches_the_rule(spark, netted):
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
    feed_rows = FeedRows({name: name for name in ("life", "k", "v", "m")}, ("life", "k"), lambda *_: "TRUE")
    frame = feed_frame(
        spark.createDataFrame(moved, SCHEMA), feed_rows, len(moved), net=netted, only_added=False
    )
    assert frame.columns == ["life", "k", "v", "m", CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
    rows = frame.toArrow().to_pylist()
    assert sorted(line(row, row[COMMIT_VERSION], row[CHANGE_TYPE]) for row in rows) == sorted(expected)
    # A preimage directly precedes its postimage, and commits are in their order.
    for before, after in itertools.pairwise(rows):
        paired = before[CHANGE_TYPE] == "update_preimage"
        assert not paired or (key(before), "update_postimage") == (key(after), after[CHANGE_TYPE])
    if not netted:
        versions = [row[COMMIT_VERSION] for row in rows]
        assert versions == sorted(versions)


@pytest.mark.parametrize("netted", [False, True], ids=["each", "net"])
def test_column_names_with_braces_are_quoted(netted):
    assert "PARTITION BY `a{b}`" in changes_query(SPARK, ["a{b}"], ["{c}"], net=netted)
