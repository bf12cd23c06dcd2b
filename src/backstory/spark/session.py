"""The start of the embedded Spark session, with its Java and its Iceberg catalogs."""

import atexit
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.errors import Failed, UsageError
from backstory.settings import CATALOG_FILE, Settings
from backstory.spark.jars import PACKAGES, jar_properties, leave_out_jars
from backstory.spark.java_errors import Py4JError
from backstory.spark.launch import (
    OWNER_ALONE,
    discard_archive,
    failure_reason,
    java,
    launch,
    redirect_output,
    seal_archive,
    spells,
    use_class_archive,
)
from backstory.spark.process import allow_interrupts, let_pandas_in
from backstory.spark.session_settings import OUR_SETTINGS
from backstory.spark.versions import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA, LAST_JAVA = 17, 23  # Hadoop's user groups need an API that Java 24 removed
DATABASE = b"SQLite format 3\0"  # the first bytes of a database file that is not empty
# Iceberg's own tables, in version V1 of its schema.
CATALOG_TABLES = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
  catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
  metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
  PRIMARY KEY (catalog_name, table_namespace, table_name));
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
  catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255),
  property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""
EXISTING = 2  # SQLite opens only existing files, for reading and writing

# In-process Spark on one machine, for a laptop or a small server.
DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "backstory",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    # Keys as a set and not as code, so that the next delivery's keys need no compilation.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Rows go to Python and its workers over sockets, which a busy machine may accept late.
    "spark.python.authenticate.socketTimeout": "120s",
    # Recording where in Python each column was named takes half of all calls to the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Rows of a delivery may be spilled or shuffled; they must be encrypted on disk (section 7.3).
    "spark.io.encryption.enabled": "true",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}

# Embedded Spark only connects to itself: no other machine and no other user may reach it.
EMBEDDED = re.compile(r"local(\[[^\]]*\])?")
ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",  # with a secret that Spark makes for itself
}


def start_session(settings: Settings, *, verbose: bool = False) -> "SparkSession":
    """A session with every catalog in the settings. Spark's own log goes to a file.

    Raises the errors of `session_properties` and `start_java`, and Failed if Spark does not start.
    """
    let_pandas_in()
    chosen = session_properties(settings)
    start_java(settings, chosen, verbose=verbose)
    builder = _pyspark().builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _report_start(verbose=verbose):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    leave_out_jars(spark)
    for chatter in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(chatter).setLevel(logging.CRITICAL)
    allow_interrupts()
    return spark


def start_java(
    settings: Settings, chosen: Mapping[str, str], *, verbose: bool = False, brief: bool = False
) -> Any:
    """Java with Spark and Iceberg, started once per process, for a session with these properties.

    If `brief` is true, Java may archive its classes for later starts when it ends. Raises UsageError if Java
    is missing, and Failed if Java does not start. If the file of the embedded catalog is not a database,
    Failed is raised before Java starts.
    """
    if (running := java()) is None:
        program = _require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _make_warehouse(settings)
    if _embeds(settings):
        _require_database(settings.warehouse / CATALOG_FILE)
    if running is None:
        embeds = _embeds(settings)
        keeps = embeds and brief and "spark.driver.extraClassPath" not in chosen
        with _report_start(verbose=verbose):
            running = _launch(chosen, program, alone=embeds, keeps=keeps)
        _require_names(running, settings)
        allow_interrupts()
    return running


def _launch(chosen: Mapping[str, str], program: Path, *, alone: bool, keeps: bool) -> Any:
    """Launch Java. If the launch fails with archived classes, launch it again without them."""
    from pyspark.errors import PySparkException

    with use_class_archive(program, spark_home() / "jars", keeps=keeps) as archive:
        try:
            running = launch(chosen, alone=alone)
        except (PySparkException, Py4JError, OSError):
            if archive is None:
                raise
            discard_archive(archive)
        else:
            if archive is not None:
                seal_archive(archive)
            return running
    return launch(chosen, alone=alone)


def _require_names(jvm: Any, settings: Settings) -> None:
    """Raise UsageError if Java would encode the warehouse's folder differently from this process."""
    if not spells(jvm, str(settings.warehouse)):
        raise UsageError(
            "no-warehouse",
            f"Java cannot encode the name of the folder {settings.warehouse} in this locale.",
            "Set LC_ALL to a UTF-8 locale of this machine, or name a folder in ASCII with `warehouse=`.",
        )


@contextmanager
def _report_start(*, verbose: bool) -> Iterator[None]:
    """Raise Failed if the block does not start Java. Otherwise, delete Java's log when this process ends."""
    from pyspark.errors import PySparkException

    with redirect_output(verbose=verbose) as output:
        try:
            yield
        except (PySparkException, Py4JError, OSError) as stop:
            text = output.read_text("utf-8", "replace") if output else ""
            raise Failed(
                "spark-did-not-start",
                f"Spark did not start: {failure_reason(text or str(stop))}.",
                f"Its own log is {output}." if output else "Its own log is above.",
            ) from stop
        if output is not None:
            atexit.register(output.unlink, missing_ok=True)


def _make_warehouse(settings: Settings) -> None:
    """Create the folder and the file of the embedded catalog. Both belong only to the user.

    SQLite is not allowed to create the file, because it would do so even while the catalog is not mounted.
    """
    try:
        settings.warehouse.mkdir(0o700, parents=True, exist_ok=True)
        catalog = settings.warehouse / CATALOG_FILE
        if _embeds(settings) and not catalog.exists():  # reading only needs the file to exist
            catalog.touch(0o600)
        if _embeds(settings) and catalog.is_file() and not catalog.stat().st_size:
            # Iceberg would create its tables in several steps, between which another program may run.
            # Spark reports errors later.
            with suppress(sqlite3.Error), closing(sqlite3.connect(catalog)) as connection:
                connection.executescript(f"BEGIN IMMEDIATE; {CATALOG_TABLES} COMMIT;")
    except OSError as stop:
        raise UsageError(
            "no-warehouse",
            f"The warehouse {settings.warehouse} cannot be used: {stop.strerror}.",
            "Name a folder with `warehouse=FOLDER` or BACKSTORY_WAREHOUSE.",
        ) from None


def _require_database(catalog: Path) -> None:
    """Raise Failed early if the catalog's file is not a database. Spark reports damage inside it."""
    try:
        with catalog.open("rb") as file:
            if file.read(len(DATABASE)) in {b"", DATABASE}:
                return
    except IsADirectoryError:
        pass
    except OSError:  # Spark reports that it cannot be read
        return
    raise Failed(
        "no-catalog",
        f"{catalog} is not the database of a catalog.",
        "Restore it from a backup, or name another warehouse.",
    )


def session_properties(settings: Settings) -> dict[str, str]:
    """The Spark properties of a session with these settings.

    The settings override all properties except OUR_SETTINGS and the jars. OUR_SETTINGS are the settings that
    results depend on. Raises UsageError if pyspark is missing, and Failed if a jar cannot be fetched.
    """
    _pyspark()
    chosen = {
        **DEFAULTS,
        "spark.sql.warehouse.dir": str(settings.warehouse),
        "spark.driver.maxResultSize": str(settings.driver_memory // 2),
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -Dderby.system.home=/nonexistent",
    }
    if EMBEDDED.fullmatch(settings.spark.get("spark.master", DEFAULTS["spark.master"])):
        chosen.update(ON_THIS_MACHINE)
    if _embeds(settings):
        chosen["spark.hadoop.fs.permissions.umask-mode"] = f"{OWNER_ALONE:03o}"  # Hadoop has its own umask
    for name, catalog in settings.catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        chosen[prefix] = "org.apache.iceberg.spark.SparkCatalog"
        for key, value in (catalog or _embedded_catalog(settings.warehouse)).items():
            chosen[f"{prefix}.{key}"] = value
        # Two servers may write to one catalog, so that a cached table could be outdated.
        chosen[f"{prefix}.cache-enabled"] = "false"
    chosen.update(settings.spark)
    chosen.update(OUR_SETTINGS)
    chosen.pop(PACKAGES, None)  # the jars include them
    return chosen | jar_properties(settings.spark)


def _embeds(settings: Settings) -> bool:
    """Whether the settings include the embedded catalog."""
    return not all(settings.catalogs.values())


def _embedded_catalog(warehouse: Path) -> Mapping[str, str]:
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{warehouse}/{CATALOG_FILE}?busy_timeout=60000&open_mode={EXISTING}",
        "jdbc.schema-version": "V1",
        "warehouse": str(warehouse),
    }


def _pyspark() -> "type[SparkSession]":
    try:
        version("pyspark")
        from pyspark.sql import SparkSession
    except (PackageNotFoundError, ImportError):
        raise UsageError(
            "no-pyspark", "pyspark is not installed.", 'Install it: pip install "backstory[spark]".'
        ) from None
    return SparkSession


def _require_java() -> Path:
    """Java's program. Raises UsageError if it is missing or its version is unsupported."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    number = _java_version(Path(java)) if java else 0
    if not JAVA <= number <= LAST_JAVA:
        where = f"JAVA_HOME, which is {home}," if home else java
        lack = f"{where} is Java {number}" if number else f"{where} has no Java" if home else "there is none"
        raise UsageError(
            "no-java",
            f"Java {JAVA} to {LAST_JAVA} is needed to run Spark: {lack}.",
            ("Correct or unset JAVA_HOME. " if home else "")
            + "On Debian or Ubuntu: apt-get install openjdk-17-jre-headless; "
            "elsewhere: JDK 17 or 21, with JAVA_HOME naming its folder.",
        )
    return Path(str(java))


def _java_version(java: Path) -> int:
    """Java's version from the release file in its folder, or else from Java itself. 0 if it is unknown."""
    release = java.resolve().parent.parent / "release"
    try:
        text = release.read_text("utf-8") if os.access(java, os.X_OK) else ""
    except OSError:
        text = ""
    if not text.startswith("JAVA_VERSION=") and "\nJAVA_VERSION=" not in text:
        try:
            text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
        except OSError:
            return 0
    matched = re.search(r'(?:version |^JAVA_VERSION=)"(\d+)', text, re.MULTILINE)
    return int(matched.group(1)) if matched else 0
