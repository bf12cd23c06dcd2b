"""A run delivers the declarations: each table separately, in the necessary order, nothing twice."""

import json
import re
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from depth import deep
from teams import rows

from backstory import warehouse
from backstory.cli.app import run
from backstory.cli.output import in_fields
from backstory.errors import TryAgain, UsageError
from backstory.formats.memory import Memory
from backstory.model.receipt import exit_code
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.projects.declarations import read_project
from backstory.projects.entries import FIELDS
from backstory.projects.log import LOG, PLACES, former_runs, freshness, rows_of_log
from backstory.projects.options import RunRequest, RunWatcher
from backstory.projects.running import hold_tables, run_project
from backstory.settings import DRIVER_MEMORY, Rights
from backstory.stores.iceberg.create import create_view, ensure_schema
from backstory.stores.iceberg.store import IcebergStore, load
from backstory.warehouse import Warehouse

MODEL = """format: historize/1
target_schemas: [{{short_name: rawcore, schema_name: {schema}}}]
target_datasets:
  - target_schema: rawcore
    target_dataset_name: client
    input: {input}
    historize: true
    target_columns:
      - {{target_column_name: id, datatype: BIGINT, system_role: business_key}}
      - {{target_column_name: name, datatype: STRING}}
"""
MANIFEST = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: {path}, eventTime: {{kind: FromSystemTime}}}}
      read: {{kind: Csv, header: true, ddlSchema: [id BIGINT, name STRING]}}
      merge: {{kind: Ledger, primaryKey: [id]}}
"""


def test_a_run_commits_each_changed_table_separately(team):
    team.write("a.csv", rows("Ann", "Bob"))
    team.write("b.csv", rows("Cid"))
    team.declare("tables: {s.b: {source: b.csv, key: id}, s.a: {source: a.csv, key: id}}")
    first = team.run()
    assert list(first) == ["b", "a"]
    assert {each.status for each in first.values()} == {"changed"}
    assert first["a"].counts["new"] == 2
    assert {each.way for each in first.values()} == {"driver"}
    team.write("b.csv", rows("Cindy"))
    assert team.status() == {"b": "changed", "a": "unchanged"}
    assert (team.commits("a"), team.commits("b")) == (1, 2)


def test_files_are_delivered_once_in_the_order_of_their_times(team):
    team.write("a-2024-01-02.csv", rows("Anna"))
    team.write("a-2024-01-01.csv", rows("Ann"))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    assert team.run()["a"].files == ["a-2024-01-01.csv", "a-2024-01-02.csv"]
    assert (team.names_at("a", "2024-01-01"), team.names_at("a", "2024-01-02")) == (["Ann"], ["Anna"])
    team.write("a-2024-01-03.csv", rows("Anna"))  # it changes nothing, and makes no commit
    team.write("a-2024-01-04.csv", rows("Anne"))
    assert team.run()["a"].files == ["a-2024-01-03.csv", "a-2024-01-04.csv"]
    assert (team.run()["a"].files, team.commits("a")) == ([], 3)


def test_delivered_files_are_recognised_from_commits_without_the_log(team):
    team.write("a-2024-01-01.csv", rows("Ann"))
    team.write("a-2024-01-02.csv", rows("Ann"))
    team.write("a-2024-01-03.csv", rows("Anna"))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    team.run()
    team.warehouse.spark.sql(f"DROP TABLE {team.warehouse.store.sql_name(LOG)}")  # as if nothing was logged
    team.write("a-2024-01-04.csv", rows("Anne"))
    assert team.run()["a"].files == ["a-2024-01-04.csv"]
    team.warehouse.maintain(f"{team.schema}.a")
    assert team.run()["a"].files == []


def test_a_dropped_table_receives_all_logged_files_again(team):
    for day in (1, 2):
        team.write(f"a-2024-01-0{day}.csv", rows(f"Ann{day}"))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    assert len(team.run()["a"].files) == 2
    team.warehouse.spark.sql(
        f"DROP TABLE {team.warehouse.store.sql_name(team.warehouse.table(f'{team.schema}.a').name)}"
    )
    assert len(team.run()["a"].files) == 2
    assert (team.run()["a"].files, team.names_at("a", "2024-01-01")) == ([], ["Ann1"])


def test_a_late_file_is_refused_by_name_unless_backfill_is_declared(team):
    team.write("a-2024-01-05.csv", rows("Ann"))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    team.run()
    team.write("a-2024-01-03.csv", rows("Anna"))
    team.write("a-2024-01-07.csv", rows("Anne"))
    late = team.run()["a"]
    assert (late.status, late.error.code, late.exit_code) == ("refused", "time-backwards", 3)
    assert "a-2024-01-03.csv: " in late.error.message
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id, backfill: true}}")
    assert team.run()["a"].files == ["a-2024-01-03.csv", "a-2024-01-07.csv"]
    assert team.names_at("a", "2024-01-04") == ["Anna"]


def test_a_late_file_in_a_settled_interval_blocks_no_newer_file(team):
    """Copies without a memory settle the time in between. Only the late file is refused."""
    for day_, name in (("05", "Ann"), ("07", "Anne")):
        team.write(f"a-2024-01-{day_}.csv", rows(name))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    team.run()
    team.write("a-2024-01-06.csv", rows("Late"))
    team.write("a-2024-01-08.csv", rows("Anja"))
    late = team.run()["a"]
    assert (late.error.code, late.files) == ("time-backwards", [])
    assert "`backfill: true` does not help" in late.error.remedy
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id, backfill: true}}")
    settled = team.run()["a"]
    assert (settled.error.code, settled.files) == ("settled", ["a-2024-01-08.csv"])
    assert "Move it out" in settled.error.remedy
    assert team.names_at("a", "2024-01-09") == ["Anja"]


def test_different_files_with_the_same_time_are_refused(team):
    """None is a full copy of its time. Earlier times are delivered, and so are files with equal content."""
    for name, text in (("1/all", rows("Ann", "Bob")), ("2/north", rows("Ann")), ("2/south", rows("Bob"))):
        team.write(f"2024-01-0{name}.csv", text)
    entry = "{source: '{at:%Y-%m-%d}/*.csv', key: id, restate: true}"
    team.declare(f"tables: {{s.a: {entry}}}")
    refused = team.run()["a"]
    assert (refused.error.code, refused.files) == ("same-instant", ["2024-01-01/all.csv"])
    assert refused.error.message.startswith("2024-01-02/north.csv, 2024-01-02/south.csv: ")
    assert "combine them into one file" in refused.error.remedy
    assert team.names_at("a") == ["Ann", "Bob"]
    team.write("2024-01-02/south.csv", rows("Ann"))
    assert team.run()["a"].files == ["2024-01-02/north.csv", "2024-01-02/south.csv"]
    team.write("2024-01-02/south.csv", rows("Anna"))  # it replaces a delivered file
    assert (team.run()["a"].status, team.names_at("a")) == ("changed", ["Anna"])


def test_change_files_are_applied_once_in_any_order(team):
    team.write("f/2.jsonl", '{"id": 1, "ts": "2024-01-02T00:00:00Z", "name": "Anna"}\n')
    team.declare("tables: {s.f: {source: 'f/*.jsonl', key: id, sequence_by: ts}}")
    assert team.run()["f"].counts["began"] == 1
    team.write("f/1.jsonl", '{"id": 1, "ts": "2024-01-01T00:00:00Z", "name": "Ann"}\n')
    assert team.run()["f"].files == ["f/1.jsonl"]
    assert team.names_at("f", "2024-01-01") == ["Ann"]
    assert team.run()["f"].status == "unchanged"


def test_only_a_refused_table_and_its_dependents_are_run_again(team):
    team.write("a.csv", "id,name\n1,Ann\n1,Bob\n")
    team.write("b.csv", rows("Cid"))
    team.declare(
        """
tables:
  s.d: {source: "table:s.c", key: id}
  s.c: {source: "table:s.a", key: id}
  s.a: {source: a.csv, key: id}
  s.b: {source: b.csv, key: id}
"""
    )
    receipts = team.run()
    assert {name: each.status for name, each in receipts.items()} == {
        "d": "blocked",
        "c": "blocked",
        "a": "refused",
        "b": "changed",
    }
    assert receipts["c"].blocked_by == f"{team.schema}.a"
    assert exit_code(receipts.values()) == 3
    team.write("a.csv", rows("Ann"))
    assert team.status(failed=True) == {"d": "changed", "c": "changed", "a": "changed"}
    assert team.names_at("d") == ["Ann"]
    assert team.run(failed=True) == {}


def test_a_missing_source_fails_only_its_own_table(team, tmp_path):
    team.write("b.csv", rows("Cid"))
    team.declare("tables: {s.a: {source: a.csv, key: id}, s.b: {source: b.csv, key: id}}")
    receipts = team.run()
    assert (receipts["a"].status, receipts["a"].error.code) == ("failed", "not-found")
    assert receipts["b"].status == "changed"


@pytest.mark.parametrize("source", ["s3://bucket/k3y/a.csv", "s3://bucket/k3y/{at:%Y}.csv"])
def test_a_remote_file_address_is_refused_at_once(team, source):
    """It is not a path below the project, so its files would never exist."""
    team.declare(f'tables: {{s.a: {{source: "{source}", key: id}}}}')
    error = team.run()["a"].error
    assert (error.code, "k3y" in str(error)) == ("unsupported-source", False)


def test_a_table_held_by_another_run_is_tried_again(team):
    team.write("a.csv", rows("Ann"))
    team.declare("tables: {s.a: {source: a.csv, key: id}}")
    attempts = []
    with ExitStack() as other:
        other.enter_context(hold_tables(team.warehouse.store, [f"{team.schema}.a"]))

        def begun(name):
            """The other run ends when the second attempt begins."""
            attempts.append(name)
            if len(attempts) == 2:
                other.close()

        (receipt,) = run_watched(team, on_begin=begun)
    assert (receipt.status, receipt.attempts) == ("changed", 2)
    with (
        hold_tables(team.warehouse.store, ["x.y"]),
        pytest.raises(TryAgain, match=r"Another run is writing x\.y"),
        hold_tables(team.warehouse.store, ["x.z", "x.y"]),
    ):
        pass


def test_a_dry_run_reports_counts_without_writing(team):
    team.write("a.csv", rows("Ann"))
    team.write("b-2024-01-01.csv", rows("Bob"))
    team.write("b-2024-01-02.csv", rows("Bobby"))
    team.declare("tables: {s.a: {source: a.csv, key: id}, s.b: {source: 'b-{at:%Y-%m-%d}.csv', key: id}}")
    receipts = team.run(dry_run=True)
    assert [each.counts["new"] for each in receipts.values()] == [1, 1]
    assert len(receipts["b"].files) == 2
    assert not [each for each in team.warehouse.store.tables() if each.schema == team.schema]
    assert team.file.as_posix() not in {row["project"] for row in rows_of_log(team.warehouse.store)}


def test_a_dry_run_does_not_fail_if_a_source_will_be_created_by_the_run(team):
    """The declaration and its downstream are blocked. A source that no declaration writes is refused."""
    team.write("a.csv", rows("Ann"))
    team.declare(
        "tables: {s.a: {source: a.csv, key: id}, s.b: {source: 'table:s.a', key: id}, "
        "s.c: {source: 'table:s.b', key: id}, s.d: {source: 'table:s.other', key: id}}"
    )
    receipts = team.run(dry_run=True)
    statuses = {"a": "changed", "b": "blocked", "c": "blocked", "d": "refused"}
    assert {name: each.status for name, each in receipts.items()} == statuses
    blocker = f"{team.schema}.a"
    assert (receipts["b"].blocked_by, receipts["b"].error, receipts["b"].exit_code) == (blocker, None, 0)
    assert receipts["d"].error.code == "no-table"
    team.run()
    statuses = {"a": "unchanged", "b": "unchanged", "c": "unchanged", "d": "refused"}
    assert team.status(dry_run=True) == statuses


def test_a_stopped_run_begins_no_more_tables(team):
    team.write("a.csv", rows("Ann"))
    team.declare("tables: {s.a: {source: a.csv, key: id}}")
    stop = Event()
    stop.set()
    (receipt,) = run_project(team.warehouse.store, read_project(team.file), RunRequest(), Rights(), stop)
    assert (receipt.status, receipt.exit_code) == ("stopped", 75)
    assert team.status(failed=True) == {"a": "changed"}


def test_a_project_runs_models_and_datasets_with_its_tables(team, monkeypatch):
    """The name of a model or dataset need not have the form of a table's name."""
    monkeypatch.setenv("BACKSTORY_PEPPER", "pepper")
    team.write("a.csv", rows("Ann"))
    team.write("in/c.csv", rows("Cid"))
    team.write("m.yaml", MODEL.format(schema=team.schema, input=f"{team.schema}.a"))
    team.write(
        "d.yaml", MANIFEST.format(name=team.schema.replace("_", "-"), path=team.folder / "in" / "*.csv")
    )
    rest = "models: [./m.yaml]\ntables: {s.a: {source: a.csv, key: id}}\n"
    team.declare(f"{rest}datasets: [./d.yaml]")
    receipts = team.run()
    assert {name: (each.status, each.error) for name, each in receipts.items()} == {
        "a": ("changed", None),
        "./m.yaml": ("changed", None),
        "./d.yaml": ("changed", None),
    }
    assert team.names_at("client_hist") == ["Ann"]
    team.declare(f"{rest}datasets: [{team.schema.replace('_', '-')}]")
    assert set(team.status().values()) == {"unchanged"}


def test_former_runs_and_late_tables_are_listed(team):
    team.write("a.csv", rows("Ann"))
    team.declare(
        "tables: {s.a: {source: a.csv, key: id, expect: every 2h}, s.b: {source: b.csv, key: id, expect: every 1d}}"
    )
    run_id = team.run()["a"].run_id
    store, project = team.warehouse.store, read_project(team.file)
    report = next(each for each in former_runs(store, rows_of_log(store)) if each["run_id"] == run_id)
    assert {name: report[name] for name in ("changed", "failed", "not_begun", "ended")} == {
        "changed": 1,
        "failed": 1,
        "not_begun": 0,
        "ended": True,
    }
    broken_off = next(each for each in former_runs(store, []) if each["run_id"] == run_id)
    assert (broken_off["changed"], broken_off["ended"]) == (1, False)

    def late(hours, logged=None):
        now = datetime.now(UTC) + timedelta(hours=hours)
        report = freshness(project, store, rows_of_log(store) if logged is None else logged, now)
        return [each["late"] for each in report]

    assert (late(1), late(3)) == ([False, True], [True, True])
    assert late(1, []) == [False, True]  # the commit records it


class BrokenOff(BaseException):
    """An exception that ends a run like a kill, without a record of its end."""


def run_watched(team, **callbacks):
    """The receipts of a run with one declaration at a time, which reports its progress."""
    request, watcher = RunRequest(jobs=1), RunWatcher(**callbacks)
    return run_project(team.warehouse.store, read_project(team.file), request, Rights(), watcher=watcher)


def break_off(team, after):
    """Run table by table until this one has ended, then stop."""

    def ended(receipt):
        if receipt.name == f"{team.schema}.{after}":
            raise BrokenOff

    with pytest.raises(BrokenOff):
        run_watched(team, on_end=ended)


def test_undelivered_tables_of_an_interrupted_run_count_as_failed(team):
    """The run records its beginning first, and its commits record the deliveries."""
    for name in "abc":
        team.write(f"{name}.csv", rows(name))
    team.declare(
        "tables: {" + ", ".join(f"s.{name}: {{source: {name}.csv, key: id}}" for name in "abc") + "}"
    )
    with pytest.raises(UsageError, match=r"No run of .* is recorded"):
        team.run(failed=True)
    break_off(team, after="a")
    last = former_runs(team.warehouse.store, rows_of_log(team.warehouse.store))[0]
    assert (last["changed"], last["ended"]) == (1, False)
    assert team.status(failed=True) == {"b": "changed", "c": "changed"}
    assert team.run(failed=True) == {}
    break_off(team, after="b")  # no commit says that a and b are as they were
    assert team.status(failed=True) == dict.fromkeys("abc", "unchanged")


def test_a_table_with_several_files_is_rerun_after_an_interruption(team):
    for day in (1, 2):
        team.write(f"a-2024-01-0{day}.csv", rows(f"Ann{day}"))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    break_off(team, after="a")
    assert team.status(failed=True) == {"a": "unchanged"}
    assert team.run(failed=True) == {}


def test_a_run_in_progress_has_not_failed(team):
    team.write("a.csv", rows("Ann"))
    team.declare("tables: {s.a: {source: a.csv, key: id}}")
    seen = []

    def begun(_name):
        with pytest.raises(TryAgain) as error:
            team.run(failed=True)
        seen.append(error.value.code)

    run_watched(team, on_begin=begun)
    assert seen == ["run-under-way"]
    assert team.run(failed=True) == {}


@pytest.mark.parametrize("taken", [1, 2])
def test_tables_with_the_logs_names_do_not_block_deliveries(team, taken):
    """The log has a second name. If that is also used, the run delivers with a warning."""
    store, sql = team.warehouse.store, team.warehouse.spark.sql
    for place in PLACES:
        sql(f"DROP TABLE IF EXISTS {store.sql_name(place)}")
    sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.meta")
    try:
        for place in PLACES[:taken]:
            sql(f"CREATE TABLE {store.sql_name(place)} (id INT) USING iceberg")
        team.write("a.csv", rows("Ann"))
        team.declare("tables: {s.a: {source: a.csv, key: id}, s.b: {source: b.csv, key: id}}")
        assert team.status() == {"a": "changed", "b": "failed"}
        assert team.warehouse.runs()[0]["ended"] is (taken == 1)
        if taken == 1:
            assert team.status(failed=True) == {"b": "failed"}
        else:
            with pytest.raises(UsageError, match=r"No run of .* is recorded"):
                team.run(failed=True)
    finally:
        for place in PLACES:
            sql(f"DROP TABLE IF EXISTS {store.sql_name(place)}")


@pytest.fixture
def no_log(team):
    """A warehouse without a log of runs, before and after."""
    store = team.warehouse.store

    def drop():
        for place in PLACES:
            team.warehouse.spark.sql(f"DROP TABLE IF EXISTS {store.sql_name(place)}")
        store.iceberg().dropView(store.identifier(LOG))

    drop()
    yield store
    drop()


def test_a_view_with_the_logs_name_does_not_block_deliveries(team, no_log):
    """The log uses its second name. A table with a view's name is refused without a retry."""
    ensure_schema(no_log, LOG.schema)
    create_view(no_log, LOG, [Column("id", ColumnType(Kind.INT))], "SELECT 1 AS id", {"of": "others"})
    team.write("a.csv", rows("Ann"))
    team.declare("tables: {s.a: {source: a.csv, key: id}, meta.runs: {source: a.csv, key: id}}")
    receipts = team.run()
    assert {name: each.status for name, each in receipts.items()} == {"a": "changed", "meta.runs": "refused"}
    assert (receipts["meta.runs"].error.code, receipts["meta.runs"].attempts) == ("table-exists", 1)
    assert load(no_log, PLACES[1]) is not None
    assert team.run(failed=True).keys() == {"meta.runs"}


def test_a_table_of_the_project_may_have_the_logs_name(team, no_log):
    """The log uses its second name from the first run on."""
    team.write("a.csv", rows("Ann"))
    team.declare("tables: {meta.runs: {source: a.csv, key: id}}")
    assert team.status() == {"meta.runs": "changed"}
    assert team.status() == {"meta.runs": "unchanged"}
    assert [each["ended"] for each in team.warehouse.runs()[:2]] == [True, True]
    assert team.run(failed=True) == {}


def test_an_error_in_a_file_reports_the_number_of_earlier_files(team):
    """Earlier files are still counted."""
    for day in (1, 2):
        team.write(f"a-2024-01-0{day}.csv", rows(f"Ann{day}"))
    team.write("a-2024-01-03.csv", "id,name\n1,Ann\n1,Bob\n")
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    stopped = team.run()["a"]
    assert len(stopped.files) == 2
    assert stopped.error.remedy.endswith("The 2 files before it were taken in this run.")
    assert "before it" not in team.run()["a"].error.remedy


CHANGES = (
    ("id,ts,a,b_taken_back\n1,{ts},x,7\n", []),
    (
        "id,ts,a\n1,{ts},z\n",
        ["column b_taken_back is missing from the {delivery}; {becomes}"],
    ),
    ("id,ts,a\n1,{ts},y\n", []),
    ("id,ts,a,b_taken_back,c\n1,{ts},y,7,z\n", ["new column c (STRING)"]),
)


COPY, FEED = ("copy", "a.csv", ""), ("feed", "f/{number}.csv", ", sequence_by: ts")
# The two other pairs run only before a release.
DELIVERIES = [(*COPY, 0), (*FEED, DRIVER_MEMORY), (*COPY, DRIVER_MEMORY), (*FEED, 0)][: deep(4, 2)]


@pytest.mark.parametrize(("delivery", "file", "options", "memory"), DELIVERIES)
def test_a_run_reports_every_change_of_columns(team, delivery, file, options, memory):
    """Each added and removed column is in the receipt once, whatever its name."""
    team.warehouse = Warehouse(IcebergStore(team.warehouse.spark, memory=Memory(memory)), embedded=False)
    source = file.format(number="*")
    team.declare(f"tables: {{s.a: {{source: '{source}', key: id{options}}}}}")
    for number, (text, lines) in enumerate(CHANGES, 1):
        team.write(file.format(number=number), text.format(ts=f"2024-01-0{number}T00:00:00Z"))
        receipt = team.run()["a"]
        assert (receipt.error, receipt.way) == (None, "driver" if memory else "tasks")
        changes = [each for each in receipt.schema_changes if not each.startswith("new table: ")]
        becomes = {"copy": "kept, NULL in new versions", "feed": "kept as it was"}[delivery]
        assert changes == [each.format(delivery=delivery, becomes=becomes) for each in lines]


def test_the_project_file_can_refuse_column_changes(team):
    """`defaults` apply unless the table accepts changes itself. The remedy uses the terms of the file."""
    declared = "defaults: {on_schema_change: refuse, key: id}\ntables:\n  s.a: {source: a.csv}\n"
    feed = "  s.f: {source: f.csv, sequence_by: ts}\n  s.b: {source: a.csv, on-schema-change: accept}\n"
    team.declare(declared + feed)
    team.write("a.csv", "id,name,city\n1,Ann,Oslo\n")
    team.write("f.csv", "id,name,ts\n1,Ann,2024-01-01\n")
    team.run()
    team.write("a.csv", "id,title,city\n1,Ann,Oslo\n")
    team.write("f.csv", "id,ts\n1,2024-01-02\n")
    receipts = team.run()
    statuses = {name: each.status for name, each in receipts.items()}
    assert statuses == {"a": "refused", "f": "refused", "b": "changed"}
    error = receipts["a"].error
    assert (error.code, error.keys, error.exit_code) == ("columns-changed", ["name"], 3)
    fields = in_fields(error.remedy, FIELDS)
    assert "`rename: {name: title}` if a column has a new name, `on_schema_change: accept` if" in fields
    team.declare(declared.replace("a.csv", "a.csv, rename: {name: title}") + feed)
    assert team.run(select=[f"{team.schema}.a"])["a"].status == "changed"
    once = {"select": [f"{team.schema}.f"], "on_schema_change": "accept"}  # takes precedence over the file
    assert team.run(**once)["f"].status == "changed"


def test_a_missed_rename_can_be_declared_after_a_rewind(team):
    """The report names the rewind and the rename. Afterwards, records have one life under the new name."""
    team.write("a.csv", "id,old\n1,Ann\n2,Bob\n")
    team.declare("tables: {s.a: {source: a.csv, key: id}}")
    team.run()
    team.write("a.csv", "id,name\n1,Ann\n2,Bob\n")
    (hint,) = [each for each in team.run()["a"].schema_changes if "renamed?" in each]
    table, time = re.search(r"`backstory rewind (\S+) (\S+)` with `apply=True`", hint).groups()
    team.declare("tables: {s.a: {source: a.csv, key: id, rename: {old: name}}}")
    early = team.run()["a"]
    assert (early.error.code, "backstory rewind" in early.error.remedy) == ("bad-option", True)
    team.warehouse.table(table).rewind(time, apply=True)
    assert "column old renamed to name" in team.run()["a"].schema_changes
    assert team.names_at("a") == ["Ann", "Bob"]
    assert len(team.warehouse.table(table).timeline("1").versions) == 1
    assert team.run()["a"].status == "unchanged"
    team.write("a.csv", "id,name,more\n1,Anna,x\n2,Bob,y\n")
    assert team.run()["a"].schema_changes == ["new column more (STRING)"]


def test_the_remedy_of_a_refused_run_is_a_field_of_the_project_file(team, monkeypatch, capsys):
    """`backstory run` has no such flag."""
    monkeypatch.setattr(warehouse, "open", lambda *_, **__: nullcontext(team.warehouse))
    team.declare("tables:\n  s.a: {source: a.csv, key: id}\n")
    words, codes = ["run", str(team.file), "--warehouse", str(team.folder)], []
    for value in ("1", "many"):
        team.write("a.csv", f"id,value\n1,{value}\n")
        capsys.readouterr()
        codes.append(run([*words, "--output", "json"]))
    (receipt,) = json.loads(capsys.readouterr().out)
    assert (codes, receipt["error"]["code"]) == ([0, 3], "type-changed")
    assert "`retype: {value: STRING}`" in receipt["error"]["remedy"]


def test_a_run_on_a_branch_is_a_preview(team):
    """Neither tables nor the log of runs change. After publication, its files count as delivered."""
    for day, names in ((1, ["Ann"]), (2, ["Anna"])):
        team.write(f"a-2024-01-0{day}.csv", rows(*names))
    team.declare("tables: {s.a: {source: 'a-{at:%Y-%m-%d}.csv', key: id}}")
    (team.folder / "a-2024-01-02.csv").rename(team.folder / "later.csv")
    team.run()
    (team.folder / "later.csv").rename(team.folder / "a-2024-01-02.csv")
    log = rows_of_log(team.warehouse.store)
    assert team.status(branch="preview") == {"a": "changed"}
    assert team.status(branch="preview") == {"a": "unchanged"}
    assert (team.names_at("a"), rows_of_log(team.warehouse.store)) == (["Ann"], log)
    table = f"{team.schema}.a"
    team.warehouse.publish(table, "preview", discard=True)
    assert team.status(branch="preview") == {"a": "changed"}
    team.warehouse.publish(table, "preview")
    assert team.names_at("a") == ["Anna"]
    receipt = team.run()["a"]
    assert (receipt.status, receipt.files) == ("unchanged", [])


def test_models_have_no_preview(team):
    team.write("a.csv", rows("Ann"))
    team.write("m.yaml", MODEL.format(schema=team.schema, input=f"{team.schema}.a"))
    team.declare("models: [m.yaml]\ntables: {s.a: {source: a.csv, key: id}}")
    with pytest.raises(UsageError, match="only tables and feeds can be previewed"):
        team.run(branch="preview")
