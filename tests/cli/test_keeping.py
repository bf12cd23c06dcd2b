"""Rewind, forget and maintain on the command line: previews, one document, exit codes."""

import json
from contextlib import nullcontext

import pytest
from stored_versions import life, make_table, put, version

from backstory import warehouse as python
from backstory.cli.app import run
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.tables import existing
from backstory.warehouse import Warehouse


@pytest.fixture
def command(spark, warehouse, monkeypatch, capsys):
    """The exit code and the output of a command on the warehouse of all tests."""
    opened = Warehouse(IcebergStore(spark), embedded=False)
    monkeypatch.setattr(python, "open", lambda *_, **__: nullcontext(opened))

    def run_command(line, output="json"):
        code = run([*line.split(), "--output", output, "--warehouse", str(warehouse)])
        text = capsys.readouterr().out
        return code, json.loads(text) if output == "json" else text

    return run_command


def test_rewind_and_forget_change_nothing_without_apply(command, store):
    name = make_table(store, "kept", life([version(1, "a", 10)]))
    put(store, name, life([version(1, "a", 10)], [version(1, "b", 10), version(2, "y", 20)]), "true")
    stood = existing(store, name).location
    code, answer = command(f"rewind {name} 2024-01-02")
    assert (code, answer["applied"], answer["keys"]) == (0, False, [{"id": 1}, {"id": 2}])
    code, answer = command(f"forget {name} id=2")
    assert (code, answer["applied"], answer["rows"], answer["left"]) == (0, False, {"version": 1}, 0)
    code, (answer,) = command(f"maintain {name} --dry-run")
    assert (code, answer["table"], answer["error"], answer["files"] > answer["files_after"]) == (
        0,
        str(name),
        None,
        True,
    )
    assert existing(store, name).location == stood
    code, answer = command(f"rewind {name} 2024-01-02 --apply --note wrong-file --author ada", "table")
    assert code == 0
    code, told_of_commits = command(f"log {name}", "table")
    assert (code, "wrong-file" in told_of_commits, "ada" in told_of_commits) == (0, True, True)
    assert "would undo" not in answer
    assert "undid 1 commit; rows: taken back 2" in answer
    code, answer = command(f"forget {name} 2 --apply", "table")
    assert code == 0
    assert "forgotten: past 1" in answer
    for apply in ("", " --apply"):
        code, answer = command(f"forget {name} 2{apply}", "table")
        assert (code, answer.startswith(f"{name}: no such record"), "--apply" in answer) == (0, True, False)
    code, answer = command(f"maintain {name}", "table")
    assert (code, str(name) in answer) == (0, True)


def test_errors_of_upkeep_have_specific_exit_codes(command, store):
    """The code is 2 for wrong usage, and 3 for an action that would harm a reader."""
    name = make_table(store, "refused", life([version(1, "a", 10)]))
    store.spark.sql(f"ALTER TABLE backstory.{name} CREATE TAG theirs")
    code, answer = command(f"forget {name} 1 --apply")
    assert (code, answer["error"]["code"]) == (3, "foreign-reference")
    for line, word in (
        (f"forget {name} one", "other-key"),
        (f"forget {name}", "no-key"),
        ("rewind no.table 2024-01-01", "no-table"),
        (f"rewind {name} soon", "unreadable-time"),
        ("maintain", "no-table"),
        (f"maintain {name} --settle-before soon", "unreadable-time"),
    ):
        code, answer = command(line)
        assert (code, answer["error"]["code"]) == (2, word), line


def test_a_wrong_table_setting_does_not_stop_maintenance_of_other_tables(command, store):
    odd, even = (make_table(store, name, life([version(1, "a", 10)])) for name in ("odd_age", "even_age"))
    store.spark.sql(
        f"ALTER TABLE backstory.{odd} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '30 days')"
    )
    code, results = command(f"maintain {odd} {even} --dry-run")
    assert (code, [each["error"] and each["error"]["code"] for each in results]) == (
        1,
        ["property-garbled", None],
    )
