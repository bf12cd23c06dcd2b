"""The demo's table equals the rule's for the same files."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from plans_in_memory import in_utc
from specification import versions as rule
from tables_as_text import in_order

from backstory.cli.demo import KEY, TABLE, UNTIL, bundled_copies, reading_lines, send_all
from backstory.doors.fivetran.server import listen
from backstory.doors.fivetran.service import Destination
from backstory.reading.commits import commits
from backstory.reading.frames import table_in_session
from backstory.reading.options import TimelineRequest
from backstory.reading.questions import life
from backstory.reading.timelines import Lane, draw_lanes
from backstory.testing.sender import Sender, SourceCopy, difference, read_copy


def by_the_rule():
    """The series by the rule, batch by batch."""
    table, before = [], SourceCopy(KEY)
    for path in bundled_copies():
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
    from backstory.stores.iceberg.store import IcebergStore

    store = IcebergStore(spark)
    running = listen(Destination({"backstory": store}), "127.0.0.1", 0)
    send_all(Sender.to(f"127.0.0.1:{running.port}", tmp_path_factory.mktemp("batches")), bundled_copies())
    running.stop(5)
    return store


def test_the_table_matches_the_rule(spark, arrived):
    """26 real copies through gRPC, encryption, Spark and Iceberg give the rule's table."""
    rows = in_utc(spark.table(arrived.sql_name(TABLE)).toArrow().to_pylist())

    assert in_order(by_the_rule()) == in_order(rows)


def test_one_batch_is_one_commit(arrived):
    """Twenty half-years made a commit, and the other six did not."""
    made = commits(arrived, TABLE)

    assert 20 == len(made)
    assert {"fivetran"} == {commit["door"] for commit in made}
    assert 20 == len({commit["token"] for commit in made})


def test_the_table_as_of_2016_equals_the_file_of_2016(arrived):
    """As of the date of a copy, the table equals that copy."""
    world = table_in_session(arrived, TABLE).rows_at(datetime(2016, 1, 1, tzinfo=UTC)).toArrow().to_pylist()
    path = next(path for path in bundled_copies() if "2016-01-01" in path.name)

    rows = [{n: v for n, v in row.items() if not n.startswith("valid_")} for row in world]

    assert in_order(read_copy(path, KEY).rows.values()) == in_order(rows)


def test_a_deleted_record_that_returns_has_a_gap(arrived):
    """Saint Helena is deleted from 2015-07-01 to 2018-07-01, and open again after it."""
    versions = life(table_in_session(arrived, TABLE), TimelineRequest({"code": "SHN"})).versions

    spans = [(f"{v['valid_from']:%Y-%m}", v["valid_to"] and f"{v['valid_to']:%Y-%m}") for v in versions]
    assert [("2014-01", "2015-01"), ("2015-01", "2015-07"), ("2018-07", None)] == spans


def test_a_drawn_history_names_its_changes(arrived):
    """The line of Kazakhstan names each change of its capital, and is open at the end."""
    versions = life(table_in_session(arrived, TABLE), TimelineRequest({"code": "KAZ"})).versions

    lines = draw_lanes([Lane(versions)], ["capital"], UNTIL)

    assert "capital: Astana → Nur-Sultan" in lines[4]
    assert lines[-1].endswith("capital: Nur-Sultan → Astana")
    assert "▶" in lines[-1]


def test_other_programs_read_the_table_with_the_printed_lines(spark, arrived, warehouse):
    """pyiceberg, DuckDB's Iceberg extension and plain Spark SQL find the visible rows."""
    lines = reading_lines(arrived, f"sqlite:///{warehouse}/catalog.db")
    by_pyiceberg, by_duckdb, by_spark = lines.values()
    printed = StringIO()
    with redirect_stdout(printed):
        exec("\n".join([*by_pyiceberg[:-1], f"print(len({by_pyiceberg[-1][6:-1]}))"]), {})
    assert int(printed.getvalue()) == spark.table(arrived.sql_name(TABLE)).count()
    world = [tuple(row) for row in spark.sql("\n".join(by_spark)).collect()]
    assert len(world) == 248
    assert rows_by_duckdb("\n".join(by_duckdb)) == world


def rows_by_duckdb(query):
    """The rows that DuckDB finds in a separate process, in the version of its packaged extension."""
    program = """
import json, sys
import duckdb
from duckdb_extensions import import_extension
connection = duckdb.connect()
connection.execute("SET enable_progress_bar = false")  # it would stand before the answer on a slow machine
for name in ("avro", "iceberg"):
    import_extension(name, con=connection)
    connection.execute(f"LOAD {name}")
json.dump(connection.sql(sys.stdin.read()).fetchall(), sys.stdout)
"""
    folder = Path(sys.prefix) / "duckdb-iceberg"
    assert folder.is_dir(), "DuckDB's Iceberg extension is not installed: scripts/setup.sh --tests"
    with TemporaryDirectory() as home:
        run = subprocess.run(
            [sys.executable, "-c", program],
            input=query,
            env={**os.environ, "PYTHONPATH": str(folder), "HOME": home},
            capture_output=True,
            text=True,
            check=True,
        )
    return [tuple(row) for row in json.loads(run.stdout)]
