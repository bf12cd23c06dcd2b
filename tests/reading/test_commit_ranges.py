"""The commits of a range, and cursors: the position of a consumer, its retention, and its loss."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from committing import commit
from feeding import EXPIRE, Fed, line

from backstory.errors import BackstoryError, Refused, TryAgain
from backstory.model.change import CURSOR_MARK, CURSOR_TAG, Change
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.model.versions_layout import CURSOR_MAX_AGE, RECORDED
from backstory.reading import commit_ranges
from backstory.reading.commit_ranges import Lineage, lineage_of, range_of
from backstory.stores.metadata.table_metadata import CommitMetadata

# Version 3 was rolled back. There is a commit each minute after 2026-01-01T00:00:00Z.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
COMMITS = [
    CommitMetadata(10**15 + v, BEGINNING + timedelta(minutes=v), "append", {}, v, v - 1) for v in (1, 2, 4, 5)
]
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
    commit_range = range_of(WHOLE, since, until)
    assert [commit.version for commit in commit_range.commits] == versions
    if versions:
        assert commit_range.until == versions[-1]
    assert (commit_range.before is None) == (commit_range.since == 0)


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
def test_invalid_ranges_have_specific_error_codes(commits, since, until, code):
    with pytest.raises(BackstoryError) as wrong:
        range_of(commits, since, until)
    assert wrong.value.code == code


def test_a_range_after_the_expired_commits_is_returned():
    assert [commit.version for commit in range_of(EXPIRED, 4, None).commits] == [5]


def test_v111_a_time_means_the_recorded_time_if_commits_contain_it():
    """Data recorded at or before `since` is not included, even if it was committed later."""
    times = {1: "2026-01-01T00:00:10.000001Z", 2: "2026-01-01T00:00:20.000000Z"}
    native = Lineage(
        WHOLE.table,
        [replace(each, properties={RECORDED: times[each.version]}) for each in COMMITS[:2]],
        whole=True,
    )
    for since, versions in (("10.000001", [2]), ("10", [1, 2]), ("19.999999", [2]), ("20", [])):
        commit_range = range_of(native, f"2026-01-01T00:00:{since}Z", None)
        assert [commit.version for commit in commit_range.commits] == versions


def test_a_table_without_commits_has_no_changes():
    commit_range = range_of(EMPTY, None, None)
    assert (commit_range.since, commit_range.until, commit_range.before, list(commit_range.commits)) == (
        0,
        0,
        None,
        [],
    )


DAY = 24 * 60 * 60 * 1000


@pytest.fixture
def fed(store):
    """A table of two commits."""
    made = Fed(store, "read", {"id": "LONG", "v": "STRING"}, ("id",), Layout.FIVETRAN_LIVE)
    made.change([{"id": 1, "v": "a"}])
    made.change([{"id": 2, "v": "b"}])
    return made


def code(act):
    with pytest.raises(BackstoryError) as wrong:
        act()
    return wrong.value.code


def age(fed, cursor):
    return int(fed.now.iceberg.refs()[CURSOR_TAG + cursor].maxRefAgeMs())


def test_a_cursor_moves_only_if_the_block_ends_without_an_error(fed):
    """V108, V109: A new cursor starts before the first commit. Its tag keeps the snapshot for 30 days."""
    with pytest.raises(ZeroDivisionError), fed.table.changes(cursor="crm") as feed:
        raise ZeroDivisionError
    assert (feed.since, feed.until, fed.now.tags) == (0, 2, {})
    assert fed.lines(cursor="crm") == ["1 insert 1 a", "2 insert 2 b"]
    newest = lineage_of(fed.now).commits[-1]
    assert fed.now.tags == {f"{CURSOR_TAG}crm": newest.id}
    assert age(fed, "crm") == 30 * DAY
    fed.change([{"id": 3, "v": "c"}])
    assert fed.lines(cursor="crm") == ["3 insert 3 c"]
    before = fed.now.location
    assert fed.lines(cursor="crm") == []
    assert fed.now.location == before  # without news there is no commit
    assert [each.version for each in lineage_of(fed.now).commits] == [
        1,
        2,
        3,
    ]  # a cursor is not a commit either


def test_a_consumer_of_an_already_moved_cursor_gets_a_conflict(fed):
    """V109: The tag moves by compare-and-swap, with exit code 75 on conflict. Another writer's commit does
    not matter."""

    def consume():
        with fed.table.changes(cursor="crm"):
            fed.change([{"id": 3, "v": "c"}])
            fed.table.changes(cursor="crm", advance=1)

    with pytest.raises(TryAgain) as moved:
        consume()
    assert (moved.value.code, moved.value.exit_code) == ("cursor-moved", 75)
    assert fed.lines(cursor="crm") == ["2 insert 2 b", "3 insert 3 c"]


def test_a_cursor_is_moved_and_dropped_by_hand(fed):
    """A cursor moves in both directions. The table sets its age, and unknown commits or cursors are wrong
    usage."""
    commit(fed.store, fed.now, Change(properties={CURSOR_MAX_AGE: "2 days"}))
    position = fed.table.changes(cursor="crm", advance=2).to_dict()
    assert position == {"table": "feeds.read", "cursor": "crm", "version": 2}
    assert age(fed, "crm") == 2 * DAY
    fed.table.changes(cursor="crm", advance=1)
    with fed.table.changes(cursor="crm") as feed:
        assert (feed.since, feed.until) == (1, 2)
    assert fed.table.changes(cursor="crm", drop=True).version is None
    assert (fed.now.tags, CURSOR_MARK + "crm" in fed.now.properties) == ({}, False)
    wrong = {
        "unknown-cursor": {"cursor": "crm", "drop": True},
        "bad-option": {"cursor": "crm", "advance": 7},
    }
    for expected, options in wrong.items():
        assert code(lambda: fed.table.changes(**options)) == expected
    for options in (
        {"cursor": "crm", "advance": 0},
        {"cursor": "crm", "since": 1},
        {"cursor": "a/b"},
        {"start": "now"},
        {"advance": 1},
        {"cursor": "crm", "advance": 1, "net": True},
    ):
        assert code(lambda: fed.table.changes(**options)) == "bad-option"


def test_a_new_cursor_may_start_at_the_newest_commit(fed):
    with fed.table.changes(cursor="late", start="now") as feed:
        assert (feed.since, feed.until) == (2, 2)
    fed.change([{"id": 3, "v": "c"}])
    assert fed.lines(cursor="late", start="now") == ["3 insert 3 c"]  # `start` applies only to a new cursor


def test_a_cursor_whose_tag_expired_is_refused(fed):
    """V110: It is not treated as new. `--start` begins again."""
    fed.table.changes(cursor="crm", advance=1)
    commit(fed.store, fed.now, Change(tags={f"{CURSOR_TAG}crm": None}))
    with pytest.raises(Refused, match="Begin again with `start='now'` or `start='first'`") as refused:
        fed.table.changes(cursor="crm")
    assert refused.value.code == "cursor-expired"
    assert fed.lines(cursor="crm", start="first") == ["1 insert 1 a", "2 insert 2 b"]


def test_a_cursor_of_another_lineage_is_lost(fed):
    """V113: A table that was rolled back past the cursor, or recreated, is refused."""
    first = lineage_of(fed.now).commits[0]
    with pytest.raises(Refused) as lost, fed.table.changes(cursor="crm"):
        commit(fed.store, fed.now, Change(back_to=first.id))
    assert lost.value.code == "cursor-lost"
    fed.change([{"id": 3, "v": "c"}])
    fed.table.changes(cursor="crm", advance=3)
    commit(fed.store, fed.now, Change(back_to=first.id))
    assert code(lambda: fed.table.changes(cursor="crm")) == "cursor-lost"
    assert fed.lines(cursor="crm", start="first") == ["1 insert 1 a"]
    rows = pa.table({"id": pa.array([1]), "v": ["a"]})
    commit(fed.store, None, Change(into=fed.now.shape, added=rows, recreate=True))
    assert code(lambda: fed.table.changes(cursor="crm")) == "cursor-lost"


def test_a_table_without_commits_moves_no_cursor(store):
    empty = Fed(store, "empty", {"id": "LONG"}, ("id",), Layout.FIVETRAN_LIVE)
    assert empty.lines(cursor="crm") == []
    assert empty.now.tags == {}
    assert commit_ranges.cursor_version(empty.now, lineage_of(empty.now), "crm", None) == 0


def test_a_cursor_keeps_its_snapshot_from_expiring(fed):
    """V108, V110: A range of expired snapshots is refused by name. The net result starts at the cursor's
    commit."""
    fed.table.changes(cursor="crm", advance=2)
    fed.change([{"id": 3, "v": "c"}], gone="id = 1")
    fed.do("DELETE FROM {t} WHERE id = 3")
    fed.change([{"id": 4, "v": "d"}, {"id": 2, "v": "e"}], gone="id = 2")
    fed.do(EXPIRE)
    with pytest.raises(Refused, match="`net=True` shows the net change") as refused:
        fed.lines(cursor="crm")
    assert refused.value.code == "snapshots-expired"
    with fed.table.changes(cursor="crm", net=True) as feed:
        assert (feed.since, feed.until) == (2, 5)
        rows = feed.frame.toArrow().to_pylist()
    assert [line(row) for row in rows] == [
        "None delete 1 a",
        "None update_preimage 2 b",
        "None update_postimage 2 e",
        "None insert 4 d",
    ]
    assert fed.lines(cursor="crm") == []
