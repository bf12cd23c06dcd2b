"""Jars of Maven packages: fetched once a machine, whole, by the resolver that Spark has.

The folders of the resolver are not made for two processes. So it runs alone, under a lock, in one of its own.
Its jars are looked at and renamed into place, and Spark starts with the jars themselves.
"""

import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from backstory.errors import Failed
from backstory.spark.java_faults import reason
from backstory.spark.launch import properties_file
from backstory.spark.own_folders import kept_folder, private, temporary_folder
from backstory.spark.python_path import has_modules
from backstory.spark.versions import resolver_folder, submit_options

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


def kept(packages: Sequence[str], given: Mapping[str, str]) -> list[Jar] | None:
    """The jars of packages and of all that they need, as an earlier start fetched them; None if one lacks.

    Jars that others may have written do not count. An open version is asked for each time.
    """
    if any(_is_open(package) for package in packages):
        return None
    for folder in _folders(given):
        jars = _sealed(folder / _name(packages, given))
        if jars is not None:
            return jars
    return None


def fetch(packages: Sequence[str], given: Mapping[str, str]) -> list[Jar]:
    """The same, fetched where they are not kept; Failed where they are not to be had.

    Meanwhile other processes of this machine wait. Copies that the resolver has in a folder of its own are
    used first: they need no network.
    """
    if (jars := kept(packages, given)) is not None:
        return jars
    folder = _writable(given)
    with _alone(folder):
        if (jars := kept(packages, given)) is not None:
            return jars
        for part in folder.glob(f"{_PART}*"):  # of one that was killed: nobody else fetches now
            shutil.rmtree(part, ignore_errors=True)
        return _fetched(folder, packages, given)


def bytes_so_far(given: Mapping[str, str]) -> int:
    """How much a fetch that is going on has."""
    files = (each for folder in _folders(given) for each in folder.glob(f"{_PART}*/cache/*/*/*/*"))
    total = 0
    for each in files:
        with suppress(OSError):  # it is renamed when it is whole
            total += each.stat().st_size
    return total


def _fetched(folder: Path, packages: Sequence[str], given: Mapping[str, str]) -> list[Jar]:
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
                return _publish(part / "jars", folder / _name(packages, given))
            text = text or f"Error: {', '.join(broken) or 'no jar'} did not come whole"
        finally:
            shutil.rmtree(part, ignore_errors=True)
        if source is None and _is_final(text):
            break
    raise Failed(
        "spark-did-not-start",
        f"Spark did not start: the jars of {', '.join(packages)} could not be fetched: {reason(text)}.",
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


def _sealed(folder: Path) -> list[Jar] | None:
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


def _name(packages: Sequence[str], given: Mapping[str, str]) -> str:
    """The folder of these packages from these sources."""
    of = [*sorted(packages), *(given.get(each, "") for each in _SOURCES)]
    return hashlib.sha256("\n".join(of).encode()).hexdigest()[:16]


def _folders(given: Mapping[str, str]) -> list[Path]:
    """The folders where jars may be: the resolver's if it is named, else the user's, else a temporary one."""
    if given.get(IVY):
        return [_resolver_folder(given) / "backstory"]
    usable = []
    with suppress(OSError):
        usable.append(kept_folder("jars", made=False))
    return [*usable, temporary_folder("jars")]


def _writable(given: Mapping[str, str]) -> Path:
    """The folder where jars are put; in one that is gone tomorrow, where the user's cannot be written to."""
    try:
        if given.get(IVY):
            return private(_resolver_folder(given) / "backstory")
        return kept_folder("jars")
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
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with the process; a line says so where another has it."""
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("Waiting for another process to fetch Spark's jars ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
