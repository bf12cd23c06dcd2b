"""The columns that make versions, as a table was told them first."""

import pytest

from backstory.doors.native.asked import Asked, asked
from backstory.doors.native.settings import Settings, agreed, refuse_unknown, settings_of
from backstory.errors import Refused, UsageError

A, B = frozenset("a"), frozenset("b")


def test_what_is_not_said_is_as_it_was():
    stored = Settings(ignore=A, overwrite=B)
    assert settings_of(stored.properties()) == stored
    assert agreed(stored, Asked()) == agreed(stored, asked(ignore="a", overwrite=["b"])) == stored
    assert agreed(None, asked(track=["b", "a"])) == Settings(track=A | B)
    assert stored.renamed({"a": "c"}) == Settings(ignore=frozenset("c"), overwrite=B)


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (Settings(ignore=A), {"ignore": ["b"]}),
        (Settings(), {"track": ["a"]}),
        (Settings(track=A), {"ignore": ["a"]}),
    ],
)
def test_what_was_said_is_not_contradicted(stored, given):
    with pytest.raises(Refused) as told:
        agreed(stored, asked(**given))
    assert told.value.code == "settings-changed"


def test_which_columns_make_versions():
    told = {
        Settings(): "abc",
        Settings(track=A): "a",
        Settings(ignore=A): "bc",
        Settings(overwrite=A): "bc",
        Settings(ignore=A, overwrite=B): "c",
    }
    for settings, tracked in told.items():
        assert "".join(name for name in "abc" if settings.tracks(name)) == tracked


@pytest.mark.parametrize("wrong", [Settings(track=A), Settings(ignore=frozenset("k"))])
def test_settings_name_columns_beside_the_key(wrong):
    with pytest.raises(UsageError):
        refuse_unknown(wrong, ["k", "b"], ["k"])


@pytest.mark.parametrize(
    "options",
    [
        {"deletes": "maybe"},
        {"max_delete_ratio": 1.5},
        {"track": ["a"], "ignore": ["b"]},
        {"ignore": ["a"], "overwrite": ["a"]},
        {"key": []},
        {"key": ["a", "a"]},
        {"format": "xml"},
        {"except_column_list": ["a"]},
        {"scope": {"a": 1}},
    ],
)
def test_options_that_nothing_can_be_done_with(options):
    with pytest.raises(UsageError) as told:
        asked(**options)
    assert told.value.code == "bad-option"
