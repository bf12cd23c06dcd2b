"""A Spark session that somebody else started: can its catalog be worked with?"""

from typing import TYPE_CHECKING, Any

from backstory.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first Iceberg for Spark 4, and what must be there of it: the rest is as old.
OLDEST = (1, 10)
ICEBERG = "org.apache.iceberg"
RUNTIME = f"{ICEBERG}:iceberg-spark-runtime-4.1_2.13:1.12.0"
CATALOG = f"{ICEBERG}.spark.source.HasIcebergCatalog"
NEEDED = (
    "spark.Spark3Util",
    "spark.SparkTableCache",
    "spark.FileRewriteCoordinator",
    "data.BaseDeleteLoader",
)


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
    jvm: Any = spark._jvm  # noqa: SLF001 - Iceberg is found in no other way
    _require_iceberg_catalog(jvm, spark.conf.get(f"spark.sql.catalog.{catalog}", None), catalog)
    version = str(jvm.org.apache.iceberg.IcebergBuild.version())
    missing = [name for name in NEEDED if _class(jvm, f"{ICEBERG}.{name}") is None]
    if missing or _older(version):
        raise UsageError(
            "other-iceberg",
            f"Iceberg {version} cannot be worked with{f': it has no {missing[0]}' if missing else ''}.",
            "Give the session Iceberg 1.12, the one that backstory is tested with.",
        )


def _require_iceberg_catalog(jvm: Any, named: str | None, catalog: str) -> None:
    found = named and _class(jvm, named)
    if named and not found:
        raise UsageError(
            "no-iceberg",
            f"The session's Java does not find {named}, the catalog {catalog}.",
            f"Add {RUNTIME} to spark.jars.packages.",
        )
    iceberg = _class(jvm, CATALOG)
    if not found or iceberg is None or not iceberg.isAssignableFrom(found):
        raise UsageError(
            "no-iceberg-catalog",
            f"The session's catalog {catalog} is {named or 'not configured'}, and no catalog of Iceberg's.",
            f"Set spark.sql.catalog.{catalog} to {ICEBERG}.spark.SparkCatalog, or give another catalog=.",
        )


def _class(jvm: Any, name: str) -> Any:
    """The class of this name; None if there is none."""
    from py4j.protocol import Py4JJavaError

    try:
        return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return None


def _older(version: str) -> bool:
    """Whether a version is known to be too old; a vendor's own spelling is not."""
    parts = version.split(".")[:2]
    return all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST
