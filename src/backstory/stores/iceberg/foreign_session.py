"""A Spark session that the caller started: whether its catalog can be used."""

from typing import TYPE_CHECKING, Any

from backstory.errors import UsageError
from backstory.spark.connectors import runtime
from backstory.spark.launch import spells
from backstory.spark.versions import OLDEST as OLDEST_SPARK
from backstory.spark.versions import TESTED, is_older, scala_of
from backstory.stores.iceberg.jvm import (
    ICEBERG_CATALOG,
    SPARK_CATALOG,
    SPARK_SESSION_CATALOG,
    gateway,
    java_class_or_none,
    lacking,
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
    package = runtime(str(spark.version), scala_of(jvm))
    _require_iceberg_catalog(jvm, spark.conf.get(f"spark.sql.catalog.{catalog}", None), catalog, package)
    folder = str(spark.conf.get(f"spark.sql.catalog.{catalog}.warehouse", "") or "")
    if not spells(jvm, folder):
        raise UsageError(
            "no-warehouse",
            f"The session's Java cannot spell the folder {folder}, since its locale has no such letters.",
            "Start the process with LC_ALL=C.UTF-8, or name a warehouse without letters beyond ASCII.",
        )
    missing, installed = lacking(jvm), version(jvm)
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
