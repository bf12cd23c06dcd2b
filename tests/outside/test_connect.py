"""Spark Connect: deliveries and readers in a session of a real server, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from connect_server import serving_connect
from depth import deep
from java import PYTHONPATH
from rest_catalog import serving_rest

from backstory.model.change import COLUMNS_STATE
from backstory.model.versions_layout import MEMORY_SINCE

pytestmark = pytest.mark.process

DEEDS = Path(__file__).parents[1] / "support" / "connect_deeds.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a Hadoop catalog and a REST catalog."""
    folder = tmp_path_factory.mktemp("connect")
    with serving_rest(folder) as rest:
        hadoop = {"type": "hadoop", "warehouse": str(folder / "hadoop")}
        with serving_connect(folder, {"hadoop": hadoop, "rest": rest}) as address:
            yield address


@pytest.fixture(scope="module", params=["rest", "hadoop"][: deep(2, 1)])
def act(request, server, tmp_path_factory):
    """Run an action of `connect_deeds.py` in a session of the server, which all actions of a catalog share."""
    command = [sys.executable, DEEDS, server, request.param]
    process = subprocess.Popen(
        command,
        cwd=tmp_path_factory.mktemp(request.param),
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(*deed):
        limit = Timer(1800, process.kill)  # the contract takes minutes on a busy machine
        limit.start()
        process.stdin.write(json.dumps(deed) + "\n")
        process.stdin.flush()
        failure = process.stdout.readline()
        limit.cancel()
        assert failure, f"The process ended during {deed}."
        assert failure == "null\n", json.loads(failure)

    with process:
        yield run
        process.stdin.close()


def test_the_contract_of_a_store_holds(act):
    """Laws that need Iceberg's Java are refused."""
    act("contract")


def test_a_series_of_copies_matches_the_rule_and_keeps_row_ids(act):
    """This includes late and restated copies. A repeated copy makes no commit."""
    for seed in range(deep(4, 1)):
        act("series", str(seed), str(3 - seed % 2))


def test_all_readers_give_the_rows_of_snapshots_and_feeds(act):
    """New columns, files and frames of the session are included, and the caller's session reads the commits."""
    act("reads")


def test_the_change_feed_matches_the_rule(act):
    """The feed equals the rule's across a compaction, other columns and expired commits, with and without row
    ids."""
    act("changes")


def test_a_published_preview_equals_its_deliveries(act):
    """It is refused if the table has newer commits. A concurrent delivery to it stays on it."""
    act("previews")


def test_a_project_runs_with_its_log_and_views_and_exports(act):
    """This includes frames of the server, and a stream's function in another process."""
    act("runs")


def test_model_loads_and_their_log_are_complete(act):
    """Base and history are two commits under one lease."""
    act("models")


def test_datasets_keep_their_chains(act):
    """A ledger, a copy and rows that replace others."""
    act("datasets")


def test_a_fivetran_destination_writes_its_tables(act):
    """This covers both modes. Changes that SQL cannot make in one commit are refused."""
    act("fivetran")


@pytest.mark.laws("it makes two examinations, of some ten seconds each")
def test_the_doctor_tries_each_statement_of_a_commit(act):
    """A failing ability is named, and the scratch tables are dropped."""
    act("doctor")


@pytest.mark.laws("the server's process begins within ten seconds, or Spark gives up")
def test_a_stream_applies_each_batch(act):
    """A stream that starts again with all batches makes no other commit."""
    act("streams")


def test_values_of_each_type_stay_exact(act):
    """This holds for any names of tables and columns, widened types, larger structs and renamed columns."""
    for deed in ["types", "shapes"][: deep(2, 1)]:
        act(deed)


def test_operations_that_need_java_are_refused_by_name(act):
    """The refusal precedes every write."""
    act("refusals")


def test_a_delivery_is_complete_or_absent_after_any_kill(act):
    """The next delivery completes it, and drops the remaining branch."""
    columns = [COLUMNS_STATE, "RENAME COLUMN", " TYPE ", " COMMENT ", "ADD COLUMNS"]
    points = ["MERGE INTO", "CALL", "CREATE BRANCH", MEMORY_SINCE, "DROP BRANCH", *columns]
    for point in points[: deep(len(points), 1)]:
        act("kills", point)


def test_two_writers_lose_nothing(act):
    """Both are separate processes."""
    act("writers")


def test_a_delivery_is_planned_again_after_a_foreign_commit(act):
    """The commit occurs between plan and branch, branch and rows, or rows and publication."""
    act("conflicts")
