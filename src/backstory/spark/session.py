"""Spark sessions: the start of an embedded one, and the settings that every session needs (E1 to E4).

An embedded session has its own Java and Iceberg catalogs. Its Spark starts on first use, because plans on the
driver need only Java.
"""

import atexit
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from inspect import isfunction
from pathlib import Path
from threading import Lock, RLock, local
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from backstory.errors import Failed, UsageError
from backstory.settings import CATALOG_FILE, Settings
from backstory.spark.connect import Py4JError, refuse_java, session_id
from backstory.spark.jars import PACKAGES, jar_properties, leave_out_jars
from backstory.spark.launch import (
    OWNER_ONLY,
    discard_archive,
    failure_reason,
    java,
    launch,
    redirect_output,
    seal_archive,
    spells,
    use_class_archive,
)
from backstory.spark.process import allow_interrupts, is_forked, let_pandas_in
from backstory.spark.versions import naming_columns, sessions_class, spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
Of = TypeVar("Of")
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

# In another zone naive times shift, and two instants in summer time have the same text. Without ANSI mode a
# value that does not fit is NULL, and two values have the same hash. Columns may differ only by case. Cached
# rows are collected in the heap in batches of this size, however wide they are. Compressing them takes longer
# than writing and reading them.
EXACT: Final = "spark.sql.caseSensitive"
OUR_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    EXACT: "true",
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
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
    """Raise Failed if Java or Spark does not start. Otherwise, delete the log when this process ends."""
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
    """Raise Failed early if the catalog's file is not a database. Spark reports other damage later."""
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
        chosen["spark.hadoop.fs.permissions.umask-mode"] = f"{OWNER_ONLY:03o}"  # Hadoop has its own umask
    embedded = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{settings.warehouse}/{CATALOG_FILE}?busy_timeout=60000&open_mode={EXISTING}",
        "jdbc.schema-version": "V1",
        "warehouse": str(settings.warehouse),
    }
    for name, catalog in settings.catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        chosen[prefix] = "org.apache.iceberg.spark.SparkCatalog"
        for key, value in (catalog or embedded).items():
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
    """The path of Java's program. Raises UsageError if it is missing or its version is unsupported."""
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
    """Java's version from the release file in its folder, or else from Java itself, or 0 if it is unknown."""
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


# By thread: the session that was last active in its Java.
_seen = local()


def activate(spark: "SparkSession") -> "SparkSession":
    """Make the session active in this thread of Java, unless another running session is active. Returns it.

    Spark reads its settings, including Iceberg's catalogs, from the active session of the thread. A Java
    thread that is older than the session has no active session.
    """
    if getattr(_seen, "session", None) is not spark:
        from backstory.spark.java_names import java_class

        sessions = java_class(spark._jvm, sessions_class())  # noqa: SLF001 - Python has no name for it
        active = sessions.getActiveSession()
        if active.isEmpty() or active.get().sparkContext().isStopped():
            sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - Python has no name for it
        _seen.session = spark
    return spark


class LazyContext:
    """A placeholder for pyspark's context until Spark starts. Any use of it starts Spark.

    With this placeholder, columns can be created before their frame exists, even in a process without a
    session.
    """

    def __init__(self, late: "LateSpark") -> None:
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late.session.sparkContext, name)

    def install(self) -> None:
        """Become the active context, unless a context is running or another placeholder is installed."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:  # noqa: SLF001 - pyspark has no name for it
            SparkContext._active_spark_context = self  # type: ignore[assignment]  # noqa: SLF001

    def uninstall(self) -> None:
        """Stop being the active context, to make room for a real context."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is cast("Any", self):  # noqa: SLF001
            SparkContext._active_spark_context = None  # noqa: SLF001


class LateSpark:
    """The session of an embedded warehouse. Java and Iceberg start at once, and Spark starts on first use.

    `properties` are the session's. `catalogs` are Iceberg's catalog objects by name that were made without
    the session. Raises the errors of `start_java`.
    """

    def __init__(self, settings: Settings, *, verbose: bool = False) -> None:
        self._settings = settings
        self._verbose = verbose
        self._lock = RLock()
        self._catalogs_lock = Lock()  # a catalog must not wait for Spark
        self.properties = session_properties(settings)
        self.jvm = start_java(settings, self.properties, verbose=verbose, brief=True)
        self.catalogs: dict[str, Any] = {}
        self.started: SparkSession | None = None
        self._lazy_context = LazyContext(self)
        self._lazy_context.install()

    @property
    def session(self) -> "SparkSession":
        """The session, started if necessary. Raises the errors of `start_session`."""
        with self._lock:
            if self.started is None:
                self._lazy_context.uninstall()
                try:
                    self.started = start_session(self._settings, verbose=self._verbose)
                finally:
                    self._lazy_context.install()  # if it did not start
        return activate(self.started)

    def catalog(self, name: str, make: Callable[[], Any]) -> Any:
        """Iceberg's object for a catalog. It is made once and shared by all threads."""
        with self._catalogs_lock:
            if name not in self.catalogs:
                self.catalogs[name] = make()
            return self.catalogs[name]

    def stop(self) -> None:
        """Stop the session if it was started. Java ends with this process.

        In a forked process, do nothing.
        """
        if is_forked(self.jvm):
            return
        with self._lock:
            for catalog in self.catalogs.values():
                with suppress(Py4JError, OSError):  # a crashed Java has closed them
                    catalog.close()
            self.catalogs.clear()
            self._lazy_context.uninstall()
            if self.started is not None:
                self.started.stop()


@dataclass(slots=True)
class _Holders:
    """The number of holders of a session, and the settings that the session had before."""

    count: int = 0
    before: dict[str, str] = field(default_factory=dict)


_lock = Lock()
# By session id: several Python objects may be the same session.
_holders: dict[str, _Holders] = {}


@contextmanager
def hold_settings(of: "SparkSession | LateSpark") -> Iterator[None]:
    """Hold the session in UTC, in ANSI mode and with exact names during the block, then restore its settings.

    Analysis fixes the meaning of times and casts in a plan, which may run later. Our own sessions start with
    these settings.
    """
    spark = of.started if isinstance(of, LateSpark) else of
    if spark is None:
        yield
        return
    session = session_id(spark)
    with _lock:
        holders = _holders.setdefault(session, _Holders())
        if not holders.count:
            current = {name: str(spark.conf.get(name)) for name in OUR_SETTINGS}
            holders.before = {name: value for name, value in current.items() if value != OUR_SETTINGS[name]}
            for name in holders.before:
                spark.conf.set(name, OUR_SETTINGS[name])
        holders.count += 1
    try:
        with naming_columns(spark), refuse_java(spark):
            yield
    finally:
        with _lock:
            holders.count -= 1
            if not holders.count:
                del _holders[session]
                with suppress(Py4JError, OSError):  # a crashed Java has no settings
                    for name, value in holders.before.items():
                        spark.conf.set(name, value)


def require_exact_names(frame: "DataFrame") -> "DataFrame":
    """Return the frame, if the session can run it with its own settings. Raises UsageError otherwise.

    A session that ignores case cannot read a table whose columns differ only by case (E4).
    """
    spark = frame.sparkSession
    session = session_id(spark)
    with _lock:
        before = _holders[session].before if session in _holders else {}
    if before.get(EXACT, str(spark.conf.get(EXACT))) == "true":
        return frame
    types: list[Any] = [frame.schema, *(column.dataType for column in frame.schema.fields)]
    for names in (fields.fieldNames() for fields in types if hasattr(fields, "fieldNames")):
        spellings: dict[str, str] = {}
        for name in names:
            other = spellings.setdefault(name.lower(), name)
            if other != name:
                raise UsageError(
                    "names-differ-by-case",
                    f"The columns {other} and {name} differ only in case, and this session ignores case.",
                    f'Set spark.conf.set("{EXACT}", "true") first.',
                    [other, name],
                )
    return frame


def in_settled_session(kind: type[Of]) -> type[Of]:
    """Make the public methods of a class hold its session's settings, and check returned frames.

    The check is `require_exact_names`.
    """
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _hold_in_method(method))
    return kind


def _hold_in_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def with_settings(self: Any, *arguments: Any, **keywords: Any) -> Any:
        from pyspark.sql import DataFrame

        with hold_settings(self.store.session):
            result = method(self, *arguments, **keywords)
            return require_exact_names(result) if isinstance(result, DataFrame) else result

    return with_settings
