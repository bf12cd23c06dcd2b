"""Databases that hold histories: DuckDB files, and PostgreSQL databases of a real server."""

import itertools
import zlib
from contextlib import contextmanager

import psycopg
import pytest
from depth import DEPTH
from historizing import Place

NUMBERS = itertools.count(1)


@pytest.fixture
def duckdb_url(tmp_path):
    return f"duckdb://{tmp_path / 'histories.duckdb'}"


# Empty databases of finished tests. Creating and dropping a database takes longer than most loads.
FREE = []
EMPTY = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$ DECLARE each name; BEGIN
  FOR each IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', each);
  END LOOP;
END $$;
CREATE SCHEMA public;
"""


@contextmanager
def database(server_url):
    """The address of an empty database for this test."""
    server, _, _ = server_url.rpartition("/")
    name = FREE.pop() if FREE else _made(server_url)
    yield f"{server}/{name}"
    with psycopg.connect(f"{server}/{name}", autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} RESET ALL; {EMPTY}")
    FREE.append(name)


def _made(server_url):
    name = f"historize_{next(NUMBERS)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return name


@pytest.fixture
def postgres_url(postgresql_url):
    with database(postgresql_url) as url:
        yield url


@pytest.fixture
def other_postgres_url(postgresql_url):
    with database(postgresql_url) as url:
        yield url


@pytest.fixture(params=["duckdb", "postgres"])
def place(request, tmp_path):
    """An empty database of either kind."""
    new_place = Place(request.param, request.getfixturevalue(f"{request.param}_url"), tmp_path)
    yield new_place
    new_place.close()


@pytest.fixture(params=["four_step", "merge"] if DEPTH == "laws" else ["either"])
def engine(request):
    """The engine that loads histories.

    Before a release, both engines run at each place. Otherwise each place has one engine, and the choice
    changes from test to test.
    """
    if request.param != "either":
        return request.param
    callspec = request.node.callspec
    place = str(callspec.params.get("place", callspec.params.get("grounds", "")))
    others = f"{request.node.originalname} {callspec.id.replace(place, '')}"
    return ("four_step", "merge")[(zlib.crc32(others.encode()) + (place == "postgres")) % 2]
