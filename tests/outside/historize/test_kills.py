"""Real kills: a loading process is killed at any moment, and its rerun ends as an undisturbed run.

R18, R19: Two databases get the same loads. In one of them, each load is killed and repeated under its run id.
After each load the tables are equal, byte for byte.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from depth import deep
from historizing import Place, dataset, document, save
from java import PYTHONPATH

pytestmark = pytest.mark.process

SIZE = 3_000
LOADS = deep(4, 3)
TABLES = ("rawcore.rc_c", "rawcore.rc_c_hist")
# The tables for which a load waits before, during and after its transaction.
WAITS = ["meta.hist_run", "rawcore.rc_c_hist", "meta.load_run_log", "rawcore.rc_c", "meta.hist_step_log"]
# The modules of a load are imported once, but each load is still its own process.
LOADER = """
import json, os, signal, sys
from itertools import count
from pathlib import Path
import duckdb, psycopg
from historizing import Place, second
from backstory.doors.historize.receipts import LoadRequest
from backstory.doors.historize.door import open_model, run_model

def load(path, name, url, run, at, last):
    model, folder = open_model(path)
    target = Place(name, url, folder).target
    print(os.getpid(), flush=True)
    calls = count(1)

    def counted(frame, event, _):
        if event in ("call", "c_call") and next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(counted)
    try:
        run_model(model, folder, target, LoadRequest(run_id=run, load_timestamp=second(at)))
    finally:
        sys.setprofile(None)
        print(next(calls) - 1, flush=True)

for asked in sys.stdin:
    child = os.fork()
    if not child:
        try:
            load(*json.loads(asked))
        finally:
            os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Loads:
    """Loading processes, one after the other."""

    def __init__(self, parent):
        self.parent = parent

    def started(self, *arguments):
        """The id of a process that is about to load."""
        self.parent.stdin.write(json.dumps(arguments) + "\n")
        self.parent.stdin.flush()
        return int(self.parent.stdout.readline())

    def killed(self, process):
        """Kill it. Returns whether it was still running."""
        os.kill(process, signal.SIGKILL)
        return self.ended() == -signal.SIGKILL

    def ended(self):
        """The exit code of the process, once it has ended."""
        return int(self.parent.stdout.readline())

    def struck(self):
        """Whether the process killed itself, and did not finish."""
        exit_code = self.ended()
        if exit_code != -signal.SIGKILL:
            assert self.ended() == 0
        return exit_code == -signal.SIGKILL

    def calls(self):
        """The number of Python calls of a process that finishes."""
        made = int(self.parent.stdout.readline())
        assert self.ended() == 0
        return made


@pytest.fixture(scope="module")
def loads():
    parent = subprocess.Popen(
        [sys.executable, "-c", LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": PYTHONPATH},
    )
    with parent:
        yield Loads(parent)
        parent.stdin.close()


class Ground:
    """A database with a stage. `written` is the file of its model."""

    def __init__(self, name, url, folder, engine):
        folder.mkdir(exist_ok=True)
        self.name, self.url, self.folder = name, url, folder
        self.document = document(dataset("k* a", input="stage.s", historization={"engine": engine}))
        self.path = save(self.document, folder)
        self.place = None
        self.opened()
        self.place.stage("s", "k* a")

    def opened(self):
        """A connection, because a DuckDB file allows only one process."""
        self.place = Place(self.name, self.url, self.folder)
        self.place.use(self.document)
        return self.place

    def closed(self):
        self.place.close()

    def stage(self, number):
        """Other rows for each load: new, changed, removed and returned ones."""
        self.place.sql("DELETE FROM stage.s")
        self.place.sql(
            f"INSERT INTO stage.s SELECT 'k' || n, CAST(n % {number + 2} AS VARCHAR) "
            f"FROM generate_series(1, {SIZE}) AS g(n) WHERE (n + {number}) % 5 > 0"
        )

    def load(self, number):
        """Load in this process, again while another one has the dataset."""
        for _ in range(100):
            (receipt,) = self.place.loads(f"r{number}", number)
            if receipt.exit_code != 75:
                return receipt
            time.sleep(0.05)
        return receipt

    def process(self, loads, number, last=0):
        """A process that is about to load, and kills itself before its call number `last`."""
        return loads.started(str(self.path), self.name, self.url, f"r{number}", str(number), last)

    def shown(self):
        """The content that must be equal in both databases."""
        counts = "load_run_id, status, base_row_count, closed_changed, closed_deleted, inserted_changed, inserted_new"
        return self.place.dump(*TABLES), self.place.registered(counts)


@pytest.fixture(params=["duckdb", "postgres"])
def grounds(request, tmp_path, engine):
    """The undisturbed database, and the one whose loads are killed."""
    if request.param == "duckdb":
        urls = [f"duckdb://{tmp_path / name}.duckdb" for name in ("calm", "killed")]
    else:
        urls = [request.getfixturevalue("postgres_url"), request.getfixturevalue("other_postgres_url")]
    pair = [
        Ground(request.param, url, tmp_path / name, engine)
        for url, name in zip(urls, ("calm", "killed"), strict=True)
    ]
    yield pair
    for ground in pair:
        ground.closed()


def test_a_load_killed_at_any_moment_is_completed_by_its_rerun(grounds, engine, loads):
    """R18, R19: After a kill at a random moment, the run continues under its id with the same result.

    A moment is one of the function calls of an undisturbed load. Another load may make fewer.
    """
    calm, killed = grounds
    chance, least, struck = random.Random(f"{calm.name} {engine}"), sys.maxsize, 0
    for number in range(1, LOADS + 1):
        for ground in grounds:
            ground.stage(number)
        for ground in grounds:
            ground.closed()
        calm.process(loads, number)
        least = min(least, loads.calls())
        killed.process(loads, number, chance.randint(1, least))
        struck += loads.struck()
        for ground in grounds:
            ground.opened()
        assert killed.load(number).status == "success"

        assert killed.shown() == calm.shown()
        assert killed.place.history() == calm.place.history()
    assert struck


@pytest.fixture
def waiting_at(request, postgres_url, other_postgres_url, tmp_path, engine):
    return [
        Ground("postgres", url, tmp_path / name, engine)
        for url, name in ((postgres_url, "calm"), (other_postgres_url, "killed"))
    ]


@pytest.mark.parametrize("table", WAITS[: deep(5, 2)])
def test_a_load_killed_during_a_lock_wait_is_completed_by_its_rerun(waiting_at, table, loads):
    """R18, R31: It is killed while it waits for a lock before, during and after its transaction, with its
    session."""
    calm, killed = waiting_at
    for ground in waiting_at:
        ground.stage(1)
        ground.load(1)
        ground.stage(2)
    calm.load(2)
    with killed.place.connection() as other:
        with other._engine.transaction():
            other._engine.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            process = killed.process(loads, 2)
            sessions(other, "wait_event_type = 'Lock'", 1)
            assert loads.killed(process)
            sessions(other, "wait_event_type = 'Lock'", 0)
        killed.load(2)

    assert killed.shown() == calm.shown()
    assert killed.place.registered("status") == [("success",)] * 2
    for ground in waiting_at:
        ground.closed()


def sessions(target, where, count):
    """Wait until this database has a number of sessions in this state."""
    sql = f"SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND {where}"
    for _ in range(1000):
        target._engine.fetch_all("SELECT pg_stat_clear_snapshot()")
        if target._engine.fetch_all(sql) == [(count,)]:
            return
        time.sleep(0.01)
    raise AssertionError(f"not {count} sessions: {where}")
