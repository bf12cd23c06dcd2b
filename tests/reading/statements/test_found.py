"""Histories in a database are read by their address alone, in the words of every other table."""

import json

import pytest
from historizing import Place

from backstory.cli.app import run


@pytest.fixture
def url(tmp_path):
    """A file of DuckDB with the history of two copies."""
    address = f"duckdb:///{tmp_path}/histories.duckdb"
    place = Place("duckdb", address, tmp_path)
    for number, text in enumerate(("x:p y:p", "x:q"), 1):
        assert place.base(text).load(f"r{number}", number).error is None
    place.close()
    return address


def asked(capsys, *words):
    code = run([*words, "--output", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_rows_are_those_of_a_warehouse(url, capsys):
    first, second = "2025-01-02T00:00:01Z", "2025-01-02T00:00:02Z"
    assert asked(capsys, "current", "rawcore.rc_c_hist", "--url", url) == (
        0,
        [{"k": "x", "a": "q", "valid_from": second, "valid_to": None}],
    )
    code, rows = asked(capsys, "as-of", "rawcore.rc_c_hist", first, "--url", url)
    assert code == 0
    assert sorted(rows, key=lambda row: row["k"]) == [
        {"k": key, "a": "p", "valid_from": first, "valid_to": second} for key in "xy"
    ]


def test_what_cannot_be_read_is_wrong_usage(url, capsys):
    for words, code in (
        (["rawcore.none_hist", "--url", url], "no-table"),
        (["rawcore.rc_c", "--url", url], "no-history"),
        (["rawcore.rc_c_hist", "--url", f"{url}.missing"], "wrong-url"),
        (["rawcore.rc_c_hist", "--url", "mysql://x"], "wrong-url"),
        (["rawcore.rc_c_hist", "--url", url, "--known-at", "2025-01-01"], "bad-option"),
    ):
        exit_code, told = asked(capsys, "current", *words)
        assert (exit_code, told["error"]["code"]) == (2, code)
