"""Java's classes as they are once loaded, kept for the next start: a third of its time is to load them.

HotSpot writes such an archive when it ends, and uses it for the same Java and jars alone. Of another Java,
where Java also reads folders of settings, and where nothing can be kept for this user only, a start takes as
long as ever.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from backstory.spark.own_folders import kept_folder

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
def with_kept_classes(java: Path, classes: Path, *, keeps: bool) -> Iterator[Path | None]:
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


def seal(archive: Path) -> None:
    """Remember the size of an archive with which Java started: one that is shorter ends Java."""
    size = _size_of(archive)
    with suppress(OSError):
        if not size.exists():
            size.write_text(str(archive.stat().st_size), "ascii")


def discard(archive: Path) -> None:
    """Remove an archive that does not serve."""
    for each in (archive, _size_of(archive)):
        with suppress(OSError):
            each.unlink(missing_ok=True)


def _options(java: Path, classes: Path, *, keeps: bool) -> tuple[str, Path | None]:
    """The options for Java, and the archive that it uses; neither where nothing can be kept or nothing is."""
    if any(os.environ.get(each) for each in _FOLDERS) or (classes.parent / "conf").exists():
        return "", None
    try:
        folder = kept_folder("java")
        if " " in str(folder):  # the options are words
            return "", None
        archive = folder / f"{_name(java, classes)}.jsa"
        if _is_whole(archive):
            os.utime(archive)
            return f"{_QUIET} {_CHECKED} {_reports()} -XX:SharedArchiveFile={archive}", archive
        if not keeps or not _is_free(archive):
            return "", None
        _tidy(folder)
    except OSError:
        return "", None
    return f"{_QUIET} -XX:ArchiveClassesAtExit={archive}", None


def _name(java: Path, classes: Path) -> str:
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
        discard(archive)
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
            discard(each)
