"""Output of differences: one object per record for programs, one row per changed column for people."""

import json

import pytest

from backstory.cli.app import run
from backstory.cli.changes import show_differences
from backstory.cli.options import Options
from backstory.reading.options import Comparison

TOLD = [
    {
        "key": {"id": 1},
        "change": "changed",
        "before": {"id": 1, "name": "a", "city": None},
        "after": {"id": 1, "name": "b", "city": "Rome"},
        "changed": ["name", "city"],
    },
    {"key": {"id": 2}, "change": "added", "before": None, "after": {"id": 2}, "changed": []},
]


def test_json_shows_only_changed_columns(capsys):
    show_differences(TOLD, Options(output="json"))
    assert json.loads(capsys.readouterr().out) == [
        {"key": {"id": 1}, "change": "changed", "columns": {"name": ["a", "b"], "city": [None, "Rome"]}},
        {"key": {"id": 2}, "change": "added"},
    ]


def test_csv_has_a_row_for_each_changed_column(capsys):
    show_differences(TOLD, Options(output="csv"))
    assert capsys.readouterr().out.splitlines() == [
        "id,change,column,before,after",
        "1,changed,name,a,b",
        "1,changed,city,,Rome",
        "2,added,,,",
    ]
    show_differences([], Options(output="csv"))
    assert capsys.readouterr().out == "key,change,column,before,after\n"


def test_selected_rows_are_shown_with_their_values(capsys):
    """Removed or added values are next to the key in JSON, otherwise a row per column."""
    gone = {
        "key": {"id": 1},
        "change": "removed",
        "before": {"id": 1, "city": "Rome"},
        "after": None,
        "changed": [],
    }
    new = gone | {"change": "added", "before": None, "after": gone["before"]}
    removed, added = (Comparison(change=change, through=True) for change in ("removed", "added"))
    show_differences([gone | {"away": True}], Options(output="json"), removed)
    assert json.loads(capsys.readouterr().out) == [
        {"key": {"id": 1}, "change": "removed", "away": True, "before": {"city": "Rome"}}
    ]
    show_differences([gone | {"away": True}], Options(output="csv"), removed)
    assert capsys.readouterr().out.splitlines() == [
        "id,change,away,column,before,after",
        "1,removed,true,city,Rome,",
    ]
    show_differences([new], Options(output="json"), added)
    assert json.loads(capsys.readouterr().out) == [
        {"key": {"id": 1}, "change": "added", "after": {"city": "Rome"}}
    ]
    show_differences([new | {"away": False}], Options(output="csv"), added)
    assert capsys.readouterr().out.splitlines()[1:] == ["1,added,false,city,,Rome"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("2024-13-01", "unreadable-time"),
        ("2024-02-01 --at 2024-01-01", "bad-option"),
        ("2024-02-01 --axis recorded --known-at 2024-01-01", "bad-option"),
        ("2024-02-01 --axis sideways", "usage"),
        ("2024-02-01 --change lost", "usage"),
        ("2024-02-01 --change returned", "bad-option"),
        ("2024-02-01 --axis recorded --through", "bad-option"),
    ],
)
def test_wrong_usage_starts_nothing(arguments, error, tmp_path, capsys):
    """The error is about the option, because the table, which is missing, is not looked up."""
    words = ["diff", "a.b", "2024-01-01", *arguments.split(), "--warehouse", str(tmp_path / "none")]
    assert run([*words, "--output", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == error
    assert not (tmp_path / "none").exists()
