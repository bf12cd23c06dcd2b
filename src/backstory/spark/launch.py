"""Launch Spark's Java: in a session of its own, with settings that nobody else on the machine can read.

What ended a Java, out of all that it printed.

Folders of this user's own, for what is kept from one start to the next.

Java's classes as they are once loaded, kept for the next start: a third of its time is to load them.

HotSpot writes such an archive when it ends, and uses it for the same Java and jars alone. Of another Java,
where Java also reads folders of settings, and where nothing can be kept for this user only, a start takes as
long as ever.
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

# The first that a line begins with or has, from what says most to what says least.
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
    """The line that matters, without what is before it in its line; the last one where none stands out."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for pattern in _LINES:
        for line in lines:
            if match := re.search(pattern, line):
                return match["said"].strip(" .")
    return lines[-1].strip(" .") if lines else "Java said nothing"


def cache_folder(name: str, *, made: bool = True) -> Path:
    """A folder below the user's cache that nobody else may write to; raises OSError where there is none.

    It is made if it is missing and is to be `made`, else one that can only be read will do.
    """
    cached = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(cached) if cached else Path.home() / ".cache") / "backstory" / name
    except RuntimeError as stop:  # nobody's home is known
        raise OSError(str(stop)) from stop
    if made:
        return make_private(folder)
    _require_private(folder)
    return folder


def make_private(folder: Path) -> Path:
    """The folder, made if it is missing; raises OSError unless this user alone may write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "it is read-only", str(folder))
    return folder


@cache
def temporary_folder(name: str) -> Path:
    """One among the temporary files; later processes use it too, unless another user has taken its name."""
    own = Path(tempfile.gettempdir()) / f"backstory-{os.getuid()}"
    try:
        return make_private(make_private(own) / name)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="backstory-"))


def _require_private(folder: Path) -> None:
    """Raises OSError unless it is a folder of this user's, or root's, to which nobody else may write."""
    state = folder.stat()
    if state.st_uid not in {os.getuid(), 0} or stat.S_IMODE(state.st_mode) & 0o022:
        raise PermissionError(13, "others may write to it", str(folder))


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
OWNER_ALONE = 0o077


def java() -> Any:
    """The view of this process's Java; None where it has none."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark keeps it there
    return None if gateway is None else gateway.jvm


def launch(chosen: Mapping[str, str], *, alone: bool) -> Any:
    """Start the JVM in a session of its own: a signal to this process's group must not end it.

    It ends with this process, whose end it sees on its standard input. The properties go there in a
    file, since everybody may read a command line. With `alone` what Java writes belongs to its user
    alone.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - pyspark starts its JVM in this way itself
        with _pass_by_file(chosen), _names_in_utf8():
            wanted = {"start_new_session": True, "umask": OWNER_ALONE if alone else -1}
            gateway = launch_gateway(None, wanted)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
        hold_to_this_process(java())
    return java()


def java_of(spark: "SparkSession") -> "subprocess.Popen[bytes] | None":
    """The process of the session's Java; None if this process did not start it."""
    return getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001


def spells(jvm: Any, path: str) -> bool:
    """Whether Java writes the name of a file in the bytes in which this process does."""
    encoding = codecs.lookup(str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))).name
    try:
        path.encode(encoding)
    except UnicodeEncodeError:  # in ASCII this process has bytes that are no letters
        return False
    return path.isascii() or encoding == codecs.lookup(sys.getfilesystemencoding()).name


@contextmanager
def _names_in_utf8() -> Iterator[None]:
    """Java that is started meanwhile writes names of files in UTF-8, if this process does.

    It goes by the locale, in which cron and many containers know ASCII alone; Python has UTF-8 there, too.
    """
    before = os.environ.get("LC_ALL")
    in_utf8 = codecs.lookup(sys.getfilesystemencoding()).name == "utf-8"
    if in_utf8:
        os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if in_utf8:
            os.environ.pop("LC_ALL")
            if before is not None:
                os.environ["LC_ALL"] = before


@contextmanager
def properties_file(chosen: Mapping[str, str]) -> Iterator[Path]:
    """The properties in a private file, as spark-submit reads them."""
    with tempfile.TemporaryDirectory(prefix="backstory-spark-") as folder:
        path = Path(folder, "properties")
        lines = (f"{_escape_property(name)}={_escape_property(chosen[name])}\n" for name in chosen)
        path.write_text("".join([own_defaults(os.environ), *lines]), "utf-8")
        path.chmod(0o600)
        yield path


@contextmanager
def _pass_by_file(chosen: Mapping[str, str]) -> Iterator[None]:
    """Have spark-submit, which is started meanwhile, read the properties from a private file."""
    own = os.environ.get(ARGUMENTS)
    with properties_file(chosen) as path:
        arguments = " ".join([*submit_options(), "--properties-file", quote(str(path))])
        os.environ[ARGUMENTS] = f"{arguments} {own or 'pyspark-shell'}"
        try:
            yield
        finally:
            os.environ.pop(ARGUMENTS)
            if own is not None:
                os.environ[ARGUMENTS] = own


def _escape_property(text: str) -> str:
    """The text as Java's properties spell it, whatever it holds."""
    units = text.encode("utf-16-be", "surrogatepass")  # bytes that are no letters are for Java to refuse
    numbers = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    plain = (chr(number) for number in numbers)
    return "".join(
        letter if letter.isascii() and letter.isalnum() else f"\\u{ord(letter):04x}" for letter in plain
    )


@contextmanager
def redirect_output(*, verbose: bool) -> Iterator[Path | None]:
    """While the JVM starts, the outputs that it inherits are a log file; standard output never is."""
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
# An archive that is whole begins so: its first bytes are written last.
_WHOLE: Final = (0xF00BABA8).to_bytes(4, "little")
_QUIET: Final = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds=off -Xlog:cds+dynamic=off"
# HotSpot compares each part with its checksum: an archive that was spoilt is not used.
_CHECKED: Final = "-XX:+VerifySharedSpaces"
_OURS: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "Xshare")
# Folders that Spark puts before its jars. HotSpot keeps no classes beside a folder that has files.
_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_ABANDONED, _UNUSED = 3600, 60 * 86_400  # seconds


@contextmanager
def use_class_archive(java: Path, classes: Path, *, keeps: bool) -> Iterator[Path | None]:
    """Java that is started meanwhile takes its classes from the archive of this Java and folder of jars.

    It is the archive that comes, None if none is used. Where there is none it is made at Java's end, if the
    process `keeps` them. Options of the user's own that say otherwise stay.
    """
    before = os.environ.get(VARIABLE)
    own = before and any(each in before for each in _OURS)
    options, archive = ("", None) if own else _options(java, classes, keeps=keeps)
    if options:
        os.environ[VARIABLE] = f"{options} {before}" if before else options
    try:
        yield archive
    finally:
        if options:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before


def seal_archive(archive: Path) -> None:
    """Remember the size of an archive with which Java started: one that is shorter ends Java."""
    size = _size_of(archive)
    with suppress(OSError):
        if not size.exists():
            size.write_text(str(archive.stat().st_size), "ascii")


def discard_archive(archive: Path) -> None:
    """Remove an archive that does not serve."""
    for each in (archive, _size_of(archive)):
        with suppress(OSError):
            each.unlink(missing_ok=True)


def _options(java: Path, classes: Path, *, keeps: bool) -> tuple[str, Path | None]:
    """The options for Java, and the archive that it uses; neither where nothing can be kept or nothing is."""
    if any(os.environ.get(each) for each in _FOLDERS) or (classes.parent / "conf").exists():
        return "", None
    try:
        folder = cache_folder("java")
        if " " in str(folder):  # the options are words
            return "", None
        archive = folder / f"{_archive_name(java, classes)}.jsa"
        if _is_whole(archive):
            os.utime(archive)
            return f"{_QUIET} {_CHECKED} {_reports()} -XX:SharedArchiveFile={archive}", archive
        if not keeps or not _is_free(archive):
            return "", None
        _tidy(folder)
    except OSError:
        return "", None
    return f"{_QUIET} -XX:ArchiveClassesAtExit={archive}", None


def _archive_name(java: Path, classes: Path) -> str:
    """What tells the archive of this Java and these jars from others."""
    java = java.resolve()
    told = [java, java.stat().st_mtime_ns, classes.resolve(), classes.stat().st_mtime_ns]
    return hashlib.sha256("\n".join(map(str, told)).encode()).hexdigest()[:16]


def _is_whole(archive: Path) -> bool:
    """Whether it was written to its end; one that became shorter since is removed."""
    with suppress(OSError), archive.open("rb") as file:
        if file.read(len(_WHOLE)) != _WHOLE:
            return False
        size = _size_of(archive)
        if not size.exists() or size.read_text("ascii") == str(archive.stat().st_size):
            return True
        discard_archive(archive)
    return False


def _reports() -> str:
    """Have a Java that dies leave its report among temporary files, and no image of its memory."""
    folder = tempfile.gettempdir()
    named = "" if " " in folder else f" -XX:ErrorFile={folder}/backstory-java-%p.log"
    return f"-XX:-CreateCoredumpOnCrash{named}"


def _size_of(archive: Path) -> Path:
    return archive.with_suffix(".size")


def _is_free(archive: Path) -> bool:
    """Whether nobody seems to be writing the archive."""
    with suppress(FileNotFoundError):
        return time.time() - archive.stat().st_mtime > _ABANDONED
    return True


def _tidy(folder: Path) -> None:
    """Remove archives that nobody used for long."""
    for each in folder.glob("*.jsa"):
        if time.time() - each.stat().st_mtime > _UNUSED:
            discard_archive(each)
