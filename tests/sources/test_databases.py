"""Databases: each remedy can be followed when its message appears, and SQLite is copied exactly."""

import sqlite3
from contextlib import closing
from decimal import Decimal

import duckdb
import pyarrow.parquet as pq
import pytest

from backstory.errors import Refused, TryAgain, UsageError
from backstory.model.types import ColumnType
from backstory.sources.databases import postgresql, sqlite
from backstory.sources.databases.address import parse_address
from backstory.sources.databases.copies import copy_out, refuse_column
from backstory.sources.databases.postgresql import connect

QUERY = "SELECT v::text FROM t"


@pytest.mark.parametrize(("table", "bare"), [("?table=t", True), ("", False)])
def test_the_remedy_for_an_untyped_column_fits_the_address(table, bare):
    """The file that `init` writes has the table in its address, which excludes a query."""
    database = parse_address(f"sqlite:///a.db{table}", None if table else QUERY)
    remedy = refuse_column(database, "v", "has no exact type").remedy
    assert ("a `source` without `?table=`" in remedy) is bare


def test_an_address_with_a_table_and_a_query_is_refused_with_a_remedy():
    with pytest.raises(UsageError) as error:
        parse_address("sqlite:///a.db?table=t", QUERY)
    assert error.value.remedy == "Omit `?table=` in the address, or omit `query=`."


def test_every_integer_of_sqlite_is_copied(tmp_path):
    """An integer column holds all 64-bit integers, the least one included."""
    numbers = [(-(2**63),), (2**63 - 1,), (0,)]
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", numbers)
        connection.commit()
    copy = sqlite.copy(parse_address(f"sqlite://{tmp_path}/a.db?table=t"), {}, tmp_path)
    assert pq.read_table(copy.path)["n"].to_pylist() == [number for (number,) in numbers]


def test_a_database_without_an_encoding_is_refused(postgresql_url, monkeypatch):
    """PostgreSQL does not know the characters of a database in SQL_ASCII; any client encoding is overridden."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with connect(postgresql_url) as connection:
        assert connection.execute("SELECT 'ü'::text").fetchone() == ("ü",)
        assert connection.info.encoding == "utf-8"
        made = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.execute(f"CREATE DATABASE without_encoding {made}")
        with pytest.raises(UsageError, match="SQL_ASCII") as refused:
            connect(f"{postgresql_url.rpartition('/')[0]}/without_encoding")
        assert refused.value.code == "wrong-encoding"
        connection.execute("DROP DATABASE without_encoding")


@pytest.mark.parametrize(
    ("value", "type_"), [("'YWJj'::text", "BINARY"), ("'\\x00ff'::bytea", "STRING"), ("7", "BINARY")]
)
def test_postgresql_text_is_not_read_as_bytes_nor_bytes_as_text(postgresql_url, tmp_path, value, type_):
    """A declared type does not decode or encode base64."""
    database = parse_address(postgresql_url, f"SELECT {value} AS v")
    with pytest.raises(Refused, match=f"cannot be read as {type_}") as refused:
        postgresql.copy(database, {"v": ColumnType.parse(type_)}, tmp_path)
    assert (refused.value.code, refused.value.keys) == ("column-type", ["v"])


@pytest.mark.parametrize("place", ["address", "environment"])
def test_options_for_the_postgresql_server_are_kept(postgresql_url, monkeypatch, place):
    """The address or the environment can set a search path, but not the time zone."""
    if place == "environment":
        monkeypatch.setenv("PGOPTIONS", "-c search_path=tenant -c TimeZone=Asia/Tokyo")
    else:
        postgresql_url += "?options=-csearch_path%3Dtenant%20-cTimeZone%3DAsia/Tokyo"
    with connect(postgresql_url) as connection:
        assert connection.execute("SHOW search_path").fetchone() == ("tenant",)
        assert connection.execute("SHOW TimeZone").fetchone() == ("UTC",)


@pytest.fixture(params=["postgresql", "sqlite", "duckdb"])
def address_of_each(request, tmp_path):
    """The address of an existing database of each kind."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")
    file = tmp_path / "a.db"
    (sqlite3 if request.param == "sqlite" else duckdb).connect(file).close()
    file.touch()  # SQLite makes no file without a table
    return f"{request.param}://{file}"


def test_a_query_may_end_in_a_comment(address_of_each, tmp_path):
    for query in ("SELECT 7 AS v -- all", "SELECT 7 AS v;"):
        assert copy_out(parse_address(address_of_each, query), {}, tmp_path).path.is_file()


def test_a_table_of_duckdb_is_no_variable_of_the_program(tmp_path):
    """DuckDB's driver would use the variable `database` of the function that reads the table."""
    duckdb.connect(tmp_path / "d").close()
    with pytest.raises(UsageError, match="database does not exist") as absent:
        copy_out(parse_address(f"duckdb://{tmp_path}/d?table=database"), {}, tmp_path)
    assert absent.value.code == "no-table"


def test_a_duckdb_file_open_in_the_same_process_is_a_temporary_failure(tmp_path):
    with duckdb.connect(tmp_path / "d") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id")
        with pytest.raises(TryAgain, match="this process has") as busy:
            copy_out(parse_address(f"duckdb://{tmp_path}/d?table=t"), {}, tmp_path)
    assert busy.value.code == "source-busy"
    with duckdb.connect(tmp_path / "d", read_only=True):
        assert copy_out(parse_address(f"duckdb://{tmp_path}/d?table=t"), {}, tmp_path).path.is_file()


@pytest.mark.parametrize("type_", ["HUGEINT", "UHUGEINT"])
def test_duckdb_numbers_of_38_digits_are_copied(tmp_path, type_):
    """The check is exact at the limit."""
    largest = 10**38 - 1
    duckdb.connect(tmp_path / "d").close()
    copy = copy_out(parse_address(f"duckdb://{tmp_path}/d", f"SELECT {largest}::{type_} AS v"), {}, tmp_path)
    assert pq.read_table(copy.path)["v"].to_pylist() == [Decimal(largest)]
    beyond = parse_address(f"duckdb://{tmp_path}/d", f"SELECT {largest + 1}::{type_} AS v")
    with pytest.raises(Refused, match="beyond 38 digits"):
        copy_out(beyond, {}, tmp_path)
