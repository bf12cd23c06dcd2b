"""Event times from source to table: years, days, instants, zones and fallbacks (2.1; O5, O13, O21, D32)."""

from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest
from datasets import Dataset, counts, e, lines, s
from depth import deep

from backstory.doors.odf import door
from backstory.errors import UsageError
from backstory.table import Table

APPEND = "{kind: append}"
INFERRED = "{kind: csv, header: true, inferSchema: true}"
TEXTS = "{kind: csv, header: true}"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, merge=APPEND, namespace="odf_times")


def query(text: str) -> str:
    return f'{{kind: sql, engine: spark, query: "{text}"}}'


@pytest.mark.parametrize("read", [INFERRED, TEXTS, ""], ids=["numbers", "texts", "declared"])
def test_a_year_becomes_its_first_instant(dataset, read):  # O5, O13, R17, R19
    """A row without a year gets the fallback. The watermark is the greatest event time."""
    life = dataset(columns="event_time INT, k STRING", read=read)
    receipt = life.push("2019,A ,B 2025,C")
    assert receipt.watermark == datetime(2025, 1, 1, tzinfo=UTC)
    assert life.log() == ["0 s1 2019 A", "1 s1 e1 B", "2 s1 2025 C"]
    assert life.push("2020,D").watermark == receipt.watermark


def test_numbers_that_are_not_years_are_refused(dataset):  # D32, O5
    """Small numbers are probably days or mistakes, not seconds since 1970. The remedy shows the right form."""
    life = dataset(columns="event_time INT, k STRING", read=INFERRED)
    error = life.refused("2019,A 20190101,B 0,C -5,D 99999999,E 999,F", code="bad-input-schema")
    assert error.message.startswith("5 values of the event-time column event_time")
    assert "make_date(year, 1, 1)" in error.remedy
    life.push("1577836800,A")
    assert life.log() == ["0 s2 2020 A"]
    # A declared number does not mean seconds.
    declared = dataset(columns="event_time BIGINT, k STRING")
    declared.refused("1577836800,A", code="bad-input-schema")


def test_milliseconds_are_not_read_as_seconds(dataset):  # D32, E1
    """Read as seconds, they would be in the year 55840. The last second of 9999 is valid."""
    life = dataset(columns="event_time BIGINT, k STRING", read=INFERRED)
    rows = "1700000000000,A 253402300800,B 9223372036854775807,C 1700000000,D"
    error = life.refused(rows, code="bad-input-schema")
    assert error.message.startswith("3 values of the event-time column event_time")
    assert "timestamp_millis(x)" in error.remedy
    life.push("253402300799,A")
    assert life.log() == ["0 s2 9999-12-31T23:59:59Z A"]


@pytest.mark.parametrize(("type_", "stored_time"), [("TIMESTAMP", datetime(1086, 1, 1, tzinfo=UTC)), ("DATE", date(1086, 1, 1))])  # fmt: skip
def test_a_given_event_time_is_stored_in_any_year(dataset, type_, stored_time):  # E3, section 1.4
    """This includes years before October 1582, where Java's old calendar differs. `late` uses the same time."""
    life = dataset(merge="{kind: ledger, primaryKey: [k]}", columns=f"event_time {type_}, k STRING")
    assert life.push(",A", event_time=datetime(1086, 1, 1, tzinfo=UTC)).watermark.year == 1086
    assert life.push("1085-12-31,B 1086-01-01,C").counts == counts(appended=2, late=1)
    times = dict(life.data("k", "event_time"))
    assert times["A"] == times["C"] == stored_time
    gone = dataset(merge="{kind: snapshot, primaryKey: [k]}", columns="k STRING")
    gone.push(
        "A", "", event_time=datetime(1500, 6, 1, tzinfo=UTC), system_time=datetime(1501, 1, 1, tzinfo=UTC)
    )
    assert {row["event_time"] for row in gone.rows()} == {datetime(1500, 6, 1, tzinfo=UTC)}
    assert {row["system_time"] for row in gone.rows()} == {datetime(1501, 1, 1, tzinfo=UTC)}


FAR = (
    "timestamp_seconds(bigint(n))",
    "date_add(DATE'1970-01-01', int(floor(n / 86400)))",
    "cast(timestamp_seconds(bigint(n)) as timestamp_ntz)",
)


def test_event_times_from_a_query_must_be_in_the_calendar(dataset):  # E1
    """Years before 0001 and after 9999 are refused, although Spark supports them. The bounds are valid."""
    life = dataset(columns="n STRING")
    for made in FAR:
        life.add(preprocess=query(f"select n, {made} as event_time from input"))
        error = life.refused("1700000000000 -62135596801 0", code="bad-input-schema")
        assert error.message.startswith("2 values of the event-time column event_time")
        assert life.push("253402300799 -62135596800 0", dry_run=True).counts == counts(appended=3)
    assert life.push("253402300799 -62135596800 0").counts == counts(appended=3)


@pytest.mark.parametrize("merge", [APPEND, "{kind: snapshot, primaryKey: [n]}"])
def test_times_in_other_columns_of_a_query_must_be_in_the_calendar(dataset, merge):  # E1
    life = dataset(columns="n STRING", merge=merge)
    for made in (*FAR[:2], f"array(struct({FAR[0]}))"):
        life.add(preprocess=query(f"select n, {made} as d from input"))
        error = life.refused("0 253402300800", code="unreadable-value")
        assert error.keys == ["d"]
        assert life.push("253402300799 -62135596800", dry_run=True).counts == counts(appended=2)


def test_texts_beyond_the_last_year_are_refused(dataset):  # E1
    """A zone can move the last day of 9999, or the first of 0001, beyond the calendar."""
    life = dataset(columns="event_time STRING, k STRING", read=TEXTS)
    rows = "9999-12-31T23:59:59-05:00,A 0001-01-01T00:00:00+05:00,B 0000-12-31,C 9999-12-31T23:59:59Z,D"
    error = life.refused(rows, code="bad-input-schema")
    assert error.message.startswith("3 values of the event-time column event_time")


def test_undeclared_texts_are_read_as_event_times(dataset):  # D32, B36
    """RFC 3339 texts are read as UTC, and unreadable ones refuse the batch. A declared text must be a year."""
    life = dataset(columns="event_time STRING, k STRING", read=TEXTS)
    life.push("2024-02-01T05:30:00+05:30,A 2024-02-02,B 2024-02-03T00:00:00.123456Z,C 2024-02-04T00:00:00,D")
    assert life.log() == lines("""
        0 s1 e32 A
        1 s1 e33 B
        2 s1 2024-02-03T00:00:00.123456Z C
        3 s1 e35 D
    """)
    error = life.refused("2024-02-01,A 01/02/2024,B 2024-02-30,C soon,D", code="bad-input-schema")
    assert error.message.startswith("3 values of the event-time column")
    declared = dataset(columns="event_time STRING, k STRING")
    declared.refused("2024-02-01T00:00:00Z,A", code="bad-input-schema")


def test_a_column_of_another_type_is_refused_as_event_time(dataset):  # B36, L7, 2.1 step 1
    """If columns are declared, the manifest is refused, otherwise the batch."""
    made = query("select k, true as event_time from input")
    for declared in ({"columns": "event_time DOUBLE, k STRING"}, {"columns": "k STRING", "preprocess": made}):
        with pytest.raises(UsageError, match="event_time"):
            dataset(**declared).add()
    life = dataset(preprocess=made)
    error = life.refused("A", header="k", code="bad-input-schema")
    assert error.keys == ["event_time"]
    assert "boolean, not a date or timestamp" in error.message


def test_days_stay_days(dataset):  # R17, R19: a day counts as midnight, UTC
    """The column has type DATE. A row without a day gets the fallback's day, and earlier days are late."""
    life = dataset(columns="event_time DATE, k STRING")
    assert life.push("2024-02-02,A ,B", event_time=datetime(2024, 1, 7, 23, 59, tzinfo=UTC)).watermark == e(
        33
    )
    assert life.push("2024-02-01,C 2024-02-02,D").counts == counts(appended=2, late=1)
    assert life.push(",E", event_time=e(40)).watermark == e(40)
    assert life.data("event_time", "k") == [
        *((date(2024, 1, 7), "B"), (date(2024, 2, 2), "A")),
        *((date(2024, 2, 1), "C"), (date(2024, 2, 2), "D"), (date(2024, 2, 9), "E")),
    ]
    assert life.frame.schema["event_time"].dataType.simpleString() == "date"


def test_a_snapshot_of_days(dataset):  # R40, O19
    """A moved day is a change, and an omitted one is not. A removed record has the day of observation."""
    life = dataset(columns="event_time DATE, k STRING", merge="{kind: snapshot, primaryKey: [k]}")
    life.push("2024-02-01,A 2024-02-01,B ,C")
    assert life.push("2024-02-01,A ,B ,C").counts == counts(unchanged=3)
    assert life.push("2024-01-31,A ,C").counts == counts(corrected=1, retracted=1, unchanged=1)
    assert life.log(3) == ["3 s3 2024-01-31 U A", "4 s3 2024-01-03 D B"]


# All other tests run in UTC.
ZONES = ["America/Vancouver", "Asia/Kolkata"]


@pytest.fixture(params=ZONES[: deep(laws=2, gate=1)])
def zone(request, spark):
    """A session with another time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def test_time_zones_change_no_stored_time(dataset, zone):  # R18, E3, O21
    """Texts, years, days and naive times are UTC with microseconds, as are all other columns."""
    vocab = "{kind: setVocab, eventTimeColumn: at}"
    instants = dataset(
        columns="at TIMESTAMP, seen TIMESTAMP, k STRING",
        merge="{kind: snapshot, primaryKey: [k]}",
        after=(vocab,),
    )
    rows = "2024-02-01T00:00:00.000001,2024-02-02T05:30:00+05:30,A ,2024-02-02T00:00:00Z,B"
    assert instants.push(rows).watermark == datetime(2024, 2, 1, 0, 0, 0, 1, tzinfo=UTC)
    with instants.unchanged():
        instants.push(rows)
    assert instants.log() == ["0 s1 2024-02-01T00:00:00.000001Z I e33 A", "1 s1 e1 I e33 B"]
    years = dataset(columns="at INT, k STRING", read=INFERRED, after=(vocab,))
    assert years.push("2019,A 2019,B").watermark == datetime(2019, 1, 1, tzinfo=UTC)
    texts = dataset(columns="at STRING, k STRING", read=TEXTS, after=(vocab,))
    texts.push("2019,A 2024-02-01,B 2024-02-01T12:00:00,C 2024-02-01T12:00:00-08:00,D")
    assert texts.log() == lines("""
        0 s1 2019 A
        1 s1 e32 B
        2 s1 2024-02-01T12:00:00Z C
        3 s1 2024-02-01T20:00:00Z D
    """)
    naive = "select to_timestamp_ntz(t) as at, to_timestamp_ntz(t) as seen from input"
    naives = dataset(columns="t STRING", preprocess=query(naive), after=(vocab,))
    naives.push_texts("t\n2024-02-01 00:00:00.5\n1883-11-18 12:00:00\n")
    assert naives.log() == lines("""
        0 s1 1883-11-18T12:00:00Z 1883-11-18T12:00:00Z
        1 s1 2024-02-01T00:00:00.500000Z 2024-02-01T00:00:00.500000Z
    """)


def test_a_query_reads_times_as_utc(dataset, zone):  # R18, E3
    """SQL in preprocess converts texts and years in the same way in any session."""
    text = "select timestamp(t) as event_time, timestamp(make_date(2019, 1, 1)) as y, string(timestamp_seconds(0)) as z from input"
    life = dataset(columns="t STRING", preprocess=query(text))
    life.push("2024-02-01T12:00:00")
    assert life.log() == ["0 s1 2024-02-01T12:00:00Z 2019 1970-01-01 00:00:00"]


def test_a_day_begins_at_midnight_utc(dataset, store, zone):  # E3, section 2.1 step 9
    """This includes reads of a history, where a commit's time becomes a day. Times within structs are UTC."""
    life = dataset(
        columns="event_time DATE, k STRING", merge="{kind: snapshot, primaryKey: [k], encoding: op}"
    )
    life.push("2024-02-01,A")
    life.push("")
    midnight = datetime(2024, 2, 1, tzinfo=UTC)
    table = Table(store, life.table.shape.table)
    for instant, count in ((midnight - timedelta(seconds=1), 0), (midnight, 1)):
        assert table.as_of(instant).count() == count
    [_, gone] = (
        door.events(store, life.name, "observed", namespace=life.namespace).orderBy("offset").collect()
    )
    assert gone["event_time"] == s(2).date()
    deep = "select struct(to_timestamp_ntz(t) as at) as x from input"
    naives = dataset(columns="t STRING", preprocess=query(deep))
    naives.push("2024-02-01T12:00:00")
    [(value,)] = naives.data("x")
    assert value["at"] == datetime(2024, 2, 1, 12, tzinfo=UTC)


def test_the_encoding_decides_the_event_time_of_a_retraction(dataset):  # O3, O19, R37
    """In pairs it has the stored time. In letters it has the time of observation: the source's, otherwise the
    run's."""
    for encoding, line in (("op", "1 -R s2 e32 A"), ("observed", "1 s2 s2 D A")):
        merge = f"{{kind: snapshot, primaryKey: [k], encoding: {encoding}}}"
        life = dataset(columns="event_time TIMESTAMP, k STRING", merge=merge)
        life.push("2024-02-01T00:00:00Z,A")
        life.push("", event_time=None)
        assert life.log(1) == [line]
