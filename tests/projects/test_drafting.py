"""`init` writes the declarations of a folder or a database, leaves the rest open, and writes no password."""

import json
import re
import sqlite3
from contextlib import closing

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest

from backstory.cli.app import run
from backstory.errors import UsageError
from backstory.projects.declarations import read_project
from backstory.projects.drafting import draft_project, extend_project
from backstory.sources.databases.address import Database, parse_address
from backstory.sources.databases.copies import copy_out, declared_keys


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
    text = (tmp_path / "histories.yaml").read_text()
    declared = {each.name: each for each in read_project().declarations}
    assert {name.partition(".")[2]: each.source for name, each in declared.items()} == {
        "customer": "crm/Customer-{at:%Y-%m-%d}.csv",
        "order": "order_{at:%Y%m%d}.csv.gz",
    }
    assert "key:          # write the columns that identify a record: id, name" in text
    with pytest.raises(UsageError, match="no CSV, Parquet or JSON files"):
        draft_project(str(tmp_path / "_x" / "nowhere"))


def test_unusual_file_names_are_declared_unchanged(tmp_path):
    """Names are strings of YAML, and the name of a column ends no comment."""
    names = ["o'brien-2024-01-01.csv", "[x].csv", '- "q": #.csv', "null.csv", "\x7f.csv", "𠮷\u3000a.csv"]
    for name in names:
        (tmp_path / name).write_text('"a\nb: c",d\n1,2\n')
    declared = read(tmp_path, draft_project(str(tmp_path))[0])
    assert {source for source, _ in declared.values()} == {
        name.replace("2024-01-01", "{at:%Y-%m-%d}") for name in names
    }


def test_sources_with_the_same_plain_name_become_separate_tables(tmp_path):
    """Two entries of one name would be one key of the file, which `run` refuses."""
    folder = tmp_path / "crm"
    folder.mkdir()
    for name in ("a b.csv", "a-b.csv", "a_b.csv", "a_b_2.csv"):
        (folder / name).write_text("id\n1\n")
    declared = read(folder, draft_project(str(folder))[0])
    assert {table: source for table, (source, _) in declared.items()} == {
        "crm.a_b": "a b.csv",
        "crm.a_b_2": "a-b.csv",
        "crm.a_b_3": "a_b.csv",
        "crm.a_b_2_2": "a_b_2.csv",
    }
    source = f"sqlite://{tmp_path}/d.db"
    names = dict.fromkeys(["d.t", "t", "u", ".v"], ("id",))
    declared = read(folder, draft_project(source, lambda _: names)[0])
    assert {table: source.partition("=")[2] for table, (source, _) in declared.items()} == {
        "d.t": "d.t",
        "d.t_2": "t",
        "d.u": "u",
        "d..v": ".v",
    }


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "customer.csv").write_text("id,name\n1,Ann\n")
    assert run(["init", "exports"]) == 0
    assert [each.source for each in read_project().declarations] == ["exports/customer.csv"]
    (tmp_path / "elsewhere").mkdir()
    assert run(["init", "exports", "--file", "elsewhere/histories.yaml"]) == 0
    (declared,) = read_project("elsewhere/histories.yaml").declarations
    assert declared.source == str(tmp_path / "exports" / "customer.csv")


FILE = """\
# Ours: {name}
format: histories/1
groups:
    files: {{source: '{{table}}.csv'}}   # by name
tables:
    crm.customer: {{group: files, key: id}}

    crm.bills:
        source: bills-{{at:%Y-%m-%d}}.csv
        key: id
    # the last one
# Models
models: []
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_repeated_init_adds_only_new_tables(tmp_path, monkeypatch, capsys, end):
    monkeypatch.chdir(tmp_path)
    for name in ("customer", "bills-2024-01-01", "bills-2024-01-02", "payment-2024-01-01"):
        (tmp_path / f"{name}.csv").write_text("id,name\n1,Ann\n")
    text = FILE.format(name="Grüße").replace("\n", end)
    file = tmp_path / "histories.yaml"
    file.write_bytes(text.encode())
    assert run(["init"]) == 0
    printed = capsys.readouterr()
    assert "Added 1 table(s) to histories.yaml" in printed.err
    schema = re.sub(r"\W+", "_", tmp_path.name).strip("_").lower()
    lines = [
        f"    {schema}.payment:",
        '      source: "payment-{at:%Y-%m-%d}.csv"',
        "      key:          # write the columns that identify a record: id, name",
    ]
    added = "".join(line + end for line in lines)
    assert file.read_bytes().decode() == text.replace(f"# Models{end}", f"{added}# Models{end}")
    assert json.loads(printed.out) == {"file": file.name, "new": False, "tables": [f"{schema}.payment"]}
    assert run(["init"]) == 0
    assert "and was not changed" in capsys.readouterr().err
    assert file.read_bytes().decode() == text.replace(f"# Models{end}", f"{added}# Models{end}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("format: histories/1", "format: histories/1\ntables:\n"),
        ("tables:\n  a.b: {source: x.csv, key: id}\nformat: histories/1\n", "{}"),
        ("format: histories/1\ntables: {}\n", None),
        ("format: histories/1\ntables: {a.b: {source: x.csv, key: id}}\n", None),
    ],
)
def test_new_entries_are_added_below_the_tables_key_or_refused(tmp_path, before, after):
    (tmp_path / "c.csv").write_text("id\n1\n")
    file = tmp_path / "histories.yaml"
    file.write_text(before)
    if after is None:
        with pytest.raises(UsageError, match="no entry can be added"):
            extend_project(file, str(tmp_path))
        assert file.read_text() == before
        return
    text, (name,) = extend_project(file, str(tmp_path))
    entry = (
        f"  {name}:\n    source: c.csv\n    key:          # write the columns that identify a record: id\n"
    )
    assert text == (before.replace("format", f"{entry}format") if after == "{}" else after + entry)


def test_a_repeated_init_recognises_database_tables_by_address(tmp_path, monkeypatch):
    monkeypatch.delenv("NAME", raising=False)
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        for name in ("a", "b", "c", "d"):
            connection.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
        connection.execute('CREATE TABLE "e&f" (id INT PRIMARY KEY)')
    address = f"duckdb://{tmp_path}/d.duckdb"
    file = tmp_path / "histories.yaml"
    file.write_text(
        f"format: histories/1\ngroups:\n  duck: {{source: '{address}?table=main.{{table}}'}}\ntables:\n"
        f"  x.other: {{source: '{address}?table=main.a', key: id}}\n  y.c*: {{group: duck, except: cc}}\n"
    )
    text, names = extend_project(file, address)
    assert names == ["main.b", "main.d", "main.e&f"]
    assert text.removeprefix(file.read_text()) == (
        "  main.b:\n    group: duck\n    key: [id]\n  main.d:\n    group: duck\n    key: [id]\n"
        '  "main.e&f":\n    group: duck\n    key: [id]\n'
    )
    assert read(tmp_path, text)["main.e&f"] == (f"{address}?table=main.e%26f", ("id",))
    (tmp_path / "other.yaml").write_text("format: histories/1\ntables:\n  p.q: {source: a.csv, key: id}\n")
    text, names = extend_project(tmp_path / "other.yaml", address)
    assert read(tmp_path, text)["main.e&f"] == (f"{address}?table=main.e%26f", ("id",))


def read(tmp_path, text):
    (tmp_path / "histories.yaml").write_text(text)
    return {
        each.name: (each.source, each.options.get("key"))
        for each in read_project(tmp_path / "histories.yaml").declarations
    }


DOTTED = 'CREATE SCHEMA "my.sch"; CREATE TABLE "my.sch"."t" (id int PRIMARY KEY); CREATE TABLE d (id int PRIMARY KEY)'


def read_all(tmp_path, address):
    """The columns of each table that `init` drafts for a database, by the table's name."""
    text, _ = draft_project(address)
    (tmp_path / "histories.yaml").write_text(text)
    copied = {}
    for each in read_project(tmp_path / "histories.yaml").declarations:
        copy = copy_out(parse_address(each.source, each.options.get("query")), {}, tmp_path)
        names = pq.read_schema(copy.path).names if copy.types is None else list(copy.types)
        copied[each.name] = names
    assert extend_project(tmp_path / "histories.yaml", address) == (text, [])
    return copied


def test_init_drafts_tables_with_dots_in_their_names(tmp_path):
    """Each entry can be run, and a repeated `init` adds nothing."""
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.executescript(
            """CREATE TABLE a (id); CREATE TABLE "we ird.tab'le" (x INTEGER PRIMARY KEY)"""
        )
    assert read_all(tmp_path, f"sqlite://{tmp_path}/d.db") == {"d.a": ["id"], "main.we ird.tab'le": ["x"]}
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute(DOTTED)
    assert read_all(tmp_path, f"duckdb://{tmp_path}/d.duckdb") == {"my_sch.t": ["id"], "main.d": ["id"]}


@pytest.mark.database
def test_init_drafts_postgresql_schemas_with_dots_in_their_names(tmp_path, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(DOTTED)
    assert read_all(tmp_path, postgres_url) == {"my_sch.t": ["id"], "public.d": ["id"]}


@pytest.mark.database
def test_init_writes_declared_postgresql_keys_but_no_password(tmp_path, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            'CREATE SCHEMA crm; CREATE TABLE crm."Order Item" (a int, b int, note text, PRIMARY KEY (b, a))'
        )
        connection.execute(
            'CREATE TABLE "Customer" (id int UNIQUE, name text); CREATE VIEW seen AS SELECT 1 AS id'
        )
    user, _, rest = postgres_url.removeprefix("postgresql://").partition("@")
    text, _ = draft_project(f"postgresql://{user}:canary@{rest}")
    assert "canary" not in text
    source = f"postgresql://{user}:${{DATABASE_PASSWORD}}@{rest}?table="
    assert read(tmp_path, text) == {
        "crm.Order Item": (f"{source}crm.Order Item", ("b", "a")),
        "public.Customer": (f"{source}public.Customer", None),
        "public.seen": (f"{source}public.seen", None),
    }


def test_init_reads_declared_keys_from_database_files(tmp_path):
    with closing(sqlite3.connect(tmp_path / "o'brien.db")) as connection:
        connection.executescript(
            "CREATE TABLE a (x, id INTEGER PRIMARY KEY AUTOINCREMENT); CREATE TABLE b (y);"
            "CREATE VIEW c AS SELECT 1; CREATE TABLE sqliteX (z)"
        )
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute("CREATE TABLE a (x INT, y INT, PRIMARY KEY (y, x)); CREATE TABLE b (z INT)")
        connection.execute("CREATE SCHEMA s; CREATE VIEW s.c AS SELECT 1 AS id")
    sqlite, duck = f"sqlite://{tmp_path}/o'brien.db", f"duckdb://{tmp_path}/d.duckdb"
    assert declared_keys(Database("sqlite", sqlite, "s")) == {"a": ("id",), "b": (), "c": (), "sqliteX": ()}
    assert declared_keys(Database("duckdb", duck, "d")) == {"main.a": ("y", "x"), "main.b": (), "s.c": ()}
    assert read(tmp_path, draft_project(sqlite)[0])["o_brien.a"] == (f"{sqlite}?table=a", ("id",))
    with pytest.raises(UsageError, match="cannot list the tables"):
        draft_project("mysql://me@host/shop")
