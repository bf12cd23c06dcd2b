"""The frame: options reach each workload, and pages compare the times."""

import re
import subprocess
import sys

import pytest
from documented import ROOT

from benchmarks.__main__ import WORKLOADS, contents
from benchmarks.asked import Asked, asked_of, parser
from benchmarks.peers.contestants import Contestant
from benchmarks.peers.ground import COLUMNS, MODEL, SQLMESH_MODEL, projects
from benchmarks.peers.page import GOALS, STEPS, told
from benchmarks.report import Report


def test_options_are_passed_on_to_a_workload(tmp_path):
    options = Asked(scale=0.25, rounds=2, full=True, until=123.5, results=tmp_path)

    assert asked_of(parser("x").parse_args(options.words())) == options


def test_every_workload_is_a_program():
    for each in WORKLOADS:
        place = ROOT.joinpath(*each.module.split()[0].split("."))
        assert place.with_suffix(".py").exists(), each


def test_the_guide_names_exactly_the_existing_workloads():
    table = (ROOT / "benchmarks" / "README.md").read_text().split("| `ONLY=` |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))
    assert named == {each.name for each in WORKLOADS}


def test_an_unknown_workload_is_wrong_usage():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "nothing"], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 2
    assert "There is no workload nothing; there are peers, sizes, history" in done.stderr


def test_the_list_of_pages_marks_unfinished_workloads(tmp_path):
    for name in ("peers", "cases", "README"):
        (tmp_path / f"{name}.md").write_text(f"# About {name}\n")

    contents(Asked(results=tmp_path), {"peers": "out of time", "cases": "done"})

    lines = (tmp_path / "README.md").read_text().splitlines()
    assert lines[2:] == ["* [About cases](cases.md)", "* [About peers](peers.md) (out of time)"]


def by_step(*seconds):
    return {step: [value] * 3 for step, value in zip(STEPS, seconds, strict=True)}


OURS = Contestant("backstory snapshot", "native.py", "native", "valid_to IS NULL")
DBT = Contestant("dbt snapshot (dbt-core 1)", "by_dbt.py", "dbt", "dbt_valid_to IS NULL")
MESH = Contestant("SQLMesh", "by_sqlmesh.py", "mesh", "valid_to IS NULL", failed="1 % changed: it fell over")


@pytest.fixture
def page(tmp_path):
    report = Report("peers", "A title", Asked(results=tmp_path))
    warm = {OURS.name: by_step(1.0, 2.0, 1.0), DBT.name: by_step(3.0, 10.0, 16.0)}
    right = {"right": True, "versions": 3, "open": 2, "bytes_written": 1234, "files_written": 3, "files": 2}
    told(report, warm, {}, {OURS.name: right, DBT.name: {**right, "right": False}}, [OURS, DBT, MESH])
    return (tmp_path / "peers.md").read_text()


def test_goals_are_marked_as_held_or_missed(page):
    assert "| Warm, first load | 3.0 ×: holds | – | 2 × |" in page
    assert "| Warm, 1 % changed | 5.0 ×: missed | – | 8 × |" in page
    assert "| Warm, nothing changed | 16.0 ×: holds | – | 15 × |" in page
    assert set(GOALS["Warm"]) == set(STEPS)


def test_the_page_reports_wrong_rows_and_failures(page):
    assert "| backstory snapshot | yes | 1,234 | 3 | 2 |" in page
    assert "| dbt snapshot (dbt-core 1) | no: 3, 2 open |" in page
    assert "* SQLMesh: 1 % changed: it fell over" in page


def test_every_tool_is_given_the_same_columns(tmp_path):
    projects(tmp_path, [5])

    assert "name: customer_5" not in (tmp_path / "dbt" / "profiles.yml").read_text()
    assert "customer_5" in (tmp_path / "dbt" / "snapshots" / "customer_5.sql").read_text()
    for name in COLUMNS:
        assert f"{{target_column_name: {name}, " in MODEL
        assert f" {name}" in SQLMESH_MODEL.split("SELECT")[1]
