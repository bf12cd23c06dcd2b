"""One entry for all tables of a database: later tables are delivered too, and only a failing one fails."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from backstory.errors import UsageError
from backstory.projects.declarations import read_project
from backstory.projects.log import freshness, rows_of_log

pytestmark = pytest.mark.spark


@pytest.fixture
def erp(team):
    """A database of the team, which executes statements."""

    def execute(script):
        with closing(sqlite3.connect(team.folder / "erp.db")) as connection:
            connection.executescript(script)

    execute(
        """
        CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO customer VALUES (1, 'Ann');
        CREATE TABLE line (place INTEGER, bill INTEGER, name TEXT, PRIMARY KEY (bill, place));
        INSERT INTO line VALUES (1, 7, 'tea');
        CREATE TABLE tmp_1 (id INTEGER PRIMARY KEY);
        """
    )
    return execute


def declare(team, options, others=""):
    source = f"'sqlite://{team.folder}/erp.db?table={{table}}'"
    team.declare(f"tables:\n  s.*: {{source: {source}, {options}}}\n{others}")


def key_of(team, table):
    return team.warehouse.table(f"{team.schema}.{table}").history().shape.key


def test_each_table_has_the_key_that_the_database_declares(team, erp):
    declare(team, "except: tmp_*")
    receipts = team.run()
    assert {name: each.status for name, each in receipts.items()} == {
        "customer": "changed",
        "line": "changed",
    }
    assert receipts["line"].schema_changes[0] == f"new table of {team.schema}.* with the key (bill, place)"
    assert team.names_at("line") == ["tea"]
    assert team.status() == {"customer": "unchanged", "line": "unchanged"}


def test_a_later_table_is_delivered_and_reported(team, erp):
    declare(team, "except: tmp_*, tags: nightly")
    team.run()
    erp("CREATE TABLE payment (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO payment VALUES (1, 'cash')")
    receipts = team.run(select=[f"{team.schema}.p*"])
    assert [*receipts] == ["payment"]
    assert receipts["payment"].schema_changes[0] == f"new table of {team.schema}.* with the key (id)"
    assert set(team.status(select=["tag:nightly"])) == {"customer", "line", "payment"}


def test_a_table_has_its_own_declaration_or_the_first_pattern_that_fits(team, erp):
    own = f"  s.customer: {{source: 'sqlite://{team.folder}/erp.db?table=customer', key: name}}"
    declare(team, "except: [tmp_1, s.line]", own)
    assert team.status() == {"customer": "changed"}
    erp("UPDATE customer SET id = 2; INSERT INTO customer VALUES (1, 'Bob')")
    assert team.run()["customer"].counts["changed"] == 1  # the name is its key
    other = f"  s.l*: {{source: 'sqlite://{team.folder}/erp.db?table={{table}}', key: name}}"
    declare(team, "", f"{own}\n{other}")
    assert {each.name: each.pattern for each in declared(team)} == {
        f"{team.schema}.customer": None,
        f"{team.schema}.line": f"{team.schema}.*",
        f"{team.schema}.tmp_1": f"{team.schema}.*",
    }


def test_only_a_keyless_table_fails_unless_its_key_is_the_whole_row(team, erp):
    erp("CREATE TABLE log (at TEXT, name TEXT); INSERT INTO log VALUES ('2026', 'in'), ('2026', 'in')")
    declare(team, "except: tmp_*")
    receipts = team.run()
    assert {name: each.status for name, each in receipts.items()} == {
        "customer": "changed",
        "line": "changed",
        "log": "refused",
    }
    assert "`key: row`" in receipts["log"].error.remedy
    declare(team, "except: tmp_*, key: row")
    assert team.status(failed=True) == {"log": "changed"}
    assert team.status() == dict.fromkeys(("customer", "line", "log"), "unchanged")


def test_a_dropped_database_table_fails_until_it_is_excepted(team, erp):
    declare(team, "except: tmp_*")
    team.run()
    erp("DROP TABLE line")
    receipts = team.run()
    assert (receipts["line"].status, receipts["line"].error.code) == ("refused", "no-table")
    assert receipts["customer"].status == "unchanged"
    assert team.names_at("line") == ["tea"]
    declare(team, "except: [tmp_*, line]")
    assert team.status() == {"customer": "unchanged"}


def test_tables_of_an_unreachable_database_fail_and_are_run_again(team, erp):
    declare(team, "except: tmp_*", "  s.copy: {source: table:s.line, key: name}")
    (team.folder / "erp.db").rename(team.folder / "away.db")
    assert team.status() == {"copy": "refused", "*": "refused"}
    (team.folder / "away.db").rename(team.folder / "erp.db")
    assert team.status(failed=True) == {"copy": "changed", "customer": "changed", "line": "changed"}
    (team.folder / "erp.db").rename(team.folder / "away.db")
    assert team.status() == {"copy": "blocked", "customer": "refused", "line": "refused", "*": "refused"}


def test_a_database_without_matching_tables_is_refused(team, erp):
    declare(team, "except: '*'")
    receipts = team.run()
    assert {name: each.error.code for name, each in receipts.items()} == {"*": "nothing-there"}


def test_a_dependent_table_waits_for_all_tables_of_a_pattern(team, erp):
    team.write("a.csv", "id,name\n1,Ann\n")
    declare(team, "except: tmp_*", "  s.a: {source: a.csv, key: id, after: s.*}")
    assert team.status() == {"a": "changed", "customer": "changed", "line": "changed"}
    erp("DROP TABLE line; CREATE TABLE other (name TEXT)")
    assert team.run()["a"].blocked_by in {f"{team.schema}.line", f"{team.schema}.other"}
    declare(team, "except: tmp_*", "  s.a: {source: a.csv, key: id, after: s.nothing}")
    with pytest.raises(UsageError, match=r"names .*nothing, which is not declared"):
        team.run()


def test_freshness_covers_the_tables_of_former_runs(team, erp):
    declare(team, "except: tmp_*, expect: every 2h")

    def late(hours):
        now, store = datetime.now(UTC) + timedelta(hours=hours), team.warehouse.store
        rows = freshness(read_project(team.file), store, rows_of_log(store), now)
        return {row["name"].removeprefix(f"{team.schema}."): row["late"] for row in rows}

    assert late(0) == {"*": True}
    team.run()
    assert (late(1), late(3)) == ({"customer": False, "line": False}, {"customer": True, "line": True})


def declared(team):
    from backstory.projects.declarations import declare_tables
    from backstory.sources.databases.copies import declared_keys

    return declare_tables(read_project(team.file), [], lambda _: False, declared_keys).declarations


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("a.*: {source: x.csv, key: id}", "a pattern is for tables of a database"),
        ("a.*: {source: 'sqlite:///x.db?table=y'}", "a pattern is for tables of a database"),
        ("'*': {source: 'sqlite:///x.db?table={table}'}", "the schema of these tables is not clear"),
        ("'*.*': {source: 'sqlite:///x.db?table={table}'}", "the schema of these tables is not clear"),
        ("a.b: {source: x.csv, key: id, except: c}", "only a pattern of tables has exceptions"),
        (
            "a.*: {source: 'sqlite:///x.db?table={table}', sequence-by: n, restart: true}",
            "full copy|copy of all",
        ),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_line(tmp_path, entry, why):
    (tmp_path / "histories.yaml").write_text(f"format: histories/1\ntables:\n  {entry}\n")
    with pytest.raises(UsageError, match=f"line 3.*({why})"):
        read_project(tmp_path / "histories.yaml")
