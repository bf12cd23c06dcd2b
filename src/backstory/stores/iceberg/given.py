"""A Spark session that somebody else started: can its catalog be worked with?"""

from typing import TYPE_CHECKING, Any

from backstory.errors import UsageError
from backstory.spark.connectors import runtime
from backstory.stores.iceberg.jvm import ICEBERG_CATALOG, SPARK_CATALOG, found, gateway, lacking, version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Its writers keep the ids of rows; what else is needed of it is asked for by name.
OLDEST = (1, 11)


def require_usable(spark: "SparkSession", catalog: str) -> None:
    """Look at a session before anything is asked of it.

    Raises UsageError for one of Spark Connect, for a catalog that is none of Iceberg's, and for an
    Iceberg that lacks what is needed here, by its name (interface, section 7).
    """
    if not hasattr(spark, "_jsparkSession"):
        raise UsageError(
            "spark-connect",
            "The session is one of Spark Connect, which has no Java to commit with.",
            "Give a classic session (SparkSession.builder.master(...)), or backstory.open(FOLDER).",
        )
    jvm = gateway(spark)
    _require_iceberg_catalog(jvm, spark.conf.get(f"spark.sql.catalog.{catalog}", None), catalog)
    missing, told = lacking(jvm), version(jvm)
    if missing or _older(told):
        raise UsageError(
            "other-iceberg",
            f"Iceberg {told} cannot be worked with{f': it lacks {missing[0]}' if missing else ''}.",
            "Give the session Iceberg 1.11 or 1.12, with which backstory is tested.",
        )


def _require_iceberg_catalog(jvm: Any, named: str | None, catalog: str) -> None:
    kind = found(jvm, named) if named else None
    if named and not kind:
        raise UsageError(
            "no-iceberg",
            f"The session's Java does not find {named}, the catalog {catalog}.",
            f"Add {runtime()} to spark.jars.packages.",
        )
    iceberg = found(jvm, ICEBERG_CATALOG)
    if not kind or iceberg is None or not iceberg.isAssignableFrom(kind):
        raise UsageError(
            "no-iceberg-catalog",
            f"The session's catalog {catalog} is {named or 'not configured'}, and no catalog of Iceberg's.",
            f"Set spark.sql.catalog.{catalog} to {SPARK_CATALOG}, or give another catalog=.",
        )


def _older(version: str) -> bool:
    """Whether a version is known to be too old; a vendor's own spelling is not."""
    parts = version.split(".")[:2]
    return all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST
