"""The statements of one record on Spark, with the commit that made each."""

from committing import commit
from remembering import E13, day, number, remembered

from backstory.model.change import Change, Note
from backstory.model.instant import iso
from backstory.model.versions_layout import RECORDED
from backstory.stores.iceberg.store import existing


def told(life):
    return [
        f"{row['v']}[{number(row['valid_from'])},{number(row['valid_to'])})"
        f" known [{number(row['known_from'])},{number(row['known_to'])})"
        for row in life.versions
    ]


def test_v97_statements_on_both_axes_and_what_is_told_now_on_one(store):
    """E13: All statements, the present ones, or those at a known time, with the commit while it exists."""
    found = remembered(store, "life", E13)
    note = Note("native", "t", {RECORDED: iso(day(3))})
    committed = commit(store, existing(store, found.name), Change(snapshot=True), note)
    both = found.timeline("k", axis="both")
    assert told(both) == [
        "a[10,) known [1,2)",
        "a[10,20) known [2,3)",
        "a[10,15) known [3,)",
        "c[15,20) known [3,)",
        "b[20,) known [2,)",
    ]
    said = [row["snapshot_id"] for row in both.versions]
    assert said == [None, None, committed.snapshot_id, committed.snapshot_id, None]
    assert list(both.versions[0]) == [
        *("k", "v"),
        *("valid_from", "valid_to", "known_from", "known_to", "snapshot_id"),
    ]
    now = found.timeline("k")
    assert told(now) == told(both)[2:]
    assert told(found.timeline("k", known_at=day(2))) == [told(both)[1], told(both)[4]]
    assert str(now).count("█") > 1
    assert "known from" in str(both)
    assert not found.timeline("nobody").versions


def test_a_source_may_call_its_columns_as_the_answer_calls_its_own(store):
    """The source's values are next to the axes, and a join keeps its names."""
    found = remembered(store, "named", E13, value="known_from")
    (first, *_) = found.timeline("k").versions
    assert (first["known_from_src"], first["known_from"]) == ("a", day(3))
    asked = store.spark.createDataFrame([("k", day(17), day(2))], "k string, at timestamp, seen timestamp")
    joined = found.join_as_of(asked, on="k", at="at", known_at="seen")
    assert joined.columns == ["k", "at", "seen", "known_from", "valid_from", "valid_to"]
    assert [row["known_from"] for row in joined.collect()] == ["a"]
