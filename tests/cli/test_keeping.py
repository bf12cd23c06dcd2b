"""Rewind, forget and maintain on the command line: previews, one document, exit codes."""

import json
from contextlib import nullcontext

import pytest
from stored_versions import kept, life, put, version

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

    def given(line, output="json"):
        code = run([*line.split(), "--output", output, "--warehouse", str(warehouse)])
        told = capsys.readouterr().out
        return code, json.loads(told) if output == "json" else told

    return given


def test_rewind_and_forget_change_nothing_without_apply(command, store):
    name = kept(store, "kept", life([version(1, "a", 10)]))
    put(store, name, life([version(1, "a", 10)], [version(1, "b", 10), version(2, "y", 20)]), "true")
    stood = existing(store, name).metadata
    code, told = command(f"rewind {name} 2024-01-02")
    assert (code, told["applied"], told["keys"]) == (0, False, [{"id": 1}, {"id": 2}])
    code, told = command(f"forget {name} id=2")
    assert (code, told["applied"], told["rows"], told["left"]) == (0, False, {"version": 1}, 0)
    code, (told,) = command(f"maintain {name} --dry-run")
    assert (code, told["table"], told["error"], told["files"] > told["files_after"]) == (
        0,
        str(name),
        None,
        True,
    )
    assert existing(store, name).metadata == stood
    code, told = command(f"rewind {name} 2024-01-02 --apply --note wrong-file --author ada", "table")
    assert code == 0
    code, told_of_commits = command(f"log {name}", "table")
    assert (code, "wrong-file" in told_of_commits, "ada" in told_of_commits) == (0, True, True)
    assert "would undo" not in told
    assert "undid 1 commit; rows: taken back 2" in told
    code, told = command(f"forget {name} 2 --apply", "table")
    assert code == 0
    assert "forgotten: past 1" in told
    for apply in ("", " --apply"):
        code, told = command(f"forget {name} 2{apply}", "table")
        assert (code, told.startswith(f"{name}: no such record"), "--apply" in told) == (0, True, False)
    code, told = command(f"maintain {name}", "table")
    assert (code, str(name) in told) == (0, True)


def test_errors_of_upkeep_have_specific_exit_codes(command, store):
    """The code is 2 for wrong usage, and 3 for an action that would harm a reader."""
    name = kept(store, "refused", life([version(1, "a", 10)]))
    store.spark.sql(f"ALTER TABLE backstory.{name} CREATE TAG theirs")
    code, told = command(f"forget {name} 1 --apply")
    assert (code, told["error"]["code"]) == (3, "foreign-reference")
    for line, word in (
        (f"forget {name} one", "other-key"),
        (f"forget {name}", "no-key"),
        ("rewind no.table 2024-01-01", "no-table"),
        (f"rewind {name} soon", "unreadable-time"),
        ("maintain", "no-table"),
        (f"maintain {name} --settle-before soon", "unreadable-time"),
    ):
        code, told = command(line)
        assert (code, told["error"]["code"]) == (2, word), line


def test_a_wrong_table_setting_does_not_stop_maintenance_of_other_tables(command, store):
    odd, even = (kept(store, name, life([version(1, "a", 10)])) for name in ("odd_age", "even_age"))
    store.spark.sql(
        f"ALTER TABLE backstory.{odd} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '30 days')"
    )
    code, told = command(f"maintain {odd} {even} --dry-run")
    assert (code, [each["error"] and each["error"]["code"] for each in told]) == (
        1,
        ["property-garbled", None],
    )
