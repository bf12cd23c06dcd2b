"""MariaDB as a source through Spark's JDBC: exact types or a refusal by column, one state, no password."""

import itertools
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from threading import Event, Thread

import pytest
from depth import deep
from mariadb_server import mariadb_server
from serving import SECONDS, within

from backstory.doors.native.databases import declared_keys_by_jdbc
from backstory.errors import BackstoryError, Refused, TryAgain, UsageError
from backstory.projects.drafting import draft_project
from backstory.sources.databases.address import parse_server
from backstory.warehouse import Warehouse

NAMES = (f"t{number}" for number in itertools.count(1))
PASSWORD = "canary@/:"
TYPES = {
    "tiny": ("tinyint(1)", "2", 2),
    "flag": ("bit(1)", "b'1'", True),
    "bits": ("bit(5)", "b'10101'", 21),
    "wide": ("bigint unsigned", "18446744073709551615", Decimal(18446744073709551615)),
    "price": ("decimal(10,2)", "12.5", Decimal("12.50")),
    "ratio": ("float", "0.1", 0.10000000149011612),
    "exact": ("double", "0.1", 0.1),
    "naive": ("datetime(6)", "'2024-01-01 12:00:00.123456'", datetime(2024, 1, 1, 12, 0, 0, 123456)),
    "instant": ("timestamp(6) null", "'2024-07-01 12:00:00.5'", datetime(2024, 7, 1, 10, 0, 0, 500000)),
    "day": ("date", "'2024-02-29'", date(2024, 2, 29)),
    "time_of_day": ("time(3)", "'-838:59:59.123'", "-838:59:59.123"),
    "a_year": ("year", "2024", 2024),
    "padded": ("char(6)", "'ab'", "ab"),
    "name": ("varchar(20)", "'ä, \"q\"'", 'ä, "q"'),
    "choice": ("enum('a','b')", "'b'", "b"),
    "choices": ("set('x','y')", "'x,y'", "x,y"),
    "document": ("json", "'{\"a\": 1}'", '{"a": 1}'),
    "identity": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "bytes": ("blob", "x'00ff'", b"\x00\xff"),
    "empty": ("text", "''", ""),
}


@pytest.fixture(scope="module")
def mariadb():
    """A server for this test: its port, and a function that runs statements as its owner."""
    with mariadb_server("--default-time-zone=+02:00", "--skip-log-bin") as server:
        server.do(f"CREATE USER me@localhost IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON shop.* TO me@localhost")
        yield server.port, server.do


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


def address(port, rest="", password="canary%40%2F%3A"):
    return f"mariadb://me:{password}@localhost:{port}/shop{rest}"


def copy(lake, source, **options):
    into = f"jdbc.{next(NAMES)}"
    lake.snapshot(source, into=into, key="id", **options)
    return [
        each.asDict()
        for each in lake.table(into).current().drop("valid_from", "valid_to").orderBy("id").collect()
    ]


def test_types_of_mariadb_are_exact(lake, mariadb):
    port, do = mariadb
    do(
        f"CREATE TABLE every (id int unsigned PRIMARY KEY, {', '.join(f'{name} {type_}' for name, (type_, _, _) in TYPES.items())})"
    )
    do(f"INSERT INTO every VALUES (4294967295, {', '.join(text for _, text, _ in TYPES.values())})")
    do("INSERT INTO every (id) VALUES (2)")
    nothing, every = copy(lake, address(port, "?table=every"))
    assert every == {"id": 4294967295} | {name: value for name, (_, _, value) in TYPES.items()}
    assert {nothing[name] for name in TYPES} == {None}
    (row,) = copy(
        lake, address(port).replace("mariadb:", "mysql:"), query="SELECT id, day FROM every WHERE id > 2;"
    )
    assert row["day"] == date(2024, 2, 29)


def test_columns_with_inexact_values_are_refused(lake, mariadb):
    port, do = mariadb
    do("SET sql_mode = ''; CREATE TABLE zero (id int, d date); INSERT INTO zero VALUES (1, '0000-00-00')")
    do(
        "CREATE TABLE monthless (id int, d datetime); INSERT INTO monthless VALUES (1, '2024-00-15'), (2, NULL)"
    )
    do("CREATE TABLE start (id int, d timestamp(6)); INSERT INTO start VALUES (1, 0)")
    do("CREATE TABLE digits (id int, d decimal(60,2)); INSERT INTO digits VALUES (1, 1)")
    for table, why in (
        ("zero", "does not fit DATE"),
        ("digits", "38 digits or more"),
        ("monthless", "does not fit TIMESTAMP_NTZ"),
        ("start", "does not fit TIMESTAMP"),
    )[: deep(4, 2)]:
        with pytest.raises(Refused, match=why) as refused:
            copy(lake, address(port, f"?table={table}"))
        assert (refused.value.code, refused.value.keys) == ("column-type", ["d"])
        assert copy(lake, address(port), query=f"SELECT id, CAST(d AS CHAR) AS d FROM {table} -- text")
    (row,) = copy(lake, address(port, "?table=zero"), type={"d": "STRING"})
    assert row["d"] == "0000-00-00"


def test_a_column_of_a_type_that_spark_does_not_know_is_refused_by_its_type(lake):
    """The refusal is permanent: trying again would not help."""
    derby = "jdbc:derby:memory:odd"
    connection = lake.spark._jvm.java.sql.DriverManager.getConnection(f"{derby};create=true")
    statement = connection.createStatement()
    statement.execute("CREATE TYPE price EXTERNAL NAME 'java.util.Date' LANGUAGE JAVA")
    statement.execute("CREATE TABLE odd (id int, p price)")
    with pytest.raises(Refused, match=r'ODD in .* has the type "APP"."PRICE"') as refused:
        copy(lake, f"{derby}?table=ODD")
    assert refused.value.code == "column-type"
    assert "cast it" in refused.value.remedy


def test_read_errors_do_not_contain_the_password(lake, mariadb):
    port, do = mariadb
    do("CREATE TABLE there (id int)")
    cases = {
        address(port, "?table=absent"): (UsageError, "no-table"),
        address(port, "?table=there", "wrong-canary"): (UsageError, "no-database"),
        address(1, "?table=there"): (TryAgain, "source-unreachable"),
    }
    for source, (kind, code) in cases.items():
        with pytest.raises(BackstoryError) as failed:
            copy(lake, source)
        assert (type(failed.value), failed.value.code) == (kind, code)
        assert "canary" not in str(failed.value.to_dict())
    with pytest.raises(UsageError, match="syntax"):
        copy(lake, address(port), query="SELEKT 1")


def test_tables_are_listed_with_their_declared_keys(lake, mariadb):
    port, do = mariadb
    do("CREATE DATABASE listed; GRANT ALL ON listed.* TO me@localhost", "")
    do(
        "CREATE TABLE a (x int, id int PRIMARY KEY); CREATE TABLE b (y int); CREATE VIEW c AS SELECT 1 AS z;"
        "CREATE TABLE d (x int, y int, PRIMARY KEY (y, x), UNIQUE (x)); CREATE TABLE `e.f` AS SELECT 1 AS id",
        "listed",
    )
    url = address(port).replace("/shop", "/listed")
    keys = declared_keys_by_jdbc(lake.store, parse_server(url))
    assert keys == {"a": ("id",), "b": (), "c": (), "d": ("y", "x"), "listed.e.f": ()}
    assert copy(lake, f"{url}?table=listed.e.f") == [{"id": 1}]
    text, _ = draft_project(url, partial(declared_keys_by_jdbc, lake.store))
    assert "canary" not in text
    assert "mariadb://me:${DATABASE_PASSWORD}@localhost" in text
    with pytest.raises(UsageError, match="cannot list the tables"):
        declared_keys_by_jdbc(lake.store, parse_server("jdbc:h2:mem:x"))


def test_a_table_altered_during_a_copy_is_copied_unchanged_or_refused(lake, mariadb):
    """The statement locks the definition until the last row, so an ALTER waits, or the read ends."""
    port, do = mariadb
    do("CREATE TABLE altered AS SELECT seq AS id, repeat('x', 500) AS v FROM seq_1_to_40000")

    def alter():
        reads = lambda: "altered" in do("SELECT info FROM information_schema.processlist", "")  # noqa: E731
        within(SECONDS, lambda: copied.is_set() or reads(), 0.01)
        do("ALTER TABLE altered DROP COLUMN v, ADD COLUMN w int DEFAULT 1")

    copied = Event()
    other = Thread(target=alter)
    other.start()
    into = f"jdbc.{next(NAMES)}"
    try:
        try:
            lake.snapshot(address(port, "?table=altered"), into=into, key="id")
        finally:
            copied.set()
    except (UsageError, TryAgain):
        with pytest.raises(UsageError, match="There is no table"):
            lake.table(into)
    else:
        rows = lake.table(into).current()
        assert rows.count() == 40_000
        assert (
            rows.selectExpr("count(DISTINCT v)" if "v" in rows.columns else "count(DISTINCT w)").first()[0]
            == 1
        )
    other.join()


def test_a_copy_has_one_state_despite_concurrent_writes(lake, mariadb):
    """This includes sessions that divide the rows of a file."""
    port, do = mariadb
    do(
        "CREATE TABLE moved (id int PRIMARY KEY, v int) ENGINE=InnoDB; INSERT INTO moved SELECT seq, 0 FROM seq_1_to_20000"
    )
    done = Event()

    def write():
        while not done.is_set():
            do("UPDATE moved SET v = v + 1")

    writer = Thread(target=write)
    writer.start()
    try:
        for most in (0, 15_000):
            lake.spark.conf.set("spark.sql.files.maxRecordsPerFile", most)
            assert len({row["v"] for row in copy(lake, address(port, "?table=moved"))}) == 1
    finally:
        lake.spark.conf.unset("spark.sql.files.maxRecordsPerFile")
        done.set()
        writer.join()
