"""Limits on unpacked bytes, and the errors for a full disk."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from backstory.errors import BackstoryError, Failed, Refused, TryAgain
from backstory.formats.memory import BOMB_BYTES, BOMB_RATIO

BLOCK: Final = 1 << 20
FULL: Final = {errno.ENOSPC, errno.EDQUOT}
# Messages for a full disk in the errors of the operating system and of SQLite.
FULL_WORDS: Final = ("No space left on device", "Disk quota exceeded", "SQLITE_FULL")
DISK_FULL: Final = "disk-full"


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Exactly `size` bytes. Fewer or no bytes are returned only at the end."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum size in bytes of each file that is unpacked from a delivery."""

    most: int

    def copy(self, packed: Readable, target: Path, name: str) -> None:
        """Write all bytes to `target`. Above the bound, empty `target` again and raise Refused."""
        count = 0
        with target.open("wb") as built:
            while block := packed.read(BLOCK):
                count += len(block)
                if count > self.most:
                    built.truncate(0)
                    raise self.too_large(name)
                built.write(block)

    def too_large(self, name: str) -> Refused:
        """The error for a file that exceeds the bound."""
        return Refused(
            "unpacks-too-large",
            f"{name} unpacks to more than {self.most:,} bytes.",
            "Nothing was written; if it is not a zip bomb, raise `unpacked-limit` under `[odf]` in "
            "backstory.toml.",
        )


def bound_of(path: Path, limit: int | None = None) -> Bound:
    """The bound for files that are unpacked from a delivered file."""
    return bound_by(path.stat().st_size, limit)


def bound_by(size: int, limit: int | None) -> Bound:
    """The configured limit or, by default, the larger of 1 GiB and a hundred times the delivered bytes."""
    return Bound(max(BOMB_BYTES, BOMB_RATIO * size) if limit is None else limit)


@contextmanager
def translate_disk_errors(what: str) -> Iterator[None]:
    """Translate OSError within the block: TryAgain for a full disk, Failed for other file errors."""
    try:
        yield
    except ConnectionError:
        raise  # from Spark's gateway
    except OSError as fault:
        raise no_room(fault, what) or Failed(
            "file-failed",
            f"A file of {what} could not be read or written ({fault.strerror or type(fault).__name__}).",
            "Nothing was written; check its permissions and the disk, then try again.",
        ) from fault


def no_room(fault: OSError, owner: object) -> BackstoryError | None:
    """The error for `owner` if the fault is a full disk, or None for any other fault."""
    return disk_full(owner) if fault.errno in FULL else None


def no_room_by(text: str, owner: object) -> TryAgain | None:
    """The same, based on the error message of Java, Spark or SQLite."""
    return disk_full(owner) if any(word in text for word in FULL_WORDS) else None


def disk_full(owner: object) -> TryAgain:
    """The error for a full disk that interrupted a write to a file of `owner`."""
    return TryAgain(
        DISK_FULL,
        f"The disk is full: a file of {owner} could not be written.",
        "Each commit is whole or absent; make room, or name another folder for temporary files with TMPDIR, "
        "then try again.",
    )
