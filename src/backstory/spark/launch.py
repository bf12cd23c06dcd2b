"""Launch Spark's Java in its own session, with settings that other users of the machine cannot read.

The classes that Java loads are archived, so that the next start takes a third of the time. HotSpot writes the
archive when it ends, and uses it only for the same Java and jars. There is no archive if Java also reads
folders of settings, or if no folder belongs only to this user.
"""

import codecs
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from backstory.spark.process import hold_to_this_process
from backstory.spark.versions import own_defaults, submit_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Patterns of lines that name the cause, the most specific first.
_LINES: Final = (
    r"Server access error.*?\((?P<said>.*)\)",
    r"(?P<said>\[(?:unresolved dependency|download failed).*)",
    r"^\s*::\s*(?P<said>(?:unresolved dependency|download failed).*?)\s*(?:::)?$",
    r"^#\s+(?P<said>(?:SIG\w+|There is insufficient memory|Internal Error).*)",
    r"^java\.lang\.module\.\w+: (?P<said>.+)",  # a Java without all of its modules
    r"^Error(?: occurred| opening|:)\s*(?P<said>.+)",
    r"(?P<said>Unrecognized .*option.*|Invalid .*heap size.*|Could not reserve enough space.*)",
    r"^Caused by: (?P<said>.+)",
    r'^Exception in thread "main" (?P<said>.+)',
    r"^(?P<said>\S*(?:Exception|Error): .+)",
)


def failure_reason(text: str) -> str:
    """The cause of Java's failure, from its output, or the output's last line if no pattern matches."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for pattern in _LINES:
        for line in lines:
            if match := re.search(pattern, line):
                return match["said"].strip(" .")
    return lines[-1].strip(" .") if lines else "Java printed nothing"


def cache_folder(name: str, *, made: bool = True) -> Path:
    """A folder in the user's cache that only this user may write to. Raises OSError if that is not possible.

    A missing folder is created if `made` is true. If `made` is false, a read-only folder is accepted.
    """
    cached = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(cached) if cached else Path.home() / ".cache") / "backstory" / name
    except RuntimeError as stop:  # the home folder is unknown
        raise OSError(str(stop)) from stop
    if made:
        return make_private(folder)
    _require_private(folder)
    return folder


def make_private(folder: Path) -> Path:
    """Create the folder if it is missing. Raises OSError if this user may not write to it, or others may."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "it is read-only", str(folder))
    return folder


@cache
def temporary_folder(name: str) -> Path:
    """A temporary folder that later processes share, unless another user has taken its name."""
    own = Path(tempfile.gettempdir()) / f"backstory-{os.getuid()}"
    try:
        return make_private(make_private(own) / name)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="backstory-"))


def _require_private(folder: Path) -> None:
    """Raise OSError if the folder belongs to neither this user nor root, or if others can write to it."""
    state = folder.stat()
    if state.st_uid not in {os.getuid(), 0} or stat.S_IMODE(state.st_mode) & 0o022:
        raise PermissionError(13, "others may write to it", str(folder))


ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
OWNER_ONLY = 0o077


def java() -> Any:
    """The view of this process's Java, or None if Java is not running."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark keeps it there
    return None if gateway is None else gateway.jvm


def launch(chosen: Mapping[str, str], *, alone: bool) -> Any:
    """Start the JVM in its own session, so that a signal to this process's group does not end it.

    The JVM ends with this process, when its standard input is closed. The properties are passed in a file,
    because every user can read a command line. If `alone` is true, only this user can read the files that
    Java writes.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - pyspark starts its JVM in this way itself
        own = os.environ.get(ARGUMENTS) or "pyspark-shell"
        # Java encodes file names by the locale, which is ASCII under cron and in many containers.
        locale = "C.UTF-8" if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8" else None
        with properties_file(chosen) as path:
            arguments = " ".join([*submit_options(), "--properties-file", quote(str(path)), own])
            with _variable(ARGUMENTS, arguments), _variable("LC_ALL", locale):
                wanted = {"start_new_session": True, "umask": OWNER_ONLY if alone else -1}
                gateway = launch_gateway(None, wanted)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
        hold_to_this_process(java())
    return java()


def java_of(spark: "SparkSession") -> "subprocess.Popen[bytes] | None":
    """The process of the session's Java, or None if this process did not start it."""
    return getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001


def spells(jvm: Any, path: str) -> bool:
    """Whether Java and this process encode the name of a file as the same bytes."""
    encoding = codecs.lookup(str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))).name
    try:
        path.encode(encoding)
    except UnicodeEncodeError:  # with ASCII as its encoding, this process reads other bytes as surrogates
        return False
    return path.isascii() or encoding == codecs.lookup(sys.getfilesystemencoding()).name


@contextmanager
def _variable(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable for the block. None leaves it unchanged."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


@contextmanager
def properties_file(chosen: Mapping[str, str]) -> Iterator[Path]:
    """A private file with the properties, in the format that spark-submit reads."""
    with tempfile.TemporaryDirectory(prefix="backstory-spark-") as folder:
        path = Path(folder, "properties")
        lines = (f"{_escape_property(name)}={_escape_property(chosen[name])}\n" for name in chosen)
        path.write_text("".join([own_defaults(os.environ), *lines]), "utf-8")
        path.chmod(0o600)
        yield path


def _escape_property(text: str) -> str:
    """A string as it is spelled in Java's properties files."""
    units = text.encode("utf-16-be", "surrogatepass")  # Java refuses bytes that are not letters
    numbers = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    plain = (chr(number) for number in numbers)
    return "".join(
        letter if letter.isascii() and letter.isalnum() else f"\\u{ord(letter):04x}" for letter in plain
    )


@contextmanager
def redirect_output(*, verbose: bool) -> Iterator[Path | None]:
    """Redirect the output of a starting JVM to a log file, or to standard error if `verbose` is true."""
    saved = os.dup(1), os.dup(2)
    path = None
    try:
        sys.stdout.flush()
        if verbose:
            os.dup2(2, 1)
        else:
            log, name = tempfile.mkstemp(".log", f"backstory-spark-{os.getpid()}-")
            path = Path(name)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        yield path
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in saved:
            os.close(descriptor)


VARIABLE: Final = "SPARK_SUBMIT_OPTS"
# The first bytes of a complete archive, which are written last.
_WHOLE: Final = (0xF00BABA8).to_bytes(4, "little")
_QUIET: Final = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds=off -Xlog:cds+dynamic=off"
# HotSpot compares each part with its checksum, and does not use a damaged archive.
_CHECKED: Final = "-XX:+VerifySharedSpaces"
_OURS: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "Xshare")
# Folders that Spark puts before its jars. HotSpot archives no classes if one of them has files.
_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_ABANDONED, _UNUSED = 3600, 60 * 86_400  # seconds


@contextmanager
def use_class_archive(java: Path, classes: Path, *, keeps: bool) -> Iterator[Path | None]:
    """Let a starting Java use the archive for this Java and these jars. Yields the archive in use, or None.

    A missing archive is written when Java ends, if `keeps` is true. If the user's own options configure an
    archive, these options take precedence.
    """
    own = os.environ.get(VARIABLE) or ""
    chosen = any(option in own for option in _OURS)
    options, archive = ("", None) if chosen else _options(java, classes, keeps=keeps)
    with _variable(VARIABLE, f"{options} {own}".strip() if options else None):
        yield archive


def seal_archive(archive: Path) -> None:
    """Record the size of an archive that Java started with. A shorter archive would crash Java."""
    size = _size_of(archive)
    with suppress(OSError):
        if not size.exists():
            size.write_text(str(archive.stat().st_size), "ascii")


def discard_archive(archive: Path) -> None:
    """Remove a defective archive."""
    for file in (archive, _size_of(archive)):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _options(java: Path, classes: Path, *, keeps: bool) -> tuple[str, Path | None]:
    """The options for Java, empty if no archive can be used or written, and the archive in use, if any."""
    if any(os.environ.get(name) for name in _FOLDERS) or (classes.parent / "conf").exists():
        return "", None
    try:
        folder = cache_folder("java")
        if " " in str(folder):  # options are separated by spaces
            return "", None
        archive = folder / f"{_archive_name(java, classes)}.jsa"
        if _is_whole(archive):
            os.utime(archive)
            return f"{_QUIET} {_CHECKED} {_reports()} -XX:SharedArchiveFile={archive}", archive
        if not keeps or not _is_free(archive):
            return "", None
        for unused in folder.glob("*.jsa"):
            if time.time() - unused.stat().st_mtime > _UNUSED:
                discard_archive(unused)
    except OSError:
        return "", None
    return f"{_QUIET} -XX:ArchiveClassesAtExit={archive}", None


def _archive_name(java: Path, classes: Path) -> str:
    """The name of the archive for this Java and these jars."""
    java = java.resolve()
    identity = [java, java.stat().st_mtime_ns, classes.resolve(), classes.stat().st_mtime_ns]
    return hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:16]


def _is_whole(archive: Path) -> bool:
    """Whether an archive is complete. An archive that was truncated later is removed."""
    with suppress(OSError), archive.open("rb") as file:
        if file.read(len(_WHOLE)) != _WHOLE:
            return False
        size = _size_of(archive)
        if not size.exists() or size.read_text("ascii") == str(archive.stat().st_size):
            return True
        discard_archive(archive)
    return False


def _reports() -> str:
    """Options by which Java writes crash reports to the temporary folder, and no core dumps."""
    folder = tempfile.gettempdir()
    named = "" if " " in folder else f" -XX:ErrorFile={folder}/backstory-java-%p.log"
    return f"-XX:-CreateCoredumpOnCrash{named}"


def _size_of(archive: Path) -> Path:
    return archive.with_suffix(".size")


def _is_free(archive: Path) -> bool:
    """Whether the archive seems to be free of other writers."""
    with suppress(FileNotFoundError):
        return time.time() - archive.stat().st_mtime > _ABANDONED
    return True
