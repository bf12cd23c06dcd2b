"""On Spark, the base and the history of a run are both kept or both undone, despite two commits (sections
3.5, 3.8)."""

import json
import threading
from contextlib import nullcontext
from dataclasses import fields

import pytest
from historizing import dataset, document, second, versions
from historizing_on_spark import SparkPlace

from backstory.doors.historize.door import run_model
from backstory.doors.historize.receipts import LoadRequest
from backstory.doors.historize.runs import LoadRun
from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing

LEASE = "backstory.loading"


@pytest.fixture
def place(store, tmp_path):
    place = SparkPlace(store, tmp_path)
    place.use(document(dataset(input="stage.csv")))
    yield place
    place.close()


def load(place, run, rows, at=None, **options):
    """Load the rows `a:1 b:2`."""
    lines = [word.replace(":", ",") for word in rows.split()]
    (place.folder / "stage.csv").write_text("\n".join(["k,a", *lines, ""]))
    (receipt,) = place.loads(run, at, **options)
    return receipt


def between(place, act):
    """Do something once, after the base's commit and before the history's."""
    loading, left = place.target.load, [act]

    class ActingRun(LoadRun):
        def receipt(self, outcome):
            if left:
                left.pop()()
            return LoadRun.receipt(self, outcome)

    place.target.load = lambda the, run: loading(
        the, ActingRun(*(getattr(run, each.name) for each in fields(run)))
    )


def stored(place, table="rc_c_hist"):
    """Iceberg's object for the current table."""
    return existing(place.store, TableName("rawcore", table)).iceberg


def properties(place):
    return dict(stored(place).properties())


def current(place, table):
    """The id of the table's snapshot."""
    return stored(place, table).currentSnapshot().snapshotId()


def base(place):
    return " ".join(f"{k}:{a}" for k, a in place.rows("SELECT k, a FROM rawcore.rc_c ORDER BY k"))


def interrupted(place, run, rows, at, until):
    """The state after a process is killed between the two commits, with its lease."""
    state = {}

    def die():
        state.update(lease=json.loads(properties(place)[LEASE]), base=current(place, "rc_c"))
        raise KeyboardInterrupt

    between(place, die)
    with pytest.raises(KeyboardInterrupt):
        load(place, run, rows, at)
    del place.target.load
    assert LEASE not in properties(place)  # a run that is only stopped leaves no lease
    stored(place, "rc_c").manageSnapshots().setCurrentSnapshot(state["base"]).commit()
    lease = json.dumps(state["lease"] | {"until": until})
    stored(place).updateProperties().set(LEASE, lease).commit()
    assert base(place) == rows


LATER, PAST = "2999-01-01T00:00:00Z", "2020-01-01T00:00:00Z"


def test_another_writer_between_the_commits(place):
    """After a harmless commit of another writer, the load is planned again. If the history then refuses it,
    the base is restored."""
    load(place, "r1", "a:1 b:1", 1)
    between(place, lambda: place.sql("DELETE FROM rawcore.rc_c_hist WHERE k = 'b'"))
    assert load(place, "r2", "a:2 b:1", 2).counts == {
        "new": 1, "changed": 1, "deleted": 0, "reappeared": 0, "unchanged": 0,
    }  # fmt: skip
    assert base(place) == "a:2 b:1"
    assert versions("a 2 [2,-) changed r2\nb 1 [2,-) new r2") == place.history()[1:]
    assert LEASE not in properties(place)
    del place.target.load
    before = place.dump("rawcore.rc_c")
    moved = f"UPDATE rawcore.rc_c_hist SET version_started_at = {place.literal(second(50))}"
    between(place, lambda: place.sql(f"{moved} WHERE version_ended_at IS NULL"))
    receipt = load(place, "r3", "a:3 b:1", 3)
    assert (receipt.status, receipt.error["code"]) == ("rejected", "NON_MONOTONIC_TIMESTAMP")
    assert place.dump("rawcore.rc_c") == before
    assert LEASE not in properties(place)


def test_a_rolled_back_first_load_does_not_count(place):
    """A base without former rows is empty again. A rerun gets its own instant, which is not before that of a
    later load."""
    load(place, "r0", "", 1, allow_empty=True)
    interrupted(place, "r1", "a:1", 2, PAST)
    assert load(place, "r2", "b:1", 3).counts["new"] == 1
    assert base(place) == "b:1"
    assert place.history() == versions("b 1 [3,-) new r2")
    assert load(place, "r1", "a:1 b:1", 4).counts["new"] == 1
    assert place.history() == versions("a 1 [4,-) new r1\nb 1 [3,-) new r2")


def test_a_run_killed_between_the_commits_continues(place, monkeypatch):
    """R18, P9: A killed run continues under its id and instant. Other runs try again later until its lease
    ends. Then another run restores the base. A dropped base is loaded again."""
    monkeypatch.setattr("backstory.engine.deliver.ATTEMPTS", 1)
    load(place, "r1", "a:1 b:1", 1)
    interrupted(place, "r2", "a:2 b:1", 2, LATER)
    waiting = load(place, "r3", "a:1 b:3", 3)
    assert (waiting.error["code"], waiting.exit_code) == ("CONCURRENT_RUN", 75)
    assert load(place, "r2", "a:2 b:1").counts["changed"] == 1
    assert base(place) == "a:2 b:1"
    history = "a 1 [1,2) changed r2\na 2 [2,-) changed r2\nb 1 [1,-) new r1"
    assert place.history() == versions(history)
    interrupted(place, "r4", "a:4 b:1", 4, PAST)
    assert load(place, "r5", "a:2 b:5", 5, dry_run=True).error["code"] == "CONCURRENT_RUN"
    assert load(place, "r5", "a:2 b:5", 5).counts["changed"] == 1
    assert base(place) == "a:2 b:5"
    ended = history.replace("b 1 [1,-) new r1", "b 1 [1,5) changed r5\nb 5 [5,-) changed r5")
    assert place.history() == versions(ended)
    interrupted(place, "r6", "a:6 b:5", 6, PAST)
    place.drop("rawcore.rc_c")
    assert load(place, "r7", "a:7 b:5", 7).counts["changed"] == 1
    assert (base(place), LEASE in properties(place)) == ("a:7 b:5", False)


def test_concurrent_runs_leave_a_consistent_base_and_history(place, monkeypatch):
    """R31: Without this process's locks, as for two processes, the base equals the history's open versions."""
    monkeypatch.setattr("backstory.doors.historize.spark_target.lock_tables", lambda *_: nullcontext())
    load(place, "r0", "a:0 b:0")

    def one(name):
        folder = place.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "stage.csv").write_text(f"k,a\na,{name}\nb,{name}\n")
        receipts[name] = run_model(place.model, folder, place.connected(), LoadRequest(run_id=name))[0]

    receipts = {}
    threads = [threading.Thread(target=one, args=(name,)) for name in ("p", "q")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.exit_code for each in receipts.values()} <= {0, 3, 75}
    assert any(each.status == "success" for each in receipts.values())
    live = place.rows("SELECT k, a FROM rawcore.rc_c_hist WHERE version_ended_at IS NULL ORDER BY k")
    assert place.rows("SELECT k, a FROM rawcore.rc_c ORDER BY k") == live
    assert LEASE not in properties(place)
    place.history()


def test_a_rerun_after_a_rollback_loads_again(place):
    """H6: Only ancestors of the current snapshots count, with and without the log. If only the base was
    rolled back, the run does not count."""
    load(place, "r1", "a:1 b:1", 1)
    before = {table: current(place, table) for table in ("rc_c", "rc_c_hist")}

    def rolled_back(*tables):
        for table in tables:
            stored(place, table).manageSnapshots().rollbackTo(before[table]).commit()

    load(place, "r2", "a:8 b:1", 2)
    load(place, "r3", "a:8 b:1", 3)
    rolled_back(*before)
    assert load(place, "r3", "a:1 b:1", 3).status == "unchanged"
    assert load(place, "r2", "a:2 b:1", 4).counts["changed"] == 1
    again = versions("a 1 [1,4) changed r2\na 2 [4,-) changed r2\nb 1 [1,-) new r1")
    assert place.history() == again
    rolled_back(*before)
    place.drop("meta.load_run_log")
    assert load(place, "r2", "a:2 b:1", 4).counts["changed"] == 1
    assert place.history() == again
    rolled_back("rc_c")
    assert base(place) == "a:1 b:1"
    load(place, "r2", "a:2 b:1")
    assert base(place) == "a:2 b:1"
