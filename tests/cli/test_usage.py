"""Wrong usage is reported before Spark starts, never as a bug."""

import json
import os
import re
import sys

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from backstory.cli.app import app, run
from backstory.cli.logs import fivetran_line
from backstory.errors import UsageError

WRONG = {
    "current a.b --limit -1": "--limit",
    "log a.b --limit -1": "--limit",
    "sql VALUES(1) --limit -1": "--limit",
    "tail cities -n -1": "Must be >= 0",
    "tail cities --skip -1": "Must be >= 0",
    "as-of a.b 9999-12-31T23:59:59-01:00": "unreadable-time",
    "as-of a.b tomorrow": "unreadable-time",
    "tables --warehouse a?b": "question mark",
    "current a.b --warehouse NONE": "There is no table a.b",
    "as-of a.b 2026-01-01 --warehouse NONE": "There is no table a.b",
    "timeline a.b 1 --warehouse NONE": "There is no table a.b",
    "log a.b --warehouse NONE": "There is no table a.b",
    "log a --warehouse NONE": "does not name a table",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_reported_and_starts_nothing(words, capsys, tmp_path):
    arguments = words.replace("NONE", str(tmp_path / "none")).split()
    assert run([*arguments, "--output", "table"]) == 2
    output = capsys.readouterr()
    assert WRONG[words] in output.err
    assert not output.out
    assert not (tmp_path / "none").exists()


def test_tables_of_a_missing_warehouse_are_an_empty_list(capsys, tmp_path):
    """An empty result names the searched place, but not for programs or with --quiet."""
    none = ["tables", "--warehouse", str(tmp_path / "none"), "--output", "json"]
    assert run(none) == 0
    output = capsys.readouterr()
    assert output.out == "[]\n"
    searched = (
        f"There are no tables in the warehouse {tmp_path}/none (from `--warehouse`): it does not exist."
    )
    assert " ".join(output.err.split()) == searched
    assert run([*none, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["current", "log", "maintain"])
@pytest.mark.parametrize("origin", ["flag", "variable", "default"])
def test_a_missing_table_error_names_the_searched_warehouse(command, origin, capsys, tmp_path, monkeypatch):
    """The error contains the warehouse, and whether an option, a variable or the default named it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKSTORY_WAREHOUSE", raising=False)
    words, other = [command, "crm.t"], "name another with `--warehouse` or BACKSTORY_WAREHOUSE"
    place = f"{tmp_path}/warehouse (the default; {other})"
    if origin == "flag":
        words, place = [*words, "--warehouse", "here"], f"{tmp_path}/here (from `--warehouse`)"
    elif origin == "variable":
        monkeypatch.setenv("BACKSTORY_WAREHOUSE", "here")
        place = f"{tmp_path}/here (from BACKSTORY_WAREHOUSE)"

    assert run([*words, "--output", "json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    message = f"There is no table crm.t in the warehouse {place}."
    assert (error["code"], error["message"]) == ("no-table", message)


def test_a_missing_table_error_names_the_configuration_file(capsys, tmp_path, monkeypatch):
    """The section [catalog] contains logins, which are not shown."""
    monkeypatch.chdir(tmp_path)
    place = f"{tmp_path}/catalog.db"
    SqlCatalog("backstory", uri=f"sqlite:///{place}", warehouse="w").close()
    settings = f'[catalog]\ntype = "jdbc"\nuri = "jdbc:sqlite:{place}"\nwarehouse = "w"\n'
    settings += '"jdbc.user" = "login-7c2e"\n"jdbc.password" = "login-7c2e"\n'
    (tmp_path / "backstory.toml").write_text(settings)

    assert run(["log", "crm.t", "--output", "json"]) == 2
    printed = capsys.readouterr()
    assert "login-7c2e" not in printed.out + printed.err
    message = json.loads(printed.out)["error"]["message"]
    assert f"no table crm.t in the catalog backstory (from [catalog] in {tmp_path}/backstory.toml)" in message


def test_wrong_usage_with_json_is_a_document_and_names_the_help(capsys):
    """The option `--output` requests JSON. A word that contains its name does not."""
    assert run(["curent", "a.b", "--output", "json"]) == 2
    output = capsys.readouterr()
    assert '"code": "usage"' in output.out
    assert 'Did you mean \\"current\\"' in output.out
    assert run(["current", "a.b --output json", "--known", "1"]) == 2
    second_output = capsys.readouterr()
    assert "See `backstory current --help`" in second_output.err
    assert not second_output.out


def test_a_closed_output_pipe_is_no_failure(capsys, monkeypatch, tmp_path):
    """This is the case in `backstory tables | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run(["tables", "--quiet", "--warehouse", str(tmp_path), "--output", "json"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("command", [each for each in app if not each.startswith("-")])
def test_help_names_arguments_and_describes_every_option(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run([command, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "ARGS" not in help_text.splitlines()[0]
    assert "default: False" not in help_text
    options = re.findall(r"^│[ *]+(--.*)│$", help_text, re.MULTILINE)
    assert options
    assert all(re.search(r" [a-z]| [A-Z][a-z]", option) for option in options), options


PATHS = {
    "init . --file none/deep/h.yaml": (1, "file-failed"),
    f"init . --file {'x' * 300}": (1, "file-failed"),
    f"init {'x' * 300} --file h.yaml": (1, "file-failed"),
    f"add {'x' * 300}": (1, "file-failed"),
    "add a\0.yaml": (2, "no-manifest"),
    "fresh nul.yaml": (2, "no-model"),
    "current a\0b.c": (2, "no-table"),
    "runs --config latin.toml": (2, "broken-configuration"),
    f"explore --host {'x' * 300} --token 0123456789abcdef": (1, "port-in-use"),
}


@pytest.mark.parametrize("words", PATHS)
def test_impossible_names_and_paths_are_no_bugs(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "latin.toml").write_bytes(b'warehouse = "\xe9"')
    (tmp_path / "nul.yaml").write_text('format: histories/1\nmodels: ["m\\0.yaml"]\n')
    code = run([*words.split(), "--output", "json"])
    assert (code, json.loads(capsys.readouterr().out)["error"]["code"]) == PATHS[words]


def test_long_input_is_shortened_in_errors_and_logs():
    """A long name does not make a long error or log line."""
    name = "x" * 10_000_000
    error = UsageError("no-table", f"There is no table {name}.", f"Make {name}.", [name])
    line = fivetran_line(None, "warning", {"event": f"no {name}", "table": name, "error": str(error)})
    assert max(map(len, (error.message, error.remedy, error.keys[0], line))) < 5_000
    assert "characters" in error.message
