"""Start the embedded Spark session, with its Iceberg catalogs."""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from backstory.errors import Failed, UsageError
from backstory.settings import Settings
from backstory.spark.interrupts import interruptible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ICEBERG = "1.12.0"
SQLITE_JDBC = "3.54.1.0"
JAVA = 17
CATALOG_FILE = "catalog.db"
EXISTING = 2  # SQLite opens for reading and writing what is there

# In-process Spark on one machine: what a laptop or a small server wants.
DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "backstory",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    # Keys as a set and not as code: the next delivery's keys need no compilation of their own.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Where in Python each column was named takes half of all calls to the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Rows of a delivery may be spilled or shuffled; what is on disk is not in clear (section 7.3).
    "spark.io.encryption.enabled": "true",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


def start(settings: Settings, *, verbose: bool = False) -> "SparkSession":
    """A session with every catalog of the settings; Spark's own chatter goes to a log file.

    Raises UsageError when pyspark or Java is missing, Failed when Spark does not start.
    """
    _require_java()
    session = _pyspark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _make_warehouse(settings)
    chosen = properties(settings)
    builder = session.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _quiet(verbose=verbose) as log:
        try:
            _launch(chosen)
            spark = builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as stop:
            raise Failed(
                "spark-did-not-start",
                f"Spark did not start: {str(stop).splitlines()[0]}.",
                f"Its own log is {log}." if log else "Its own log is above.",
            ) from stop
    spark.sparkContext.setLogLevel("ERROR")
    for chatter in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(chatter).setLevel(logging.CRITICAL)
    interruptible(spark)
    return spark


def _make_warehouse(settings: Settings) -> None:
    """Make the folder and, for the embedded catalog, its file.

    SQLite does not make one of its own accord: it would do so too while the catalog is away.
    """
    try:
        settings.warehouse.mkdir(parents=True, exist_ok=True)
        if not all(settings.catalogs.values()):
            (settings.warehouse / CATALOG_FILE).touch()
    except OSError as stop:
        raise UsageError(
            "no-warehouse",
            f"The warehouse {settings.warehouse} cannot be used: {stop.strerror}.",
            "Name a folder with --warehouse or BACKSTORY_WAREHOUSE.",
        ) from None


def _launch(chosen: Mapping[str, str]) -> None:
    """Start the JVM in a session of its own: a signal to this process's group must not end it.

    It ends with this process, whose end it sees on its standard input.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - pyspark starts its JVM in this way itself
        conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def properties(settings: Settings) -> dict[str, str]:
    """The Spark properties of a session with these settings; the settings' own come last."""
    found = {
        **DEFAULTS,
        "spark.sql.warehouse.dir": str(settings.warehouse),
        "spark.driver.maxResultSize": str(settings.driver_memory // 2),
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -Dderby.system.home=/nonexistent",
    }
    for name, catalog in settings.catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        found[prefix] = "org.apache.iceberg.spark.SparkCatalog"
        for key, value in (catalog or _embedded(settings.warehouse)).items():
            found[f"{prefix}.{key}"] = value
        # Two servers may write to one catalog: a cached table would be an old one.
        found[f"{prefix}.cache-enabled"] = "false"
    found.update(settings.spark)
    if "spark.jars" not in settings.spark:
        own = settings.spark.get("spark.jars.packages", "")
        found["spark.jars.packages"] = ",".join(filter(None, [_connectors(), own]))
    return found


def _embedded(warehouse: Path) -> Mapping[str, str]:
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{warehouse}/{CATALOG_FILE}?busy_timeout=60000&open_mode={EXISTING}",
        "jdbc.schema-version": "V1",
        "warehouse": str(warehouse),
    }


def _connectors() -> str:
    spark = ".".join(version("pyspark").split(".")[:2])
    return (
        f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{ICEBERG},"
        f"org.xerial:sqlite-jdbc:{SQLITE_JDBC}"
    )


def _pyspark() -> "type[SparkSession]":
    try:
        version("pyspark")
        from pyspark.sql import SparkSession
    except (PackageNotFoundError, ImportError):
        raise UsageError(
            "no-pyspark", "pyspark is not installed.", 'Install it: pip install "backstory[spark]".'
        ) from None
    return SparkSession


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    found = None
    if java:
        try:
            told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
            found = re.search(r'version "(\d+)', told.stderr)
        except OSError:
            found = None
    if found is None or int(found.group(1)) < JAVA:
        raise UsageError(
            "no-java",
            f"Java {JAVA} or later is needed to run Spark and was not found.",
            "On Debian or Ubuntu: apt-get install openjdk-17-jre-headless; "
            "elsewhere: any JDK 17 or later, with JAVA_HOME naming its folder.",
        )


@contextmanager
def _quiet(*, verbose: bool) -> Iterator[Path | None]:
    """While the JVM starts, the outputs that it inherits are a log file; standard output never is."""
    saved = os.dup(1), os.dup(2)
    path = None if verbose else Path(tempfile.gettempdir(), f"backstory-spark-{os.getpid()}.log")
    try:
        sys.stdout.flush()
        if path:
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        else:
            os.dup2(2, 1)
        yield path
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in saved:
            os.close(descriptor)
