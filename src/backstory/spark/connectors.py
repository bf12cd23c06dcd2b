"""The jars that Spark needs beside itself: where its resolver left them, else for it to fetch."""

import os
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

ICEBERG: Final = "1.12.0"
SQLITE_JDBC: Final = "3.54.1.0"
BYTES: Final = 60_440_000  # of both
JARS, PACKAGES, IVY = "spark.jars", "spark.jars.packages", "spark.jars.ivy"


def connectors(given: Mapping[str, str]) -> dict[str, str]:
    """The properties that name the jars, beside the given ones; none where these name jars themselves.

    A package that is given takes the place of ours of that name, which chooses another Iceberg. What is in
    the resolver's folder already is taken from there: asking it takes seconds of every start.
    """
    if JARS in given:
        return {}
    own = given.get(PACKAGES)
    jars = fetched(given)
    if jars and not own:
        return {JARS: ",".join(map(str, jars))}
    given_names = {_name(package) for package in (own or "").split(",")}
    ours = [package for package in _packages() if _name(package) not in given_names]
    return {PACKAGES: ",".join(filter(None, [*ours, own]))}


def fetched(given: Mapping[str, str]) -> list[Path] | None:
    """The jars that an earlier start fetched, whole; None if one is missing."""
    folder = _folder(given) / "jars"
    jars = [folder / f"{package.replace(':', '_', 1).replace(':', '-')}.jar" for package in _packages()]
    return jars if all(jar.is_file() and zipfile.is_zipfile(jar) for jar in jars) else None


def missing(given: Mapping[str, str]) -> bool:
    """Whether the next start has to fetch them."""
    return JARS not in given and fetched(given) is None


def bytes_so_far(given: Mapping[str, str]) -> int:
    """How much of them the resolver has."""
    cache, names = _folder(given) / "cache", [package.split(":")[1] for package in _packages()]
    files = (each for name in names for each in cache.glob(f"*/{name}/jars/*"))
    return sum(each.stat().st_size for each in files if each.exists())


def _folder(given: Mapping[str, str]) -> Path:
    return Path(given[IVY]).expanduser() if given.get(IVY) else _java_home() / ".ivy2.5.2"


def _java_home() -> Path:
    """The home that Java knows: of the user as the system has him, whatever the variable HOME says."""
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user of a number alone, as in a container
        return Path.home()


def runtime(spark: str | None = None) -> str:
    """The package of Iceberg for a Spark of this version, or for the one that is installed."""
    told = ".".join((spark or version("pyspark")).split(".")[:2])
    return f"org.apache.iceberg:iceberg-spark-runtime-{told}_2.13:{ICEBERG}"


def _packages() -> list[str]:
    return [runtime(), f"org.xerial:sqlite-jdbc:{SQLITE_JDBC}"]


def _name(package: str) -> str:
    return package.strip().rpartition(":")[0]
