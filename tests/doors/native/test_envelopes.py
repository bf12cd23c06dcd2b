"""Feeds in envelopes through the door: Debezium's messages, and the feed of changes of another table."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from debezium_engine import RECORDED, last_rows, messages_of
from depth import DEPTH
from remembering import day, lives

from backstory.errors import BackstoryError
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages
from backstory.formats.memory import Memory
from backstory.warehouse import Warehouse

NUMBERS = iter(range(1000))


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


@pytest.fixture
def in_tasks(store):
    """Everything in Spark's tasks, a few messages in each part."""
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
    rows = lake.spark.sql(f"SELECT * EXCEPT (recorded_at, _memory) FROM backstory.{name}").toArrow()
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


@pytest.mark.parametrize("table", ["plain", "whole"])
def test_V61_recorded_messages_leave_what_the_database_had(lake, name, table):
    """In their order and backwards, one by one; again they are duplicates (V52)."""
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
def test_spark_alone_reads_messages(in_tasks, lake, name, table):
    """With `driver-memory = "0m"`: the columns, values and versions are those that the driver finds."""
    keys, values = messages_of(RECORDED, table)
    messages = pa.table({"key": keys, "value": values})
    whole = in_tasks.apply(messages, into=name, key="id", envelope="debezium")
    other = lake.apply(messages, into=f"{name}b", key="id", envelope="debezium")
    assert whole.counts == other.counts
    assert versions(lake, name) == versions(lake, f"{name}b")
    assert in_tasks.apply(messages, into=name, envelope="debezium").snapshot_id is None


def test_spark_alone_reads_lines_that_lack_columns(in_tasks, name, tmp_path):
    """What messages of one part do not have, they leave as it was."""
    rows = [{"k": "k", "v": "a"}, {"k": "m", "v": "x"}, {"k": "n", "v": "y"}, {"k": "k", "w": 1.5}]
    receipt = in_tasks.apply(lines_of(tmp_path, rows), into=name, key="k", envelope="debezium")
    assert receipt.counts["began"] == 4
    assert now(in_tasks, name, ["k"]) == {
        ("k",): {"k": "k", "v": "a", "w": 1.5},
        ("m",): {"k": "m", "v": "x", "w": None},
        ("n",): {"k": "n", "v": "y", "w": None},
    }


@pytest.mark.parametrize("way", ["lake", "in_tasks"])
def test_no_message_at_all_is_no_error(way, name, tmp_path, request):
    """V59: an empty batch of a stream makes no commit, whoever looks at it."""
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


def test_V61_lines_of_json_are_messages_too(lake, name, tmp_path):
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


@pytest.mark.parametrize("way", ["lake", "in_tasks"])
def test_V62_a_connector_whose_log_is_unknown_needs_an_order(name, tmp_path, way, request):
    line = {"op": "c", "before": None, "after": {"k": "k", "v": "a"}, "ts_ms": 1}
    line["source"] = {"connector": "mongodb", "ts_ms": int(day(10).timestamp() * 1000), "ord": 7}
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(BackstoryError, match="mongodb") as stop:
        request.getfixturevalue(way).apply(str(file), into=name, key="k", envelope="debezium")
    assert stop.value.code == "bad-option"


@pytest.mark.parametrize("way", ["lake", "in_tasks"])
def test_V65_a_table_kept_downstream_by_the_changes_of_another(lake, name, way, request):
    """V107: what it has now is what the source has, commit by commit."""
    source = f"{name}s"
    copies = ["a:1 b:1", "a:2 b:1 c:1", "a:2 c:3"]
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
