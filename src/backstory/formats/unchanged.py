"""Files that others may write while they are read: what was read is one state of a file, or refused."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from backstory.errors import Failed

Stamp = tuple[Path, int, int, int]
Read = TypeVar("Read")


def stamp_of(path: Path) -> Stamp:
    """Which file it is, how large, and when it was written last; to be made before a byte is read."""
    told = path.stat()
    return path, told.st_ino, told.st_size, told.st_mtime_ns


def require_unchanged(stamps: Iterable[Stamp]) -> None:
    """Raise Failed for the first file that was replaced, rewritten or moved away, or that grew."""
    for stamp in stamps:
        path = stamp[0]
        if not path.exists() or stamp_of(path) != stamp:
            raise source_changed(path.name)


def while_unchanged(reads: Iterable[Read], stamp: Stamp) -> Iterator[Read]:
    """What is read of a file; Failed if it has changed, behind the last of it or where reading fails."""
    try:
        yield from reads
    except Exception:  # half of a file may be anything
        require_unchanged([stamp])
        raise
    require_unchanged([stamp])


def source_changed(name: str = "The source") -> Failed:
    """The error for a source that others changed, or that gave other rows the second time."""
    remedy = "Nothing was written; deliver it again, once it is complete."
    return Failed("source-changed", f"{name} changed while it was read.", remedy)
