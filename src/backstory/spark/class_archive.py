"""Java's classes as they are once loaded, kept for the next start: a third of its time is to load them.

HotSpot writes such an archive when it ends, and uses it for the same Java and jars alone. Of another Java,
where Java also reads folders of settings, and where nothing can be kept for this user only, a start takes as
long as ever.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "SPARK_SUBMIT_OPTS"
# An archive that is whole begins so: its first bytes are written last.
_WHOLE: Final = (0xF00BABA8).to_bytes(4, "little")
_QUIET: Final = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds=off -Xlog:cds+dynamic=off"
_OURS: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "Xshare")
# Folders that Spark puts before its jars. HotSpot keeps no classes beside a folder that has files.
_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_ABANDONED, _UNUSED = 3600, 60 * 86_400  # seconds


@contextmanager
def with_kept_classes(java: Path, classes: Path, *, keeps: bool) -> Iterator[None]:
    """Java that is started meanwhile takes its classes from the archive of this Java and folder of jars.

    Where there is none it is made at Java's end, if the process `keeps` them. Options of the user's own that
    say otherwise stay.
    """
    before = os.environ.get(VARIABLE)
    options = "" if before and any(each in before for each in _OURS) else _options(java, classes, keeps=keeps)
    if options:
        os.environ[VARIABLE] = f"{options} {before}" if before else options
    try:
        yield
    finally:
        if options:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before


def _options(java: Path, classes: Path, *, keeps: bool) -> str:
    """The options for Java; none where nothing can be kept or nothing is."""
    if any(os.environ.get(each) for each in _FOLDERS) or (classes.parent / "conf").exists():
        return ""
    try:
        folder = _folder()
        archive = folder / f"{_name(java, classes)}.jsa"
        if _is_whole(archive):
            os.utime(archive)
            return f"{_QUIET} -XX:SharedArchiveFile={archive}"
        if not keeps or not _is_free(archive):
            return ""
        _tidy(folder)
    except (OSError, RuntimeError):  # the latter where nobody's home is known
        return ""
    return f"{_QUIET} -XX:ArchiveClassesAtExit={archive}"


def _folder() -> Path:
    """The folder of archives, which nobody else may write to; raises OSError where there can be none."""
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path.home() / ".cache") / "backstory" / "java"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    shared = found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022
    if shared or " " in str(folder) or not os.access(folder, os.W_OK):
        raise OSError(folder)
    return folder


def _name(java: Path, classes: Path) -> str:
    """What tells the archive of this Java and these jars from others."""
    java = java.resolve()
    told = [java, java.stat().st_mtime_ns, classes.resolve(), classes.stat().st_mtime_ns]
    return hashlib.sha256("\n".join(map(str, told)).encode()).hexdigest()[:16]


def _is_whole(archive: Path) -> bool:
    with suppress(OSError), archive.open("rb") as file:
        return file.read(len(_WHOLE)) == _WHOLE
    return False


def _is_free(archive: Path) -> bool:
    """Whether nobody seems to be writing the archive."""
    with suppress(FileNotFoundError):
        return time.time() - archive.stat().st_mtime > _ABANDONED
    return True


def _tidy(folder: Path) -> None:
    """Remove archives that nobody used for long."""
    for each in folder.glob("*.jsa"):
        if time.time() - each.stat().st_mtime > _UNUSED:
            each.unlink(missing_ok=True)
