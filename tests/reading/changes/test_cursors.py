"""Cursors: the position of a consumer, its retention, and its loss."""

import pyarrow as pa
import pytest
from committing import commit
from feeding import EXPIRE, Fed, line

from backstory.errors import BackstoryError, Refused, TryAgain
from backstory.model.change import Change
from backstory.model.change_feed import CURSOR_MARK, CURSOR_TAG
from backstory.model.layout import Layout
from backstory.model.versions_layout import CURSOR_MAX_AGE
from backstory.reading import commit_ranges
from backstory.reading.commit_ranges import lineage_of
from backstory.stores.metadata.catalogs import metadata_of

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


def test_a_cursor_moves_when_the_block_ends_well_and_not_otherwise(fed):
    """V108, V109: A new cursor starts before the first commit. Its tag keeps the snapshot for 30 days."""
    with pytest.raises(ZeroDivisionError), fed.table.changes(cursor="crm") as feed:
        raise ZeroDivisionError
    assert (feed.since, feed.until, fed.now.tags) == (0, 2, {})
    assert fed.told(cursor="crm") == ["1 insert 1 a", "2 insert 2 b"]
    newest = lineage_of(metadata_of(fed.store, fed.now)).commits[-1]
    assert fed.now.tags == {f"{CURSOR_TAG}crm": newest.id}
    assert age(fed, "crm") == 30 * DAY
    fed.change([{"id": 3, "v": "c"}])
    assert fed.told(cursor="crm") == ["3 insert 3 c"]
    before = fed.now.metadata
    assert fed.told(cursor="crm") == []
    assert fed.now.metadata == before  # nothing new is no commit
    assert [each.version for each in lineage_of(metadata_of(fed.store, fed.now)).commits] == [
        1,
        2,
        3,
    ]  # nor is a cursor


def test_of_two_consumers_with_one_cursor_the_second_is_told(fed):
    """V109: The tag moves by compare-and-swap, with exit code 75 on conflict. Another writer's commit does
    not matter."""

    def consume():
        with fed.table.changes(cursor="crm"):
            fed.change([{"id": 3, "v": "c"}])
            fed.table.changes(cursor="crm", advance=1)

    with pytest.raises(TryAgain) as moved:
        consume()
    assert (moved.value.code, moved.value.exit_code) == ("cursor-moved", 75)
    assert fed.told(cursor="crm") == ["2 insert 2 b", "3 insert 3 c"]


def test_a_cursor_is_moved_and_dropped_by_hand(fed):
    """A cursor moves in both directions. The table sets its age, and unknown commits or cursors are wrong
    usage."""
    commit(fed.store, fed.now, Change(properties={CURSOR_MAX_AGE: "2 days"}))
    told = fed.table.changes(cursor="crm", advance=2).to_dict()
    assert told == {"table": "feeds.read", "cursor": "crm", "version": 2}
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
    for expected, asked in wrong.items():
        assert code(lambda: fed.table.changes(**asked)) == expected
    for asked in (
        {"cursor": "crm", "advance": 0},
        {"cursor": "crm", "since": 1},
        {"cursor": "a/b"},
        {"start": "now"},
        {"advance": 1},
        {"cursor": "crm", "advance": 1, "net": True},
    ):
        assert code(lambda: fed.table.changes(**asked)) == "bad-option"


def test_a_new_cursor_may_start_at_the_newest_commit(fed):
    with fed.table.changes(cursor="late", start="now") as feed:
        assert (feed.since, feed.until) == (2, 2)
    fed.change([{"id": 3, "v": "c"}])
    assert fed.told(cursor="late", start="now") == ["3 insert 3 c"]  # it is none that is new any more


def test_a_cursor_whose_tag_expired_is_refused(fed):
    """V110: It is not treated as new. `--start` begins again."""
    fed.table.changes(cursor="crm", advance=1)
    commit(fed.store, fed.now, Change(tags={f"{CURSOR_TAG}crm": None}))
    with pytest.raises(Refused, match="Begin again with `start='now'` or `start='first'`") as refused:
        fed.table.changes(cursor="crm")
    assert refused.value.code == "cursor-expired"
    assert fed.told(cursor="crm", start="first") == ["1 insert 1 a", "2 insert 2 b"]


def test_a_cursor_of_another_lineage_is_lost(fed):
    """V113: A table that was rolled back past the cursor, or recreated, is refused."""
    first = lineage_of(metadata_of(fed.store, fed.now)).commits[0]
    with pytest.raises(Refused) as lost, fed.table.changes(cursor="crm"):
        commit(fed.store, fed.now, Change(back_to=first.id))
    assert lost.value.code == "cursor-lost"
    fed.change([{"id": 3, "v": "c"}])
    fed.table.changes(cursor="crm", advance=3)
    commit(fed.store, fed.now, Change(back_to=first.id))
    assert code(lambda: fed.table.changes(cursor="crm")) == "cursor-lost"
    assert fed.told(cursor="crm", start="first") == ["1 insert 1 a"]
    rows = pa.table({"id": pa.array([1]), "v": ["a"]})
    commit(fed.store, None, Change(into=fed.now.shape, added=rows, recreate=True))
    assert code(lambda: fed.table.changes(cursor="crm")) == "cursor-lost"


def test_a_table_without_commits_moves_no_cursor(store):
    empty = Fed(store, "empty", {"id": "LONG"}, ("id",), Layout.FIVETRAN_LIVE)
    assert empty.told(cursor="crm") == []
    assert empty.now.tags == {}
    assert (
        commit_ranges.cursor_version(
            metadata_of(store, empty.now), lineage_of(metadata_of(store, empty.now)), "crm", None
        )
        == 0
    )


def test_snapshots_that_a_cursor_keeps_outlive_the_others(fed):
    """V108, V110: A range of expired snapshots is refused by name. The net result starts at the cursor's
    commit."""
    fed.table.changes(cursor="crm", advance=2)
    fed.change([{"id": 3, "v": "c"}], gone="id = 1")
    fed.do("DELETE FROM {t} WHERE id = 3")
    fed.change([{"id": 4, "v": "d"}, {"id": 2, "v": "e"}], gone="id = 2")
    fed.do(EXPIRE)
    with pytest.raises(Refused, match="`net=True` shows the net change") as refused:
        fed.told(cursor="crm")
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
    assert fed.told(cursor="crm") == []
