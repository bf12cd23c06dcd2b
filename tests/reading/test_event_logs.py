"""An event log is read with the same commands as every other table: current, as-of, timeline."""

from datetime import UTC, datetime
from functools import cache

import pytest
from datasets import Dataset, e, s

from backstory.doors.odf import door
from backstory.errors import UsageError
from backstory.reading.frames import frame_instant
from backstory.stores.iceberg.store import IcebergStore
from backstory.table import Table

UPSERT = "{kind: UpsertStream, primaryKey: [city]}"


def versions_in(frame):
    rows = (
        frame.select("city", "population", "valid_from", "valid_to").orderBy("city", "valid_from").toArrow()
    )
    return [
        (row["city"], row["population"], day(row["valid_from"]), day(row["valid_to"]))
        for row in rows.to_pylist()
    ]


def day(instant):
    return None if instant is None else f"e{(instant - e(0)).days}"


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    """A log of three deliveries with one kind of merge, which no test writes to."""
    store = IcebergStore(spark)

    @cache
    def made(merge):
        dataset = Dataset(store, tmp_path_factory.mktemp("log"), merge, columns="city STRING, population INT")
        # In an upsert stream, B stays although it is not sent.
        for rows in ("A,1 B,1", "A,2 C,1", "A,2 B,5 C,1"):
            assert dataset.push(rows).error is None
        return Table(store, dataset.table.shape.table)

    return made


def test_a_log_is_readable_in_either_encoding(store, table):  # O2
    """A ledger has no observed events, and is refused."""
    log = table("{kind: Snapshot, primaryKey: [city]}")
    operations = (
        door.events(store, log.name.name, "op", namespace="datasets").orderBy("offset", "op").collect()
    )
    assert [(row["op"], row["city"], row["population"]) for row in operations] == [
        (0, "A", 1),
        (0, "B", 1),
        (2, "A", 1),
        (3, "A", 2),
        (1, "B", 1),
        (0, "C", 1),
        (0, "B", 5),
    ]
    other = table("{kind: Snapshot, primaryKey: [city], encoding: op}")
    observed = door.events(store, other.name.name, "observed", namespace="datasets").orderBy("offset")
    assert [(row["observed"], row["city"], row["population"]) for row in observed.collect()] == [
        ("I", "A", 1),
        ("I", "B", 1),
        ("U", "A", 2),
        ("D", "B", 1),
        ("I", "C", 1),
        ("I", "B", 5),
    ]
    ledger = table("{kind: Ledger, primaryKey: [city]}")
    with pytest.raises(UsageError, match="as observed"):
        door.events(store, ledger.name.name, "observed", namespace="datasets")


def test_a_snapshot_log_is_a_history(table):
    history = table("{kind: Snapshot, primaryKey: [city]}")
    assert versions_in(history.current()) == [
        ("A", 2, "e2", None),
        ("B", 5, "e3", None),
        ("C", 1, "e2", None),
    ]
    assert versions_in(history.as_of(e(1))) == [("A", 1, "e1", "e2"), ("B", 1, "e1", "e2")]
    assert versions_in(history.as_of(e(2))) == [("A", 2, "e2", None), ("C", 1, "e2", None)]
    assert [(row["population"], day(row["valid_to"])) for row in history.timeline("B").versions] == [
        (1, "e2"),
        (5, None),
    ]


@pytest.mark.parametrize("encoding", ["op", "observed"])
def test_a_returning_record_never_has_two_versions_at_once(store, tmp_path, encoding):
    """A record whose key contains its event time ends when its removal is known, and returns at that time."""
    merge = f"{{kind: Snapshot, primaryKey: [event_time, city], encoding: {encoding}}}"
    dataset = Dataset(store, tmp_path, merge, columns="event_time TIMESTAMP, city STRING")
    for rows in ("2024-01-01,A", "", "2024-01-01,A", ""):
        dataset.push(rows)
    history = Table(store, dataset.table.shape.table)
    counts = [history.as_of(instant).count() for instant in (e(0), e(1), s(1), s(2), s(3), s(4))]
    assert counts == [0, 1, 1, 1, 1, 0]
    rows = [row for instant in (e(1), s(2)) for row in history.as_of(instant).toArrow().to_pylist()]
    assert [(row["valid_from"], row["valid_to"]) for row in rows] == [(e(1), s(2)), (s(2), s(4))]


def test_a_return_before_the_recorded_removal_ends_the_old_version(store, tmp_path):
    """If old copies are loaded today, the known times of the rows count."""
    merge = "{kind: Snapshot, primaryKey: [city], encoding: op}"
    dataset = Dataset(store, tmp_path, merge, columns="event_time TIMESTAMP, city STRING")
    for rows in ("2024-01-01,A", "", "2024-03-01,A"):
        dataset.push(rows)
    history = Table(store, dataset.table.shape.table)
    assert [history.as_of(instant).count() for instant in (e(0), e(1), e(70), s(9))] == [0, 1, 1, 1]


LATE = ("2024-01-01,A,1", "2024-03-01,A,2", "2024-02-01,A,3", "", "2024-05-01,A,9", "2024-05-01,A,8")


# Retractions of the operations have no time of their own. The observed one is older here than the other
# events.
LIVES = {
    "op": [(1, "e1", "e32"), (3, "e32", "e122"), (8, "e122", None)],
    "observed": [(1, "e1", "e4"), (8, "e122", None)],
}


@pytest.mark.parametrize("encoding", LIVES)
def test_a_record_has_at_most_one_row_at_any_instant(store, tmp_path, encoding):  # 2.10
    """After a late snapshot, the newest event up to a time counts."""
    merge = f"{{kind: Snapshot, primaryKey: [city], encoding: {encoding}}}"
    dataset = Dataset(store, tmp_path, merge, columns="event_time TIMESTAMP, city STRING, n INT")
    for rows in LATE:
        assert dataset.push(rows).error is None
    history = Table(store, dataset.table.shape.table)
    versions = history.timeline("A").versions
    assert [(v["n"], day(v["valid_from"]), day(v["valid_to"])) for v in versions] == LIVES[encoding]


def test_operations_without_retractions_give_the_same_history(table):
    history = table(UPSERT)
    assert versions_in(history.as_of(e(1))) == [("A", 1, "e1", "e2"), ("B", 1, "e1", "e3")]
    assert versions_in(history.current()) == [
        ("A", 2, "e2", None),
        ("B", 5, "e3", None),
        ("C", 1, "e2", None),
    ]


def test_ledger_events_never_end(table):
    ledger = table("{kind: Ledger, primaryKey: [city]}")
    assert versions_in(ledger.as_of(e(2))) == [
        ("A", 1, "e1", None),
        ("B", 1, "e1", None),
        ("C", 1, "e2", None),
    ]


def test_a_date_beyond_2038_means_its_first_instant(spark):
    """Seconds since 1970 exceed 32 bits."""
    days = spark.sql("SELECT DATE '2040-01-01' AS day").alias("frame")
    (row,) = days.selectExpr(f"unix_seconds({frame_instant(days, 'day')}) AS seconds").collect()
    assert row["seconds"] == datetime(2040, 1, 1, tzinfo=UTC).timestamp()
