"""The registry, the logs and concurrent runs (R17, R20, R31, R46 to R50; sections 3.5 and 6)."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from historizing import DAY, Place, aware, dataset, document, save, second, versions
from java import PYTHONPATH

from backstory.doors.historize.door import run_model
from backstory.doors.historize.receipts import LoadRequest
from backstory.errors import Failed
from backstory.model.instant import iso

LOG = [
    "batch_run_id",
    "load_run_id",
    "target_schema",
    "target_dataset",
    "target_system",
    "profile",
    "run_kind",
    "source_system",
    "source_dataset",
    "source_object",
    "ingest_mode",
    "delta_cutoff",
    "rows_extracted",
    "chunk_size",
    "mode",
    "handle_deletes",
    "historize",
    "started_at",
    "finished_at",
    "render_ms",
    "execution_ms",
    "sql_length",
    "rows_affected",
    "status",
    "error_message",
    "attempt_no",
    "status_reason",
    "blocked_by",
]
NOT_NULL = {*LOG[:7], "mode", "handle_deletes", "historize", "started_at", "status", "attempt_no"}


def clock(*numbers):
    """A clock with these seconds in sequence, which then repeats the last one."""
    shown = [second(number) for number in numbers]
    return lambda: shown.pop(0) if len(shown) > 1 else shown[0]


def log(place, *columns):
    return place.rows(f"SELECT {', '.join(columns)} FROM meta.load_run_log ORDER BY started_at, finished_at")


def test_a_rerun_of_a_success_gives_the_stored_receipt(place, engine):
    """R17: A rerun returns the stored receipt, whatever the base and the clock, and changes nothing."""
    first = place.mode(engine).base("a:1 b:1").load("r1", 1)
    place.base("a:7")
    tables = ("rawcore.rc_c_hist", "meta.hist_run", "meta.hist_step_log", "meta.load_run_log")
    before = place.dump(*tables)
    again = place.load("r1")

    assert again.to_dict() == first.to_dict()
    assert place.dump(*tables) == before


def test_a_rerun_without_registry_changes_nothing(place, engine):
    """R17: Without the meta tables, the rerun executes and finds nothing to do."""
    place.mode(engine).base("a:1 b:1").load("r1", 1)
    place.base("a:2").load("r2", 2)
    before = place.dump()
    place.sql("DROP SCHEMA meta CASCADE")
    receipt = place.load("r2", 2)

    assert receipt.status == "unchanged"
    assert place.dump() == before
    assert place.registered("status", "closed_changed", "inserted_new") == [("success", 0, 0)]


def test_a_rerun_with_another_instant_is_refused(place):
    """3.5, R20: A run has only one instant."""
    place.base("a:1 a:1").load("r1", 1)
    receipt = place.load("r1", 2)

    assert receipt.error["code"] == "OTHER_LOAD_TIMESTAMP"
    assert [aware(at) for (at,) in place.registered("load_timestamp")] == [second(1)]


def test_another_dataset_may_have_the_same_run(place):
    """R20: A run id belongs to a dataset. All datasets of a batch share id and instant."""
    place.use(document(dataset(input="stage.s"), dataset(name="rc_d", input="stage.s")))
    place.stage("s", "k* a", [{"k": "a", "a": "1"}])
    receipts = place.loads("r1", 1)

    assert [(each.run_id, each.load_timestamp, each.status) for each in receipts] == [
        ("r1", iso(second(1)), "success")
    ] * 2
    for table in ("rc_c", "rc_d"):
        joined = f"SELECT b.load_run_id, h.load_run_id, b.loaded_at = h.loaded_at FROM rawcore.{table} b, rawcore.{table}_hist h"
        assert place.rows(joined) == [("r1", "r1", True)]


def test_one_clock_reading_for_a_batch_of_one_dataset(place):
    """3.5: The clock is read once, so receipt and table have the same instant."""
    place.base("a:1")
    (receipt,) = run_model(place.model, place.folder, place.target, LoadRequest(skip_base=True), clock(3))

    assert receipt.load_timestamp == iso(second(3))
    assert place.history() == [f"a 1 [3,-) new {receipt.run_id}"]


def test_a_clock_that_is_behind(place):
    """3.5 rule 4: A clock behind by up to a second is raised by a microsecond. Beyond that, the load is
    refused."""
    place.base("a:1").load("r1", 10)
    request = LoadRequest(run_id="r2", skip_base=True)
    (receipt,) = run_model(place.base("a:2").model, place.folder, place.target, request, clock("9.5"))
    assert receipt.load_timestamp == iso(second("10.000001"))

    before = place.dump()
    request = LoadRequest(run_id="r3", skip_base=True)
    (receipt,) = run_model(place.base("a:3").model, place.folder, place.target, request, clock("8.9"))
    assert (receipt.status, receipt.error["code"]) == ("rejected", "NON_MONOTONIC_TIMESTAMP")
    assert place.dump("rawcore.rc_c_hist")["rawcore.rc_c_hist"] == before["rawcore.rc_c_hist"]


@pytest.mark.parametrize("runs", [("r1",), ("r1", "r2")])
def test_the_registry_has_the_counts(place, engine, runs):
    """R46, R47: The registry contains the counts of the four steps for every method."""
    place.mode(engine).base("a:1 b:1 c:1")
    for number, run in enumerate(runs, start=1):
        place.load(run, number)
        place.base("a:2 c:1 d:1 e:1")
    names = [
        "base_row_count",
        "closed_changed",
        "closed_deleted",
        "inserted_changed",
        "inserted_new",
        "unchanged",
        "status",
    ]
    expected = {"r1": (3, 0, 0, 0, 3, 0, "success"), "r2": (4, 1, 1, 1, 2, 1, "success")}

    for run in runs:
        assert place.registered(*names, run=run) == [expected[run]]


def test_versions_can_be_joined_to_their_runs(place, engine):
    """2.2: The start and end of a version are the instants of the runs that opened and closed it."""
    place.mode(engine).base("a:1").load("r1", 1)
    place.base("a:2").load("r2", 2)
    joined = (
        "SELECT h.a, o.load_run_id, c.load_run_id FROM rawcore.rc_c_hist h "
        "JOIN meta.hist_run o ON o.load_timestamp = h.version_started_at "
        "LEFT JOIN meta.hist_run c ON c.load_timestamp = h.version_ended_at ORDER BY h.a"
    )

    assert place.rows(joined) == [("1", "r1", "r2"), ("2", "r2", None)]


def test_the_columns_of_the_run_log(place):
    """R46: The load log has the 28 columns in order, with the right nullability."""
    place.base("a:1").load("r1", 1)
    place.base("a:1 a:2").load("r2", 2)
    ((names, *rows),) = place.dump("meta.load_run_log").values()

    assert list(names) == LOG
    assert len(LOG) == 28
    for row in rows:
        entry = dict(zip(names, row, strict=True))
        assert None not in {name: entry[name] for name in NOT_NULL}.values()
        assert (entry["mode"], entry["run_kind"], entry["target_dataset"]) == (
            "historize",
            "sql",
            "rc_c_hist",
        )
    assert {row[names.index("status")] for row in rows} == {"success", "error"}


def test_each_step_has_a_log_row(place):
    """R46, D26: Each step is logged in order with its own count."""
    place.mode("four_step").base("a:1 b:1 c:1").load("r1", 1)
    place.base("a:2 c:1 d:1 e:1").load("r2", 2)
    sql = (
        "SELECT step_no, step, rows_affected, status, attempt_no FROM meta.hist_step_log "
        "WHERE load_run_id = 'r2' ORDER BY step_no"
    )

    assert place.rows(sql) == [
        (1, "preflight", 0, "success", 1),
        (2, "close_changed", 1, "success", 1),
        (3, "close_deleted", 1, "success", 1),
        (4, "insert_changed", 1, "success", 1),
        (5, "insert_new", 2, "success", 1),
    ]


def test_the_steps_of_a_merge(place):
    """R46: The single pass is logged as itself and as the four steps."""
    place.mode("merge").base("a:1 b:1").load("r1", 1)
    place.base("a:2 c:1").load("r2", 2)
    sql = "SELECT step, rows_affected FROM meta.hist_step_log WHERE load_run_id = 'r2' ORDER BY step_no"

    assert place.rows(sql) == [
        ("preflight", 0),
        ("close_changed", 1),
        ("close_deleted", 1),
        ("insert_changed", 1),
        ("insert_new", 1),
        ("merge", 4),
    ]
    assert log(place, "load_run_id", "rows_affected") == [("r1", 2), ("r2", 4)]


def test_a_failed_log_does_not_fail_a_load(place, engine):
    """R48: If the log cannot be written, the load still succeeds."""
    place.mode(engine).base("a:1").load("r1", 1)
    for table in ("load_run_log", "hist_step_log"):
        place.sql(f"DROP TABLE meta.{table}")
        place.sql(f"CREATE VIEW meta.{table} AS SELECT 1 AS status")
    receipt = place.base("a:2").load("r2", 2)

    assert receipt.status == "success"
    assert place.history() == versions("a 1 [1,2) changed r2\na 2 [2,-) changed r2")


def test_a_registry_that_cannot_be_written_fails_every_load(place, engine):
    """R48: Without its registry row, no load starts."""
    place.mode(engine).base("a:1").load("r1", 1)
    place.sql("DROP TABLE meta.hist_run")
    place.sql(
        "CREATE VIEW meta.hist_run AS SELECT 'x' AS dataset_key, 'x' AS load_run_id, 'x' AS status, "
        f"{place.literal(DAY)} AS load_timestamp, 1 AS attempt_no, 'x' AS receipt, {place.literal(DAY)} AS lease_until"
    )
    before = place.base("a:2").dump()
    receipt = place.load("r2", 2)

    assert receipt.status == "failed"
    assert receipt.exit_code == 1
    assert place.dump() == before


def test_a_long_error_is_shortened_to_one_line(place, engine):
    """6.1: Error texts in the log have one line with at most 1,500 characters."""
    place.mode(engine).base("a:1").load("r1", 1)

    def broken(*_):
        raise Failed("database-failed", "it's\nbroken \t\r\n" * 500)

    place.target.load = broken
    receipt = place.load("r2", 2)
    del place.target.load
    (row,) = place.rows("SELECT error_message, status_reason FROM meta.load_run_log WHERE status = 'error'")

    assert receipt.status == "failed"
    message = ("it's broken " * 500)[:1500]
    assert row == (message, "database-failed")
    assert place.registered("error_message", "status", run="r2") == [(message, "failed")]


def lease(place, run, until):
    """A registry row of a run that was killed, or is running elsewhere."""
    place.insert(
        "meta.hist_run",
        [
            {
                "dataset_key": "rawcore.rawcore:rc_c",
                "load_run_id": run,
                "load_timestamp": second(2),
                "engine": place.name,
                "status": "running",
                "attempt_no": 1,
                "lease_until": until,
                "started_at": second(2),
            }
        ],
    )


def test_p9_the_lease_of_another_run(place, engine):
    """P9: While another run has the lease, the load is asked to try again later, and writes nothing."""
    place.mode(engine).base("a:1").load("r1", 1)
    lease(place, "r2", second(0) + timedelta(days=9999))
    before = place.base("a:2").dump()
    receipt = place.load("r3", 3)

    assert (receipt.error["code"], receipt.exit_code) == ("CONCURRENT_RUN", 75)
    assert "r2" in receipt.error["message"]
    assert place.dump() == before


def test_a_run_takes_over_its_own_lease_at_once(place, engine):
    """R18: The rerun of a killed run has the same instant and is its next attempt."""
    place.mode(engine).base("a:1").load("r1", 1)
    lease(place, "r2", second(0) + timedelta(days=9999))
    receipt = place.base("a:2").load("r2")

    assert receipt.load_timestamp == iso(second(2))
    assert place.history() == versions("a 1 [1,2) changed r2\na 2 [2,-) changed r2")
    assert place.registered("status", "attempt_no", run="r2") == [("success", 2)]


def test_a_lease_that_has_run_out(place, engine):
    """6.3: An expired lease does not block other runs."""
    place.mode(engine).base("a:1").load("r1", 1)
    lease(place, "r2", second(3))

    assert place.base("a:2").load("r3", 3).status == "success"


@pytest.mark.parametrize("same", [True, False])
def test_threads_that_load_one_dataset(place, engine, same):
    """R31: One of several concurrent loads succeeds. The others try again later, or find it done."""
    place.mode(engine).base(" ".join(f"k{n}:1" for n in range(50))).load("r0", 1)
    place.base(" ".join(f"k{n}:2" for n in range(25, 75)))
    gate = threading.Barrier(3)

    def one(number):
        with place.connection() as target:
            gate.wait()
            request = LoadRequest(run_id="r" if same else f"r{number + 1}", skip_base=True)
            (receipt,) = run_model(place.model, place.folder, target, request)
        return receipt

    with ThreadPoolExecutor(3) as pool:
        receipts = list(pool.map(one, range(3)))

    outcomes = {receipt.error["code"] if receipt.error else receipt.status for receipt in receipts}
    assert "success" in outcomes
    assert outcomes <= {"success", "unchanged", "CONCURRENT_RUN", "conflict"}
    assert sum(line.endswith("new r0") for line in place.history()) == 0
    assert len(place.history()) == 50 + 50
    winners = {receipt.run_id for receipt in receipts if receipt.status == "success"}
    assert len(winners) == 1


LOADER = """
import sys
from pathlib import Path
from backstory.doors.historize.receipts import LoadRequest
from backstory.doors.historize.door import open_model, run_model
from historizing import Place
path, name, url, run = sys.argv[1:]
model, folder = open_model(path)
place = Place(name, url, folder)
(receipt,) = run_model(model, folder, place.target, LoadRequest(run_id=run, skip_base=True))
print(receipt.error["code"] if receipt.error else receipt.status)
"""


@pytest.mark.process
def test_processes_that_load_one_dataset(postgres_url, tmp_path, engine):
    """R31: The same holds for separate processes on one server."""
    place = Place("postgres", postgres_url, tmp_path).mode(engine)
    place.base(" ".join(f"k{n}:1" for n in range(300))).load("r0", 1)
    place.base(" ".join(f"k{n}:2" for n in range(100, 400)))
    path = save(document(dataset(historization={"engine": engine})), tmp_path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOADER, path, "postgres", postgres_url, f"r{n}"],
            stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": PYTHONPATH},
        )
        for n in (1, 2)
    ]  # fmt: skip
    outcomes = [process.communicate(timeout=300)[0].strip() for process in processes]

    assert "success" in outcomes
    assert set(outcomes) <= {"success", "unchanged", "CONCURRENT_RUN", "conflict"}
    assert len(place.history()) == 300 + 300
    place.close()


def test_a_conflict_is_tried_again_with_the_same_instant(postgres_url, tmp_path, engine):
    """R31, R49: A load that conflicts with a writer of the same row waits, retries with its own T, and
    succeeds."""
    place = Place("postgres", postgres_url, tmp_path).mode(engine)
    place.base("a:1 b:1").load("r1", 1)
    place.base("a:2 b:2")
    with place.connection() as other, ThreadPoolExecutor(1) as pool:
        with other._engine.transaction():
            other._engine.execute("UPDATE rawcore.rc_c_hist SET load_run_id = 'r1' WHERE k = 'b'")
            loading = pool.submit(place.load, "r2", 2)
            waited(other, "%rc_c_hist%")
        receipt = loading.result(timeout=300)

    assert receipt.status == "success"
    assert len(place.history()) == 4
    assert place.registered("attempt_no", "status", run="r2") == [(2, "success")]
    place.close()


def waited(target, like):
    """Wait until a statement waits for a lock."""
    sql = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '{like}'"
    for _ in range(30_000):
        if target._engine.fetch_all("SELECT pg_stat_clear_snapshot()") and target._engine.fetch_all(sql):
            return
        threading.Event().wait(0.01)
    raise AssertionError("nothing waits")


def test_a_dry_run_touches_nothing(place, engine):
    """R50: A dry run prints counts and keys, and changes no table, registry or log, even in an empty
    database."""
    place.use(document(dataset(input="stage.s", historization={"engine": engine})))
    place.stage("s", "k* a", [{"k": "a", "a": "1"}])
    (first,) = place.loads("r1", 1, dry_run=True)
    assert (first.counts["new"], first.keys["new"]) == (1, ["a"])
    assert not place.has("rawcore", "rc_c")
    assert not place.has("meta", "hist_run")

    place.loads("r1", 1)
    place.stage("s", "k* a", [{"k": "b", "a": "1"}])
    tables = ("rawcore.rc_c", "rawcore.rc_c_hist", "meta.hist_run", "meta.load_run_log", "meta.hist_step_log")
    before = place.dump(*tables)
    lock = place.lock().read_bytes()
    (receipt,) = place.loads("r2", 2, dry_run=True)

    assert (receipt.counts["new"], receipt.counts["deleted"]) == (1, 1)
    assert (receipt.keys["new"], receipt.keys["deleted"]) == (["b"], ["a"])
    assert place.dump(*tables) == before
    assert place.lock().read_bytes() == lock
