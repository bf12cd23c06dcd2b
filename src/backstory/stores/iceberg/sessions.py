"""A Spark session that the caller started: whether its catalog can be used.

What a session keeps of tables, and may show of them after another writer committed.

Iceberg's catalog caches tables unless it is told not to, Spark the rows of what somebody cached. Spark reads
by name, so both must be brought up to date before it does, and after each commit for whoever reads beside us.
Each session has catalogs of its own: a stream's batches are written in a copy of the session that began it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from backstory.errors import UsageError
from backstory.spark.jars import iceberg_package
from backstory.spark.late_session import LateSpark
from backstory.spark.launch import spells
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

# Its writers keep the ids of rows; what else is needed of it is asked for by name.
OLDEST = (1, 11)
# The catalog that every session has, in which Iceberg's stands beside Spark's own.
SESSION_CATALOG = "spark_catalog"


def require_usable(spark: "SparkSession", catalog: str) -> None:
    """Check a session before anything else is done with it.

    Raises UsageError for a session of Spark Connect, for a catalog that is not Iceberg's, and for a Spark or
    an Iceberg that lacks what is needed here, naming what it lacks (interface, section 7).
    """
    if not hasattr(spark, "_jsparkSession"):
        raise UsageError(
            "spark-connect",
            "The session uses Spark Connect, which has no Java to commit with.",
            "Give a classic session (SparkSession.builder.master(...), no .remote(...) and no SPARK_REMOTE), "
            "or backstory.open(FOLDER).",
        )
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
            f"The session's Java cannot spell the folder {folder}, since its locale has no such letters.",
            "Start the process with LC_ALL=C.UTF-8, or name a warehouse without letters beyond ASCII.",
        )
    missing, installed = missing_classes(jvm), version(jvm)
    if missing or is_older(installed, OLDEST):
        raise UsageError(
            "other-iceberg",
            f"Iceberg {installed} is not supported{f': it lacks {missing[0]}' if missing else ''}.",
            f"Start the session with Iceberg 1.11 or 1.12, and no other version beside it: "
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
    """The line of a builder that sets it."""
    return f'.config("{setting}", "{value}")'


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backstory.model.table import TableName
    from backstory.stores.iceberg.store import Store

# Where the metadata of a table was when rows that somebody cached were last compared with it.
_COMPARED: Final[dict[tuple[str, str], str]] = {}
# Sessions whose owners brought them here, as long as these have them.
_SESSIONS: "Final[WeakSet[SparkSession]]" = WeakSet()
# Tables that were committed while a plan's frames are kept; None where no frames are.
_LATER: "Final[ContextVar[list[tuple[Store, TableName]] | None]]" = ContextVar("later", default=None)


def watch(session: "SparkSession | LateSpark") -> None:
    """From now on each commit is announced in this session too, whichever session it is made in."""
    if not isinstance(session, LateSpark):
        _SESSIONS.add(session)


def refresh(store: "Store", table: "TableName", metadata: str | None = None) -> None:
    """From now on the session reads the table, by its name, as it stands now or later.

    With the place of the table's metadata, rows that somebody cached are dropped only where it is a new one.
    """
    if isinstance(store.session, LateSpark) and store.session.started is None:
        return
    named = catalog(store.spark, store.catalog)
    if is_caching(store.jvm, named):
        named.invalidateTable(store.identifier(table))
    if not store.spark._jsparkSession.sharedState().cacheManager().isEmpty():  # noqa: SLF001 - Python has no name for it
        _refresh_rows(store, table, metadata)


def announce(store: "Store", *tables: "TableName") -> None:
    """The session reads these tables as a commit made them, which holds whatever Java says now."""
    from py4j.protocol import Py4JError

    waiting = _LATER.get()
    with suppress(Py4JError, OSError):
        for each in tables:
            for beside in _other_catalogs(store):
                beside.invalidateTable(store.identifier(each))
            if waiting is None:
                refresh(store, each)
            else:
                waiting.append((store, each))


@contextmanager
def announce_later() -> Iterator[None]:
    """Commits within the block are announced at its end, when the frames of their plan are no longer kept.

    Spark would plan such a frame anew on the newer table, and keep it as that for good.
    """
    waiting: list[tuple[Store, TableName]] = []
    before = _LATER.set(waiting)
    try:
        yield
    finally:
        _LATER.reset(before)
        for store, table in waiting:
            announce(store, table)


def _other_catalogs(store: "Store") -> Iterator[Any]:
    """The caching catalogs that other sessions have under the same name, as far as these loaded them."""
    from py4j.protocol import Py4JError

    if isinstance(store.session, LateSpark):
        return
    for session in [*_SESSIONS]:
        if session is store.session:
            continue
        with suppress(Py4JError, OSError):  # a session that has ended reads nothing
            found = loaded_catalog(session, store.catalog)
            if found is not None and is_caching(store.jvm, found):
                yield found


def _refresh_rows(store: "Store", table: "TableName", metadata: str | None) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    name = store.sql_name(table)
    if metadata is None or _COMPARED.get((store.address, name)) != metadata:
        # The table was dropped; or a cached frame cannot be planned again, and is no longer cached then.
        with suppress(PySparkException, Py4JJavaError):
            renew_kept_rows(store.spark, name)
        _COMPARED[store.address, name] = metadata or ""
