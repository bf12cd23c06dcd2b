"""The columns that make versions, as the table first stored them."""

import pytest

from backstory.doors.native.options import SnapshotRequest, request_of
from backstory.doors.native.settings import TableSettings, agree_settings, refuse_unknown, stored_settings
from backstory.errors import Refused, UsageError

A, B = frozenset("a"), frozenset("b")


def test_omitted_settings_keep_their_stored_values():
    stored = TableSettings(ignore=A, overwrite=B)
    assert stored_settings(stored.properties()) == stored
    assert (
        agree_settings(stored, SnapshotRequest(into="s.t"))
        == agree_settings(stored, SnapshotRequest(into="s.t", ignore="a", overwrite=["b"]))
        == stored
    )
    assert agree_settings(None, SnapshotRequest(into="s.t", track=["b", "a"])) == TableSettings(track=A | B)
    assert stored.rename_columns({"a": "c"}) == TableSettings(ignore=frozenset("c"), overwrite=B)


@pytest.mark.parametrize(
    ("stored", "options"),
    [
        (TableSettings(ignore=A), {"ignore": ["b"]}),
        (TableSettings(), {"track": ["a"]}),
        (TableSettings(track=A), {"ignore": ["a"]}),
    ],
)
def test_contradicting_settings_are_refused(stored, options):
    with pytest.raises(Refused) as refusal:
        agree_settings(stored, SnapshotRequest(into="s.t", **options))
    assert refusal.value.code == "settings-changed"


def test_settings_decide_which_columns_make_versions():
    cases = {
        TableSettings(): "abc",
        TableSettings(track=A): "a",
        TableSettings(ignore=A): "bc",
        TableSettings(overwrite=A): "bc",
        TableSettings(ignore=A, overwrite=B): "c",
    }
    for settings, tracked in cases.items():
        assert "".join(name for name in "abc" if settings.tracks(name)) == tracked


@pytest.mark.parametrize("wrong", [TableSettings(track=A), TableSettings(ignore=frozenset("k"))])
def test_settings_must_name_existing_non_key_columns(wrong):
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
        {"keys": ["a"]},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(UsageError) as error:
        request_of(SnapshotRequest, into="s.t", **options)
    assert error.value.code == "bad-option"
