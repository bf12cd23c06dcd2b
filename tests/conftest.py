"""One Spark session for the whole run, a real PostgreSQL server, and the depth of the property tests."""

import gc
import os
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import java
import kafka_stream
import pytest
import structlog
from depth import DEPTH, EXAMPLES
from hypothesis import HealthCheck, settings
from ports import free_ports

from backstory.settings import CATALOG_FILE
from backstory.spark.jars import ICEBERG
from backstory.spark.versions import is_before_4
from backstory.stores.embedded_catalog import PATIENCE, read_catalog

pytest_plugins = ["destination_fixtures", "database_fixtures", "pace", "second_try", "teams"]

# The gate must give the same answer twice; the laws must find cases that nobody thought of.
for depth, examples in EXAMPLES.items():
    settings.register_profile(
        depth,
        max_examples=examples,
        deadline=None,
        derandomize=depth == "gate",
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(DEPTH)

os.environ["SPARK_SUBMIT_OPTS"] = java.OPTIONS  # also for processes that tests start
# A gRPC server may run here before Spark starts. The process forked for Spark then starts none of gRPC's
# threads.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Contains letters that Java's properties escape.
SECRET = "canary-1f83 = #:\\ü\U0001f600"

SPARK = {
    "spark.backstory.secret": SECRET,
    "spark.master": "local[1]",  # another worker of the tests has the other core
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.jars.packages": f"org.postgresql:postgresql:42.7.8,org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    **java.PLANS,
    **java.UNADAPTED,
    **java.WORKERS,
}


# Fixtures that create a DuckDB file or a PostgreSQL server.
DATABASES = {
    "place",
    "places",
    "bench",
    "postgresql",
    "postgresql_url",
    "duckdb_url",
    "postgres_url",
    "database",
}


def _on_spark(chosen):
    """Whether the parameters make the test use Spark: the place of a history, or of a door's tables."""
    return chosen.get("place") == "spark" or str(chosen.get("tables_on")).startswith(("iceberg", "own "))


def _belongs_elsewhere(item):
    """Whether the test runs only before a release, or only on Spark 3.5."""
    laws, spark_3 = item.get_closest_marker("laws"), item.get_closest_marker("spark_3")
    return bool((laws and DEPTH != "laws") or (spark_3 and not is_before_4()))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Disable garbage collection during collection, because the collected tests stay until the end."""
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    return done


def pytest_unconfigure():
    """Collect the objects of libraries at the end, which DuckDB would otherwise report as leaks."""
    gc.unfreeze()


def pytest_collection_modifyitems(config, items):
    """Mark tests that request the session as `spark`, and tests that request a database as `database`.

    Tests of another depth, and tests of the other Spark, do not run.
    """
    left = [item for item in items if _belongs_elsewhere(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        chosen = getattr(item, "callspec", None)
        if "spark" in fixtures or (chosen and _on_spark(chosen.params)):
            item.add_marker(pytest.mark.spark)
        elif fixtures & DATABASES:
            item.add_marker(pytest.mark.database)


@pytest.fixture(autouse=True)
def _logs_as_before():
    """Reset the logging after each test, because a command in this process configures it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module", autouse=True)
def _tables_of_a_file(warehouse):
    """Drop the tables of other test files, because every list of all tables would read hundreds of them."""
    yield
    if read_catalog(warehouse).entries:
        with closing(sqlite3.connect(warehouse / CATALOG_FILE, timeout=PATIENCE)) as connection, connection:
            for table in ("iceberg_tables", "iceberg_namespace_properties"):
                connection.execute(f"DELETE FROM {table}")


@pytest.fixture(scope="session")
def spark(warehouse):
    from older_spark import ask_as_spark_4

    from backstory.settings import Settings
    from backstory.spark.session import start_session

    ask_as_spark_4()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(*kafka_stream.class_path())
        session = start_session(Settings(warehouse, spark=SPARK))
    java.without_checksums(session)
    yield session
    session.stop()


@pytest.fixture
def store(spark):
    from backstory.stores.iceberg.store import IcebergStore

    return IcebergStore(spark)


def program(name: str) -> str:
    """The path of a program of the PostgreSQL server. On Debian it is not in the PATH."""
    paths = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(paths[-1]) if paths else shutil.which(name)
    assert path, f"{name} is not installed: scripts/setup.sh --tests"
    return path


@pytest.fixture
def python(store):
    """The warehouse of all tests, opened in Python."""
    from backstory.warehouse import Warehouse

    return Warehouse(store, embedded=False)


@pytest.fixture(scope="session")
def postgresql():
    """The JDBC address of an empty database.

    The server refuses to run as root, so it runs as another user. Its folder is outside of pytest's own
    folders, which other users cannot enter.
    """
    with tempfile.TemporaryDirectory(prefix="backstory-postgresql-") as folder:
        owner = {"user": "postgres"} if os.getuid() == 0 else {}
        if owner:
            shutil.chown(folder, "postgres")
        data, log = Path(folder) / "data", Path(folder) / "log"
        run = {"check": True, "capture_output": True, "cwd": folder, **owner}
        subprocess.run([program("initdb"), "-D", data, "-U", "backstory", "-A", "trust"], **run)
        control = program("pg_ctl")
        for last in (False, False, True):
            (port,) = free_ports()
            options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
            options += " -c fsync=off"  # tests never cut the power
            options += " -c wal_level=logical"  # Debezium needs it
            words = [control, "-D", data, "-l", log, "-w", "-t", "600", "-o", options, "start"]
            if not subprocess.run(words, **run | {"check": last}).returncode:
                break  # otherwise another program took the port in between
        yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=backstory"
        subprocess.run([control, "-D", data, "-m", "immediate", "stop"], **run)


@pytest.fixture(scope="session")
def postgresql_url(postgresql):
    """The address of the same server for libpq."""
    place, _, user = postgresql.removeprefix("jdbc:postgresql://").partition("?user=")
    return f"postgresql://{user}@{place}"
