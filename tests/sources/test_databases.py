"""Databases: each remedy can be followed when its message appears, and SQLite is copied exactly."""

import sqlite3
from contextlib import closing

import pyarrow.parquet as pq
import pytest

from backstory.errors import UsageError
from backstory.sources.databases.address import parse_address
from backstory.sources.databases.copies import refuse_column
from backstory.sources.databases.sqlite import copy_sqlite

QUERY = "SELECT v::text FROM t"


@pytest.mark.parametrize(("table", "bare"), [("?table=t", True), ("", False)])
def test_the_remedy_for_an_untyped_column_fits_the_address(table, bare):
    """The file that `init` writes has the table in its address, which excludes a query."""
    database = parse_address(f"sqlite:///a.db{table}", None if table else QUERY)
    remedy = refuse_column(database, "v", "has no exact type").remedy
    assert ("a `source` without `?table=`" in remedy) is bare


def test_an_address_with_a_table_and_a_query_is_refused_with_a_remedy():
    with pytest.raises(UsageError) as told:
        parse_address("sqlite:///a.db?table=t", QUERY)
    assert told.value.remedy == "Omit `?table=` in the address, or omit `query=`."


def test_every_integer_of_sqlite_is_copied(tmp_path):
    """An integer column holds all 64-bit integers, the least one included."""
    numbers = [(-(2**63),), (2**63 - 1,), (0,)]
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", numbers)
        connection.commit()
    copy = copy_sqlite(parse_address(f"sqlite://{tmp_path}/a.db?table=t"), {}, tmp_path)
    assert pq.read_table(copy.path)["n"].to_pylist() == [number for (number,) in numbers]
