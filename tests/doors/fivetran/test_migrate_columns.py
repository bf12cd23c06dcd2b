"""Migrations of columns: requirements 93, 95 to 103, 109 and 110."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from depth import deep
from destination import HISTORY, LIVE, Place, definition, done, gives, refusal, twice
from tables_as_text import instant

pytestmark = pytest.mark.usefixtures("tables_on")

TYPES = [
    ("STRING", "Ordered", "Ordered"),
    ("STRING", "", ""),
    ("JSON", '{"a": 1}', '{"a": 1}'),
    ("BOOLEAN", "true", True),
    ("SHORT", "-7", -7),
    ("LONG", "9223372036854775807", 2**63 - 1),
    ("LONG", "", None),
    ("FLOAT", "1.5", 1.5),
    ("DOUBLE", "202.57", 202.57),
    ("DECIMAL", "1.5", Decimal("1.5000000000")),
    ("NAIVE_DATE", "1960-02-03", date(1960, 2, 3)),
    ("NAIVE_DATETIME", "0001-02-03T04:05:06", datetime(1, 2, 3, 4, 5, 6)),
    ("UTC_DATETIME", "2005-05-28T20:57:00.123456789Z", datetime(2005, 5, 28, 20, 57, 0, 123456, UTC)),
    ("NAIVE_TIME", "10:15", "10:15:00"),
    ("BINARY", "w6k=", "é".encode()),
]
STORED = "id v n synced \n 1 a 1 T1 \n 2 - 2 T2"
P = "2024-02-29T00:00:05Z"  # T5


@pytest.fixture
def live(sender, store, schema):
    return Place.made(sender, store, schema, LIVE, STORED)


@pytest.mark.parametrize(("type_", "text", "value"), TYPES)
def test_a_default_has_the_type_of_its_column(live, type_, text, value):
    """93, 101: Every row gets the default, the column has the requested type, and a repeated migration
    changes nothing."""
    twice(live, "add_column_with_default_value", column="w", column_type=type_, default_value=text)
    assert [row["w"] for row in live.rows()] == [value, value]
    assert type(live.rows()[0]["w"]) is type(value)
    assert live.described()["w"].split("(")[0] == type_


@pytest.mark.parametrize("type_", sorted({type_ for type_, _, _ in TYPES}))
def test_the_text_null_is_null_for_every_type(live, type_):
    """101, F9: The text NULL is NULL, as a default and as a new value."""
    default = next(text for kind, text, value in TYPES if kind == type_ and value is not None)
    twice(live, "add_column_with_default_value", column="w", column_type=type_, default_value="NULL")
    assert [row["w"] for row in live.rows()] == [None, None]
    done(live.migrate("update_column_value", column="w", value=default))
    assert None not in [row["w"] for row in live.rows()]
    twice(live, "update_column_value", column="w", value="NULL")
    assert [row["w"] for row in live.rows()] == [None, None]


@pytest.mark.tables_on("memory", laws="iceberg")
def test_defaults_and_nulls_of_every_type_in_one_table(live):
    """93, 101: Each column has the same result as if only this column were migrated."""
    for place, (type_, text, _) in enumerate(TYPES):
        arguments = {"column": f"w{place}", "column_type": type_, "default_value": text}
        done(live.migrate("add_column_with_default_value", **arguments))
    expected = [value for _, _, value in TYPES]
    for row in live.rows():
        values = [row[f"w{place}"] for place in range(len(TYPES))]
        assert values == expected
        assert list(map(type, values)) == list(map(type, expected))
    some = range(0, len(TYPES), deep(1, 4))
    for place in some:
        done(live.migrate("update_column_value", column=f"w{place}", value="NULL"))
    assert {row[f"w{place}"] for row in live.rows() for place in some} == {None}


@pytest.mark.parametrize("kind", ["live", "history"])
def test_a_default_overwrites_an_existing_column(kind, request):
    """95: A default for an existing column is set in all rows, including flagged rows and all versions."""
    place = request.getfixturevalue(kind)
    before = place.rows()
    twice(place, "add_column_with_default_value", column="v", column_type="STRING", default_value="z")
    assert gives([row | {"v": "z"} for row in before]) == place.rows()


@pytest.mark.parametrize("kind", ["live", "history"])
def test_a_value_is_set_on_every_row_and_no_time_changes(kind, request):
    """102: The value is set in all versions of a history, and no version is added."""
    place = request.getfixturevalue(kind)
    before = place.rows()
    twice(place, "update_column_value", column="n", value="7")
    assert gives([row | {"n": 7} for row in before]) == place.rows()


@pytest.mark.tables_on("memory", "iceberg")
def test_a_column_added_to_a_history_opens_new_versions(history):
    """93, 99: Open versions close 1 ms before, and continue with the default. Deleted keys get nothing, and
    old versions read NULL."""
    arguments = {"column": "w", "column_type": "STRING", "default_value": "x", "operation_timestamp": P}
    twice(history, "add_column_in_history_mode", **arguments)
    assert (
        gives("""
        id v n start end  active synced w
        1  a 1 T1    T2-1 false  T1     -
        1  b 1 T2    T5-1 false  T2     -
        1  b 1 T5    TMAX true   T2     x
        2  c 2 T1    T3   false  T3     -
        3  d 3 T3    T5-1 false  T3     -
        3  d 3 T5    TMAX true   T3     x
        """)
        == history.rows()
    )
    assert history.described() == HISTORY_TOLD | {"w": "STRING"}
    assert history.snapshots()[-1]["backstory.counts"] == '{"updated": 2}'


HISTORY_TOLD = {
    "id": "LONG*",
    "v": "STRING",
    "n": "LONG",
    "_fivetran_synced": "UTC_DATETIME",
    "_fivetran_start": "UTC_DATETIME*",
    "_fivetran_end": "UTC_DATETIME",
    "_fivetran_active": "BOOLEAN",
}


def test_column_changes_at_one_time_share_one_version(history):
    """98, 100: Two added columns and a dropped one make one version. A drop keeps the old values, and only
    versions with a value change."""
    add = {"column_type": "LONG", "operation_timestamp": P}
    twice(history, "add_column_in_history_mode", column="w", default_value="1", **add)
    twice(history, "add_column_in_history_mode", column="x", default_value="2", **add)
    twice(history, "drop_column_in_history_mode", column="v", operation_timestamp=P)
    assert (
        gives("""
        id v n start end  active synced w x
        1  a 1 T1    T2-1 false  T1     - -
        1  b 1 T2    T5-1 false  T2     - -
        1  - 1 T5    TMAX true   T2     1 2
        2  c 2 T1    T3   false  T3     - -
        3  d 3 T3    T5-1 false  T3     - -
        3  - 3 T5    TMAX true   T3     1 2
        """)
        == history.rows()
    )


def test_a_dropped_column_opens_versions_only_for_records_with_a_value(sender, store, schema):
    """100: An open version whose value is already NULL is unchanged."""
    rows = "id v n start end active synced \n 1 a 1 T1 TMAX true T1 \n 2 - 2 T1 TMAX true T1"
    place = Place.made(sender, store, schema, HISTORY, rows)
    twice(place, "drop_column_in_history_mode", column="v", operation_timestamp=P)
    assert (
        gives("""
        id v n start end  active synced
        1  a 1 T1    T5-1 false  T1
        1  - 1 T5    TMAX true   T1
        2  - 2 T1    TMAX true   T1
        """)
        == place.rows()
    )


def test_a_version_that_starts_at_the_migration_time_is_not_split(sender, store, schema):
    """99: A version that starts at that time only gets the value."""
    rows = "id v n start end active synced \n 1 a 1 T5 TMAX true T1 \n 2 b 2 T1 TMAX true T1"
    place = Place.made(sender, store, schema, HISTORY, rows)
    add = {"column_type": "LONG", "operation_timestamp": P}
    twice(place, "add_column_in_history_mode", column="w", default_value="1", **add)
    assert (
        gives("""
        id v n start end  active synced w
        1  a 1 T5    TMAX true   T1     1
        2  b 2 T1    T5-1 false  T1     -
        2  b 2 T5    TMAX true   T1     1
        """)
        == place.rows()
    )


def test_an_empty_history_gets_only_the_column(sender, store, schema):
    """96: On an empty history, only the column is added. A drop does nothing."""
    place = Place.made(sender, store, schema, HISTORY)
    add = {"column_type": "LONG", "operation_timestamp": P}
    twice(place, "add_column_in_history_mode", column="w", default_value="1", **add)
    assert place.described() == HISTORY_TOLD | {"w": "LONG"}
    twice(place, "drop_column_in_history_mode", column="w", operation_timestamp=P)
    assert place.described() == HISTORY_TOLD | {"w": "LONG"}
    assert not place.snapshots()


def test_a_history_without_open_versions_gets_only_the_column(sender, store, schema):
    """96: If no version is open, no version begins."""
    rows = "id v n start end active synced \n 1 a 1 T1 T9 false T1"
    place = Place.made(sender, store, schema, HISTORY, rows)
    add = {"column_type": "LONG", "operation_timestamp": P}
    twice(place, "add_column_in_history_mode", column="w", default_value="1", **add)
    assert gives(rows.replace("synced", "synced w").replace("false T1", "false T1 -")) == place.rows()


@pytest.mark.parametrize("entity", ["add_column_in_history_mode", "drop_column_in_history_mode"])
def test_a_migration_before_the_start_of_an_open_version_is_refused(history, entity):
    """97, 110: The answer is a task, and the table is unchanged."""
    metadata = history.metadata()
    more = {"column_type": "LONG", "default_value": "1"} if entity.startswith("add") else {}
    text = refusal(history.migrate(entity, column="v" if not more else "w", operation_timestamp=T2, **more))
    assert history.table.name in text
    assert history.metadata() == metadata


T2 = "2024-02-29T00:00:02Z"


def test_an_update_after_a_migration_continues_its_version(history):
    """93: The next update is based on the version that the migration created."""
    arguments = {"column": "w", "column_type": "STRING", "default_value": "x", "operation_timestamp": P}
    done(history.migrate("add_column_in_history_mode", **arguments))
    history.having(f"{HISTORY} w").write(
        earliest="id start \n 1 T7",
        update="id v n start end active synced w \n 1 . 9 T7 TMAX true T7 .",
    )
    assert gives(
        "id v n start end active synced w \n 1 b 1 T5 T7-1 false T2 x \n 1 b 9 T7 TMAX true T7 x"
    ) == [row for row in history.rows() if row["id"] == 1 and row["_fivetran_start"] >= instant("T5")]


@pytest.mark.parametrize("columns", ["id:LONG* v n:DECIMAL(12,2) synced", HISTORY])
@pytest.mark.tables_on("memory", laws="iceberg")
def test_a_renamed_column_keeps_all_but_its_name(sender, store, schema, columns):
    """93, 103: Type, values and key are kept, and the next batch uses the new name."""
    rows = "id v synced" if "start" not in columns else "id v start end active synced"
    row = "1 a T1" if "start" not in columns else "1 a T1 TMAX true T1"
    place = Place.made(sender, store, schema, columns, f"{rows} \n {row}")
    before = place.described()
    twice(place, "rename_column", from_column="id", to_column="key")
    twice(place, "rename_column", from_column="v", to_column="with.dot `tick`")
    renamed = {"id": "key", "v": "with.dot `tick`"}
    assert place.described() == {renamed.get(name, name): type_ for name, type_ in before.items()}
    assert place.rows()[0]["with.dot `tick`"] == "a"
    if "start" not in columns:
        place.having("key:LONG* n:DECIMAL(12,2) synced").write(delete="key \n 1")
        assert place.rows() == []


@pytest.mark.parametrize("kind", ["live", "history"])
def test_a_copied_column_has_the_type_and_values_of_its_source(kind, request):
    """93, 103: A copied column is not part of the key. If the target exists, its values are copied again."""
    place = request.getfixturevalue(kind)
    before = place.rows()
    twice(place, "copy_column", from_column="id", to_column="copy")
    assert place.described()["copy"] == "LONG"
    assert gives([row | {"copy": row["id"]} for row in before]) == place.rows()
    twice(place, "copy_column", from_column="n", to_column="copy")
    assert gives([row | {"copy": row["n"]} for row in before]) == place.rows()


ADD = {"column_type": "LONG", "default_value": "1"}
IN_HISTORY = ADD | {"operation_timestamp": P}


@pytest.mark.parametrize(
    ("kind", "entity", "arguments"),
    [
        ("live", "add_column_in_history_mode", {"column": "w"} | IN_HISTORY),
        ("live", "drop_column_in_history_mode", {"column": "v", "operation_timestamp": P}),
        ("live", "add_column_with_default_value", {"column": "w"} | ADD | {"default_value": "seven"}),
        ("live", "add_column_with_default_value", {"column": ""} | ADD),
        ("live", "add_column_with_default_value", {"column": "id"} | ADD),
        ("live", "add_column_with_default_value", {"column": "w", "default_value": "1"}),
        ("live", "add_column_with_default_value", {"column": "_fivetran_start"} | ADD),
        ("live", "update_column_value", {"column": "missing", "value": "1"}),
        ("live", "update_column_value", {"column": "id", "value": "1"}),
        ("live", "update_column_value", {"column": "n", "value": "seven"}),
        ("live", "rename_column", {"from_column": "v", "to_column": "n"}),
        ("live", "rename_column", {"from_column": "missing", "to_column": "other"}),
        ("live", "rename_column", {"from_column": "v", "to_column": "_fivetran_end"}),
        ("live", "copy_column", {"from_column": "missing", "to_column": "w"}),
        ("live", "copy_column", {"from_column": "v", "to_column": "id"}),
        ("live", "copy_column", {"from_column": "v", "to_column": "n"}),
        ("live", "copy_column", {"from_column": "v", "to_column": "_fivetran_active"}),
        ("live", "rename_column", {"from_column": "_fivetran_synced", "to_column": "w"}),
        ("history", "rename_column", {"from_column": "_fivetran_end", "to_column": "w"}),
        ("history", "update_column_value", {"column": "_fivetran_end", "value": "NULL"}),
        ("history", "drop_column_in_history_mode", {"column": "id", "operation_timestamp": P}),
        ("history", "add_column_in_history_mode", {"column": "w"} | ADD),
        (
            "history",
            "add_column_in_history_mode",
            {"column": "w"} | IN_HISTORY | {"operation_timestamp": "x"},
        ),
    ],
)
def test_invalid_column_migrations_are_refused(kind, entity, arguments, request):
    """110, F17: The answer is a task without values, and the table is unchanged."""
    place = request.getfixturevalue(kind)
    metadata = place.metadata()
    assert "seven" not in refusal(place.migrate(entity, **arguments))
    assert place.metadata() == metadata


@pytest.mark.parametrize(
    ("entity", "arguments"),
    [
        ("add_column_with_default_value", {"column": "w"} | ADD),
        ("add_column_in_history_mode", {"column": "w"} | IN_HISTORY),
        ("drop_column_in_history_mode", {"column": "v", "operation_timestamp": P}),
        ("update_column_value", {"column": "v", "value": "1"}),
        ("rename_column", {"from_column": "v", "to_column": "w"}),
        ("copy_column", {"from_column": "v", "to_column": "w"}),
        ("table_sync_mode_migration", {"type": 1}),
    ],
)
def test_a_missing_table_is_a_task(live, entity, arguments):
    """6.1: Every operation on a missing table is answered with a task."""
    assert "missing" in refusal(live.named("missing").migrate(entity, **arguments))


def test_a_migration_stays_in_its_schema(sender, store, schema):
    """109: The table with the same name in another schema is unchanged."""
    here = Place.made(sender, store, schema, LIVE, STORED)
    there = Place(sender, store, f"{schema}_b", definition(here.table.name, LIVE))
    sender.create(there.schema, there.table)
    there.write(replace=STORED)
    done(here.migrate("update_column_value", column="v", value="z"))
    assert gives(STORED) == there.rows()
