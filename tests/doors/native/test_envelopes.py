"""Feeds in envelopes through the door: Debezium's messages, and the feed of changes of another table."""

import json

import pyarrow as pa
import pytest
from debezium_engine import RECORDED, last_rows, messages_of
from remembering import day, lives

from backstory.errors import BackstoryError
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages
from backstory.warehouse import Warehouse

NUMBERS = iter(range(1000))


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


@pytest.fixture
def name():
    return f"envelopes.t{next(NUMBERS)}"


def now(lake, name, key):
    rows = lake.table(name).current().drop("valid_from", "valid_to").toArrow().to_pylist()
    return {tuple(row[each] for each in key): row for row in rows}


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


def test_V62_a_connector_whose_log_is_unknown_needs_an_order(lake, name, tmp_path):
    line = {"op": "c", "before": None, "after": {"k": "k", "v": "a"}, "ts_ms": 1}
    line["source"] = {"connector": "mongodb", "ts_ms": int(day(10).timestamp() * 1000), "ord": 7}
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(BackstoryError, match="mongodb") as stop:
        lake.apply(str(file), into=name, key="k", envelope="debezium")
    assert stop.value.code == "bad-option"


def test_V65_a_table_kept_downstream_by_the_changes_of_another(lake, name):
    """V107: what it has now is what the source has, commit by commit."""
    source = f"{name}s"
    copies = ["a:1 b:1", "a:2 b:1 c:1", "a:2 c:3"]
    since = None
    for number, text in enumerate(copies):
        rows = pa.Table.from_pylist([dict(zip("kv", each.split(":"), strict=True)) for each in text.split()])
        lake.snapshot(rows, into=source, key="k", at=day(number), max_delete_ratio=1)
        feed = lake.table(source).changes(since=since, current=True)
        lake.apply(feed.frame, into=name, key="k", envelope="changes")
        since = feed.until
        mine = {key: row["v"] for key, row in now(lake, name, ["k"]).items()}
        theirs = {key: row["v"] for key, row in now(lake, source, ["k"]).items()}
        assert mine == theirs
