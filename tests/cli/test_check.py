"""`check`, `repair` and `adopt` for people and programs: results, exit codes, errors."""

import json
import sqlite3
from contextlib import closing
from shutil import copy

import pytest
from histories_as_text import written

from backstory import warehouse
from backstory.cli.app import run
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.settings import CATALOG_FILE
from backstory.stores.embedded_catalog import replace_folders
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.stores.table_files import local_path
from backstory.warehouse import Warehouse

LIFE = """
k     v  from  to   recorded
good  a  T10   -    T1
bad   a  T10   -    T1
bad   b  T20   -    T2
"""


@pytest.fixture
def command(spark, tmp_path, monkeypatch, capsys):
    """The output of a command, after its exit code."""
    monkeypatch.setattr(warehouse, "open", lambda *_, **__: Warehouse(IcebergStore(spark), embedded=False))
    monkeypatch.setenv("BACKSTORY_WAREHOUSE", str(IcebergStore(spark).folder))
    monkeypatch.chdir(tmp_path)

    def run_it(*words):
        code = run(list(words))
        return code, capsys.readouterr().out

    return run_it


def test_a_damaged_table_is_checked_repaired_and_checked_again(command, spark):
    """Exit code 4, the plan, the repair, and 0, as JSON and as text."""
    table = str(written(IcebergStore(spark), "cli", Layout.VERSIONS, LIFE))

    code, output = command("check", table, "--output", "json")
    broken = {
        each["law"]: (each["violations"], each["keys"]) for each in json.loads(output) if each["violations"]
    }
    assert code == 4
    assert broken == {
        "no-overlap": (1, ["bad"]),
        "one-open": (1, ["bad"]),
        "one-belief": (1, ["bad"]),
    }

    code, output = command("check", table, "--output", "table")
    assert code == 4
    assert f"{table}: 3 of 13 laws are broken" in output

    code, output = command("repair", table, "--output", "table")
    assert code == 0
    assert "bad: " in output
    assert "nothing was written" in output

    code, output = command("repair", table, "--apply", "--output", "json")
    receipt = json.loads(output)
    assert code == 0
    assert (receipt["applied"], receipt["counts"], receipt["keys"]) == (
        True,
        {"dropped": 0, "rewritten": 1},
        1,
    )
    assert receipt["samples"][0]["after"][0]["valid_to"] == "2024-02-29T00:00:20.000000Z"

    code, output = command("check", table, "--output", "table")
    assert (code, output) == (0, f"{table}: all 13 laws hold\n")


def test_small_tables_need_no_spark_for_check_and_changes(command, spark, monkeypatch):
    """No warehouse is opened for them."""
    table = str(written(IcebergStore(spark), "small", Layout.VERSIONS, LIFE))
    monkeypatch.setattr(warehouse, "open", None)

    code, output = command("check", table, table, "--output", "csv")
    assert (code, output.count("no-overlap,1")) == (4, 2)
    code, output = command("changes", table, "--current", "--limit", "2", "--output", "csv")
    assert (code, [line.split(",")[:3] for line in output.splitlines()]) == (
        0,
        [["k", "v", "_change_type"], ["bad", "a", "insert"], ["bad", "b", "insert"]],
    )


def test_a_dry_repair_of_a_healthy_table_needs_no_spark(command, spark, monkeypatch):
    table = str(written(IcebergStore(spark), "healthy", Layout.VERSIONS, LIFE.replace("bad   b", "other b")))
    monkeypatch.setattr(warehouse, "open", None)

    assert command("repair", table, "--output", "table") == (0, f"{table}: nothing to repair.\n")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["check"], 2, "no-table"),
        (["check", "nobody.there"], 2, "no-table"),
        (["repair", "nobody.there"], 2, "no-table"),
        (["adopt", "nobody.there", "--layout", "dbt", "--key", "a"], 2, "no-table"),
    ],
)
def test_missing_tables_are_reported(command, words, code, error):
    exit_code, output = command(*words, "--output", "json")

    assert (exit_code, json.loads(output)["error"]["code"]) == (code, error)


def test_an_unknown_layout_is_wrong_usage(command):
    assert command("adopt", "a.b", "--layout", "delta")[0] == 2


def _warehouse_of(store, folder, *names):
    """A folder whose catalog has only these tables of the store."""
    copy(store.folder / CATALOG_FILE, folder / CATALOG_FILE)
    with closing(sqlite3.connect(folder / CATALOG_FILE)) as catalog, catalog:
        condition = " OR ".join("(table_namespace, table_name) = (?, ?)" for _ in names)
        arguments = [part for name in names for part in (name.schema, name.name)]
        catalog.execute(f"DELETE FROM iceberg_tables WHERE NOT ({condition})", arguments)
        replace_folders(catalog, {str(folder)})  # its tables are deliberately elsewhere


def test_an_unreadable_table_does_not_hide_other_tables(command, spark, tmp_path, monkeypatch):
    """`check` reports its error in its place, and fails at the end. `tables` lists it without counts."""
    store = IcebergStore(spark)
    lost, garbled, spoilt = (
        written(store, name, Layout.VERSIONS, LIFE) for name in ("a_lost", "b_garbled", "c_spoilt")
    )
    gone, odd = (local_path(existing(store, name).location) for name in (lost, garbled))
    mended = [(path, path.read_bytes()) for path in (gone, odd)]
    gone.unlink()
    odd.write_text("{")
    _warehouse_of(store, tmp_path, lost, garbled, spoilt)
    monkeypatch.setenv("BACKSTORY_WAREHOUSE", str(tmp_path))
    monkeypatch.setattr(warehouse, "open", None)

    for words in (["--all"], [str(lost), str(garbled), str(spoilt)]):
        code, output = command("check", *words, "--output", "json")
        results = {
            each["table"]: each for each in json.loads(output) if each["law"] is None or each["violations"]
        }
        assert code == 1
        assert results[str(lost)]["error"]["code"] == "file-lost"
        assert gone.name in results[str(lost)]["error"]["message"]
        assert results[str(garbled)]["error"]["code"] == "file-garbled"
        assert results[str(spoilt)]["violations"] == 1
        statuses = [results[str(each)]["status"] for each in (lost, garbled, spoilt)]
        assert statuses == ["unchecked", "unchecked", "violated"]
    code, output = command("check", "--all", "--output", "table")
    assert (code, f"{spoilt}: 3 of 13 laws are broken" in output) == (1, True)
    assert command("check", "--all", "--output", "csv")[1].count("file-lost") == 1

    code, output = command("tables", "--output", "json")
    assert code == 0
    assert {each["table"]: each["rows"] for each in json.loads(output)} == {
        str(lost): None,
        str(garbled): None,
        str(spoilt): 3,
    }
    for path, content in mended:
        path.write_bytes(content)  # for other tests that list the catalog


def test_a_table_that_pyiceberg_cannot_parse_does_not_hide_other_tables(command, spark, tmp_path):
    """Spark counts rows of a table with a variant, and a table with a lost file is listed without counts."""
    store, odd = IcebergStore(spark), TableName("spoilt", "odd")
    lost, plain = (written(store, name, Layout.VERSIONS, LIFE) for name in ("d_lost", "e_plain"))
    spark.sql(
        f"CREATE OR REPLACE TABLE {store.sql_name(odd)} USING iceberg TBLPROPERTIES ('format-version' = '3') "
        "AS SELECT 1 AS id, parse_json('[1]') AS v"
    )
    _warehouse_of(store, tmp_path, lost, odd, plain)
    uri = f"jdbc:sqlite:{tmp_path / CATALOG_FILE}"
    (tmp_path / "backstory.toml").write_text(f'[catalog]\ntype = "jdbc"\nuri = "{uri}"\n')
    place = local_path(existing(store, lost).location)
    away = place.rename(tmp_path / "away")

    code, output = command("tables", "--output", "json")

    away.rename(place)
    assert code == 0
    assert {each["table"]: each["rows"] for each in json.loads(output)} == {
        str(lost): None,
        str(odd): 1,
        str(plain): 3,
    }
