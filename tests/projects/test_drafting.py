"""`init` writes what a folder or a database tells, leaves the rest to a person, and no password."""

import sqlite3
from contextlib import closing

import duckdb
import psycopg
import pytest

from backstory.cli.app import run
from backstory.errors import UsageError
from backstory.projects.declarations import read_project
from backstory.projects.drafting import draft_project
from backstory.sources.databases.address import Database
from backstory.sources.databases.keys import declared_keys


def test_files_whose_names_differ_by_a_time_are_one_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "crm/Customer-2024-01-01.csv",
        "crm/Customer-2024-01-02.csv",
        "order_20240101.csv.gz",
        "_x/y.csv",
        "z.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("id,name\n1,Ann\n")
    assert run(["init", "--quiet"]) == 0
    assert run(["init"]) == 2  # it is there already
    text = (tmp_path / "histories.yaml").read_text()
    declared = {each.name: each for each in read_project().declarations}
    assert {name.partition(".")[2]: each.source for name, each in declared.items()} == {
        "customer": "crm/Customer-{at:%Y-%m-%d}.csv",
        "order": "order_{at:%Y%m%d}.csv.gz",
    }
    assert "key:          # write the columns that identify a record: id, name" in text
    with pytest.raises(UsageError, match="no CSV, Parquet or JSON files"):
        draft_project(str(tmp_path / "_x" / "nowhere"))


def read(tmp_path, text):
    (tmp_path / "histories.yaml").write_text(text)
    return {
        each.name: (each.source, each.options.get("key"))
        for each in read_project(tmp_path / "histories.yaml").declarations
    }


@pytest.mark.database
def test_keys_that_postgresql_declares_are_written_and_the_password_is_not(tmp_path, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            'CREATE SCHEMA crm; CREATE TABLE crm."Order Item" (a int, b int, note text, PRIMARY KEY (b, a))'
        )
        connection.execute(
            'CREATE TABLE "Customer" (id int UNIQUE, name text); CREATE VIEW seen AS SELECT 1 AS id'
        )
    user, _, rest = postgres_url.removeprefix("postgresql://").partition("@")
    text = draft_project(f"postgresql://{user}:canary@{rest}")
    assert "canary" not in text
    source = f"postgresql://{user}:${{DATABASE_PASSWORD}}@{rest}?table="
    assert read(tmp_path, text) == {
        "crm.Order Item": (f"{source}crm.Order Item", ("b", "a")),
        "public.Customer": (f"{source}public.Customer", None),
        "public.seen": (f"{source}public.seen", None),
    }


def test_keys_that_files_of_databases_declare(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE a (x, id INTEGER PRIMARY KEY); CREATE TABLE b (y); CREATE VIEW c AS SELECT 1;"
        )
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute("CREATE TABLE a (x INT, y INT, PRIMARY KEY (y, x)); CREATE TABLE b (z INT)")
    sqlite, duck = f"sqlite://{tmp_path}/shop.db", f"duckdb://{tmp_path}/d.duckdb"
    assert declared_keys(Database("sqlite", sqlite, "s")) == {"a": ("id",), "b": (), "c": ()}
    assert declared_keys(Database("duckdb", duck, "d")) == {"main.a": ("y", "x"), "main.b": ()}
    assert read(tmp_path, draft_project(sqlite))["shop.a"] == (f"{sqlite}?table=a", ("id",))
    with pytest.raises(UsageError, match="cannot list the tables"):
        draft_project("mysql://me@host/shop")
