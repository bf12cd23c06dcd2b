"""One Spark session for the whole run, and how thorough the properties are."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The thorough profile is for CI and `make test`; `make test-fast` must be done in seconds.
settings.register_profile("fast", max_examples=25, deadline=None)
settings.register_profile(
    "thorough", max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("BACKSTORY_HYPOTHESIS", "fast"))

SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.jars.packages": "org.postgresql:postgresql:42.7.8",
}


def pytest_collection_modifyitems(items):
    """Whatever asks for the session, by whatever fixture, is marked `spark`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark(warehouse):
    from backstory.settings import Settings
    from backstory.spark.session import start

    session = start(Settings(warehouse, spark=SPARK))
    yield session
    session.stop()


@pytest.fixture
def store(spark):
    from backstory.tables.store import Store

    return Store(spark)
