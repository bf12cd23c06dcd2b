"""`backstory snapshot` for people and programs."""

import gzip
import json
import re
from pathlib import Path

import pytest

from backstory import warehouse as python
from backstory.cli.app import run
from backstory.stores.iceberg.store import IcebergStore
from backstory.warehouse import Warehouse

FIRST = "id,name,day\n1,ann,2026-01-01\n2,bob,\n"
SECOND = '{"id": 1, "name": "ann", "day": "2026-01-01"}\n{"id": 3, "name": "cy"}\n'


class Kept:
    """The warehouse of all tests, which no command closes."""

    def __init__(self, spark):
        self.warehouse = Warehouse(IcebergStore(spark), embedded=False)

    def __enter__(self):
        return self.warehouse

    def __exit__(self, *_):
        pass


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    def shell(*words, code=0, output="json"):
        exit_code = run(["snapshot", *words, "--output", output])
        streams = capsys.readouterr()
        assert exit_code == code, streams
        return json.loads(streams.out) if output == "json" else streams.out

    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(FIRST)
    return shell


def test_files_become_history(spark, shell, monkeypatch):
    monkeypatch.setattr(python, "open", lambda *_, **__: Kept(spark))
    into = ("--into", "cli_native.person")
    first = shell("a.csv", *into, "--key", "id", "--at", "2026-01-01")
    assert first["counts"] == {"new": 2, "changed": 0, "closed": 0, "reopened": 0, "unchanged": 0}
    assert list(first) == ["table", "counts", "schema_changes", "recorded_at", "snapshot_id"]
    assert first["schema_changes"] == ["new table: id BIGINT, name STRING, day DATE"]
    assert shell("a.csv", *into)["snapshot_id"] is None
    Path("b.jsonl.gz").write_bytes(gzip.compress(SECOND.encode()))
    output = shell("b.jsonl.gz", *into, "--at", "2026-01-02", "--dry-run", output="table")
    assert "new 1, closed 1, unchanged 1" in output
    assert re.search(r"new: 3\s*\n\s+closed: 2", output)
    assert output.splitlines()[-1] == "Dry run: nothing was written."
    assert shell("b.jsonl.gz", *into, "--at", "2026-01-02")["counts"]["closed"] == 1
    copied = shell("table:cli_native.person", "--into", "cli_native.copied", "--key", "id")
    assert copied["counts"]["new"] == 2
    Path("a.csv").write_text("id,name,day\n1,ann\n")
    broken = shell("a.csv", *into, code=3)["error"]
    assert (broken["code"], "line 2" in broken["message"]) == ("broken-csv", True)
    Path("a.csv").write_text("id,name,day\n1,ann,soon\n3,cy,\n")
    changed = shell("a.csv", *into, code=3)["error"]
    assert (changed["code"], changed["keys"]) == ("type-changed", ["day"])
    assert "`--retype day=STRING`" in changed["remedy"]
    day = ("--retype", "day=STRING", "--at", "2026-01-03")
    assert shell("a.csv", *into, *day)["schema_changes"] == [
        "column day: type is now STRING",
        "all rows are rewritten",
    ]
    Path("a.csv").write_text("id,called,day\n1,ann,soon\n3,cy,\n")
    changes = shell("a.csv", *into, "--at", "2026-01-04", "--dry-run")["schema_changes"]
    assert changes[-1] == "column called has the values of name: renamed? --rename name=called"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["none.csv", "--into", "a.b"], 1),
        (["a.csv", "--into", "b"], 2),
        (["a.csv", "--into", "a.b", "--at", "soon"], 2),
        (["a.csv", "--into", "a.b", "--track", "v", "--ignore", "w"], 2),
        (["a.csv", "--into", "a.b", "--rename", "a"], 2),
        (["a.csv", "--into", "a.b", "--max-delete-ratio", "2"], 2),
        (["a.csv", "--into", "a.b", "--max-null-ratio", "2"], 2),
        (["a.csv", "--into", "a.b", "--retype", "a"], 2),
        (["a.csv", "--into", "a.b", "--retype", "a=INT,b=DECIMAL(18,2),c=NUMBER"], 2),
        (["table:a", "--into", "a.b"], 2),
    ],
)
def test_wrong_usage_starts_nothing(shell, monkeypatch, words, code):
    monkeypatch.setattr(python, "open", lambda *_, **__: pytest.fail("Spark was started"))
    assert shell(*words, code=code)["error"]["message"]
