"""`check`: each law of each layout is reported exactly where it is broken, with one scan per table."""

import pytest
from histories_as_text import written
from lakes import lake
from spoilt_histories import FIVETRAN, HIST, LIVE, VERSIONS, broken, checked_twice, recorded

from backstory.engine.deliver import commit_change
from backstory.errors import Failed, UsageError
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.stores.table_files import local_path
from backstory.upkeep.checking import check, check_tables
from backstory.upkeep.laws.checks import find_suspects, terms_in_table
from backstory.upkeep.laws.queries import query_of_rows

BROKEN_VERSIONS = {
    "null-key": {"NULL"},
    "unique-start": {"start"},
    "start-before-end": {"empty", "back"},
    "no-overlap": {"start", "overlap", "open"},
    "one-open": {"start", "open"},
    "open-marker": {"marker"},
    "memory": {"role"},
    "recorded": {"recorded", "future"},
    "one-belief": {"start", "overlap", "open", "belief"},
    "one-fact": {"facts"},
    "fold": {"facts", "role"},
    "settled": set(),
    "properties": set(),
}
BROKEN_FIVETRAN = {
    "null-key": {"NULL"},
    "unique-start": {"start"},
    "start-before-end": {"back"},
    "no-overlap": {"start", "over"},
    "one-open": {"start"},
    "open-marker": {"mark1", "mark2", "mark3"},
    "properties": set(),
}
BROKEN_HIST = {
    "null-key": set(),
    "unique-start": set(),
    "start-before-end": set(),
    "no-overlap": {"over", "opens"},
    "one-open": {"opens"},
    "open-marker": {"state1", "state2", "state3"},
    "row-hash": {"hash1", "hash2"},
    "properties": set(),
}


def test_check_reports_broken_laws_of_native_versions(store):
    """V114, V116: One table with many damaged keys breaks all laws."""
    table = written(store, "versions", Layout.VERSIONS, VERSIONS)
    recorded(store, table, "2024-02-29T00:00:05Z")

    results = checked_twice(store, table)

    assert broken(results) == BROKEN_VERSIONS
    assert [each["violations"] for each in results if each["law"] == "start-before-end"] == [2]
    assert list(results[0]) == ["table", "law", "violations", "keys", "status"]
    assert all(each["status"] == ("violated" if each["violations"] else "ok") for each in results)
    assert {each["table"] for each in results} == {"spoilt.versions"}


def test_check_reports_broken_laws_of_fivetran_histories(store):
    """An end within a millisecond of the successor is valid, and flag and end agree."""
    table = written(store, "fivetran", Layout.FIVETRAN_HISTORY, FIVETRAN)

    assert broken(checked_twice(store, table)) == BROKEN_FIVETRAN


def test_check_reports_broken_laws_of_model_histories(store):
    """A model's own state labels are valid. A hash is valid, or records an erasure."""
    table = written(store, "c_hist", Layout.HIST, HIST)

    assert broken(checked_twice(store, table)) == BROKEN_HIST


def test_check_reports_broken_laws_of_live_rows(store):
    """A key occurs once, without NULLs."""
    table = written(store, "live", Layout.FIVETRAN_LIVE, LIVE)

    broken_keys = broken(checked_twice(store, table))

    assert broken_keys == {"null-key": {"NULL"}, "unique-key": {"twice"}, "properties": set()}


EVENTS = """
(0, 0, 'good', 1), (1, 0, 'twice', 1), (2, 2, 'good', 1), (3, 3, 'good', 2), (4, 0, 'twice', 2),
(5, 1, 'absent', 1), (6, 0, 'half', 1), (7, 2, 'half', 1), (8, 0, NULL, 1), (8, 0, 'late', 9), (11, 9, 'odd', 1)
"""


def test_check_reports_broken_laws_of_event_logs(store):
    """Offsets have no gap, operations follow each other, and no event is after the watermark."""
    spark, name = store.spark, store.sql_name(TableName("spoilt", "log"))
    names = '{"offset":"offset","op":"op","system_time":"system_time","event_time":"at","observed":null,"events":false}'
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.spoilt")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql(
        f"CREATE TABLE {name} (offset BIGINT, op INT, system_time TIMESTAMP, at TIMESTAMP, k STRING) USING iceberg "
        f"TBLPROPERTIES ('backstory.layout'='odf', 'backstory.layout-version'='1', 'backstory.key'='[\"k\"]', "
        f"'backstory.odf.columns'='{names}')"
    )
    times = "timestamp'2024-02-29', timestamp_seconds(at)"
    spark.sql(f"INSERT INTO {name} SELECT o, op, {times}, k FROM VALUES {EVENTS} AS t(o, op, k, at)")
    note = Note("odf", "", {"backstory.odf.watermark": "1970-01-01T00:00:05Z"})
    table = existing(store, TableName("spoilt", "log"))
    commit_change(store, table, Change(snapshot=True), note)

    broken_keys = broken(checked_twice(store, TableName("spoilt", "log")))

    assert broken_keys == {
        "null-key": {"NULL"},
        "offsets": {"8", "9", "10", "11"},
        "operations": {"twice", "absent", "half", "odd"},
        "watermark": {"late"},
        "properties": set(),
    }


def test_an_empty_table_keeps_every_law(store):
    """Without rows, neither data files nor manifests are read."""
    table = written(store, "empty", Layout.VERSIONS, "k from to\na T1 -\n")
    store.spark.sql(f"DELETE FROM {store.sql_name(table)}")
    folder = local_path(existing(store, table).location).parents[1]
    for file in [*folder.rglob("*.avro"), *folder.rglob("*.parquet")]:
        file.unlink()

    assert not any(each["violations"] for each in checked_twice(store, table))
    drop(store, table)


def test_wrong_properties_break_the_properties_law(store):
    """A missing key column, settings for unknown columns, and a reversed interval break the law."""
    table = written(store, "properties", Layout.VERSIONS, "k from to recorded\na T1 - T1\n")
    properties = {
        "backstory.key": '["gone"]',
        "backstory.ignore": '["other"]',
        "backstory.settled": '["2024-01-02T00:00:00Z", "2024-01-01T00:00:00Z"]',
    }
    assignments = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    store.spark.sql(f"ALTER TABLE {store.sql_name(table)} SET TBLPROPERTIES ({assignments})")

    (result,) = [each for each in checked_twice(store, table) if each["law"] == "properties"]

    assert result["keys"] == ["backstory.ignore", "backstory.memory-since", "backstory.settled", "gone"]


def test_a_table_of_unknown_layout_is_skipped_unless_named(spark, tmp_path):
    """By name it is an error. A check of all tables has no record of it."""
    store, name = lake(spark, "checked_lake", tmp_path), TableName("spoilt", "foreign")
    written(store, "known", Layout.VERSIONS, "k from to recorded\na T1 - T1\n")
    spark.sql(f"CREATE TABLE {store.sql_name(name)} (a INT) USING iceberg")

    with pytest.raises(UsageError) as stop:
        check(store, name)

    assert stop.value.code == "unknown-layout"
    assert {each["table"] for each in check_tables(store, [], every=True)} == {"spoilt.known"}


def test_a_garbled_property_is_named_in_the_error(store):
    table = written(store, "garbled", Layout.VERSIONS, "k from to recorded\na T1 - T1\n")
    for value in ("id", "{}", "[1]"):
        store.spark.sql(
            f"ALTER TABLE {store.sql_name(table)} SET TBLPROPERTIES ('backstory.key' = '{value}')"
        )

        with pytest.raises(Failed, match=r"backstory\.key of spoilt\.garbled has an unexpected value"):
            check(store, table)
    drop(store, table)


def test_a_table_with_a_lost_file_is_reported_with_the_others(spark, tmp_path):
    """The error is raised after all checks, with all records, so that nobody takes the table for healthy."""
    store = lake(spark, "lost_lake", tmp_path)
    names = [written(store, each, Layout.VERSIONS, "k from to recorded\na T1 - T1\n") for each in "ab"]
    for row in spark.table(store.sql_name(names[0], "files")).collect():
        local_path(row.file_path).unlink()

    for named in ([], names):
        with pytest.raises(
            Failed, match=r"1 of 2 tables could not be checked: spoilt\.a \(file-lost\)"
        ) as stop:
            check_tables(store, named, every=not named)

        assert (stop.value.code, stop.value.keys) == ("unchecked", ["spoilt.a"])
        results = stop.value.results
        assert {each["table"]: each["status"] for each in results} == {
            "spoilt.a": "unchecked",
            "spoilt.b": "ok",
        }
        assert [each["error"]["code"] for each in results if each["law"] is None] == ["file-lost"]
    with pytest.raises(Failed, match=r"A file of spoilt\.a is missing"):
        check_tables(store, names[:1])


def test_all_laws_are_checked_in_one_scan(store):
    """V115: The plan of all laws scans the table once."""
    table = written(store, "once", Layout.VERSIONS, VERSIONS)
    stored = existing(store, table)
    judged = terms_in_table(store, stored)

    plan = find_suspects(
        store.spark.table(store.sql_name(table)), query_of_rows(judged)
    )._jdf.queryExecution()

    assert plan.optimizedPlan().toString().count("RelationV2") == 1
