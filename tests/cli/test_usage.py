"""Wrong usage is told as such before Spark starts, never as a bug."""

import os
import re
import sys

import pytest

from backstory.cli.app import app, run

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
def test_wrong_usage_is_told_and_starts_nothing(words, capsys, tmp_path):
    given = words.replace("NONE", str(tmp_path / "none")).split()
    assert run([*given, "--output", "table"]) == 2
    said = capsys.readouterr()
    assert WRONG[words] in said.err
    assert not said.out
    assert not (tmp_path / "none").exists()


def test_tables_of_no_warehouse_are_none(capsys, tmp_path):
    assert run(["tables", "--warehouse", str(tmp_path / "none"), "--output", "json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_wrong_usage_with_json_is_a_document_and_names_the_help(capsys):
    assert run(["curent", "a.b", "--output", "json"]) == 2
    said = capsys.readouterr()
    assert '"code": "usage"' in said.out
    assert 'Did you mean \\"current\\"' in said.out
    assert run(["current", "a.b", "--known", "1"]) == 2
    told = capsys.readouterr()
    assert "See `backstory current --help`" in told.err
    assert not told.out


def test_a_reader_that_has_enough_is_no_failure(capsys, monkeypatch, tmp_path):
    """As in `backstory tables | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run(["tables", "--warehouse", str(tmp_path), "--output", "json"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("command", [each for each in app if not each.startswith("-")])
def test_help_names_every_word_and_describes_every_option(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert "ARGS" not in told.splitlines()[0]
    assert "default: False" not in told
    options = re.findall(r"^│[ *]+(--.*)│$", told, re.MULTILINE)
    assert options
    assert all(re.search(r" [a-z]| [A-Z][a-z]", option) for option in options), options
