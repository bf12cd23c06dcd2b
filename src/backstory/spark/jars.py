"""The jars that Spark needs: their packages, fetched once per machine, and the session's properties for them.

Spark's resolver fetches them. Two processes cannot share its folders, so each fetch has its own folder and
holds a lock. Complete jars are renamed into place, and Spark starts with their paths. Python searches only
jars that contain modules.
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
from backstory.spark.versions import (
    installed_build,
    package_suffix,
    require_build,
    resolver_folder,
    spark_home,
    submit_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def leave_out_jars(spark: "SparkSession") -> None:
    """Remove jars without modules from the import path of this process and of Spark's Python workers.

    Spark adds all fetched jars to this path, because some packages contain modules. Without this removal,
    each worker would read the jars' tables of contents, with tens of thousands of names, before its first
    import. That would add a second to every job.
    """
    from pyspark import SparkFiles

    context, folder = spark.sparkContext, Path(SparkFiles.getRootDirectory())
    included = context._python_includes or ()  # noqa: SLF001
    jars = {name for name in included if not has_modules(folder / name)}
    context._python_includes = [name for name in included if name not in jars]  # noqa: SLF001
    paths = {str(folder / name) for name in jars}
    sys.path[:] = [path for path in sys.path if path not in paths]


def has_modules(path: Path) -> bool:
    """Whether Python can import something from a file. The result is True for files other than jars."""
    if path.suffix != ".jar" or not zipfile.is_zipfile(path):
        return True
    with zipfile.ZipFile(path) as jar:
        return any(name.endswith((".py", ".pyc")) for name in jar.namelist())


PACKAGES, IVY = "spark.jars.packages", "spark.jars.ivy"
# Settings of the resolver that determine the content of a package.
_SOURCES: Final = ("spark.jars.repositories", "spark.jars.ivySettings", "spark.jars.excludes")
# Settings for Java's access to the network.
_OF_JAVA: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
# The program that spark-submit runs once the packages are fetched: it prints a version.
_NOTHING: Final = ("--master", "local", "--class", "org.apache.ivy.Main", "spark-internal", "-version")
_PATIENCE: Final = "-Dsun.net.client.defaultConnectTimeout=30000 -Dsun.net.client.defaultReadTimeout=120000"
_PAUSES: Final = (0, 1, 4)  # seconds before each attempt
_SEAL: Final = "jars.json"
_PART: Final = "part-"
_log = structlog.get_logger()


# Complete jars, each with whether it contains Python modules.
Jars = Mapping[Path, bool]


def kept_jars(packages: Sequence[str], properties: Mapping[str, str]) -> Jars | None:
    """The jars of packages and their dependencies from an earlier fetch, or None if one is missing.

    Jars that other users may have written are ignored. An open version is resolved each time.
    """
    if any(_is_open(package) for package in packages):
        return None
    folders = (folder / _folder_name(packages, properties) for folder in _folders(properties))
    return next((jars for jars in map(_sealed_jars, folders) if jars is not None), None)


def fetch_jars(packages: Sequence[str], properties: Mapping[str, str]) -> Jars:
    """The jars of packages and their dependencies, fetched if necessary. Raises Failed if the fetch fails.

    Other processes on this machine wait in the meantime. Copies in the resolver's own folder are used first,
    because these need no network.
    """
    if (jars := kept_jars(packages, properties)) is not None:
        return jars
    folder = _writable_folder(properties)
    with _lock_folder(folder):
        if (jars := kept_jars(packages, properties)) is not None:
            return jars
        for part in folder.glob(f"{_PART}*"):  # left by a killed process: nobody else fetches now
            shutil.rmtree(part, ignore_errors=True)
        return _run_fetch(folder, packages, properties)


def fetched_bytes(properties: Mapping[str, str]) -> int:
    """The number of bytes that a running fetch has received, without earlier copies."""
    caches = (cache for folder in _folders(properties) for cache in folder.glob(f"{_PART}*/cache"))
    files = (file for cache in caches if not cache.is_symlink() for file in cache.glob("*/*/*/*"))
    total = 0
    for file in files:
        with suppress(OSError):  # it is renamed when it is complete
            total += file.stat().st_size
    return total


def _run_fetch(folder: Path, packages: Sequence[str], properties: Mapping[str, str]) -> Jars:
    """Fetch the packages with the resolver, and try again if the network fails."""
    copies = _resolver_folder(properties) / "cache"
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
            text = _resolve(part, packages, properties)
            jars = sorted((part / "jars").glob("*.jar"))
            broken = [jar.name for jar in jars if not _is_sound(jar)]
            if not text and jars and not broken:
                return _publish(part / "jars", folder / _folder_name(packages, properties))
            text = text or (f"Error: incomplete: {', '.join(broken)}" if broken else "Error: no jar")
        finally:
            shutil.rmtree(part, ignore_errors=True)
        if source is None and _is_final(text):
            break
    names, reason = ", ".join(packages), failure_reason(text)
    raise Failed(
        "spark-did-not-start",
        f"Spark did not start: the jars of {names} could not be fetched: {reason}.",
        "Check the network and the names of packages; `spark.jars.repositories` in the section [spark] of "
        "backstory.toml names a mirror.",
    )


def _resolve(part: Path, packages: Sequence[str], properties: Mapping[str, str]) -> str:
    """Let the resolver put all jars into a folder.

    Returns its output if it fails, or else an empty string.
    """
    chosen = {name: value for name, value in properties.items() if name in (*_SOURCES, *_OF_JAVA)}
    chosen |= {PACKAGES: ",".join(packages), IVY: str(part)}
    options = f"{_PATIENCE} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    with properties_file(chosen) as file:
        words = [
            str(spark_home() / "bin" / "spark-submit"),
            *submit_options(),
            "--properties-file",
            str(file),
            *_NOTHING,
        ]
        process = subprocess.run(  # noqa: S603 - Spark's own program
            words,
            env=os.environ | {"SPARK_SUBMIT_OPTS": options},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    return (process.stdout or f"Error: it ended with code {process.returncode}") if process.returncode else ""


def _is_final(text: str) -> bool:
    """Whether the resolver reached its sources and found that they do not have the packages."""
    failures = (
        "Server access error",
        "SERVER ERROR",
        "timed out",
        "Connection",
        "download failed",
        "UnknownHost",
    )
    return "unresolved dependency" in text and not any(failure in text for failure in failures)


def _publish(jars: Path, place: Path) -> Jars:
    """Sync the jars to disk, and move their folder to its final path."""
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
    if place.exists():  # a process that has it open can still use it
        place.rename(jars.parent / "former")
    jars.rename(place)
    return {place / name: bool(state["modules"]) for name, state in seal.items()}


def _sealed_jars(folder: Path) -> Jars | None:
    """The jars in a folder, if each has its original size and digest, or else None."""
    try:
        seal = json.loads((folder / _SEAL).read_text("utf-8"))
        if all(_is_as_sealed(folder / name, state) for name, state in seal.items()):
            return {folder / name: bool(state["modules"]) for name, state in seal.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def _is_as_sealed(jar: Path, seal: Mapping[str, object]) -> bool:
    """Whether a jar is unchanged. A jar with the same size and modification time is not read."""
    state = jar.stat()
    if state.st_size != seal["size"]:
        return False
    if state.st_mtime_ns == seal["modified"]:
        return True
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == seal["sha256"]


def _is_sound(jar: Path) -> bool:
    """Whether every file in a jar can be read and matches its checksum."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _is_open(package: str) -> bool:
    """Whether a package's version is open: a range, a snapshot, or the newest version."""
    version = package.rpartition(":")[2]
    return version.endswith(("+", "-SNAPSHOT")) or version.startswith(("latest.", "[", "(", "]"))


def _folder_name(packages: Sequence[str], properties: Mapping[str, str]) -> str:
    """The name of the folder for these packages from these sources."""
    parts = [*sorted(packages), *(properties.get(name, "") for name in _SOURCES)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _folders(properties: Mapping[str, str]) -> list[Path]:
    """The folders that may hold jars: the resolver's if it is set, or else the user's and a temporary one."""
    if properties.get(IVY):
        return [_resolver_folder(properties) / "backstory"]
    usable = []
    with suppress(OSError):
        usable.append(cache_folder("jars", made=False))
    return [*usable, temporary_folder("jars")]


def _writable_folder(properties: Mapping[str, str]) -> Path:
    """The folder for new jars, or a temporary folder if the user's folder is not writable."""
    try:
        if properties.get(IVY):
            return make_private(_resolver_folder(properties) / "backstory")
        return cache_folder("jars")
    except OSError as stop:
        folder = temporary_folder("jars")
        _log.warning(f"Spark's jars are kept in {folder}: {stop.filename or stop} is not writable.")
        return folder


def _resolver_folder(properties: Mapping[str, str]) -> Path:
    return Path(properties[IVY]).expanduser() if properties.get(IVY) else _java_home() / resolver_folder()


def _java_home() -> Path:
    """The user's home folder as Java reads it: from the system's user database instead of HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user id without an entry, as in a container
        return Path(tempfile.gettempdir())


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process. A wait for another process is logged."""
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


def jar_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that name the jars, in addition to the given properties. Missing jars are fetched first.

    A package in the given properties replaces our package of the same name, for example with another Iceberg.
    Jars in `spark.jars` replace all of our packages, but not the given packages. Raises Failed if a jar
    cannot be fetched, and UsageError for a package that this Spark cannot load.
    """
    packages = packages_of(properties)
    if not packages:
        return {}
    if (build := installed_build()) is not None:
        require_build(packages, *build)
    jars = fetch_jars(packages, properties)
    named = {
        JARS: [properties.get(JARS), *jars],
        MODULES: [properties.get(MODULES), *filter(jars.get, jars)],
    }
    return {name: ",".join(map(str, filter(None, values))) for name, values in named.items() if any(values)}


def packages_of(properties: Mapping[str, str]) -> list[str]:
    """The packages of a session with these properties, as `group:name:version`."""
    own = [package.strip() for package in properties.get(PACKAGES, "").split(",") if package.strip()]
    names = {_package_name(package) for package in own}
    ours = [] if JARS in properties else [iceberg_package(), f"org.xerial:sqlite-jdbc:{SQLITE_JDBC}"]
    return [*(package for package in ours if _package_name(package) not in names), *own]


def must_fetch(properties: Mapping[str, str]) -> bool:
    """Whether the next start must fetch jars."""
    packages = packages_of(properties)
    return bool(packages) and kept_jars(packages, properties) is None


def iceberg_package(spark: str | None = None, scala: str | None = None) -> str:
    """The Iceberg package for this version of Spark and Scala, by default for the installed Spark."""
    suffix = package_suffix(spark, scala)
    return f"org.apache.iceberg:iceberg-spark-runtime-{suffix}:{ICEBERG}"


def _package_name(package: str) -> str:
    return package.rpartition(":")[0]
