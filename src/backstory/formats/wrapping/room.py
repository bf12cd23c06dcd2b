"""How much a delivery may take of the disk, and what becomes of it when there is no more."""

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
# What the system and SQLite say of it.
FULL_WORDS: Final = ("No space left on device", "Disk quota exceeded", "SQLITE_FULL")
DISK_FULL: Final = "disk-full"


class Readable(Protocol):
    """What gives bytes."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer only at the end, none after it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bytes that each file unpacked from a delivery may have."""

    most: int

    def copy(self, packed: Readable, target: Path, name: str) -> None:
        """Write all that comes to `target`; Refused, with nothing left there, for more than the bound."""
        count = 0
        with target.open("wb") as built:
            while block := packed.read(BLOCK):
                count += len(block)
                if count > self.most:
                    built.truncate(0)
                    raise self.too_large(name)
                built.write(block)

    def too_large(self, name: str) -> Refused:
        """The error for a file that is larger."""
        return Refused(
            "unpacks-too-large",
            f"{name} unpacks to more than {self.most:,} bytes.",
            "Nothing was written; if it is not a zip bomb, raise `unpacked-limit` under `[odf]` in "
            "backstory.toml.",
        )


def bound_of(path: Path, limit: int | None = None) -> Bound:
    """The bound of what is unpacked from a delivered file."""
    return bound_by(path.stat().st_size, limit)


def bound_by(size: int, limit: int | None) -> Bound:
    """The limit that is set, else that of every door: 1 GiB, or a hundred times what was delivered."""
    return Bound(max(BOMB_BYTES, BOMB_RATIO * size) if limit is None else limit)


@contextmanager
def translate_disk_errors(what: str) -> Iterator[None]:
    """Errors of the system as ours: TryAgain if a disk is full, Failed for other faults of files."""
    try:
        yield
    except ConnectionError:
        raise  # of Spark's gateway
    except OSError as fault:
        raise no_room(fault, what) or Failed(
            "file-failed",
            f"A file of {what} could not be read or written ({fault.strerror or type(fault).__name__}).",
            "Nothing was written; check its permissions and the disk, then try again.",
        ) from fault


def no_room(fault: OSError, owner: object) -> BackstoryError | None:
    """The error for a full disk that met a file of a table or a delivery; None for any other fault."""
    return disk_full(owner) if fault.errno in FULL else None


def no_room_by(told: str, owner: object) -> TryAgain | None:
    """The same, where the words of Java's, Spark's or SQLite's error tell of one."""
    return disk_full(owner) if any(word in told for word in FULL_WORDS) else None


def disk_full(owner: object) -> TryAgain:
    """The error for a disk on which a file, of a table or one to work with, finds no room."""
    return TryAgain(
        DISK_FULL,
        f"The disk is full: a file of {owner} could not be written.",
        "Each commit is whole or absent; make room, or name another folder for temporary files with TMPDIR, "
        "then try again.",
    )
