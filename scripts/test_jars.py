"""Fetch every jar that the tests need, so that no two of their processes fetch the same jar at once.

With `--of-sessions` it fetches only the jars of sessions, for another Spark.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests")]

import conftest  # noqa: E402 - modules of the tests
import debezium_engine  # noqa: E402
import kafka_broker  # noqa: E402
import kafka_stream  # noqa: E402
import maven  # noqa: E402
import rest_catalog  # noqa: E402

from backstory.doors.native.databases import MARIADB  # noqa: E402
from backstory.spark.jars import fetch_jars, packages_of  # noqa: E402

OF_SESSIONS = "--of-sessions"


def fetch_of_sessions() -> None:
    """Fetch the jars of sessions and of Kafka's connector for this process's Spark."""
    for settings in ({}, conftest.SPARK):
        fetch_jars(packages_of(settings), settings)
    kafka_stream.classes()


if __name__ == "__main__":
    fetch_of_sessions()
    if OF_SESSIONS in sys.argv:
        sys.exit()
    fetch_jars([MARIADB], {})
    rest_catalog.jars()
    maven.jars("kafka", f"org.apache.kafka:kafka_2.13:{kafka_broker.VERSION}")
    debezium_engine.engine()
    debezium_engine.engine_of_mariadb()
