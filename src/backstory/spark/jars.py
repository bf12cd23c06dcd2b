"""Jars of Maven packages: fetched once a machine, whole, by the resolver that Spark has.

The folders of the resolver are not made for two processes. So it runs alone, under a lock, in one of its own.
Its jars are looked at and renamed into place, and Spark starts with the jars themselves.

Where Python looks for modules in a session: not in jars, which have none.

The jars that Spark needs beside itself: which they are, and the properties by which a session has them.
"""

import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from backstory.errors import Failed
from backstory.spark.launch import (
    cache_folder,
    failure_reason,
    make_private,
    properties_file,
    temporary_folder,
)
from backstory.spark.versions import installed_version, package_suffix, resolver_folder, submit_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def leave_out_jars(spark: "SparkSession") -> None:
    """Take jars without modules from the path of this process and of Spark's Python workers.

    Spark puts what its resolver fetched there, for some packages bring modules. Each worker would read the
    directories of all of them, tens of thousands of names, before it imports anything: a second of every job.
    """
    from pyspark import SparkFiles

    context, folder = spark.sparkContext, Path(SparkFiles.getRootDirectory())
    jars = {each for each in context._python_includes or () if not has_modules(folder / each)}  # noqa: SLF001
    context._python_includes = [each for each in context._python_includes or () if each not in jars]  # noqa: SLF001
    paths = {str(folder / each) for each in jars}
    sys.path[:] = [each for each in sys.path if each not in paths]


def has_modules(path: Path) -> bool:
    """Whether Python can import something from a file; True for what is no jar."""
    if path.suffix != ".jar" or not zipfile.is_zipfile(path):
        return True
    with zipfile.ZipFile(path) as jar:
        return any(each.endswith((".py", ".pyc")) for each in jar.namelist())


PACKAGES, IVY = "spark.jars.packages", "spark.jars.ivy"
# Settings of the resolver that decide what a package is.
_SOURCES: Final = ("spark.jars.repositories", "spark.jars.ivySettings", "spark.jars.excludes")
# Those by which Java reaches the network.
_OF_JAVA: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
# What Spark's own starter runs once the packages are there: it prints a version.
_NOTHING: Final = ("--master", "local", "--class", "org.apache.ivy.Main", "spark-internal", "-version")
_PATIENCE: Final = "-Dsun.net.client.defaultConnectTimeout=30000 -Dsun.net.client.defaultReadTimeout=120000"
_PAUSES: Final = (0, 1, 4)  # seconds before each attempt
_SEAL: Final = "jars.json"
_PART: Final = "part-"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar that is whole, and whether Python finds modules in it."""

    path: Path
    modules: bool

    def __str__(self) -> str:
        return str(self.path)


def kept_jars(packages: Sequence[str], given: Mapping[str, str]) -> list[Jar] | None:
    """The jars of packages and of all that they need, as an earlier start fetched them; None if one lacks.

    Jars that others may have written do not count. An open version is asked for each time.
    """
    if any(_is_open(package) for package in packages):
        return None
    for folder in _folders(given):
        jars = _sealed_jars(folder / _folder_name(packages, given))
        if jars is not None:
            return jars
    return None


def fetch_jars(packages: Sequence[str], given: Mapping[str, str]) -> list[Jar]:
    """The same, fetched where they are not kept; Failed where they are not to be had.

    Meanwhile other processes of this machine wait. Copies that the resolver has in a folder of its own are
    used first: they need no network.
    """
    if (jars := kept_jars(packages, given)) is not None:
        return jars
    folder = _writable_folder(given)
    with _lock_folder(folder):
        if (jars := kept_jars(packages, given)) is not None:
            return jars
        for part in folder.glob(f"{_PART}*"):  # of one that was killed: nobody else fetches now
            shutil.rmtree(part, ignore_errors=True)
        return _run_fetch(folder, packages, given)


def fetched_bytes(given: Mapping[str, str]) -> int:
    """How much a fetch that is going on has."""
    files = (each for folder in _folders(given) for each in folder.glob(f"{_PART}*/cache/*/*/*/*"))
    total = 0
    for each in files:
        with suppress(OSError):  # it is renamed when it is whole
            total += each.stat().st_size
    return total


def _run_fetch(folder: Path, packages: Sequence[str], given: Mapping[str, str]) -> list[Jar]:
    """Have the resolver fetch the packages, some times where the network fails."""
    copies = _resolver_folder(given) / "cache"
    attempts = [*([copies] if copies.is_dir() else []), *(None for _ in _PAUSES)]
    pauses = iter(_PAUSES)
    text = ""
    for source in attempts:
        if source is None:
            time.sleep(next(pauses))
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=folder))
        try:
            if source is not None:
                (part / "cache").symlink_to(source.resolve())
            text = _resolve(part, packages, given)
            jars = sorted((part / "jars").glob("*.jar"))
            broken = [jar.name for jar in jars if not _is_sound(jar)]
            if not text and jars and not broken:
                return _publish(part / "jars", folder / _folder_name(packages, given))
            text = text or f"Error: {', '.join(broken) or 'no jar'} did not come whole"
        finally:
            shutil.rmtree(part, ignore_errors=True)
        if source is None and _is_final(text):
            break
    raise Failed(
        "spark-did-not-start",
        f"Spark did not start: the jars of {', '.join(packages)} could not be fetched: "
        f"{failure_reason(text)}.",
        "Check the network and the names of packages; `spark.jars.repositories` in the section [spark] of "
        "backstory.toml names a mirror.",
    )


def _resolve(part: Path, packages: Sequence[str], given: Mapping[str, str]) -> str:
    """Have the resolver put all jars into a folder; what it printed if it failed, else nothing."""
    from pyspark.find_spark_home import _find_spark_home

    chosen = {name: value for name, value in given.items() if name in (*_SOURCES, *_OF_JAVA)}
    chosen |= {PACKAGES: ",".join(packages), IVY: str(part)}
    submit = Path(_find_spark_home(), "bin", "spark-submit")  # type: ignore[no-untyped-call]
    options = f"{_PATIENCE} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    with properties_file(chosen) as file:
        words = [str(submit), *submit_options(), "--properties-file", str(file), *_NOTHING]
        done = subprocess.run(  # noqa: S603 - Spark's own program
            words,
            env=os.environ | {"SPARK_SUBMIT_OPTS": options},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    return (done.stdout or f"Error: it ended with code {done.returncode}") if done.returncode else ""


def _is_final(text: str) -> bool:
    """Whether the resolver reached its sources, which do not have what is asked for."""
    failures = (
        "Server access error",
        "SERVER ERROR",
        "timed out",
        "Connection",
        "download failed",
        "UnknownHost",
    )
    return "unresolved dependency" in text and not any(each in text for each in failures)


def _publish(jars: Path, place: Path) -> list[Jar]:
    """Put a folder of jars, of which all is on the disk, into its place."""
    seal = {}
    for jar in sorted(jars.glob("*.jar")):
        with jar.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        seal[jar.name] = {
            "size": jar.stat().st_size,
            "modified": jar.stat().st_mtime_ns,
            "sha256": digest,
            "modules": has_modules(jar),
        }
    with (jars / _SEAL).open("w", encoding="utf-8") as written:
        json.dump(seal, written)
        written.flush()
        os.fsync(written.fileno())
    if place.exists():  # a process that has it open keeps it
        place.rename(jars.parent / "former")
    jars.rename(place)
    return [Jar(place / name, bool(each["modules"])) for name, each in seal.items()]


def _sealed_jars(folder: Path) -> list[Jar] | None:
    """The jars of a folder, each of the size and the digest that it had when it came."""
    try:
        seal = json.loads((folder / _SEAL).read_text("utf-8"))
        if all(_is_as_sealed(folder / name, each) for name, each in seal.items()):
            return [Jar(folder / name, bool(each["modules"])) for name, each in seal.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def _is_as_sealed(jar: Path, seal: Mapping[str, object]) -> bool:
    """Whether a jar is what it was; one that nobody wrote to since is not read for that."""
    state = jar.stat()
    if state.st_size != seal["size"]:
        return False
    if state.st_mtime_ns == seal["modified"]:
        return True
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == seal["sha256"]


def _is_sound(jar: Path) -> bool:
    """Whether all that is in a jar can be read, and is as its checksums say."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _is_open(package: str) -> bool:
    """Whether a package's version stands for whatever is newest."""
    version = package.rpartition(":")[2]
    return version.endswith(("+", "-SNAPSHOT")) or version.startswith(("latest.", "[", "(", "]"))


def _folder_name(packages: Sequence[str], given: Mapping[str, str]) -> str:
    """The folder of these packages from these sources."""
    of = [*sorted(packages), *(given.get(each, "") for each in _SOURCES)]
    return hashlib.sha256("\n".join(of).encode()).hexdigest()[:16]


def _folders(given: Mapping[str, str]) -> list[Path]:
    """The folders where jars may be: the resolver's if it is named, else the user's, else a temporary one."""
    if given.get(IVY):
        return [_resolver_folder(given) / "backstory"]
    usable = []
    with suppress(OSError):
        usable.append(cache_folder("jars", made=False))
    return [*usable, temporary_folder("jars")]


def _writable_folder(given: Mapping[str, str]) -> Path:
    """The folder where jars are put; in one that is gone tomorrow, where the user's cannot be written to."""
    try:
        if given.get(IVY):
            return make_private(_resolver_folder(given) / "backstory")
        return cache_folder("jars")
    except OSError as stop:
        folder = temporary_folder("jars")
        _log.warning(f"Spark's jars are kept in {folder}: {stop.filename or stop} cannot be written to.")
        return folder


def _resolver_folder(given: Mapping[str, str]) -> Path:
    return Path(given[IVY]).expanduser() if given.get(IVY) else _java_home() / resolver_folder()


def _java_home() -> Path:
    """The home that Java knows: of the user as the system has him, whatever the variable HOME says."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user of a number alone, as in a container
        return Path(tempfile.gettempdir())


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with the process; a line says so where another has it."""
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("Waiting for another process to fetch Spark's jars ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


ICEBERG: Final = "1.12.0"
SQLITE_JDBC: Final = "3.54.1.0"
CONNECTOR_BYTES: Final = 60_440_000  # of both
JARS, MODULES = "spark.jars", "spark.submit.pyFiles"


def jar_properties(given: Mapping[str, str]) -> dict[str, str]:
    """The properties that name the jars, beside the given ones; what is missing is fetched first.

    A package that is given takes the place of ours of that name, which chooses another Iceberg. Whoever
    names jars of his own gets these, and the packages that he names. Raises Failed where a jar is not to be
    had.
    """
    packages = packages_of(given)
    if not packages:
        return {}
    jars = fetch_jars(packages, given)
    named = {
        JARS: [given.get(JARS), *jars],
        MODULES: [given.get(MODULES), *(jar for jar in jars if jar.modules)],
    }
    return {name: ",".join(map(str, filter(None, each))) for name, each in named.items() if any(each)}


def packages_of(given: Mapping[str, str]) -> list[str]:
    """The packages of a session with these properties, as `group:name:version`."""
    own = [package.strip() for package in given.get(PACKAGES, "").split(",") if package.strip()]
    names = {_package_name(package) for package in own}
    ours = [] if JARS in given else _our_packages()
    return [*(package for package in ours if _package_name(package) not in names), *own]


def must_fetch(given: Mapping[str, str]) -> bool:
    """Whether the next start has to fetch jars."""
    packages = packages_of(given)
    return bool(packages) and kept_jars(packages, given) is None


def iceberg_package(spark: str | None = None, scala: str | None = None) -> str:
    """The package of Iceberg for a Spark of this version and Scala, or for the one that is installed."""
    suffix = package_suffix(spark or installed_version(), scala)
    return f"org.apache.iceberg:iceberg-spark-runtime-{suffix}:{ICEBERG}"


def _our_packages() -> list[str]:
    return [iceberg_package(), f"org.xerial:sqlite-jdbc:{SQLITE_JDBC}"]


def _package_name(package: str) -> str:
    return package.rpartition(":")[0]
