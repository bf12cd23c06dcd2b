"""Output of commands: JSON for every reader, and unambiguous cells."""

import json
from datetime import UTC, date, datetime
from io import StringIO

import pytest
from rich.console import Console

from backstory.cli import output
from backstory.cli.output import print_error, show, show_one
from backstory.model.values import as_json

NAN, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"f": NAN, "deep": [{"x": -ENDLESS}, 1.5]}, {"f": "NaN", "deep": [{"x": "-Infinity"}, 1.5]}),
        ({"m": {1: "a", date(1492, 10, 12): ENDLESS}}, {"m": {"1": "a", "1492-10-12": "Infinity"}}),
        ({"f": NAN, "t": datetime(1, 1, 1, tzinfo=UTC)}, {"f": "NaN", "t": "0001-01-01T00:00:00Z"}),
        ([None, "é", b"\x00"], [None, "é", "00"]),
    ],
)
def test_json_output_contains_no_invalid_constants(value, expected):
    assert json.loads(as_json(value), parse_constant=pytest.fail) == expected


def test_a_cell_contains_a_whole_nested_value(capsys):
    """No part of a record is missing, and booleans are written as in other programs."""
    row = {"s": {"x": 0, "y": None}, "l": ["a", datetime(2026, 1, 1, tzinfo=UTC)], "b": True, "e": None}
    show([row], "csv")
    assert capsys.readouterr().out.splitlines() == [
        "s,l,b,e",
        '"{""x"": 0, ""y"": null}","[""a"", ""2026-01-01T00:00:00Z""]",true,',
    ]


def test_an_empty_text_differs_from_null(capsys):
    """A table of one column has no empty lines."""
    show([{"a": "", "b": None}, {"a": "x,\ny", "b": 'q"'}], "csv")
    assert capsys.readouterr().out == 'a,b\n"",\n"x,\ny","q"""\n'
    show([{"a": None}], "csv")
    assert capsys.readouterr().out == 'a\n""\n'


def test_tables_show_only_nonzero_counts(capsys):
    show([{"counts": {"new": 2, "closed": 0}, "s": {"x": 0}}], "table")
    assert capsys.readouterr().out.split("\n")[1].split() == ["new", "2", '{"x":', "0}"]


LONG = {
    "code": "mass-delete",
    "message": "30 of 39 records would be closed, more than the allowed share of 0.5 of the table's records.",
    "keys": [f"customer-{number}" for number in range(10)],
    "remedy": "Nothing was written; use `max_delete_ratio=0.77` to allow it, or `deletes='ignore'` to close none.",
}


def test_errors_on_a_terminal_are_folded_at_words(monkeypatch):
    """No line is wider than the terminal, no word is broken, and continuation lines are indented."""
    stream = StringIO()
    monkeypatch.setattr(
        output,
        "errors",
        Console(
            file=stream, width=60, force_terminal=True, soft_wrap=True, highlight=False, color_system=None
        ),
    )
    print_error(LONG)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.startswith(("mass-delete", "  ")) for line in lines] == [True] * len(lines)
    assert lines[1].startswith("  ")
    assert (
        stream.getvalue().split()
        == " ".join(
            [
                f"mass-delete: {LONG['message']}",
                f"keys: {', '.join(LONG['keys'])}",
                "Nothing was written; use `--max-delete-ratio 0.77` to allow it, or `--deletes ignore` to close none.",
            ]
        ).split()
    )


def test_errors_outside_a_terminal_have_one_line_per_sentence(capsys):
    print_error(LONG)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_list_in_a_single_record_has_a_line_per_text(capsys):
    show_one({"table": "a.b", "schema_changes": ["new column c (BIGINT)", "column d dropped"]}, "table")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["table", "a.b"],
        ["schema_changes", "new", "column", "c", "(BIGINT)"],
        ["column", "d", "dropped"],
    ]


def test_a_single_record_is_folded_unless_wide(monkeypatch):
    """On a terminal of 40 columns, a long value is folded, except with `wide`."""
    stream = StringIO()
    terminal = Console(
        file=stream, width=40, force_terminal=True, soft_wrap=True, highlight=False, color_system=None
    )
    monkeypatch.setattr(output, "console", terminal)
    show_one({"table": "x" * 100}, "table")
    assert len(stream.getvalue().splitlines()) == 4
    stream.truncate(stream.seek(0))
    show_one({"table": "x" * 100}, "table", wide=True)
    assert len(stream.getvalue().splitlines()) == 1
