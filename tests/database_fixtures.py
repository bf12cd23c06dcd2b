"""Databases to keep histories on: DuckDB files, and PostgreSQL databases of a real server."""

import itertools
from contextlib import contextmanager

import psycopg
import pytest
from historizing import Place

NUMBERS = itertools.count(1)


@pytest.fixture
def duckdb_url(tmp_path):
    return f"duckdb://{tmp_path / 'histories.duckdb'}"


@contextmanager
def database(server_url):
    """The address of a database of the test's own."""
    server, _, _ = server_url.rpartition("/")
    name = f"historize_{next(NUMBERS)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{server}/{name}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgresql_url):
    with database(postgresql_url) as found:
        yield found


@pytest.fixture
def other_postgres_url(postgresql_url):
    with database(postgresql_url) as found:
        yield found


@pytest.fixture(params=["duckdb", "postgres"])
def place(request, tmp_path):
    """An empty database of either kind."""
    found = Place(request.param, request.getfixturevalue(f"{request.param}_url"), tmp_path)
    yield found
    found.close()


@pytest.fixture(params=["four_step", "merge"])
def engine(request):
    """How histories are loaded."""
    return request.param
