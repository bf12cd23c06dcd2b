"""The commits of a range: by version, snapshot id or time, including expired and unknown ones."""

from dataclasses import replace

import pytest

from backstory.errors import BackstoryError
from backstory.model.table import TableName
from backstory.reading.commit_ranges import Lineage, range_of
from backstory.stores.iceberg.moved_rows import SnapshotLine

# Version 3 was rolled back; a commit each minute after 2026-01-01T00:00:00Z.
COMMITS = [SnapshotLine(10**15 + v, v, 1_767_225_600_000 + v * 60_000, "append", v - 1) for v in (1, 2, 4, 5)]
WHOLE = Lineage(TableName("a", "t"), COMMITS, whole=True)
EXPIRED = Lineage(TableName("a", "t"), COMMITS[2:], whole=False)
EMPTY = Lineage(TableName("a", "t"), [], whole=True)


@pytest.mark.parametrize(
    ("since", "until", "versions"),
    [
        (None, None, [1, 2, 4, 5]),
        (0, None, [1, 2, 4, 5]),
        (2, None, [4, 5]),
        ("2", "4", [4]),
        (10**15 + 2, str(10**15 + 4), [4]),
        ("2026-01-01T00:02:30Z", None, [4, 5]),
        ("2026-01-01T00:02:00Z", "2026-01-01T00:04:59Z", [4]),
        ("2025-01-01", None, [1, 2, 4, 5]),
        (5, None, []),
        (None, "2025-01-01", []),
    ],
)
def test_a_range_is_named_by_version_id_or_time(since, until, versions):
    """`since` is exclusive, `until` inclusive. A time means the newest commit not after it."""
    found = range_of(WHOLE, since, until)
    assert [commit.version for commit in found.commits] == versions
    if versions:
        assert found.until == versions[-1]
    assert (found.before is None) == (found.since == 0)


@pytest.mark.parametrize(
    ("commits", "since", "until", "code"),
    [
        (EXPIRED, None, None, "snapshots-expired"),
        (EXPIRED, 0, None, "snapshots-expired"),
        (EXPIRED, 2, None, "snapshots-expired"),
        (EXPIRED, "2026-01-01T00:02:30Z", None, "snapshots-expired"),
        (WHOLE, 3, None, "bad-option"),
        (WHOLE, 77, None, "bad-option"),
        (WHOLE, 4, 2, "bad-option"),
        (WHOLE, "soon", None, "unreadable-time"),
    ],
)
def test_what_is_no_range_is_told_by_name(commits, since, until, code):
    with pytest.raises(BackstoryError) as wrong:
        range_of(commits, since, until)
    assert wrong.value.code == code


def test_a_range_after_what_has_expired_is_told():
    assert [commit.version for commit in range_of(EXPIRED, 4, None).commits] == [5]


def test_v111_a_time_is_a_recorded_one_where_commits_tell_it():
    """Data recorded at or before `since` is not included, even if it was committed later."""
    times = {1: "2026-01-01T00:00:10.000001Z", 2: "2026-01-01T00:00:20.000000Z"}
    native = Lineage(
        WHOLE.table, [replace(each, recorded=times[each.version]) for each in COMMITS[:2]], whole=True
    )
    for since, versions in (("10.000001", [2]), ("10", [1, 2]), ("19.999999", [2]), ("20", [])):
        found = range_of(native, f"2026-01-01T00:00:{since}Z", None)
        assert [commit.version for commit in found.commits] == versions


def test_a_table_without_commits_has_no_changes():
    found = range_of(EMPTY, None, None)
    assert (found.since, found.until, found.before, list(found.commits)) == (0, 0, None, [])
