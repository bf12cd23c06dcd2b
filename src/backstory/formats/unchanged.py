"""Checks that a file did not change while it was read."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from backstory.errors import BackstoryError, Failed

Stamp = tuple[Path, int, int, int]
Read = TypeVar("Read")


def stamp_of(path: Path) -> Stamp:
    """The file's path, inode, size and modification time. Call it before the first byte is read."""
    status = path.stat()
    return path, status.st_ino, status.st_size, status.st_mtime_ns


def require_unchanged(stamps: Iterable[Stamp]) -> None:
    """Raise Failed for the first file that was replaced, rewritten, moved or extended."""
    for stamp in stamps:
        if _has_changed(stamp):
            raise source_changed(stamp[0].name)


def _has_changed(stamp: Stamp) -> bool:
    return not stamp[0].exists() or stamp_of(stamp[0]) != stamp


@contextmanager
def refuse_changes(stamp: Stamp, error: Callable[[], BackstoryError] | None = None) -> Iterator[None]:
    """Raise the error, by default Failed, if the file changes within the block.

    This error takes precedence over any error from the block itself.
    """

    def require() -> None:
        if _has_changed(stamp):
            raise error() if error else source_changed(stamp[0].name)

    try:
        yield
    except Exception:  # a half-written file may cause any error
        require()
        raise
    require()


def while_unchanged(reads: Iterable[Read], stamp: Stamp) -> Iterator[Read]:
    """The reads of a file. Raises Failed if the file has changed by the end, or by the time a read fails."""
    with refuse_changes(stamp):
        yield from reads


def source_changed(name: str = "The source") -> Failed:
    """The error for a source that changed during reading, or returned different rows the second time."""
    remedy = "Nothing was written; deliver it again, once it is complete."
    return Failed("source-changed", f"{name} changed while it was read.", remedy)
