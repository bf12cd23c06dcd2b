"""Open Data Fabric datasets for publishers: results, exit codes, helpful errors."""

import csv
import io
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
from manifesting import manifest, polling, push
from rich.console import Console
from ruamel.yaml import YAML
from web import Play, serving

from backstory import warehouse as python
from backstory.cli.app import run
from backstory.cli.output import errors
from backstory.cli.progress import ProgressLine
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.stores.table_files import local_path
from backstory.warehouse import Warehouse

FIRST, SECOND = "id,city\n1,Bern\n2,Rome\n", "id,city\n1,Oslo\n3,Graz\n"
COLUMNS = "[{name: id, type: Int32}, {name: city, type: {kind: Option, inner: String}}]"
READ = f"{{kind: csv, header: true, schema: {{fields: {COLUMNS}}}}}"
UNDECLARED = "{kind: csv, header: true}"
SNAPSHOT = "{kind: snapshot, primaryKey: [id], encoding: op}"
WATERMARKS = "2023-11-14T22:13:20Z -> 2024-03-09T16:00:00Z"
AT, LATER = "2026-01-01T00:00:00.000000Z", "2026-02-01T00:00:00.000000Z"
NAMESPACES = (f"cli_{number}" for number in itertools.count(1))


class Kept:
    """The warehouse of all tests, which no command closes."""

    def __init__(self, spark):
        self.warehouse = Warehouse(IcebergStore(spark), embedded=False)

    def __enter__(self):
        return self.warehouse

    def __exit__(self, *_):
        pass


class Shell:
    """The command line in a folder, with its own namespace."""

    def __init__(self, folder, warehouse, capsys):
        self.folder, self.warehouse, self.capsys = folder, warehouse, capsys
        self.namespace = next(NAMESPACES)

    def write(self, path, text):
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def manifest(self, name="cities", source=None, *, path=None):
        """A manifest, by default of a snapshot of `<name>.csv`."""
        source = source or polling(SNAPSHOT, fetch=f"{{kind: url, url: {name}.csv}}", read=READ)
        self.write(path or f"{name}.yaml", manifest(source).replace("name: cities", f"name: {name}"))

    def do(self, *words, code=0, namespace=True):
        """The output of a command on both streams."""
        self.capsys.readouterr()
        more = ["--namespace", self.namespace] if namespace else []
        exit_code = run([*words, *more])
        output = self.capsys.readouterr()
        assert exit_code == code, output
        return output.out, output.err

    def ask(self, *words, code=0, namespace=True):
        """The document that a command returns."""
        return json.loads(self.do(*words, "--output", "json", code=code, namespace=namespace)[0])

    def people(self, *words, code=0, namespace=True):
        """The output for people."""
        return self.do(*words, "--output", "table", code=code, namespace=namespace)


@pytest.fixture
def shell(spark, tmp_path, monkeypatch, capsys, warehouse):
    opener = Kept(spark)
    monkeypatch.setattr(python, "open", lambda *_, **__: opener)
    monkeypatch.chdir(tmp_path)
    # A missing table is reported without Spark.
    monkeypatch.setenv("BACKSTORY_WAREHOUSE", str(warehouse))
    return Shell(tmp_path, opener.warehouse, capsys)


@pytest.fixture
def bare(tmp_path, monkeypatch, capsys):
    """A command line that must not start Spark."""
    monkeypatch.setattr(python, "open", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, None, capsys)


@pytest.fixture
def cities(shell):
    """A dataset after one pull."""
    shell.manifest()
    shell.write("cities.csv", FIRST)
    os.utime("cities.csv", (1.7e9, 1.7e9))
    shell.ask("pull", "cities.yaml", "--system-time", AT)
    return shell


def counts(**named):
    names = ("appended", "retracted", "corrected", "unchanged", "conflicts", "late")
    return dict.fromkeys(names, 0) | named


def test_a_manifest_is_added_once(shell):
    """R89: `add` prints Added, then Skipped, then Updated, and as JSON a list."""
    shell.manifest()
    output, _ = shell.people("add", "cities.yaml", "--dry-run")
    added, number, change, dry = output.splitlines()
    assert [added, number, dry] == ["Added: cities", "Added 1 dataset(s)", "Dry run: nothing was written."]
    assert change.endswith(".cities: table created")
    assert shell.ask("list") == []
    output, warned = shell.people("add", "cities.yaml")
    assert output.splitlines() == ["Added: cities", "Added 1 dataset(s)"]
    assert "note L8: cities.yaml, line 8" in warned
    output, _ = shell.people("add", "cities.yaml")
    assert output.splitlines() == ["Skipped: cities: Already exists", "Added 0 dataset(s)"]
    text = Path("cities.yaml").read_text()
    shell.write("cities.yaml", text + "    - {kind: SetInfo, description: Cities}\n")
    output, _ = shell.people("add", "cities.yaml")
    assert output.splitlines() == ["Updated: cities", "Added 0 dataset(s)", "Updated 1 dataset(s)"]
    (result,) = shell.ask("add", "cities.yaml")
    assert (result["dataset"], result["file"], result["status"], result["error"]) == (
        "cities",
        "cities.yaml",
        "unchanged",
        None,
    )
    assert {"L8"} == {lint["code"] for lint in result["lints"]}


def test_a_folder_is_added_without_its_wrong_manifests(shell):
    """Manifests below a folder are added. Only a wrong one fails, with exit code 2."""
    shell.manifest("a", path="in/a.yaml")
    shell.manifest("b", path="in/deep/b.yml")
    shell.write("in/other.yaml", "kind: Deployment\n")
    shell.write("in/wrong.yaml", "kind: DatasetSnapshot\nversion: 1\ncontent: {name: c, kind: Root}\n")
    output, warned = shell.people("add", "-r", "in", code=2)
    assert output.splitlines() == ["Added: a", "Failed: in/wrong.yaml", "Added: b", "Added 2 dataset(s)"]
    assert "in/wrong.yaml: wrong-manifest: in/wrong.yaml, line 3" in warned
    results = shell.ask("add", "in", code=2)
    assert ["unchanged", "failed", "unchanged"] == [each["status"] for each in results]
    with pytest.raises(UsageError):
        shell.warehouse.add("in", namespace=shell.namespace)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["add"], "no-manifest"),
        (["add", "missing.yaml"], "no-manifest"),
        (["add", "wrong.yaml"], "wrong-manifest"),
        (["pull", "wrong.yaml"], "wrong-manifest"),
        (["pull", "missing.yaml"], "no-manifest"),
        (["pull", "cities", "--system-time", "soon"], "unreadable-time"),
        (["ingest", "cities"], "no-file"),
        (["inspect", "wrong.yaml"], "wrong-manifest"),
        (["verify"], "no-dataset"),
    ],
)
def test_wrong_usage_is_reported_without_spark(bare, words, code):
    """R92, O15: The error has exit code 2, a stable code and a remedy, without delay."""
    bare.write("wrong.yaml", manifest(polling()).replace("kind: setPollingSource", "kind: setPollingSauce"))
    error = bare.ask(*words, code=2)["error"]
    assert error["code"] == code
    assert error["remedy"]
    if code == "wrong-manifest":
        assert "wrong.yaml, line 7" in error["message"]


def test_help_names_commands_and_options(bare):
    """Each is followed by its description."""
    output, _ = bare.do("--help", namespace=False)
    assert "Open Data Fabric datasets" in output
    for command in ("add", "pull", "ingest", "list", "inspect", "tail", "verify", "log", "sql"):
        assert re.search(rf"│ {command} +[A-Z]\w+ ", output)
        more, _ = bare.do(command, "--help", namespace=False)
        assert "Common options." not in more
    output, _ = bare.do("pull", "--help", namespace=False)
    for option in (
        "--all",
        "--system-time",
        "--fetch-uncacheable",
        "--refetch",
        "--set-watermark",
        "--run-id",
    ):
        assert re.search(rf"│ {option}( STR)? +[A-Z]\w+ ", output)


def test_a_pull_prints_one_object_per_dataset(cities):
    """R90, interface 4: It contains only dataset, status, counts, offsets, watermark, system time and error."""
    cities.write("cities.csv", SECOND)
    os.utime("cities.csv", (1.71e9, 1.71e9))
    expected = {
        "dataset": "cities",
        "status": "updated",
        "counts": counts(appended=1, retracted=1, corrected=1),
        "offsets": [2, 5],
        "watermark": "2024-03-09T16:00:00.000000Z",
        "system_time": LATER,
        "error": None,
    }
    dry = ["pull", "cities", "--system-time", LATER, "--dry-run"]
    assert cities.ask(*dry) == [expected]
    output, _ = cities.people(*dry)
    line, change, *summary = output.splitlines()
    assert line == f"cities: updated  +A 1  -C/+C 1  -R 1  offsets 2 to 5  watermark {WATERMARKS}"
    assert change.endswith(".cities: 1 row appended; 1 row retracted; 1 row corrected")
    assert summary == ["1 dataset(s) updated", "Dry run: nothing was written."]
    assert cities.ask("list")[0]["records"] == 2
    assert cities.ask("pull", "CITIES", "--system-time", LATER) == [expected]
    (again,) = cities.ask("pull", "--all")
    assert (again["status"], again["counts"], again["offsets"]) == ("up-to-date", counts(), None)
    assert again["system_time"] == LATER


def test_list_tail_log_and_sql_show_a_dataset(cities):
    """R89: These commands, inspect and verify work for people and for programs."""
    (listed,) = cities.ask("list")
    assert (listed["dataset"], listed["pulled"], listed["records"]) == ("cities", AT, 2)
    assert "cities" in cities.people("list")[0]

    (newest,) = cities.ask("tail", "cities", "-n", "1")
    assert (newest["offset"], newest["op"], newest["city"]) == (1, 0, "Rome")
    header, row = cities.people("tail", "cities", "--skip", "1")[0].splitlines()
    assert header.split() == ["offset", "op", "system_time", "event_time", "id", "city"]
    assert row.split()[:2] == ["0", "+A"]

    (block,) = cities.ask("log", f"{cities.namespace}.cities", namespace=False)
    assert (block["sequence"], block["offsets"], block["system_time"]) == (0, [0, 1], AT)
    assert "0 to 1" in cities.people("log", f"{cities.namespace}.cities", namespace=False)[0]

    (inspected,) = cities.ask("inspect", "cities")
    assert inspected["head"]["records"] == 2
    assert "records: 2" in cities.people("inspect", "cities")[0]
    (verified,) = cities.ask("verify", "cities")
    assert (verified["dataset"], verified["valid"]) == ("cities", True)
    assert cities.people("verify", "cities")[0] == "1 dataset(s) are valid\n"

    query = f"select city from {cities.namespace}.cities order by id"
    assert cities.ask("sql", query, namespace=False) == [{"city": "Bern"}, {"city": "Rome"}]
    output, _ = cities.do("sql", query, "--limit", "1", "--output", "csv", namespace=False)
    assert output == "city\nBern\n"
    error = cities.ask("sql", "select nothing from", code=2, namespace=False)["error"]
    assert error["code"] == "wrong-query"


def test_inspect_shows_manifest_schema_lints_and_state(cities):
    """The output has manifest, schema, lints, head and source state. A resolved manifest can be added."""
    (document,) = cities.ask("inspect", "cities")
    assert document["table"] == f"{cities.namespace}.cities"
    assert document["manifest"]["content"]["name"] == "cities"
    assert document["head"]["records"] == 2
    assert document["head"]["source_state"]
    assert ["offset", "op", "system_time", "event_time", "id", "city"] == [
        field["name"] for field in document["schema"]["fields"]
    ]
    output, _ = cities.people("inspect", "cities")
    assert YAML(typ="safe").load(output) == document
    output, _ = cities.people("inspect", "cities", "--schema")
    assert "String, optional" in output
    (lint,) = cities.ask("inspect", "cities.yaml", "--lints")
    assert (lint["dataset"], lint["code"]) == ("cities", "L8")
    output, _ = cities.people("inspect", "cities.yaml", "--resolved")
    assert "inferSchema: false" in output
    cities.write("resolved.yaml", output)
    assert cities.ask("add", "resolved.yaml")[0]["status"] == "updated"
    assert cities.ask("inspect", "cities", "--resolved") == [YAML(typ="safe").load(output)]


def test_small_datasets_are_read_without_spark(cities, spark, monkeypatch):
    """Output and exit codes equal Spark's, for healthy, damaged and unknown datasets."""
    cities.write("spark.toml", '[spark]\n"spark.sql.catalog.backstory.known" = "to Spark alone"\n')
    cities.manifest("empty")
    cities.ask("add", "empty.yaml")
    spark.sql(f"CREATE TABLE backstory.{cities.namespace}.other (offset BIGINT) USING iceberg")
    looks = {
        ("list",): 0,
        ("tail", "cities"): 0,
        ("tail", "CITIES", "-n", "1"): 0,
        ("tail", "cities", "--skip", "1"): 0,
        ("tail", "empty"): 0,
        ("tail", "other"): 2,
        ("inspect", "cities"): 0,
        ("inspect", "cities", "--schema"): 0,
        ("inspect", "cities", "--resolved"): 0,
        ("inspect", "cities", "--lints"): 0,
        ("inspect", "empty"): 0,
        ("inspect", "nix"): 2,
        ("verify", "cities", "empty", "cities"): 0,
        ("verify", "--all"): 0,
        ("verify", "cities", "nix"): 2,
    }
    _asked_twice(cities, monkeypatch, looks)
    spark.sql(f"DELETE FROM backstory.{cities.namespace}.cities WHERE offset = 1")
    _asked_twice(cities, monkeypatch, {("verify", "--all"): 4, ("tail", "cities"): 0})


def _asked_twice(shell, monkeypatch, looks):
    """Ask Spark and the files. Values are the same in each form, so each question has one form besides JSON."""
    forms = itertools.cycle([("json", "csv"), ("json", "table")])
    questions = [(words, code, output) for words, code in looks.items() for output in next(forms)]
    for words, code, output in questions:
        answer = shell.do(*words, "--output", output, "--config", "spark.toml", code=code)
        with monkeypatch.context() as unopened:
            unopened.setattr(python, "open", lambda *_, **__: pytest.fail("Spark was started"))
            assert shell.do(*words, "--output", output, code=code) == answer


def test_a_preprocess_query_needs_no_spark_for_schema_and_manifest(shell, monkeypatch):
    """Only Spark parses the query. Columns and manifest are printed without it."""
    query = polling(
        SNAPSHOT,
        fetch="{kind: url, url: q.csv}",
        read=READ,
        preprocess="{kind: sql, engine: spark, query: SELECT * FROM input}",
    )
    shell.manifest("queried", query)
    shell.ask("add", "queried.yaml")
    assert shell.ask("inspect", "queried")[0]["lints"]
    monkeypatch.setattr(python, "open", lambda *_, **__: pytest.fail("Spark was started"))
    assert shell.ask("inspect", "queried", "--schema") == []
    assert shell.ask("inspect", "queried", "--resolved")


def test_verify_of_a_broken_dataset_exits_with_code_4(cities, spark):
    """R86: verify names the block that differs from its commit."""
    assert cities.people("verify", "cities")[0] == "1 dataset(s) are valid\n"
    (good,) = cities.ask("verify", "--all")
    assert good == {"dataset": "cities", "valid": True, "blocks": 1, "rows": 2, "problems": []}
    spark.sql(f"DELETE FROM backstory.{cities.namespace}.cities WHERE offset = 1")
    (bad,) = cities.ask("verify", "cities", code=4)
    assert not bad["valid"]
    assert {problem["sequence"] for problem in bad["problems"]} == {0}
    output, warned = cities.people("verify", "cities", code=4)
    assert "0 dataset(s) are valid" in output
    assert "cities: rows: Block 0" in warned
    assert cities.ask("verify", "nix", code=2)["error"]["code"] == "no-dataset"


def test_an_unreadable_dataset_does_not_block_other_datasets(cities):
    """`verify --all` and `pull --all` report its error in its place and fail at the end. `list` has NULLs."""
    cities.manifest("lost")
    cities.ask("add", "lost.yaml")
    table = existing(cities.warehouse.store, TableName(cities.namespace, "lost"))
    file = local_path(table.location).rename(local_path(table.location + ".away"))

    good, bad = sorted(cities.ask("verify", "--all", code=1), key=lambda each: each["dataset"])
    assert (good["dataset"], good["valid"]) == ("cities", True)
    assert (bad["dataset"], bad["valid"], bad["error"]["code"]) == ("lost", None, "file-lost")
    output, warned = cities.people("verify", "--all", code=1)
    assert "1 dataset(s) are valid\n1 dataset(s) cannot be read" in output
    assert "lost: file-lost" in warned
    assert [(each["dataset"], each["records"]) for each in cities.ask("list")] == [
        ("cities", 2),
        ("lost", None),
    ]
    pulled = {each["dataset"]: each for each in cities.ask("pull", "--all", code=1)}
    assert (pulled["cities"]["status"], pulled["lost"]["error"]["code"]) == ("up-to-date", "file-lost")
    file.rename(local_path(table.location))


def test_a_pull_of_several_datasets_continues_after_failures(cities):
    """O15, interface 4: Each error is listed with its dataset, and the most serious one sets the exit code."""
    refused = polling(SNAPSHOT, fetch="{kind: url, url: twice.csv}", read=READ)
    away = polling(SNAPSHOT, fetch="{kind: url, url: 'http://127.0.0.1:9/c.csv'}", read=READ)
    cities.write("twice.csv", "id,city\n1,Bern\n1,Rome\n")
    cities.manifest("twice", refused)
    cities.manifest("lost")
    cities.manifest("away", away)
    cities.manifest("pushed", push(read=READ))
    cities.ask("add", "twice.yaml", "lost.yaml", "away.yaml", "pushed.yaml")

    results = cities.ask("pull", "--all", code=3)
    codes = {each["dataset"]: each["error"] and each["error"]["code"] for each in results}
    assert codes == {
        "away": "unreachable",
        "cities": None,
        "lost": "not-found",
        "pushed": None,
        "twice": "conflicting-rows",
    }
    statuses = {each["dataset"]: each["status"] for each in results}
    assert (statuses["pushed"], statuses["cities"]) == ("disabled", "up-to-date")
    assert next(each for each in results if each["dataset"] == "twice")["error"]["keys"] == [{"id": 1}]

    output, warned = cities.people("pull", "lost", "away", "pushed", code=75)
    assert "pushed: disabled  (Dataset does not specify a polling source)" in output
    assert "Failed to update 2 dataset(s)" in output
    assert "lost: not-found: " in warned
    assert cities.ask("pull", "lost", code=1)[0]["error"]["remedy"]
    assert cities.ask("pull", "cities", "nix", code=2)["error"]["code"] == "no-dataset"
    rows = csv.DictReader(io.StringIO(cities.do("pull", "lost", "--output", "csv", code=1)[0]))
    assert [row["error"] for row in rows] == ["not-found"]


def test_the_watermark_only_moves_forward(cities):
    """O20: --set-watermark contacts no source, and refuses an earlier time."""
    (result,) = cities.ask("pull", "cities", "--set-watermark", "2026-01-01")
    assert (result["status"], result["watermark"]) == ("updated", AT)
    (result,) = cities.ask("pull", "cities", "--set-watermark", "2025-01-01", code=3)
    assert result["error"]["code"] == "watermark-back"


def test_an_uncacheable_source_is_fetched_only_with_the_flag(shell):
    """R74: Without the flag there is a hint."""
    with serving() as web:
        url = web.play("/c.csv", Play(FIRST.encode()))
        source = polling(SNAPSHOT, fetch=f"{{kind: url, url: '{url}'}}", read=READ)
        shell.manifest("web", source)
        assert shell.ask("pull", "web.yaml")[0]["status"] == "updated"
        output, _ = shell.people("pull", "web")
        assert "web: uncacheable  (use --fetch-uncacheable to update)" in output
        assert "1 dataset(s) uncacheable" in output
        assert shell.ask("pull", "web", "--fetch-uncacheable")[0]["status"] == "up-to-date"


@pytest.fixture
def pulled(cities, spark):
    """Datasets of every kind of source after a pull, and the web server of one of them."""
    with serving() as web:
        url = web.play("/tagged.csv", Play(FIRST.encode(), etag='"1"'))
        bare = web.play("/bare.csv", Play(FIRST.encode()))
        query = "{kind: sql, engine: spark, query: SELECT * FROM input}"
        cities.manifest("tagged", polling(SNAPSHOT, fetch=f"{{kind: url, url: '{url}'}}", read=READ))
        cities.manifest("bare", polling(SNAPSHOT, fetch=f"{{kind: url, url: '{bare}'}}", read=READ))
        cities.manifest("globbed", polling(fetch="{kind: filesGlob, path: 'in/*.csv'}", read=READ))
        cities.manifest(
            "asked", polling(SNAPSHOT, fetch="{kind: url, url: asked.csv}", read=READ, preprocess=query)
        )
        cities.manifest(
            "undeclared",
            polling(SNAPSHOT, fetch="{kind: url, url: asked.csv}", read=UNDECLARED, preprocess=query),
        )
        cities.manifest("pushed", push(read=READ))
        cities.write("asked.csv", FIRST)
        cities.write("in/a.csv", FIRST)
        cities.write("in/b.csv", SECOND)
        names = ("tagged", "bare", "globbed", "asked", "undeclared")
        cities.ask("pull", *(f"{name}.yaml" for name in names), "--system-time", AT)
        cities.ask("add", "pushed.yaml")
        cities.write("in/0.csv", FIRST)
        cities.write("spark.toml", '[spark]\n"spark.sql.catalog.backstory.known" = "to Spark alone"\n')
        yield cities, web


def test_a_pull_without_new_data_needs_no_spark(pulled, monkeypatch):
    """For any source and name, receipts, warnings, errors and exit codes are the same."""
    shell, _ = pulled
    shell.manifest("lost")
    shell.ask("add", "lost.yaml")
    looks = {
        ("pull", "cities"): 0,
        ("pull", "cities.yaml"): 0,
        ("pull", "CITIES", "cities.yaml", "--dry-run"): 0,
        ("pull", "undeclared.yaml"): 0,
        ("inspect", "undeclared"): 0,
        ("pull", "tagged", "bare", "globbed", "asked", "pushed"): 0,
        ("pull", "lost"): 1,
        ("pull", "--all"): 1,
        ("pull", "cities", "nix"): 2,
        ("pull",): 2,
    }
    _asked_twice(shell, monkeypatch, looks)


def test_a_source_with_new_data_is_requested_once(pulled):
    """Spark continues with the response that was received without it, and pulls later datasets."""
    shell, web = pulled
    web.play("/tagged.csv", Play(SECOND.encode(), etag='"2"'))
    web.seen.clear()

    results = shell.ask("pull", "cities", "tagged", "globbed")

    assert [each["status"] for each in results] == ["up-to-date", "updated", "up-to-date"]
    assert results[1]["offsets"] == [2, 5]
    assert web.statuses() == [200]
    shell.write("globbed", "a file of that name\n")
    shell.write("in/c.csv", FIRST)
    assert [each["dataset"] for each in shell.ask("pull", "--all") if each["status"] == "updated"] == [
        "globbed"
    ]


def test_a_pull_completes_the_log_and_refuses_foreign_writes(cities, spark):
    """A log without all commits is completed by Spark, and a table with foreign writes is refused."""
    log = f"backstory.{cities.namespace}.cities__log"
    spark.sql(f"DROP TABLE {log}")
    cities.ask("pull", "cities")
    assert spark.table(log).count() == 1
    spark.sql(
        f"INSERT INTO backstory.{cities.namespace}.cities SELECT * FROM backstory.{cities.namespace}.cities"
    )
    assert cities.ask("pull", "cities", code=3)[0]["error"]["code"] == "log-behind"


def test_a_changed_manifest_with_a_query_is_pulled_with_spark(shell, monkeypatch):
    query = "{kind: sql, engine: spark, query: SELECT * FROM input}"
    shell.manifest(
        "asked", polling(SNAPSHOT, fetch="{kind: url, url: asked.csv}", read=READ, preprocess=query)
    )
    shell.write("asked.csv", FIRST)
    shell.ask("pull", "asked.yaml")
    shell.write("asked.yaml", Path("asked.yaml").read_text() + "    - {kind: SetInfo, description: Asked}\n")
    shell.ask("add", "asked.yaml")
    opened = []
    open_warehouse = python.open
    monkeypatch.setattr(python, "open", lambda *_, **__: opened.append(1) or open_warehouse())

    assert shell.ask("pull", "asked")[0]["status"] == "up-to-date"

    assert opened


def test_files_are_pushed(shell, monkeypatch):
    """`ingest` commits once per file, accepts standard input and other formats, and recognises a run."""
    shell.manifest("cities", push("{kind: ledger, primaryKey: [id]}", read=READ))
    shell.ask("add", "cities.yaml")
    shell.write("a.csv", FIRST)
    shell.write("b.csv", "id,city\n2,Rome\n3,Graz\n")
    words = ["ingest", "cities", "a.csv", "b.csv", "--event-time", "2026-01-01", "--run-id", "r1"]
    (result,) = shell.ask(*words, "--system-time", AT)
    assert (result["counts"], result["offsets"]) == (counts(appended=3, unchanged=1), [0, 2])
    output, _ = shell.people(*words)
    assert output.splitlines() == ["cities: up-to-date", "1 dataset(s) up-to-date"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 4, "city": "Nice"}\n')))
    (result,) = shell.ask("ingest", "cities", "--stdin", "--input-format", "ndjson")
    assert (result["counts"]["appended"], result["offsets"]) == (1, [3, 3])
    assert shell.ask("ingest", "cities", "lost.csv", code=1)[0]["error"]["code"] == "not-found"
    assert shell.ask("ingest", "nix", "a.csv", code=2)["error"]["code"] == "no-dataset"
    error = shell.ask("ingest", "cities", "a.csv", "--source-name", "other", code=2)["error"]
    assert error["code"] == "no-source"


def test_python_calls_accept_the_same_options(cities):
    """Interface 7: Receipts have attributes, and a naive time is wrong usage."""
    house = cities.warehouse
    cities.write("cities.csv", SECOND)
    (receipt,) = house.pull("cities.yaml", system_time=LATER, namespace=cities.namespace)
    assert (receipt.status, receipt.counts["corrected"]) == ("updated", 1)
    assert house.datasets(namespace=cities.namespace)[0]["records"] == 6
    assert house.verify("cities", namespace=cities.namespace).valid
    with pytest.raises(UsageError) as wrong:
        house.pull("cities", system_time=python.datetime(2026, 1, 1), namespace=cities.namespace)
    assert wrong.value.code == "naive-time"
    with pytest.raises(UsageError):
        house.ingest("cities", namespace=cities.namespace)


def test_progress_is_drawn_only_on_a_terminal():
    """R91: A line shows the dataset, the stage and the bytes on a terminal, and nothing elsewhere."""
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=120, color_system=None)
    line = ProgressLine(terminal)
    line.begin("cities")
    line.tell("Checking for updates", 0, None)
    line.tell("Downloading data", 500_000, 2_000_000)
    line._drawn.refresh()
    line.tell("Merging data", 0, None)
    line._drawn.refresh()
    line.end()
    text = drawn.getvalue()
    assert "cities [2/7] Downloading data" in text
    assert "500.0 kB of 2.0 MB" in text
    assert "cities [6/7] Merging data" in text
    nowhere = ProgressLine(None)
    nowhere.begin("cities")
    nowhere.tell("Merging data", 0, None)
    nowhere.end()


def test_quiet_and_verbose_flags_turn_progress_off(cities, monkeypatch):
    """R91: With --quiet and with -v, there is no line."""
    monkeypatch.setattr(errors, "_force_terminal", True)
    monkeypatch.setattr(errors, "is_interactive", True)
    for flag, drawn in (([], True), (["--quiet"], False), (["-v"], False)):
        _, warned = cities.people("pull", "cities", *flag)
        assert ("[1/7] Checking for updates" in warned) is drawn
