"""Files that others may write while they are read: what was read is one state of a file, or refused."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from backstory.errors import BackstoryError, Failed

Stamp = tuple[Path, int, int, int]
Read = TypeVar("Read")


def stamp_of(path: Path) -> Stamp:
    """Which file it is, how large, and when it was written last; to be made before a byte is read."""
    told = path.stat()
    return path, told.st_ino, told.st_size, told.st_mtime_ns


def require_unchanged(stamps: Iterable[Stamp]) -> None:
    """Raise Failed for the first file that was replaced, rewritten or moved away, or that grew."""
    for stamp in stamps:
        if _has_changed(stamp):
            raise source_changed(stamp[0].name)


def _has_changed(stamp: Stamp) -> bool:
    return not stamp[0].exists() or stamp_of(stamp[0]) != stamp


@contextmanager
def refuse_changes(stamp: Stamp, error: Callable[[], BackstoryError] | None = None) -> Iterator[None]:
    """Raises the error, else Failed, if the file changes in between, also where reading fails for that."""

    def require() -> None:
        if _has_changed(stamp):
            raise error() if error else source_changed(stamp[0].name)

    try:
        yield
    except Exception:  # half of a file may be anything
        require()
        raise
    require()


def while_unchanged(reads: Iterable[Read], stamp: Stamp) -> Iterator[Read]:
    """What is read of a file; Failed if it has changed, behind the last of it or where reading fails."""
    with refuse_changes(stamp):
        yield from reads


def source_changed(name: str = "The source") -> Failed:
    """The error for a source that others changed, or that gave other rows the second time."""
    remedy = "Nothing was written; deliver it again, once it is complete."
    return Failed("source-changed", f"{name} changed while it was read.", remedy)
