"""The jars that Spark needs beside itself: which they are, and the properties by which a session has them."""

from collections.abc import Mapping
from typing import Final

from backstory.spark.jars import PACKAGES, fetch, kept
from backstory.spark.versions import installed, suffix

ICEBERG: Final = "1.12.0"
SQLITE_JDBC: Final = "3.54.1.0"
BYTES: Final = 60_440_000  # of both
JARS, MODULES = "spark.jars", "spark.submit.pyFiles"


def connectors(given: Mapping[str, str]) -> dict[str, str]:
    """The properties that name the jars, beside the given ones; what is missing is fetched first.

    A package that is given takes the place of ours of that name, which chooses another Iceberg. Whoever
    names jars of his own gets these, and the packages that he names. Raises Failed where a jar is not to be
    had.
    """
    packages = packages_of(given)
    if not packages:
        return {}
    jars = fetch(packages, given)
    named = {
        JARS: [given.get(JARS), *jars],
        MODULES: [given.get(MODULES), *(jar for jar in jars if jar.modules)],
    }
    return {name: ",".join(map(str, filter(None, each))) for name, each in named.items() if any(each)}


def packages_of(given: Mapping[str, str]) -> list[str]:
    """The packages of a session with these properties, as `group:name:version`."""
    own = [package.strip() for package in given.get(PACKAGES, "").split(",") if package.strip()]
    names = {_name(package) for package in own}
    ours = [] if JARS in given else _ours()
    return [*(package for package in ours if _name(package) not in names), *own]


def missing(given: Mapping[str, str]) -> bool:
    """Whether the next start has to fetch jars."""
    packages = packages_of(given)
    return bool(packages) and kept(packages, given) is None


def runtime(spark: str | None = None, scala: str | None = None) -> str:
    """The package of Iceberg for a Spark of this version and Scala, or for the one that is installed."""
    return f"org.apache.iceberg:iceberg-spark-runtime-{suffix(spark or installed(), scala)}:{ICEBERG}"


def _ours() -> list[str]:
    return [runtime(), f"org.xerial:sqlite-jdbc:{SQLITE_JDBC}"]


def _name(package: str) -> str:
    return package.rpartition(":")[0]
