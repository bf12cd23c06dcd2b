"""Feeds of changes become events (V65)."""

import json
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from backstory.errors import Refused, UsageError
from backstory.formats.envelopes.change_feed import unwrap_changes

DAY = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = {
    "insert": "insert",
    "delete": "delete",
    "before": "update_preimage",
    "after": "update_postimage",
}


def feed(text):
    """`insert 1 a 7`: change, id, name, commit version. The commit's time is its version in seconds."""
    rows = [line.split() for line in text.strip().splitlines()]
    return pa.table(
        {
            "id": pa.array([int(key) for _, key, _, _ in rows], pa.int32()),
            "name": [name for _, _, name, _ in rows],
            "_change_type": [SHORT.get(change, change) for change, _, _, _ in rows],
            "_commit_version": pa.array([int(version) for _, _, _, version in rows], pa.int64()),
            "_commit_timestamp": pa.array(
                [DAY.replace(second=int(version)) for _, _, _, version in rows], pa.timestamp("ms", "UTC")
            ),
        }
    )


def events(text):
    """`upsert 1 a 7 < z`: kind, id, name, version and the former name."""
    unwrapped = unwrap_changes(feed(text), ["id"])
    before = [None] * len(unwrapped.kinds) if unwrapped.before is None else unwrapped.before.to_pylist()
    assert unwrapped.unmodified.column_names == []
    assert [each["id"] for each in before if each and each["id"]] == [
        row["id"]
        for row, has in zip(unwrapped.rows.to_pylist(), unwrapped.has_before.to_pylist(), strict=True)
        if has
    ]
    return [
        f"{kind} {row['id']} {row['name'] or '-'} {sequence['_commit_version']}"
        + (f" < {image['name']}" if image and image["name"] else "")
        for kind, row, sequence, image in zip(
            unwrapped.kinds.to_pylist(),
            unwrapped.rows.to_pylist(),
            unwrapped.sequence.to_pylist(),
            before,
            strict=True,
        )
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("insert 1 a 7", ["upsert 1 a 7"]),
        ("delete 1 a 7", ["delete 1 - 7 < a"]),
        ("before 1 a 7\nafter 1 b 7", ["upsert 1 b 7 < a"]),
        ("after 1 b 7\ninsert 2 z 7\nbefore 1 a 7", ["upsert 1 b 7 < a", "upsert 2 z 7"]),
        ("before 1 a 7\nafter 1 b 7\nbefore 1 b 8\nafter 1 c 8", ["upsert 1 b 7 < a", "upsert 1 c 8 < b"]),
        ("before 1 a 7\nafter 2 a 7", ["delete 1 - 7 < a", "upsert 2 a 7"]),
        ("delete 1 a 7\ninsert 1 b 7", ["upsert 1 b 7 < a"]),
        ("delete 1 a 7\ninsert 1 b 8", ["delete 1 - 7 < a", "upsert 1 b 8"]),
        ("after 1 b 7", ["upsert 1 b 7"]),
    ],
    ids=[
        "insert",
        "delete",
        "update",
        "in any order",
        "each commit has its own",
        "a changed key is a delete and an upsert",
        "deleted and inserted in one commit",
        "deleted and inserted in two commits",
        "an update whose before image was left out",
    ],
)
def test_changes_become_upserts_and_deletes(rows, expected):
    """Added rows are upserts. Removed rows are their before images, or deletes if no row is added."""
    assert events(rows) == expected


def test_two_before_images_of_a_key_are_ignored():
    """If a commit removes two rows of a key, neither is known to be the former one."""
    assert events("before 1 a 7\nbefore 1 b 7\nafter 1 c 7") == ["upsert 1 c 7"]


def test_the_instant_of_an_event_is_the_commit_time():
    """It is in UTC and microseconds, whatever the unit of the feed's column."""
    unwrapped = unwrap_changes(feed("insert 1 a 7"), ["id"])
    assert unwrapped.instants.type == pa.timestamp("us", "UTC")
    assert unwrapped.instants.to_pylist() == [DAY.replace(second=7)]
    assert unwrapped.unordered == ""


def test_places_are_the_row_numbers_of_the_events():
    """A before image is not an event."""
    unwrapped = unwrap_changes(feed("before 1 a 7\nafter 1 b 7\ndelete 2 c 7"), ["id"])
    assert unwrapped.places.to_pylist() == [1, 2]


def test_a_feed_with_times_and_versions_as_text_is_read():
    """Times in ISO 8601 and versions as text are read, as `changes --output json` prints them."""
    rows = feed("insert 1 a 7")
    for column, text in (("_commit_timestamp", "2026-01-01T01:00:07+01:00"), ("_commit_version", "7")):
        rows = rows.set_column(rows.column_names.index(column), column, pa.array([text]))
    unwrapped = unwrap_changes(rows, ["id"])
    assert unwrapped.instants.to_pylist() == [DAY.replace(second=7)]
    assert unwrapped.sequence.to_pylist() == [{"_commit_version": 7, "is_change": True}]


def test_keys_of_several_columns_are_compared_whole():
    """Two records are one only if all key columns are equal."""
    rows = feed("before 1 a 7\nafter 1 a 7\nbefore 2 b 7\nafter 2 c 7")
    unwrapped = unwrap_changes(rows, ["id", "name"])
    assert unwrapped.kinds.to_pylist() == ["upsert", "delete", "upsert"]


def test_an_empty_feed_has_no_events():
    """The columns are kept."""
    unwrapped = unwrap_changes(feed("insert 1 a 7").slice(0, 0), ["id"])
    assert unwrapped.rows.schema == pa.schema([("id", pa.int32()), ("name", pa.string())])
    assert len(unwrapped.kinds) == len(unwrapped.places) == 0
    assert unwrapped.before is None


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda rows: rows.drop_columns(["_commit_version"]), "missing-column", "no column _commit_version"),
        (lambda rows: rows.drop_columns(["id"]), "missing-column", "no column id"),
        (lambda rows: replaced(rows, "id", [[1], [2]]), "bad-option", "it is nested"),
        (lambda rows: replaced(rows, "_change_type", ["insert", "UPDATE_AFTER"]), "malformed-row", "row 2"),
        (lambda rows: replaced(rows, "_change_type", ["insert", None]), "malformed-row", "row 2"),
        (lambda rows: replaced(rows, "_commit_timestamp", [1, 2]), "no-instant", "BIGINT"),
        (
            lambda rows: replaced(rows, "_commit_timestamp", [DAY.replace(tzinfo=None)] * 2),
            "naive-time",
            "zone",
        ),
        (
            lambda rows: replaced(rows, "_commit_timestamp", ["2026-01-01", "now"]),
            "unreadable-value",
            "row 2",
        ),
        (lambda rows: replaced(rows, "_commit_version", ["7", "9" * 20]), "unreadable-value", "row 2"),
        (lambda rows: replaced(rows, "_commit_version", [7.0, 7.5]), "unreadable-value", "row 2"),
    ],
)
def test_an_invalid_change_feed_is_refused(change, code, words):
    """The error contains the row or the column, but never a row's value."""
    with pytest.raises((Refused, UsageError), match=re.escape(words)) as stop:
        unwrap_changes(change(feed("insert 1 secret 7\ninsert 2 secret 7")), ["id"])
    assert stop.value.code == code
    assert stop.value.remedy
    assert "secret" not in json.dumps(stop.value.to_dict())


def replaced(rows, column, values):
    return rows.set_column(rows.column_names.index(column), column, pa.array(values))
