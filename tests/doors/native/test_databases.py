"""Databases as sources: exact types or a refusal by column, one state, and no password anywhere."""

import itertools
import re
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from threading import Event, Thread

import duckdb
import psycopg
import pytest
from depth import deep
from serving import SECONDS, within

from backstory.errors import BackstoryError, Refused, TryAgain, UsageError
from backstory.warehouse import Warehouse

NAMES = (f"t{number}" for number in itertools.count(1))
TYPES = {
    "a_int": ("int", "7", 7),
    "a_bigint": ("bigint", "-9223372036854775808", -(2**63)),
    "a_small": ("smallint", "-3", -3),
    "a_numeric": ("numeric(10,2)", "12.50", Decimal("12.50")),
    "a_wide": (
        "numeric(38,9)",
        "12345678901234567890123456789.123456789",
        Decimal("12345678901234567890123456789.123456789"),
    ),
    "a_multiple": ("numeric(3,-2)", "99900", Decimal(99900)),
    "a_fraction": ("numeric(2,5)", "0.00012", Decimal("0.00012")),
    "a_float": ("float8", "0.1", 0.1),
    "a_nan": ("float8", "NaN", float("nan")),
    "a_bool": ("boolean", "true", True),
    "a_text": ("text", "line\none, \"two\"; 'three'\\\t", "line\none, \"two\"; 'three'\\\t"),
    "an_empty": ("text", "", ""),
    "a_char": ("char(8)", "ab", "ab"),
    "a_date": ("date", "2024-02-29", date(2024, 2, 29)),
    "a_naive": ("timestamp", "2024-01-01 12:00:00.123456", datetime(2024, 1, 1, 12, 0, 0, 123456)),
    "an_instant": ("timestamptz", "2024-07-01 12:00:00+02", datetime(2024, 7, 1, 10)),
    "a_time": ("time", "12:30:00.5", "12:30:00.5"),
    "an_interval": ("interval", "1 year 2 days 03:00:00", "P1Y2DT3H"),
    "a_uuid": ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "a_json": ("jsonb", '{"a": [1, null]}', '{"a": [1, null]}'),
    "an_array": ("int[]", "{1,NULL,3}", "{1,NULL,3}"),
    "bytes": ("bytea", "\\x00ff10", b"\x00\xff\x10"),
    "a_null": ("text", None, None),
}


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


@pytest.fixture
def server(postgres_url):
    """The address of an empty database, and a connection for the source's own users."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield postgres_url, connection.execute


def copy(lake, source, into=None, **options):
    into = into or f"databases.{next(NAMES)}"
    lake.snapshot(source, into=into, **{"key": "id"} | options)
    rows = lake.table(into).current().drop("valid_from", "valid_to").collect()
    return [each.asDict() for each in rows]


def test_types_of_postgresql_are_exact(lake, server):
    url, do = server
    columns = ", ".join(f"{name} {type_}" for name, (type_, _, _) in TYPES.items())
    do(f"CREATE TABLE every (id int PRIMARY KEY, {columns})")
    marks = ", ".join(f"%s::{type_}" for type_, _, _ in TYPES.values())
    do(f"INSERT INTO every VALUES (1, {marks})", [text for _, text, _ in TYPES.values()])
    do(f"INSERT INTO every SELECT 2, {', '.join(['NULL'] * len(TYPES))}")
    into = f"databases.{next(NAMES)}"
    first, second = sorted(copy(lake, f"{url}?table=public.every", into), key=lambda row: row["id"])
    types = dict(lake.table(into).current().dtypes)
    assert (types["an_instant"], types["a_naive"]) == ("timestamp", "timestamp_ntz")
    assert repr({name: first[name] for name in TYPES}) == repr(
        {name: value for name, (_, _, value) in TYPES.items()}
    )
    assert {second[name] for name in TYPES} == {None}


INEXACT = [
    ("date", "infinity", "has 1 times that are infinite"),
    ("numeric", "1.5", "numeric without a scale"),
    ("numeric(40,2)", "1.5", r"numeric\(40,2\), beyond 38 digits"),
    ("numeric(37,-2)", "100", r"numeric\(37,-2\), beyond 38 digits"),
    ("money", "1.5", "is money"),
    ("timestamptz", "-infinity", "has 1 times that are infinite"),
    ("timestamp", "0044-03-15 12:00:00 BC", "before the common era"),
    ("numeric(10,2)", "NaN", r"has the value `NaN`, which is not of type DECIMAL\(10,2\)\."),
    ("date", "10000-01-01", "has the value `10000-01-01`, which is not of type DATE"),
]


def test_columns_without_an_exact_type_are_refused_with_working_remedies(lake, server):
    url, do = server
    for number, (column, value, why) in enumerate(INEXACT):
        table = f"odd{number}"
        do(f"CREATE TABLE {table} (id int, v {column})")
        do(f"INSERT INTO {table} VALUES (1, %s::text::{column})", [value])
        with pytest.raises(Refused, match=why) as refused:
            copy(lake, f"{url}?table={table}")
        assert (refused.value.code, refused.value.keys) == ("column-type", ["v"])
        if number < deep(len(INEXACT), 2):  # PostgreSQL writes the text of any type
            assert copy(lake, url, query=f"SELECT id, v::text FROM {table}")[0]["v"]
            if column != "money":
                assert copy(lake, f"{url}?table={table}", type={"v": "STRING"})[0]["v"].startswith(value[:3])


def test_views_partitions_names_of_any_case_and_a_thousand_columns_are_read(lake, server):
    url, do = server
    wide = ", ".join(f"c{number} int DEFAULT {number}" for number in range(1_000))
    do(
        f'CREATE SCHEMA "Big"; CREATE TABLE "Big"."Wide.r" (id int, {wide}); INSERT INTO "Big"."Wide.r" (id) VALUES (1)'
    )
    do("CREATE TABLE parted (id int, day date) PARTITION BY RANGE (day)")
    do("CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')")
    do(
        "INSERT INTO parted VALUES (1, '2024-05-01'); CREATE VIEW seen AS SELECT id, day + 1 AS day FROM parted"
    )
    assert copy(lake, f"{url}?table=Big.Wide.r")[0]["c999"] == 999
    assert copy(lake, f"{url}?table=parted")[0]["day"] == date(2024, 5, 1)
    assert copy(lake, f"{url}?table=public.seen")[0]["day"] == date(2024, 5, 2)
    do("DELETE FROM parted")
    assert copy(lake, f"{url}?table=parted", key="id", allow_empty=True) == []


def test_a_copy_has_one_state_and_time_despite_concurrent_writes(lake, server):
    """Each transaction writes one number into all rows, so a mixed state would contain two numbers."""
    url, do = server
    do("CREATE TABLE moved AS SELECT id, 0 AS v FROM generate_series(1, 20000) id")
    done, into = Event(), f"databases.{next(NAMES)}"
    clock = lambda: do("SELECT clock_timestamp()").fetchone()[0]  # noqa: E731
    began = clock()

    def write():
        with psycopg.connect(url, autocommit=True) as other:
            while not done.is_set():
                other.execute("UPDATE moved SET v = v + 1")

    writer = Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            assert len({row["v"] for row in copy(lake, f"{url}?table=moved", into)}) == 1
    finally:
        done.set()
        writer.join()
    starts = [
        row["valid_from"] for row in lake.table(into).current().select("valid_from").distinct().collect()
    ]
    assert starts
    assert all(began <= each.astimezone(UTC) <= clock() for each in starts)


def test_a_database_table_of_changes_can_be_applied_as_a_feed(lake, server):
    url, do = server
    do("CREATE TABLE audit (id int, name text, changed_at timestamptz)")
    do("INSERT INTO audit VALUES (1, 'Ann', '2024-01-01'), (1, 'Anna', '2024-01-03')")
    into = f"databases.{next(NAMES)}"
    feed = {"into": into, "key": "id", "sequence_by": "changed_at"}
    assert lake.apply(f"{url}?table=audit", **feed).counts["began"] == 2
    do("INSERT INTO audit VALUES (1, 'An', '2024-01-02')")
    assert lake.apply(url, query="SELECT * FROM audit WHERE id = 1", **feed).counts["late"] == 1
    assert lake.table(into).as_of("2024-01-02").collect()[0]["name"] == "An"


def test_read_errors_do_not_contain_the_password(lake, server):
    url, do = server
    do("CREATE TABLE t (id int)")
    address = re.sub(r"//(\w+)(:\w*)?@", r"//\1:canary@", url)
    cases = {
        f"{address}?table=absent": (UsageError, "no-table"),
        address: (UsageError, "bad-option"),
        f"{address.rpartition('/')[0]}/nowhere?table=t": (UsageError, "no-database"),
        re.sub(r":\d+/", ":1/", f"{address}?table=t"): (TryAgain, "database-down"),
        "sqlite:///nowhere/at/all.db?table=t": (UsageError, "no-database"),
    }
    for source, (kind, code) in cases.items():
        with pytest.raises(BackstoryError) as failed:
            copy(lake, source)
        assert (type(failed.value), failed.value.code) == (kind, code)
        assert "canary" not in str(failed.value.to_dict())
    into = f"databases.{next(NAMES)}"
    copy(lake, f"{address}?table=t", into, allow_empty=True)
    metadata = [
        lake.table(into).log(),
        *lake.spark.sql(f"SHOW TBLPROPERTIES {lake.store.catalog}.{into}").collect(),
    ]
    assert "canary" not in str(metadata)
    for options in ({"query": "SELECT * FROM t", "key": "id"}, {"separator": ";"}, {"format": "csv"}):
        with pytest.raises(
            UsageError, match=r"both a table and a query|does not apply|`format=` is for files"
        ):
            copy(lake, f"{url}?table=t", **options)
    with pytest.raises(UsageError, match="syntax error"):
        copy(lake, url, query="SELEKT 1")
    with pytest.raises(UsageError, match="two columns id"):
        copy(lake, url, query="SELECT id, id FROM t")
    with pytest.raises(UsageError, match="`query=` is for databases"):
        copy(lake, "table:a.b", query="SELECT 1")


def test_a_connection_lost_during_a_copy_writes_nothing(lake, server):
    """The connection breaks after twenty megabytes, while the last row waits for a lock."""
    url, do = server
    do("SELECT pg_advisory_lock(1)")
    last = "CASE WHEN id = 20000 THEN pg_advisory_xact_lock_shared(1)::text ELSE repeat('x', 1000) END"
    do(f"CREATE VIEW long AS SELECT id, {last} AS v FROM generate_series(1, 20000) id")
    into = f"databases.{next(NAMES)}"

    def cut():
        query = (
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
        )
        assert within(SECONDS, lambda: do(query).fetchone())
        row = do(query).fetchone()
        do("SELECT pg_terminate_backend(%s)", [row[0]])

    cutter = Thread(target=cut)
    cutter.start()
    with pytest.raises(TryAgain):
        copy(lake, f"{url}?table=long", into)
    cutter.join()
    do("SELECT pg_advisory_unlock(1)")
    with pytest.raises(UsageError, match="There is no table"):
        lake.table(into)


def test_a_locked_table_is_a_temporary_failure(lake, server, monkeypatch):
    url, do = server
    monkeypatch.setattr("backstory.sources.databases.postgresql.LOCK_TIMEOUT", "100ms")
    do("CREATE TABLE held (id int)")
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TryAgain, match="lock timeout"):
            copy(lake, f"{url}?table=held")


def test_a_table_altered_during_a_copy_is_copied_unchanged(lake, server):
    """The copy holds a lock from before it reads the columns until the last row, so an ALTER waits."""
    url, do = server
    do("CREATE TABLE altered AS SELECT id, repeat('x', 500) AS v FROM generate_series(1, 40000) id")
    early, copied, dropped = [], Event(), Event()

    def alter():
        query = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' AND datname = current_database()"
        within(SECONDS, lambda: copied.is_set() or do(query).fetchone(), 0.001)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SET lock_timeout = '50ms'")
            with suppress(psycopg.errors.LockNotAvailable), other.transaction():
                other.execute("ALTER TABLE altered DROP COLUMN v")
                early.extend(other.execute(f"{query} AND state = 'active'"))
                dropped.set()
            other.execute("SET lock_timeout = 0")
            if not dropped.is_set():  # otherwise the copy had ended before
                other.execute("ALTER TABLE altered RENAME COLUMN v TO w")

    other = Thread(target=alter)
    other.start()
    into = f"databases.{next(NAMES)}"
    try:
        lake.snapshot(f"{url}?table=altered", into=into, key="id")
    finally:
        copied.set()
    other.join()
    assert early == []
    rows = lake.table(into).current()
    assert (rows.count(), rows.where("v = repeat('x', 500)").count()) == (40_000, 40_000)


def sqlite(path, script):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        connection.commit()


def test_sqlite_column_types_follow_all_values(lake, tmp_path):
    sqlite(
        tmp_path / "s.db",
        """CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(9), ratio REAL, price DECIMAL(9,2), raw BLOB, any, none);
        INSERT INTO t VALUES (1, 'Änn', 1, 2, x'00ff', 'x', NULL), (2, '', 0.5, 2.5, NULL, 'y', NULL);""",
    )
    rows = sorted(copy(lake, f"sqlite://{tmp_path}/s.db?table=t"), key=lambda row: row["id"])
    one = {"id": 1, "name": "Änn", "ratio": 1.0, "price": 2.0, "raw": b"\x00\xff", "any": "x", "none": None}
    two = {"id": 2, "name": "", "ratio": 0.5, "price": 2.5, "raw": None, "any": "y", "none": None}
    assert rows == [one, two]


def test_whole_numbers_of_sqlite_fit_a_stored_double(lake, tmp_path):
    """SQLite stores 3.0 in a DECIMAL column as an integer, so a later copy may have integers only."""
    into, source = f"databases.{next(NAMES)}", f"sqlite://{tmp_path}/s.db?table=t"
    sqlite(
        tmp_path / "s.db", "CREATE TABLE t (id INTEGER, price DECIMAL(9,2)); INSERT INTO t VALUES (1, 2.5)"
    )
    copy(lake, source, into)
    sqlite(tmp_path / "s.db", "UPDATE t SET price = 3.0")
    assert copy(lake, source, into) == [{"id": 1, "price": 3.0}]
    sqlite(tmp_path / "s.db", "UPDATE t SET price = 9007199254740993")
    with pytest.raises(Refused, match="price has type DOUBLE in the table and BIGINT"):
        copy(lake, source, into)


MIXED = [
    ("n INTEGER", "(1, 'seven'), (2, 7)", "is declared as integer and has 1 of type text"),
    ("n", "(1, 'seven'), (2, 7)", "has values of several types: integer, text"),
    ("n NUMERIC", "(1, 9007199254740993), (2, 0.5)", "has values of several types: integer, real"),
    ("n TEXT", "(1, x'00')", "is declared as text and has 1 of type blob"),
]


def test_sqlite_columns_with_mixed_types_are_refused(lake, tmp_path):
    """The error names the types, and a query that casts the values helps."""
    for number, (column, values, why) in enumerate(MIXED):
        file = tmp_path / f"{number}.db"
        sqlite(file, f"CREATE TABLE t (id INTEGER, {column}); INSERT INTO t VALUES {values};")
        with pytest.raises(Refused, match=why) as refused:
            copy(lake, f"sqlite://{file}?table=t")
        assert refused.value.keys == ["n"]
        if number < deep(len(MIXED), 1):
            assert copy(lake, f"sqlite://{file}", query="SELECT id, CAST(n AS TEXT) AS n FROM t")


def test_types_of_duckdb_are_exact_or_refused(lake, tmp_path):
    file = str(tmp_path / "d.duckdb")
    with duckdb.connect(file) as connection:
        connection.execute(
            """CREATE TABLE t AS SELECT 1 AS id, 18446744073709551615::UBIGINT AS u, 12::HUGEINT AS h, 1.5::DECIMAL(9,2) AS d,
            TIMESTAMPTZ '2024-07-01 12:00:00+02' AS i, TIMESTAMP '2024-01-01 12:00:00.123456' AS n, TIME '12:30:00' AS t,
            '12:30:00.000000001'::TIME_NS AS tn,
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID AS uu, 'b'::ENUM('a', 'b') AS e, INTERVAL 3 DAY AS iv, [1, 2] AS l,
            '' AS empty, NULL::VARCHAR AS nothing;
            CREATE TABLE odd AS SELECT 1 AS id, TIMESTAMP_NS '2024-01-01 00:00:00.000000001' AS ns, DATE 'infinity' AS d,
            170141183460469231731687303715884105727::HUGEINT AS h"""
        )
    (row,) = copy(lake, f"duckdb://{file}?table=main.t")
    assert row == {
        "id": 1,
        "u": Decimal(18446744073709551615),
        "h": Decimal(12),
        "d": Decimal("1.50"),
        "i": datetime(2024, 7, 1, 10),
        "n": datetime(2024, 1, 1, 12, 0, 0, 123456),
        "t": "12:30:00",
        "tn": "12:30:00.000000001",
        "uu": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "e": "b",
        "iv": "3 days",
        "l": [1, 2],
        "empty": "",
        "nothing": None,
    }
    nested = f"SELECT 1 AS id, [{2**70}::HUGEINT] AS l, MAP([1], [{2**70}::UHUGEINT]) AS m, union_value(k := 1) AS u"
    (row,) = copy(lake, f"duckdb://{file}", query=nested)
    assert (row["l"], list(row["m"].values()), row["u"]) == ([Decimal(2**70)], [Decimal(2**70)], "1")
    parts = ("{}", "[{}, NULL]", "[{}]::TIMESTAMP_NS[1]", "MAP([1], [{{'x': [{}]}}])", "row(1, {})")
    of_times = [(part.format("ns"), "nanoseconds") for part in parts]
    variants = [(value, "of type VARIANT") for value in ("d::VARIANT", "[d::VARIANT]")]
    numbers = [(value, "beyond 38 digits") for value in ("h", "[h]")]
    for value, why in (*of_times, ("d", "infinite"), *numbers, *variants):
        with pytest.raises(Refused, match=why) as refused:
            copy(lake, f"duckdb://{file}", query=f"SELECT id, {value} AS v FROM odd")
        assert refused.value.keys == ["v"]
    with pytest.raises(UsageError, match="absent"):
        copy(lake, f"duckdb://{file}?table=absent")
