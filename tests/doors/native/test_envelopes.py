"""Feeds in envelopes: Debezium's messages, and the feed of changes of another table."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from debezium_engine import RECORDED, last_rows, messages_of
from depth import DEPTH, deep
from remembering import day, lives

from backstory.errors import BackstoryError
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages
from backstory.formats.memory import Memory
from backstory.warehouse import Warehouse

# Tests whose way is a parameter request the session only when they run, so all tests are marked.
pytestmark = pytest.mark.spark

NUMBERS = iter(range(1000))
# Positions and orders are decided before a way of planning is chosen. Before a release, both ways test them.
WAYS_AT_THE_GATE = ["lake", "in_tasks"] if DEPTH == "laws" else ["lake"]


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


@pytest.fixture
def in_tasks(store):
    """Plan everything in Spark's tasks, a few messages in each part."""
    few = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = store.session.conf.get(few)
    store.session.conf.set(few, "3")
    yield Warehouse(replace(store, memory=Memory(0)), embedded=False)
    store.session.conf.set(few, before)


@pytest.fixture
def name():
    return f"envelopes.t{next(NUMBERS)}"


def now(lake, name, key):
    rows = lake.table(name).current().drop("valid_from", "valid_to").toArrow().to_pylist()
    return {tuple(row[each] for each in key): row for row in rows}


def versions(lake, name):
    rows = lake.spark.table(f"backstory.{name}").drop("recorded_at", "_memory").toArrow()
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


@pytest.mark.parametrize("table", ["plain", "whole"])
def test_V61_recorded_messages_reproduce_the_rows_of_the_database(lake, name, table):
    """Messages produce the database's rows, in order and backwards, one by one. Repeated ones are duplicates
    (V52)."""
    keys, values = messages_of(RECORDED, table)
    expected = last_rows(unwrap_debezium(debezium_messages(keys, values), ("id",)), ["id"])
    whole = pa.table({"key": keys, "value": values})
    receipt = lake.apply(whole, into=name, key="id", envelope="debezium")
    assert now(lake, name, ["id"]) == expected
    assert receipt.counts["mismatched"] == 0
    again = lake.apply(whole, into=name, envelope="debezium")
    assert (again.snapshot_id, again.counts["began"]) == (None, 0)
    half = len(whole) // 2
    for part in (whole.slice(half), whole.slice(0, half)):
        lake.apply(part, into=f"{name}b", key="id", envelope="debezium")
    assert now(lake, f"{name}b", ["id"]) == expected


@pytest.mark.parametrize("table", ["plain", "whole"] if DEPTH == "laws" else ["plain"])
def test_spark_tasks_read_messages_like_the_driver(in_tasks, lake, name, table):
    """With `driver-memory = "0m"`, columns, values and versions equal the driver's."""
    keys, values = messages_of(RECORDED, table)
    messages = pa.table({"key": keys, "value": values})
    whole = in_tasks.apply(messages, into=name, key="id", envelope="debezium")
    other = lake.apply(messages, into=f"{name}b", key="id", envelope="debezium")
    assert whole.counts == other.counts
    assert versions(lake, name) == versions(lake, f"{name}b")
    assert in_tasks.apply(messages, into=name, envelope="debezium").snapshot_id is None


def test_spark_tasks_read_lines_without_some_columns(in_tasks, name, tmp_path):
    """A column that is missing from the messages of one part is unmodified there."""
    rows = [{"k": "k", "v": "a"}, {"k": "m", "v": "x"}, {"k": "n", "v": "y"}, {"k": "k", "w": 1.5}]
    receipt = in_tasks.apply(lines_of(tmp_path, rows), into=name, key="k", envelope="debezium")
    assert receipt.counts["began"] == 4
    assert now(in_tasks, name, ["k"]) == {
        ("k",): {"k": "k", "v": "a", "w": 1.5},
        ("m",): {"k": "m", "v": "x", "w": None},
        ("n",): {"k": "n", "v": "y", "w": None},
    }


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_a_delivery_without_messages_is_accepted(way, name, tmp_path, request):
    """V59: An empty batch of a stream makes no commit, on the driver or in tasks."""
    lake = request.getfixturevalue(way)
    lake.apply(lines_of(tmp_path, [{"k": "k", "v": "a"}]), into=name, key="k", envelope="debezium")
    nothing = lines_of(tmp_path, [])
    assert lake.apply(nothing, into=name, envelope="debezium").snapshot_id is None
    assert lake.apply(nothing, into=name, envelope="debezium", dry_run=True).counts["began"] == 0
    with pytest.raises(BackstoryError) as stop:
        lake.apply(
            nothing,
            into=name,
            envelope="debezium",
            restate_from="1970-01-01",
            all_keys=True,
            allow_empty=True,
        )
    assert stop.value.code == "bad-option"


def lines_of(folder, rows):
    file = folder / "changes.jsonl"
    file.write_text("".join(f"{upsert(number, after)}\n" for number, after in enumerate(rows)))
    return str(file)


def upsert(number, after):
    source = {"connector": "postgresql", "ts_us": number * 1_000_000, "lsn": number}
    return json.dumps({"op": "c", "before": None, "after": after, "source": source})


def test_V61_json_lines_are_read_as_messages(lake, name, tmp_path):
    def message(op, ms, lsn, before=None, after=None):
        source = {"connector": "postgresql", "ts_us": ms * 1000, "lsn": lsn}
        return json.dumps({"op": op, "before": before, "after": after, "source": source, "ts_ms": ms})

    at = [int(day(number).timestamp() * 1000) for number in (10, 20, 30)]
    lines = [
        message("c", at[0], 1, after={"k": "k", "v": "a"}),
        message("u", at[1], 2, before={"k": "k", "v": "a"}, after={"k": "k", "v": "b"}),
        message("d", at[2], 3, before={"k": "k", "v": "lost"}),
    ]
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join(reversed(lines)) + "\n")
    receipt = lake.apply(str(file), into=name, key="k", envelope="debezium")
    rows = lake.table(name).current().toArrow().to_pylist()
    assert (receipt.counts["began"], receipt.counts["ended"], rows) == (2, 1, [])
    history = lake.spark.sql(f"SELECT * FROM backstory.{name} WHERE _memory.role IS NULL").toArrow()
    assert lives(history.to_pylist()) == ["k: a[10,20) b[20,30)"]


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_V62_a_connector_with_an_unknown_log_needs_an_order(name, tmp_path, way, request):
    line = {"op": "c", "before": None, "after": {"k": "k", "v": "a"}, "ts_ms": 1}
    line["source"] = {"connector": "mongodb", "ts_ms": int(day(10).timestamp() * 1000), "ord": 7}
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(BackstoryError, match="mongodb") as stop:
        request.getfixturevalue(way).apply(str(file), into=name, key="k", envelope="debezium")
    assert stop.value.code == "bad-option"


@pytest.mark.parametrize("way", ["lake", "in_tasks"])
def test_V65_changes_of_a_table_maintain_a_downstream_table(lake, name, way, request):
    """V107: The downstream table equals the source, commit by commit."""
    source = f"{name}s"
    copies = ["a:1 b:1", "a:2 c:3", "a:2 b:1 c:1"][: deep(3, 2)]
    since = None
    for number, text in enumerate(copies):
        rows = pa.Table.from_pylist([dict(zip("kv", each.split(":"), strict=True)) for each in text.split()])
        lake.snapshot(rows, into=source, key="k", at=day(number), max_delete_ratio=1)
        feed = lake.table(source).changes(since=since, current=True)
        request.getfixturevalue(way).apply(feed.frame, into=name, key="k", envelope="changes")
        since = feed.until
        mine = {key: row["v"] for key, row in now(lake, name, ["k"]).items()}
        theirs = {key: row["v"] for key, row in now(lake, source, ["k"]).items()}
        assert mine == theirs


def log_message(connector, op, second, position, value, **more):
    """A message of key 1 at a position of a log, with its own time `second`."""
    places = {
        "postgresql": {"lsn": position},
        "mysql": {"file": "mysql-bin.000003", "pos": position, "row": 0, "server_id": 1},
        "mariadb": {"file": "bin.000003", "pos": position, "row": 0, "server_id": 1},
        "sqlserver": {
            "commit_lsn": f"00000027:{position:08x}:0001",
            "change_lsn": None,
            "event_serial_no": 1,
        },
    }
    place = {"connector": connector, "name": "shop", "db": "shop", "table": "item", "ts_ms": second * 1000}
    place |= places[connector]
    if op != "r" and "change_lsn" in place:
        place["change_lsn"] = place["commit_lsn"]
    row = None if value is None else {"id": 1, "v": value}
    images = {"before": row if op == "d" else None, "after": None if op in "dt" else row}
    return json.dumps({"op": op, **images, "source": {**place, **more}, "ts_ms": second * 1000})


def apply_lines(lake, name, folder, *lines, **options):
    file = folder / "log.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return lake.apply(str(file), into=name, **options)


def shown_versions(lake, name):
    rows = lake.spark.table(f"backstory.{name}").where("_memory.role IS NULL")
    rows = rows.drop("recorded_at", "_memory").toArrow()
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def is_healthy(lake, name):
    return not any(each["violations"] for each in lake.check(name))


def refusal(lake, name, folder, *lines, **options):
    with pytest.raises(BackstoryError) as stop:
        apply_lines(lake, name, folder, *lines, **options)
    return stop.value.code


LATE_READS = {
    "a change": ([("r", 40, 157, "old"), ("u", 10, 900, "new")], ["new"]),
    "a delete": ([("r", 40, 157, "old"), ("d", 10, 900, "old")], []),
    "a clock set back": ([("c", 30, 500, "old"), ("u", 10, 900, "new"), ("u", 20, 950, "newer")], ["newer"]),
    "a truncate": ([("c", 30, 500, "old"), ("t", 10, 900, None)], []),
}


# Each connector has its own positions, which do not depend on the way of planning. Before a release, all
# connectors run in both ways.
CONNECTORS = {
    ("postgresql", "lake"): ["a change", "a truncate"],
    ("mysql", "lake"): ["a delete"],
    ("sqlserver", "lake"): ["a clock set back"],
    ("mysql", "in_tasks"): ["a delete"],
}
if DEPTH == "laws":
    connectors, ways = ("postgresql", "mysql", "sqlserver"), ("lake", "in_tasks")
    CONNECTORS = {(connector, way): [*LATE_READS] for connector in connectors for way in ways}


@pytest.mark.parametrize(("connector", "way"), CONNECTORS)
def test_V131_the_log_order_decides_instead_of_the_clock(way, connector, name, tmp_path, request):
    """Late reads, clocks that are set back, deletes and truncates have one result, together and one by one."""
    lake = request.getfixturevalue(way)
    for number, life in enumerate(CONNECTORS[connector, way]):
        changes, values = LATE_READS[life]
        lines = [log_message(connector, *each) for each in changes]
        whole = apply_lines(lake, f"{name}w{number}", tmp_path, *lines, key="id", envelope="debezium")
        assert whole.counts["raised"] > 0
        tables = [f"{name}w{number}"]
        if way == "lake" or DEPTH == "laws":
            tables.append(f"{name}p{number}")
            for line in lines:
                apply_lines(lake, tables[1], tmp_path, line, key="id", envelope="debezium")
        for table in tables:
            assert [row["v"] for row in lake.table(table).current().toArrow().to_pylist()] == values
        assert is_healthy(lake, tables[-1])
        assert shown_versions(lake, tables[0]) == shown_versions(lake, tables[-1])


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_V131_a_transaction_that_commits_later_is_ordered_later(way, name, tmp_path, request):
    """Its `lsn` is lower than the others' and a read's, but the log has not restarted."""
    lake = request.getfixturevalue(way)
    changes = [
        ("r", 40, 500, "old", [None, "500"]),
        ("u", 41, 480, "new", ["510", "480"]),
        ("u", 42, 460, "newer", ["520", "460"]),
    ]
    lines = [log_message("postgresql", *each, sequence=json.dumps(commits)) for *each, commits in changes]
    apply_lines(lake, f"{name}w", tmp_path, *lines, key="id", envelope="debezium")
    for line in lines:
        apply_lines(lake, name, tmp_path, line, key="id", envelope="debezium")
    versions = shown_versions(lake, name)
    assert len(versions) == 3
    assert versions == shown_versions(lake, f"{name}w")
    assert now(lake, name, ["id"])[1,]["v"] == "newer"


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_V134_a_late_log_position_changes_the_end_of_an_earlier_version(way, name, tmp_path, request):
    """A version that ended before the delivery's time gets a later end."""
    lake = request.getfixturevalue(way)
    early = [log_message("postgresql", "c", 1, 100, "a"), log_message("postgresql", "u", 5, 300, "b")]
    late = log_message("postgresql", "u", 9, 200, "c")
    further = log_message("postgresql", "u", 12, 400, "d")
    apply_lines(lake, name, tmp_path, *early, further, key="id", envelope="debezium")
    apply_lines(lake, name, tmp_path, late)
    apply_lines(lake, f"{name}w", tmp_path, *early, late, further, key="id", envelope="debezium")
    rows = lake.spark.sql(
        f"SELECT v, valid_from FROM backstory.{name} WHERE _memory.role IS NULL ORDER BY valid_from"
    )
    shown = [(row.v, row.valid_from.second) for row in rows.collect()]
    assert shown == [("a", 1), ("b", 9), ("d", 12)]
    assert is_healthy(lake, name)


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_V136_a_restarted_log_is_refused_unless_new_log_is_set(way, name, tmp_path, request):
    """Falling positions with rising times, or another server or connector, are a new log. Earlier time is
    then settled."""
    lake = request.getfixturevalue(way)
    mysql = [log_message("mysql", "c", 10, 500, "a"), log_message("mysql", "u", 20, 900, "b")]
    apply_lines(lake, name, tmp_path, *mysql, key="id", envelope="debezium")
    anew = log_message("mysql", "u", 30, 4, "c")
    assert refusal(lake, name, tmp_path, anew) == "log-restarted"
    assert (
        refusal(lake, name, tmp_path, log_message("mysql", "u", 30, 999, "c", server_id=2)) == "log-restarted"
    )
    assert refusal(lake, name, tmp_path, log_message("postgresql", "u", 30, 999, "c")) == "log-restarted"
    assert (
        refusal(lake, name, tmp_path, log_message("mysql", "u", 30, 999, "c", table="x")) == "several-sources"
    )
    servers = [log_message("mysql", "u", 30, 999, "c", server_id=number) for number in (1, 2)]
    assert refusal(lake, name, tmp_path, *servers) == "log-restarted"
    assert apply_lines(lake, name, tmp_path, anew, new_log=True).counts["began"] == 1
    assert apply_lines(lake, name, tmp_path, anew, new_log=True).snapshot_id is None
    assert refusal(lake, name, tmp_path, *mysql) == "settled"
    assert apply_lines(lake, name, tmp_path, *mysql, late="drop").counts["too_late"] == 2
    assert refusal(lake, name, tmp_path, log_message("mysql", "u", 25, 950, "behind")) == "settled"
    apply_lines(lake, name, tmp_path, log_message("mysql", "u", 25, 5, "d"))
    assert now(lake, name, ["id"])[1,]["v"] == "d"
    mixed = [*mysql, log_message("mysql", "u", 35, 6, "e")]
    assert apply_lines(lake, name, tmp_path, *mixed, late="drop").counts["too_late"] == 2
    apply_lines(lake, name, tmp_path, log_message("mysql", "u", 40, 7, "f"))
    assert now(lake, name, ["id"])[1,]["v"] == "f"
    assert is_healthy(lake, name)


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_V136_times_far_ahead_are_refused_unless_they_are_allowed(way, name, tmp_path, request):
    lake = request.getfixturevalue(way)
    ahead = log_message("mysql", "c", 32_503_680_000, 500, "a")
    options = {"key": "id", "envelope": "debezium"}
    assert refusal(lake, name, tmp_path, ahead, **options) == "time-ahead"
    assert apply_lines(lake, name, tmp_path, ahead, allow_future=True, **options).counts["began"] == 1


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_a_delivery_may_contain_only_truncates(way, name, tmp_path, request):
    """No row has a column of the record. The split of a feed does not affect the table."""
    lake = request.getfixturevalue(way)
    apply_lines(
        lake, name, tmp_path, log_message("postgresql", "c", 10, 1, "a"), key="id", envelope="debezium"
    )
    assert apply_lines(lake, name, tmp_path, log_message("postgresql", "t", 20, 2, None)).counts["ended"] == 1
    assert now(lake, name, ["id"]) == {}
    (tmp_path / "p.jsonl").write_text('{"id": 1, "v": "a", "op": "U", "at": "2026-01-01T00:00:00Z"}\n')
    options = {"sequence_by": "at", "apply_as_truncates": "op = 'T'", "drop": ["op"]}
    lake.apply(str(tmp_path / "p.jsonl"), into=f"{name}p", key="id", **options)
    (tmp_path / "p.jsonl").write_text('{"op": "T", "at": "2026-01-02T00:00:00Z"}\n')
    receipt = lake.apply(str(tmp_path / "p.jsonl"), into=f"{name}p")
    assert (receipt.counts["ended"], receipt.schema_changes) == (1, [])  # truncates lack no column


@pytest.mark.parametrize("way", WAYS_AT_THE_GATE)
def test_V138_a_json_line_sets_only_its_own_columns(way, name, tmp_path, request):
    """The result does not depend on the columns of other lines, or on the split."""
    lake = request.getfixturevalue(way)
    lines = [
        '{"id": 1, "v": "a", "w": "b", "at": "2026-01-01T00:00:00Z"}',
        '{"id": 1, "v": "c", "at": "2026-01-02T00:00:00Z"}',
        '{"id": 1, "v": null, "at": "2026-01-03T00:00:00Z"}',
    ]
    options = {"key": "id", "sequence_by": "at"}
    apply_lines(lake, f"{name}w", tmp_path, *lines, **options)
    for number, order in enumerate([lines[::-1], lines][: deep(2, 1)]):
        for line in order:
            apply_lines(lake, f"{name}{number}", tmp_path, line, **options)
        assert shown_versions(lake, f"{name}{number}") == shown_versions(lake, f"{name}w")
        assert apply_lines(lake, f"{name}{number}", tmp_path, *lines).counts["duplicate"] == 3
    row = now(lake, f"{name}w", ["id"])[1,]
    assert (row["v"], row["w"]) == (None, "b")
