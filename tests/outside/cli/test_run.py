"""Real runs, killed, ended and concurrent: each table is in its state before or after its commit, and the
next run completes."""

import json
import random
import re
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pyarrow.compute as pc
import pytest
from commands import command, configure, locked, metadata_of
from depth import deep
from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.process

TABLES = ("a", "b", "c", "d")
ROWS, MANY = 20, 300_000


class Night:
    """A folder with a project of five tables, one of them with daily files, in the warehouse of the tests."""

    def __init__(self, folder, python):
        self.folder, self.python = folder, python
        self.warehouse = Path(python.store.home)
        self.catalog = self.warehouse / "catalog.db"
        configure(folder)
        tables = "".join(f"  t.{name}: {{source: {name}.csv, key: id, tags: copy}}\n" for name in TABLES)
        days = "  t.days: {source: 'days-{at:%Y-%m-%d}.csv', key: id}\n"
        (folder / "histories.yaml").write_text(f"format: histories/1\ntables:\n{tables}{days}")

    def write(self, name, value, count=ROWS):
        rows = "".join(f"{number},{value}\n" for number in range(count))
        (self.folder / f"{name}.csv").write_text(f"id,value\n{rows}")

    def begin(self, *words):
        return command(self.folder, "run", "--warehouse", self.warehouse, *words)

    def run(self, **options):
        """The receipts of a whole run in the session of the tests."""
        return self.python.run(self.folder / "histories.yaml", **options)

    def violations(self):
        """The violated laws of all tables."""
        names = [each["table"] for each in self.python.tables()]
        assert "t.a" in names
        return [law for name in names for law in self.python.table(name).check() if law["violations"]]

    def state(self):
        """The catalog's state of each table."""
        return {name: metadata_of(self.catalog, name) for name in (*TABLES, "days")}

    def archives(self):
        """The names of the former histories of `a`."""
        with closing(sqlite3.connect(f"file:{self.catalog}?mode=ro", uri=True)) as connection:
            query = "SELECT table_name FROM iceberg_tables WHERE table_name LIKE 'a_until_%'"
            return [name for (name,) in connection.execute(query)]

    def values(self, name):
        """The distinct present values in a table."""
        with SqlCatalog(
            "backstory", uri=f"sqlite:///{self.catalog}", warehouse=f"file://{self.warehouse}"
        ) as catalog:
            if not catalog.table_exists(f"t.{name}"):
                return []
            rows = catalog.load_table(f"t.{name}").scan(selected_fields=("value", "is_current")).to_arrow()
        current = rows.filter(rows["is_current"])
        assert len(current) == ROWS
        return pc.unique(current["value"]).to_pylist()


@pytest.fixture
def night(tmp_path, python):
    night = Night(tmp_path, python)
    yield night
    with closing(sqlite3.connect(night.catalog)) as connection, connection:
        connection.execute("DELETE FROM iceberg_tables")
    shutil.rmtree(night.warehouse / "t")


def test_a_killed_run_leaves_no_partial_table_and_the_next_run_completes_it(night):
    chance, rounds = random.Random(26), deep(20, 2)
    for place in range(rounds):
        for name in TABLES:
            night.write(name, place)
        night.write(f"days-2024-01-{place + 1:02}", place)
        before, commits = night.state(), chance.randrange(len(TABLES) + 1)
        with night.begin() as run:
            run.reach(lambda: len(night.state().items() - before.items()) >= commits, pause=0.05)
            time.sleep(chance.random() / 2)
            run.kill()
        for name in (*TABLES, "days"):
            values = night.values(name)
            assert len(values) == 1 or (not values and not before.get(name))
    assert {each.status for each in night.run()} <= {"changed", "unchanged"}
    assert [night.values(name) for name in (*TABLES, "days")] == [[rounds - 1]] * 5
    lives = night.python.table("t.days").timeline("0").versions
    assert [each["value"] for each in lives] == list(range(rounds))
    assert night.violations() == []


def test_sigterm_ends_a_run_after_the_commits_in_progress(night):
    for name in TABLES:
        night.write(name, 1)
    night.run(select=["t.a"])
    night.write("a", 2, MANY)  # its read takes so long that its commit is still ahead
    first = night.warehouse / "t" / "a"
    files = len([*first.glob("data/**/*.parquet")])
    before, logged = night.state(), metadata_of(night.catalog, "runs")
    with night.begin("--jobs", "1", "--select", "tag:copy") as run:
        run.reach(lambda: metadata_of(night.catalog, "runs") != logged, pause=0.001)
        with locked(night.catalog):
            run.reach(lambda: len([*first.glob("data/**/*.parquet")]) > files)
            assert handles(run.process.pid, signal.SIGTERM)
            run.process.send_signal(signal.SIGTERM)
            run.reach(lambda: not handles(run.process.pid, signal.SIGTERM))
        code, output, _ = run.end()
    assert code == 75
    assert [each["status"] for each in json.loads(output)] == ["changed", "stopped", "stopped", "stopped"]
    assert {name for name, each in night.state().items() if each != before[name]} == {"a"}


def test_a_restart_killed_before_its_first_load_is_completed_by_the_next_run(night):
    entry = "t.a: {source: a.csv, key: id, restart: true}"
    (night.folder / "histories.yaml").write_text(f"format: histories/1\ntables:\n  {entry}\n")
    night.write("a", 1)
    night.run()
    night.write("a", "text", MANY)
    with night.begin() as run:
        run.reach(night.archives, pause=0.001)
        with locked(night.catalog):
            run.kill()
    assert metadata_of(night.catalog, "a") is None
    (archive,) = night.archives()
    night.write("a", "text")
    (receipt,) = night.run()
    assert ([*receipt.archives], receipt.counts["new"]) == ([f"t.{archive}"], ROWS)
    (receipt,) = night.run()
    assert (receipt.status, [*receipt.archives]) == ("unchanged", [])
    assert night.violations() == []


def handles(process, number):
    """Whether a process handles a signal. A run removes its handler once it was asked to end."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status).group(1), 16) >> (number - 1) & 1)


def test_two_concurrent_runs_deliver_each_table_only_once(night):
    for name in TABLES:
        night.write(name, 1)
    with night.begin("--select", "tag:copy") as one, night.begin("--select", "tag:copy") as other:
        ends = [one.end(), other.end()]
    assert [code for code, _, _ in ends] == [0, 0]
    statuses = zip(*([each["status"] for each in json.loads(output)] for _, output, _ in ends), strict=True)
    assert {tuple(sorted(each)) for each in statuses} == {("changed", "unchanged")}
