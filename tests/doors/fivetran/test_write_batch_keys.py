"""Keys of WriteBatch: requirement 70, decisions E1, E3 and E4."""

import time
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from destination import PLAIN, Place, gives
from tables_as_text import instant

from backstory.model.values import UNMODIFIED


@pytest.mark.tables_on("memory", "iceberg")
def test_keys_match_exactly(sender, store, schema):
    """70: Keys match exactly: NULL-safe, with case, spaces and letters unchanged."""
    rows = """
        a         b    v  synced
        x         -    1  T1
        X         -    2  T1
        "x "      -    3  T1
        -         -    4  T1
        ""        -    5  T1
        -         1    6  T1
        \u00e9    1    7  T1
        e\u0301   1    8  T1
    """
    place = Place.made(sender, store, schema, "a* b:INT* v:LONG synced", rows)
    assert len(place.rows()) == 8
    place.write(
        update="""
            a        b  v   synced
            x        -  11  T2
            ""       1  0   T2
            \u00e9   1  17  T2
        """,
        delete="""
            a     b
            -     -
            "x "  -
            " x"  -
        """,
    )
    expected = """
        a        b    v   synced
        x        -    11  T2
        X        -    2   T1
        ""       -    5   T1
        -        1    6   T1
        \u00e9   1    17  T2
        e\u0301  1    8   T1
    """
    assert gives(expected) == place.rows()


KEYS = {
    "BOOLEAN": [True, False],
    "SHORT": [-32768, 32767],
    "LONG": [-(2**63), 2**63 - 1],
    "DECIMAL(38,10)": [Decimal("0.0000000001"), Decimal("-9999999999999999999999999999.9999999999")],
    "DOUBLE": [0.1, -2.2250738585072014e-308, float("nan")],
    "FLOAT": [0.10000000149011612, -3.4028234663852886e38],
    "NAIVE_DATE": [date(1500, 2, 28), date(1969, 12, 31), date(9999, 12, 31)],
    "NAIVE_DATETIME": [
        datetime(1, 1, 1, 0, 0, 0, 1),
        datetime(1500, 3, 1, 12),
        datetime(2024, 3, 31, 2, 30),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
    ],
    "UTC_DATETIME": [
        instant("T1").replace(year=1, month=1, day=1),
        instant("T1").replace(year=1500, month=3, day=1),
        instant("T3+0.25"),
        instant("T1").replace(year=9999, month=12, day=31),
    ],
    "NAIVE_TIME": ["10:15:30", "23:59:59.999999"],
    "NAIVE_DATE ": [date(1, 1, 1), date(999, 12, 31)],
    "BINARY": [b"", b"\x00", b"\x00\xff"],
    "STRING": ["", " ", "NULL", "a`b\"c'd\\", "🦉"],
    "JSON": ['{"a": 1}'],
}


@pytest.mark.parametrize("type_", KEYS)
def test_keys_of_every_type_are_found_again(sender, store, schema, type_):
    """70, E1: An update finds a stored key of any type and value."""
    place = Place.made(replace(sender, encoding=PLAIN), store, schema, f"k:{type_.strip()}* v synced")
    rows = [{"k": key, "v": "old", "_fivetran_synced": instant("T1")} for key in KEYS[type_]]
    place.write(replace=rows)
    place.write(update=[{"k": key, "v": "new", "_fivetran_synced": UNMODIFIED} for key in KEYS[type_]])
    assert [row["v"] for row in place.rows()] == ["new"] * len(rows)
    place.write(delete=[{"k": key} for key in KEYS[type_]])
    assert place.rows() == []


@pytest.mark.tables_on("iceberg")
def test_a_key_of_all_types_is_found_again(sender, store, schema):
    """70, E1: The same holds if Iceberg prunes by each of the key's columns."""
    names = {f"k{place}": type_ for place, type_ in enumerate(KEYS)}
    columns = " ".join(f"{name}:{type_.strip()}*" for name, type_ in names.items())
    place = Place.made(replace(sender, encoding=PLAIN), store, schema, f"{columns} v synced")
    most = max(map(len, KEYS.values()))
    keys = [{name: KEYS[type_][i % len(KEYS[type_])] for name, type_ in names.items()} for i in range(most)]
    place.write(replace=[key | {"v": "old", "_fivetran_synced": instant("T1")} for key in keys])
    place.write(update=[key | {"v": "new", "_fivetran_synced": UNMODIFIED} for key in keys])
    assert [row["v"] for row in place.rows()] == ["new"] * most
    place.write(delete=keys)
    assert place.rows() == []


@pytest.mark.tables_on("iceberg")
def test_the_time_zone_of_the_host_changes_no_key(sender, store, schema, monkeypatch):
    """60, E3: A naive date-time matches in any time zone of the host, including in the hour that DST skips."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        times = [datetime(2024, 3, 10, 2, 30), datetime(2024, 7, 1, 12), datetime(1960, 1, 1)]
        columns = "at:NAIVE_DATETIME* day:NAIVE_DATE* when:UTC_DATETIME* v synced"
        place = Place.made(sender, store, schema, columns)
        rows = [
            {"at": at, "day": at.date(), "when": at.replace(tzinfo=UTC), "_fivetran_synced": instant("T1")}
            for at in times
        ]
        place.write(replace=[row | {"v": "old"} for row in rows])
        place.write(update=[row | {"v": "new"} for row in rows])
        assert gives([row | {"v": "new"} for row in rows]) == place.rows()
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.tables_on("memory", "iceberg")
def test_key_columns_may_have_internal_names(sender, store, schema):
    """E4: A key column may have any name, including a name that our code uses."""
    columns = "_key_0* count:LONG* key* row* v synced"
    place = Place.made(
        sender, store, schema, columns, "_key_0 count key row v synced \n a 1 - r old T1 \n - 2 k - old T1"
    )
    place.write(
        update="_key_0 count key row v synced \n a 1 - r new T1",
        delete="_key_0 count key row \n - 2 k -",
    )
    assert gives("_key_0 count key row v synced \n a 1 - r new T1") == place.rows()


@pytest.mark.tables_on("memory", "iceberg")
def test_batches_with_many_keys_find_their_rows(sender, store, schema):
    """A batch of many keys finds every row, including rows with composite keys and keys with spaces."""
    rows = [{"a": f"k{i % 20} ", "b": i, "v": "old", "_fivetran_synced": instant("T1")} for i in range(600)]
    place = Place.made(sender, store, schema, "a* b:INT* v synced", rows)
    place.write(
        update=[row | {"v": "new"} for row in rows[:300]],
        delete=[{"a": row["a"], "b": row["b"]} for row in rows[500:]],
    )
    expected = [row | {"v": "new"} for row in rows[:300]] + rows[300:500]
    assert gives(expected) == place.rows()


@pytest.mark.tables_on("memory", "iceberg")
def test_nan_is_found_among_many_keys(sender, store, schema):
    """70, E1: NaN is outside all bounds, but is still found."""
    keys = [float("nan"), *(number + 0.5 for number in range(300))]
    rows = [{"k": key, "v": "old", "_fivetran_synced": instant("T1")} for key in keys]
    place = Place.made(sender, store, schema, "k:DOUBLE* v synced", rows)
    place.write(replace=[row | {"v": "new"} for row in rows])
    assert [row["v"] for row in place.rows()] == ["new"] * len(rows)
