"""`backstory changes` for its users: one document, only rows, codes and exit codes."""

import csv
import io
import json

import pytest
from feeding import Fed

from backstory import warehouse as python
from backstory.cli.app import run
from backstory.model.layout import Layout
from backstory.warehouse import Warehouse


@pytest.fixture
def ask(store, warehouse, monkeypatch, capsys):
    """The output of a command in the session of all tests."""
    open_warehouse = Warehouse(store, embedded=False)
    monkeypatch.setattr(python, "open", lambda *_, **__: open_warehouse)
    # A missing table is reported without Spark.
    monkeypatch.setenv("BACKSTORY_WAREHOUSE", str(warehouse))

    def output_of(words, code=0):
        capsys.readouterr()
        exit_code = run(words.split())
        output = capsys.readouterr()
        assert exit_code == code, output
        return output.out

    return output_of


@pytest.fixture
def fed(store):
    """A table of two commits, whose second one changed a row."""
    made = Fed(store, "shown", {"id": "LONG", "v": "STRING"}, ("id",), Layout.FIVETRAN_LIVE)
    made.change([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    made.change([{"id": 1, "v": "c"}], gone="id = 1")
    return made


def test_changes_prints_rows_and_moves_a_cursor(fed, ask):
    """V121: The document has table, since, until and changes. csv and table are only the rows."""
    document = json.loads(ask("changes feeds.shown --cursor crm --output json"))
    assert {name: document[name] for name in ("table", "since", "until")} == {
        "table": "feeds.shown",
        "since": 0,
        "until": 2,
    }
    assert [
        (row["_commit_version"], row["_change_type"], row["id"], row["v"]) for row in document["changes"]
    ] == [
        (1, "insert", 1, "a"),
        (1, "insert", 2, "b"),
        (2, "update_preimage", 1, "a"),
        (2, "update_postimage", 1, "c"),
    ]
    assert all(row["_commit_timestamp"].endswith("Z") for row in document["changes"])
    assert list(document["changes"][0])[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    moved = json.loads(ask(f"changes feeds.shown --cursor crm --advance {document['until']} --output json"))
    assert moved == {"table": "feeds.shown", "cursor": "crm", "version": 2}
    assert json.loads(ask("changes feeds.shown --cursor crm --output json"))["changes"] == []
    (header, *rows) = csv.reader(io.StringIO(ask("changes feeds.shown --net --output csv")))
    assert header[:3] == ["id", "v", "_change_type"]
    assert [row[:4] for row in rows] == [["1", "c", "insert", "2"], ["2", "b", "insert", "1"]]
    assert "update_postimage" in ask("changes feeds.shown --since 1 --current --output table")
    assert len(ask("changes feeds.shown --limit 1 --output csv").splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        ("--since 9", "bad-option", 2),
        ("--since 2 --until 1", "bad-option", 2),
        ("--since tomorrow", "unreadable-time", 2),
        ("--cursor none --drop", "unknown-cursor", 2),
        ("--cursor crm --since 1", "bad-option", 2),
    ],
)
def test_invalid_requests_for_changes_have_code_and_remedy(fed, ask, words, code, exit_code):
    document = json.loads(ask(f"changes feeds.shown {words} --output json", exit_code))
    assert document["error"]["code"] == code
    assert document["error"]["remedy"]
