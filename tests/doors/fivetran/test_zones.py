"""The session's time zone has no effect: requirement 60, decision E3."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from destination import HISTORY, PLAIN, Place, gives
from tables_as_text import instant

pytestmark = pytest.mark.tables_on("iceberg")

ZONE = "America/New_York"
HOURS = [
    datetime(2024, 3, 10, 2, 30),
    datetime(2024, 11, 3, 1, 30),
    datetime(1, 1, 2),
    datetime(1890, 1, 1, 12),
]
KEYS = {
    "NAIVE_DATETIME": HOURS,
    "UTC_DATETIME": [time.replace(tzinfo=UTC) for time in HOURS],
    "NAIVE_DATE": [time.date() for time in HOURS] + [date(9999, 12, 31)],
}


@pytest.fixture(autouse=True)
def zone(spark):
    """The zone of Spark's session, as backstory.toml or a platform may set it."""
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def read(place):
    """The rows as read by a session in UTC."""
    place.store.spark.conf.set("spark.sql.session.timeZone", "UTC")
    return place.rows()


@pytest.mark.parametrize(
    ("type_", "more"),
    [("NAIVE_DATETIME", 0), ("NAIVE_DATETIME", 250), ("UTC_DATETIME", 250), ("NAIVE_DATE", 0)],
)
def test_keys_that_are_times_are_found_in_any_zone(sender, store, schema, type_, more):
    """60, 70: A key that is a time identifies one record for replace, update and delete in any zone."""
    keys = [*KEYS[type_], *(KEYS[type_][0] - timedelta(days=number) for number in range(1, more + 1))]
    place = Place.made(replace(sender, encoding=PLAIN), store, schema, f"k:{type_}* v synced")
    rows = [{"k": key, "v": "old", "_fivetran_synced": instant("T1")} for key in keys]
    for value in ("old", "again"):
        place.write(replace=[row | {"v": value} for row in rows])
    place.write(update=[{"k": key, "v": "new"} for key in keys[:-1]], delete=[{"k": keys[-1]}])
    assert gives([row | {"v": "new"} for row in rows[:-1]]) == read(place)


def test_histories_and_truncates_use_utc_in_any_zone(sender, store, schema):
    """60, 44, 81: Starts, ends and bounds are instants, exact to the millisecond."""
    names = "id v n synced start end active"
    rows = f"{names} \n 1 a 1 T1 T1 TMAX true \n 2 b 2 T3 T1 TMAX true \n 3 c 3 T3-1 T1 TMAX true"
    place = Place.made(sender, store, schema, HISTORY, rows)
    place.write(
        earliest="id start \n 1 T3",
        update=f"{names} \n 1 new . T9 T3 TMAX true",
        delete="id end \n 2 T4",
    )
    place.truncate(instant("T3"), "_fivetran_deleted")
    place.truncate(instant("T2"))
    expected = f"""
        {names}
        1  new  1  T9    T3  TMAX  true
        2  b    2  T3    T1  T4    false
        3  c    3  T3-1  T1  T3    false
    """
    assert gives(expected) == read(place)
