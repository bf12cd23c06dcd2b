"""Spark sessions: checks of a caller's session, and the refresh of its caches of tables.

By default, Iceberg's catalog caches tables, and Spark caches the rows of cached frames. Spark reads tables by
name, so both caches are refreshed before it reads, and after each commit for other readers. Each session has
its own catalogs. A stream writes its batches in a copy of the session that started it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from backstory.errors import UsageError
from backstory.spark.connect import Py4JError, Py4JJavaError
from backstory.spark.jars import iceberg_package
from backstory.spark.launch import spells
from backstory.spark.session import LateSpark
from backstory.spark.versions import OLDEST as OLDEST_SPARK
from backstory.spark.versions import TESTED, is_older, renew_kept_rows, scala_of
from backstory.stores.iceberg.jvm import (
    ICEBERG_CATALOG,
    SPARK_CATALOG,
    SPARK_SESSION_CATALOG,
    catalog,
    gateway,
    is_caching,
    java_class_or_none,
    loaded_catalog,
    missing_classes,
    version,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backstory.model.table import TableName
    from backstory.stores.iceberg.store import IcebergStore

# The first Iceberg whose writers keep the ids of rows. Other needed classes are looked up by name.
OLDEST = (1, 11)
# The catalog of every session, which has tables of Iceberg next to Spark's own.
SESSION_CATALOG = "spark_catalog"


def require_usable(spark: "SparkSession", catalog: str) -> None:
    """Check a session before it is used.

    Raises UsageError if the catalog is not Iceberg's, or if Spark or Iceberg is too old or lacks a class. The
    error names the class (interface, section 7).
    """
    if is_older(str(spark.version), OLDEST_SPARK):
        raise UsageError(
            "other-spark",
            f"Spark {spark.version} is not supported.",
            f"Use {TESTED}, with which backstory is tested.",
        )
    jvm = gateway(spark)
    package = iceberg_package(str(spark.version), scala_of(jvm))
    _require_iceberg_catalog(jvm, spark.conf.get(f"spark.sql.catalog.{catalog}", None), catalog, package)
    folder = str(spark.conf.get(f"spark.sql.catalog.{catalog}.warehouse", "") or "")
    if not spells(jvm, folder):
        raise UsageError(
            "no-warehouse",
            f"The session's Java cannot encode the name of the folder {folder} in its locale.",
            "Start the process with LC_ALL=C.UTF-8, or name a warehouse without letters beyond ASCII.",
        )
    missing, installed = missing_classes(jvm), version(jvm)
    if missing or is_older(installed, OLDEST):
        raise UsageError(
            "other-iceberg",
            f"Iceberg {installed} is not supported{f': it lacks {missing[0]}' if missing else ''}.",
            f"Start the session with Iceberg 1.11 or 1.12, and no other version of it: "
            f"{_line('spark.jars.packages', package)}.",
        )


def _require_iceberg_catalog(jvm: Any, named: str | None, catalog: str, package: str) -> None:
    kind, iceberg = (
        java_class_or_none(jvm, named) if named else None,
        java_class_or_none(jvm, ICEBERG_CATALOG),
    )
    if iceberg is None or (named and not kind):
        raise UsageError(
            "no-iceberg",
            f"The session's Java does not find {named or ICEBERG_CATALOG}.",
            f"Start the session with {_line('spark.jars.packages', package)}; a running session loads "
            "no jars.",
        )
    if not kind or not iceberg.isAssignableFrom(kind):
        setting, fitting = f"spark.sql.catalog.{catalog}", SPARK_CATALOG
        if catalog == SESSION_CATALOG:
            fitting = SPARK_SESSION_CATALOG
        raise UsageError(
            "no-iceberg-catalog",
            f"The session's catalog {catalog} is {named or 'not configured'}, not an Iceberg catalog.",
            f"Start the session with {_line(setting, fitting)} and {_line(f'{setting}.type', 'rest')} "
            "(hive, glue, jdbc or hadoop, each with its own settings), or give another `catalog=NAME`.",
        )


def _line(setting: str, value: str) -> str:
    """A line of Python that sets the property on a session's builder."""
    return f'.config("{setting}", "{value}")'


# The location of a table's metadata when its cached rows were last refreshed.
_COMPARED: Final[dict[tuple[str, str], str]] = {}
# Sessions that callers opened stores with, as long as they exist.
_SESSIONS: "Final[WeakSet[SparkSession]]" = WeakSet()
# Tables that were committed while a plan's frames are cached, or None if no frames are cached.
_LATER: "Final[ContextVar[list[tuple[IcebergStore, TableName]] | None]]" = ContextVar("later", default=None)


def watch(session: "SparkSession | LateSpark") -> None:
    """Announce every later commit, by any session, to this session too."""
    if not isinstance(session, LateSpark):
        _SESSIONS.add(session)


def refresh(store: "IcebergStore", table: "TableName", metadata: str | None = None) -> None:
    """Make the session read the current state of the named table.

    If `metadata`, the location of the table's metadata, is given, cached rows are dropped only if it has
    changed.
    """
    if not store.has_java or (isinstance(store.session, LateSpark) and store.session.started is None):
        return
    session_catalog = catalog(store.spark, store.catalog)
    if is_caching(store.jvm, session_catalog):
        session_catalog.invalidateTable(store.identifier(table))
    if not store.spark._jsparkSession.sharedState().cacheManager().isEmpty():  # noqa: SLF001 - Python has no name for it
        _refresh_rows(store, table, metadata)


def announce(store: "IcebergStore", *tables: "TableName") -> None:
    """Make all sessions read the state of these tables after a commit. Java's errors are ignored."""
    waiting = _LATER.get()
    with suppress(Py4JError, OSError):
        for table in tables:
            for other in _other_catalogs(store):
                other.invalidateTable(store.identifier(table))
            if waiting is None:
                refresh(store, table)
            else:
                waiting.append((store, table))


@contextmanager
def announce_later() -> Iterator[None]:
    """Announce the block's commits at its end, when the frames of their plans are no longer cached.

    If they were announced earlier, Spark would plan a cached frame again on the newer table, and cache that
    result.
    """
    waiting: list[tuple[IcebergStore, TableName]] = []
    before = _LATER.set(waiting)
    try:
        yield
    finally:
        _LATER.reset(before)
        for store, table in waiting:
            announce(store, table)


def _other_catalogs(store: "IcebergStore") -> Iterator[Any]:
    """The caching catalogs with this name in other sessions that have loaded them."""
    if isinstance(store.session, LateSpark):
        return
    for session in [*_SESSIONS]:
        if session is store.session:
            continue
        with suppress(Py4JError, OSError):  # a session that has ended reads nothing
            loaded = loaded_catalog(session, store.catalog)
            if loaded is not None and is_caching(store.jvm, loaded):
                yield loaded


def _refresh_rows(store: "IcebergStore", table: "TableName", metadata: str | None) -> None:
    from pyspark.errors import PySparkException

    name = replace(store, branch=None).sql_name(table)
    if metadata is None or _COMPARED.get((store.address, name)) != metadata:
        # The table was dropped, or a cached frame cannot be planned again and so is no longer cached.
        with suppress(PySparkException, Py4JJavaError):
            renew_kept_rows(store.spark, name)
        _COMPARED[store.address, name] = metadata or ""
