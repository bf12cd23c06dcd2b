"""What a command answers with: JSON that every reader knows, cells that tell what is in them."""

import json
from datetime import UTC, date, datetime

import pytest

from backstory.cli.output import as_json, show

NAN, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"f": NAN, "deep": [{"x": -ENDLESS}, 1.5]}, {"f": "NaN", "deep": [{"x": "-Infinity"}, 1.5]}),
        ({"m": {1: "a", date(1492, 10, 12): ENDLESS}}, {"m": {"1": "a", "1492-10-12": "Infinity"}}),
        ({"f": NAN, "t": datetime(1, 1, 1, tzinfo=UTC)}, {"f": "NaN", "t": "0001-01-01T00:00:00Z"}),
        ([None, "é", b"\x00"], [None, "é", "00"]),
    ],
)
def test_json_has_no_words_that_json_has_not(value, told):
    assert json.loads(as_json(value), parse_constant=pytest.fail) == told


def test_a_cell_has_all_of_a_nested_value(capsys):
    """Nothing of a record is left out, and truth is written as other programs write it."""
    row = {"s": {"x": 0, "y": None}, "l": ["a", datetime(2026, 1, 1, tzinfo=UTC)], "b": True, "e": None}
    show([row], "csv")
    assert capsys.readouterr().out.splitlines() == [
        "s,l,b,e",
        '"{""x"": 0, ""y"": null}","[""a"", ""2026-01-01T00:00:00Z""]",true,',
    ]


def test_an_empty_text_is_no_null(capsys):
    """A table of one column has no empty lines."""
    show([{"a": "", "b": None}, {"a": "x,\ny", "b": 'q"'}], "csv")
    assert capsys.readouterr().out == 'a,b\n"",\n"x,\ny","q"""\n'
    show([{"a": None}], "csv")
    assert capsys.readouterr().out == 'a\n""\n'


def test_people_see_counts_that_are_not_nothing(capsys):
    show([{"counts": {"new": 2, "closed": 0}, "s": {"x": 0}}], "table")
    assert capsys.readouterr().out.split("\n")[1].split() == ["new", "2", '{"x":', "0}"]
