"""The statements of a record, in valid and recorded time, with the commit that made each."""

from datetime import UTC

import pytest
from committing import commit
from datasets import Dataset, e, word
from remembering import E13, E14, day, number, remembered

from backstory.errors import UsageError
from backstory.model.change import Change, Note
from backstory.model.instant import iso
from backstory.model.versions_layout import RECORDED
from backstory.reading.frames import table_in_session
from backstory.reading.lifetimes import STATED_FROM, STATED_TO
from backstory.reading.options import ReadRequest
from backstory.stores.iceberg.store import existing
from backstory.table import Table


def statements(history, key, value="v"):
    frame = table_in_session(history.store, history.name).of(ReadRequest(key=key)).statements()
    rows = frame.orderBy("valid_from", STATED_FROM).toArrow().to_pylist()
    return [
        f"{row[value]}[{number(row['valid_from'])},{number(row['valid_to'])})"
        f" known [{number(row[STATED_FROM])},{number(row[STATED_TO])})"
        for row in rows
    ]


def test_a_corrected_row_yields_two_statements(store):
    """V6, V97 by E13 and E14: There is no gap, overlap or remembered fact."""
    history = remembered(store, "stated", E13)
    assert statements(history, {"k": "k"}) == [
        "a[10,) known [1,2)",
        "a[10,20) known [2,3)",
        "a[10,15) known [3,)",
        "c[15,20) known [3,)",
        "b[20,) known [2,)",
    ]
    with pytest.raises(UsageError, match="no key column x"):
        statements(history, {"x": 1})
    # The source's names of columns do not collide with the plan's.
    history = remembered(store, "stated", E14, value="steps")
    assert statements(history, {"k": "k"}, "steps") == [
        "a[10,) known [1,2)",
        "a[10,20) known [2,4)",
        "a[10,) known [4,5)",
        "a[10,20) known [5,)",
        "x[20,) known [2,4)",
        "b[20,) known [5,)",
    ]
    assert statements(history, {"k": "m"}, "steps") == ["y[20,) known [3,4)"]
    assert statements(history, {"k": "n"}) == []


def events(log, *names):
    rows = (
        table_in_session(log.store, log.name)
        .statements()
        .orderBy("valid_from", STATED_FROM)
        .toArrow()
        .to_pylist()
    )
    ends = ("valid_from", "valid_to", STATED_FROM, STATED_TO)
    return [" ".join(word(row[name]) for name in (*names, *ends)) for row in rows]


def test_an_event_is_known_from_its_system_time(store, tmp_path):
    """It holds until a later event ends it. A late event for an earlier time ends the previous one sooner."""
    dataset = Dataset(
        store,
        tmp_path,
        "{kind: UpsertStream, primaryKey: [city]}",
        columns="event_time TIMESTAMP, city STRING, population INT",
    )
    for moment, population in ((10, 1), (30, 2), (20, 3)):
        dataset.push(f"{e(moment).astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')},A,{population}")
    log = Table(store, dataset.table.shape.table)
    assert events(log, "population") == [
        "1 e10 - s1 s2",
        "1 e10 e30 s2 s3",
        "1 e10 e20 s3 -",
        "3 e20 - s3 -",
        "2 e30 - s2 s3",
    ]


def test_a_corrected_event_stays_known_before_its_correction(store, tmp_path):
    merge = "{kind: Ledger, primaryKey: [city], encoding: op, onConflict: correct}"
    dataset = Dataset(store, tmp_path, merge, columns="event_time TIMESTAMP, city STRING, population INT")
    for population in (1, 2):
        dataset.push(f"2024-01-10T00:00:00Z,A,{population}")
    log = Table(store, dataset.table.shape.table)
    assert events(log, "population") == ["1 e10 - s1 s2", "2 e10 - s2 -"]


def steps(life):
    return [
        f"{row['v']}[{number(row['valid_from'])},{number(row['valid_to'])})"
        f" known [{number(row['known_from'])},{number(row['known_to'])})"
        for row in life.versions
    ]


def test_v97_a_timeline_shows_all_or_only_current_statements(store):
    """E13: The answer has all, the present, or the then known statements, with each commit that exists."""
    history = remembered(store, "life", E13)
    note = Note("native", "t", {RECORDED: iso(day(3))})
    committed = commit(store, existing(store, history.name), Change(snapshot=True), note)
    both = history.timeline("k", axis="both")
    assert steps(both) == [
        "a[10,) known [1,2)",
        "a[10,20) known [2,3)",
        "a[10,15) known [3,)",
        "c[15,20) known [3,)",
        "b[20,) known [2,)",
    ]
    snapshot_ids = [row["snapshot_id"] for row in both.versions]
    assert snapshot_ids == [None, None, committed.snapshot_id, committed.snapshot_id, None]
    assert list(both.versions[0]) == [
        *("k", "v"),
        *("valid_from", "valid_to", "known_from", "known_to", "snapshot_id"),
    ]
    now = history.timeline("k")
    assert steps(now) == steps(both)[2:]
    assert steps(history.timeline("k", known_at=day(2))) == [steps(both)[1], steps(both)[4]]
    assert str(now).count("█") > 1
    assert "known from" in str(both)
    assert not history.timeline("nobody").versions


def test_a_source_column_may_have_the_name_of_a_result_column(store):
    """The source's values are next to the axes, and a join keeps its names."""
    history = remembered(store, "named", E13, value="known_from")
    (first, *_) = history.timeline("k").versions
    assert (first["known_from_src"], first["known_from"]) == ("a", day(3))
    frame = store.spark.createDataFrame([("k", day(17), day(2))], "k string, at timestamp, seen timestamp")
    joined = history.join_as_of(frame, on="k", at="at", known_at="seen")
    assert joined.columns == ["k", "at", "seen", "known_from", "valid_from", "valid_to"]
    assert [row["known_from"] for row in joined.collect()] == ["a"]
