"""`adopt --layout autocdc-bitemporal`: AUTO CDC's rows with two times become ours, with the same query
results."""

import random
import re
from datetime import UTC, datetime

import pytest
from depth import deep
from specification import bitemporal as rule
from stored_versions import life, t, version
from tables_as_text import table as rows_of_text

from backstory.errors import BackstoryError, Refused, UsageError
from backstory.model.table import TableName
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import load
from backstory.upkeep.checking import check
from backstory.warehouse import Warehouse

TIMES = ("__START_AT", "__END_AT", "__SYSTEM_START_AT", "__SYSTEM_END_AT")
LAYOUT = "autocdc-bitemporal"
# A published run of Databricks (github.com/ivanvyd/lakeflow-auto-cdc-torture-test, scenario 9 in
# results/raw/target_state.json, 2026-08-30). A second here is a minute there.
PUBLISHED = """
id  status     from  to   since  until
42  PENDING    T0    -    T1     T3
42  PENDING    T0    T2   T3     -
42  ACTIVE     T2    -    T3     T5
42  ACTIVE     T2    T4   T5     -
42  SUSPENDED  T4    -    T5     -
"""
OWN = ("valid_from", "valid_to", "is_current", "recorded_at")
FIELDS = ("role", "ended_at", "end_before", "kind")
NAMES = dict(zip(("from", "to", "since", "until"), TIMES, strict=True))


@pytest.fixture
def house(store):
    return Warehouse(store, embedded=False)


def source(store, name, rows, columns="id INT, status STRING", times="TIMESTAMP"):
    """A table of AUTO CDC, whose rows are dicts of these columns and the four times."""
    spark = store.spark
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.lake")
    spark.sql(f"DROP TABLE IF EXISTS {store.catalog}.lake.{name}")
    schema = ", ".join([columns, *(f"{time} {times}" for time in TIMES)])
    names = [each.split()[0] for each in schema.split(", ")]
    values = [
        tuple({NAMES.get(key, key): value for key, value in row.items()}[each] for each in names)
        for row in rows
    ]
    frame = spark.createDataFrame(values, schema)
    frame.writeTo(f"{store.catalog}.lake.{name}").using("iceberg").create()
    return f"lake.{name}"


def into(store, name):
    """The name of a table that does not exist yet."""
    drop(store, TableName("native", name))
    return f"native.{name}"


def statuses(rows):
    return sorted((row["id"], row["status"]) for row in rows.collect())


def stored(store, table):
    """The stored rows, with the fields of memory that may be set."""
    rows = []
    for row in arrow_of(store.spark.table(store.sql_name(table))).to_pylist():
        memory = row["_memory"] or {}
        own = (row[name] for name in ("id", "status", *OWN))
        rows.append((*own, *(memory.get(name) for name in FIELDS)))
    return sorted(rows, key=str)


def random_life(chance):
    """Events of a record in their order of arrival, with late and withdrawn ones."""
    business, system = chance.sample(range(20), chance.randint(1, 6)), 0
    events = []
    for time in business:
        system += chance.choice([0, 1, 1, 2])
        events.append(rule.Event(time, system, chance.choice([None, "a", "b", "c"])))
    for event in chance.sample(events, chance.randint(0, len(events))):  # corrections
        system += chance.choice([1, 2])
        events.append(event._replace(system=system, value=chance.choice([None, "a", "b"])))
    return events


def test_the_published_example_is_three_rows(house, store):
    """Five rows of three events: each of our cells, and each of their query results."""
    table = source(store, "published", rows_of_text(PUBLISHED))
    target = into(store, "published")

    receipt = house.adopt(table, layout=LAYOUT, key="id", into=target, note="from Databricks")
    imported = house.table(target)

    def at(second):
        return datetime(2024, 2, 29, 0, 0, second, tzinfo=UTC)

    assert stored(store, imported.name) == sorted(
        [
            (42, "PENDING", at(0), at(2), False, at(1), None, at(3), None, None),
            (42, "ACTIVE", at(2), at(4), False, at(3), None, at(5), None, None),
            (42, "SUSPENDED", at(4), None, True, at(5), None, None, None, None),
        ],
        key=str,
    )
    assert statuses(imported.as_of(at(3))) == [(42, "ACTIVE")]
    assert statuses(imported.as_of(at(3), known_at=at(2))) == [(42, "PENDING")]
    assert statuses(imported.as_of(at(3), known_at=at(0))) == []
    assert statuses(imported.current()) == [(42, "SUSPENDED")]
    assert (receipt.counts, receipt.changed) == ({"versions": 3, "past": 2}, True)
    (commit,) = imported.log()
    assert (commit["note"], commit["recorded_at"]) == ("from Databricks", receipt.recorded_at)


@pytest.mark.parametrize("seed", range(deep(laws=12, gate=1)))
def test_an_import_has_the_answers_of_its_source(house, store, seed):
    """Results are equal for any instant and known time. The rows equal our own writer's rows."""
    chance = random.Random(seed)
    lives = {key: random_life(chance) for key in range(150)}
    rows = {key: rule.statements(events) for key, events in lives.items()}
    told_rows = [
        {"id": key, "status": row.value, **dict(zip(TIMES, map(t, row[1:]), strict=True))}
        for key, some in rows.items()
        for row in some
    ]
    chance.shuffle(told_rows)
    target = into(store, "random")

    house.adopt(source(store, "random", told_rows), layout=LAYOUT, key="id", into=target)
    imported = house.table(target)

    for _ in range(5):
        valid, known = chance.randrange(21), chance.randrange(14)
        wanted = [(key, value) for key, some in rows.items() for value in rule.believed(some, valid, known)]
        assert statuses(imported.as_of(t(valid), known_at=t(known))) == sorted(wanted)
    assert stored(store, imported.name) == sorted(
        (cells for key, events in lives.items() for cells in _as_written(key, events)), key=str
    )
    assert not any(law["violations"] for law in check(store, imported.name))


def _as_written(key, events):
    """The rows of our own writer, if it receives a record's history at each system time."""
    times = sorted({event.system for event in events})
    folds = [
        [version(key, value, start, end) for value, start, end in sorted(rule.history(events, time), key=str)]
        for time in range(times[-1] + 1)
    ]
    for row in life(*folds, since=0):
        memory = row["_memory"] or {}
        own = (row[name] for name in OWN)
        yield (row["id"], row["v"], *own, *(memory.get(name) for name in FIELDS))


FAULTS = {
    # Two rows of a record are true at T3 and known at T6.
    "overlapping-rows": "7 a T0 T5 T1 -\n7 b T2 - T6 -\n8 a T0 - T1 -",
    # Both rows are past, and both were known at T2.
    "overlapping-rows, past": "7 a T0 - T1 T3\n7 a T0 T9 T2 T4\n8 a T0 - T1 -",
    "null-key": "- a T0 - T1 -\n8 a T0 - T1 -",
    "empty-span": "7 a T5 T5 T1 -\n8 a T0 - T1 -",
    "empty-span, past": "7 a T5 T4 T1 T2\n8 a T0 - T1 -",
    "empty-span, unknown": "7 a T0 - T3 T3\n8 a T0 - T1 -",
    "empty-span, no start": "7 a T0 - - T3\n8 a T0 - T1 -",
}
HEADER = "id status from to since until\n"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_contradiction_is_refused_with_its_keys(house, store, fault):
    """After a contradiction, no table is created."""
    table, target = source(store, "faulty", rows_of_text(HEADER + FAULTS[fault])), into(store, "faulty")

    with pytest.raises(Refused) as stop:
        house.adopt(table, layout=LAYOUT, key="id", into=target)

    assert stop.value.code == fault.partition(",")[0]
    assert list(stop.value.keys) == (["NULL"] if fault == "null-key" else ["7"])
    assert load(store, TableName(*target.split("."))) is None


def test_an_incomplete_key_is_refused_with_ten_keys(house, store):
    """With part of the key, rows of different records contradict each other. With the whole key, they do not."""
    rows = [
        {"id": key, "part": part, "status": "a", **dict(zip(TIMES, (t(1), None, t(2), None), strict=True))}
        for key in range(12)
        for part in (1, 2)
    ]
    table = source(store, "parts", rows, "id INT, part INT, status STRING")
    target = into(store, "parts")

    with pytest.raises(Refused, match="known at the same time") as stop:
        house.adopt(table, layout=LAYOUT, key="id", into=target)
    assert (stop.value.code, len(stop.value.keys)) == ("overlapping-rows", 10)
    assert "now id" in stop.value.remedy

    assert house.adopt(table, layout=LAYOUT, key=["id", "part"], into=target).counts == {
        "versions": 24,
        "past": 0,
    }


def test_wrong_adopt_calls_have_their_own_errors(house, store):
    """Each wrong call has its own code and a remedy with options of `adopt`, and nothing is created."""
    table, target = source(store, "wrong", rows_of_text(PUBLISHED)), into(store, "wrong")
    ahead = source(store, "ahead", rows_of_text(HEADER + "7 a T0 - T1 -"))
    store.spark.sql(f"UPDATE {store.catalog}.{ahead} SET __SYSTEM_START_AT = TIMESTAMP '2199-01-01'")
    numbered = source(store, "numbered", [], times="INT")
    reserved = source(
        store, "reserved", rows_of_text(PUBLISHED.replace("status", "valid_to")), "id INT, valid_to STRING"
    )
    empty = source(store, "empty", [])
    plain = "lake.plain"
    store.spark.sql(f"DROP TABLE IF EXISTS {store.catalog}.{plain}")
    store.spark.sql(f"CREATE TABLE {store.catalog}.{plain} (id INT, __START_AT TIMESTAMP) USING iceberg")
    cases = [
        (table, {"key": "id"}, "bad-option"),
        (table, {"key": "id", "into": "native"}, "no-table"),
        (table, {"key": "__SYSTEM_START_AT", "into": target}, "no-key"),
        (table, {"key": "nobody", "into": target}, "no-key"),
        (table, {"into": target}, "no-key"),
        (ahead, {"key": "id", "into": target}, "time-ahead"),
        (numbered, {"key": "id", "into": target}, "no-instant"),
        (reserved, {"key": "id", "into": target}, "reserved-column"),
        (empty, {"key": "id", "into": target}, "empty-snapshot"),
        (plain, {"key": "id", "into": target}, "missing-columns"),
        ("lake.nowhere", {"key": "id", "into": target}, "no-table"),
    ]
    for name, options, code in cases:
        with pytest.raises(BackstoryError) as stop:
            house.adopt(name, layout=LAYOUT, **options)
        assert stop.value.code == code, (name, options)
        assert {*re.findall(r"`(\w+)=", stop.value.remedy)} <= {"key", "into", "layout"}, stop.value.remedy
    for options in ({"into": target}, {"note": "why"}):
        with pytest.raises(UsageError) as stop:
            house.adopt(table, layout="autocdc", key="id", **options)
        assert stop.value.code == "bad-option"
    with pytest.raises(UsageError) as stop:
        house.adopt(table, layout="autocdc", key="id")
    assert (stop.value.code, "autocdc-bitemporal" in stop.value.remedy) == ("two-axes", True)
    assert load(store, TableName(*target.split("."))) is None


def test_a_repeated_import_changes_nothing(house, store):
    """A dry run writes nothing. Another state of the source, or another table, is refused."""
    table, target = source(store, "again", rows_of_text(PUBLISHED)), into(store, "again")

    plan = house.adopt(table, layout=LAYOUT, key="id", into=target, dry_run=True)
    assert (plan.changed, plan.counts, plan.snapshot_id) == (True, {"versions": 3, "past": 2}, None)
    first = house.adopt(table, layout=LAYOUT, key="id", into=target)
    again = house.adopt(table, layout=LAYOUT, key="id", into=target)

    assert (first.changed, again.changed, again.snapshot_id) == (True, False, None)
    assert len(house.table(target).log()) == 1
    store.spark.sql(f"UPDATE {store.catalog}.{table} SET status = 'PAUSED' WHERE status = 'PENDING'")
    with pytest.raises(Refused) as stop:
        house.adopt(table, layout=LAYOUT, key="id", into=target)
    assert stop.value.code == "table-exists"


def test_dates_and_naive_times_are_utc_and_a_far_end_is_open(house, store):
    """Times are read as in other layouts of `adopt`."""
    rows = rows_of_text(HEADER + "7 a T0 T60 T1 T90\n7 b T60 - T1 -")
    table, target = source(store, "dated", rows), into(store, "dated")
    naive = store.spark.table(f"{store.catalog}.{table}").selectExpr(
        "id",
        "status",
        "CAST(__START_AT AS TIMESTAMP_NTZ) AS __START_AT",
        "coalesce(CAST(__END_AT AS TIMESTAMP_NTZ), TIMESTAMP_NTZ '9999-12-31') AS __END_AT",
        "CAST(__SYSTEM_START_AT AS DATE) AS __SYSTEM_START_AT",
        "CASE WHEN __SYSTEM_END_AT IS NOT NULL THEN DATE '2024-03-01' END AS __SYSTEM_END_AT",
    )
    store.spark.sql(f"DROP TABLE IF EXISTS {store.catalog}.lake.naive")
    naive.writeTo(f"{store.catalog}.lake.naive").using("iceberg").create()

    house.adopt("lake.naive", layout=LAYOUT, key="id", into=target)

    day, next_day = (datetime(2024, month, number, tzinfo=UTC) for month, number in ((2, 29), (3, 1)))
    minute = day.replace(minute=1)
    assert stored(store, house.table(target).name) == [
        (7, "a", day, day, False, day, "past", next_day, minute, None),
        (7, "b", minute, None, True, day, None, None, None, None),
    ]


def test_an_imported_table_supports_later_copies_and_rewinds(house, store):
    """Later copies are accepted, a rewind restores the source's known state, and changes use its times."""
    table, target = source(store, "onward", rows_of_text(PUBLISHED)), into(store, "onward")
    house.adopt(table, layout=LAYOUT, key="id", into=target)
    imported, known = house.table(target), datetime(2024, 2, 29, 0, 0, 4, tzinfo=UTC)
    told_at_four = statuses(imported.current(known_at=known))

    copy = store.spark.sql("SELECT 42 AS id, 'CLOSED' AS status UNION ALL SELECT 43, 'PENDING'")
    receipt = house.snapshot(copy, into=target, at="2024-03-05")
    late = store.spark.sql("SELECT 42 AS id, 'LATE' AS status, TIMESTAMP '2024-02-29 00:00:01Z' AS ts")
    with pytest.raises(Refused) as stop:
        house.apply(late, into=target, sequence_by=["ts"])

    assert receipt.counts["changed"] == receipt.counts["new"] == 1
    assert stop.value.code == "settled"
    assert told_at_four == [(42, "ACTIVE")]
    assert statuses(imported.current(known_at=known)) == told_at_four
    assert not any(law["violations"] for law in imported.check())
    imported.rewind(known, apply=True)
    assert statuses(imported.current()) == told_at_four
    assert statuses(imported.current(known_at=receipt.recorded_at)) == [(42, "CLOSED"), (43, "PENDING")]
    assert not any(law["violations"] for law in imported.check())
