"""The demo's table is what the rule gives for the same files."""

from datetime import UTC, datetime

import pytest
from plans_in_memory import in_utc
from tables_as_text import in_order

from backstory.cli.demo import KEY, TABLE, UNTIL, copies, send_all
from backstory.doors.fivetran.server import listen
from backstory.doors.fivetran.service import Destination
from backstory.reading.commits import commits
from backstory.reading.drawing import draw
from backstory.reading.frames import point_in_time
from backstory.stores.metadata.in_session import InSession
from backstory.strategies.versions import rule
from backstory.testing.sender.client import Sender
from backstory.testing.sender.copies import SourceCopy, difference, read_copy


def by_the_rule():
    """The series, batch by batch, through the plain-Python rule."""
    table, before = [], SourceCopy(KEY)
    for path in copies():
        after = read_copy(path, KEY)
        at = datetime.fromisoformat(path.stem[-10:]).replace(tzinfo=UTC)
        rows = difference(before, after, at, history=True)
        columns = [column.name for column in after.columns]
        table = rule.apply(table, KEY, columns, rows.earliest, rows.replace, rows.update, rows.delete).rows
        before = after
    return table


@pytest.fixture(scope="module")
def arrived(spark, tmp_path_factory):
    """The series after it was sent through a real server."""
    from backstory.stores.iceberg.store import Store

    store = Store(spark)
    running = listen(Destination({"backstory": store}), "127.0.0.1", 0)
    send_all(Sender.to(f"127.0.0.1:{running.port}", tmp_path_factory.mktemp("batches")), copies())
    running.stop(5)
    return store


def test_the_table_is_the_rules(spark, arrived):
    """26 real copies through gRPC, cipher, Spark and Iceberg give the rule's table."""
    rows = in_utc(spark.table(arrived.sql_name(TABLE)).toArrow().to_pylist())

    assert in_order(by_the_rule()) == in_order(rows)


def test_one_batch_is_one_commit(arrived):
    """20 half years changed something; the other six made no commit."""
    made = commits(InSession(arrived), TABLE)

    assert 20 == len(made)
    assert {"fivetran"} == {commit["door"] for commit in made}
    assert 20 == len({commit["token"] for commit in made})


def test_the_world_of_2016_is_the_file_of_2016(arrived):
    """As of the date of a copy the table holds that copy."""
    world = point_in_time.as_of(arrived, TABLE, datetime(2016, 1, 1, tzinfo=UTC)).toArrow().to_pylist()
    path = next(path for path in copies() if "2016-01-01" in path.name)

    told = [{n: v for n, v in row.items() if not n.startswith("valid_")} for row in world]

    assert in_order(read_copy(path, KEY).rows.values()) == in_order(told)


def test_a_deleted_record_that_returns_has_a_gap(arrived):
    """Saint Helena is gone from 2015-07-01 to 2018-07-01, and open again after it."""
    versions = point_in_time.timeline(arrived, TABLE, {"code": "SHN"}).toArrow().to_pylist()

    spans = [(f"{v['valid_from']:%Y-%m}", v["valid_to"] and f"{v['valid_to']:%Y-%m}") for v in versions]
    assert [("2014-01", "2015-01"), ("2015-01", "2015-07"), ("2018-07", None)] == spans


def test_a_life_is_drawn_with_what_changed(arrived):
    """The drawn line of Kazakhstan names each change of its capital, and ends open."""
    versions = point_in_time.timeline(arrived, TABLE, {"code": "KAZ"}).toArrow().to_pylist()

    lines = draw(versions, ["capital"], UNTIL)

    assert "capital: Astana → Nur-Sultan" in lines[4]
    assert lines[-1].endswith("capital: Nur-Sultan → Astana")
    assert "▶" in lines[-1]
