"""Limits of memory and of unpacked bytes for deliveries, and the errors for a full disk."""

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from backstory.errors import Failed, Refused, TryAgain
from backstory.formats.batch_file import BatchFile

if TYPE_CHECKING:
    from gzip import GzipFile

    import pyarrow as pa


# A file that exceeds both is treated as a decompression bomb: real files with distinct keys grow ten- to
# thirtyfold.
BOMB_BYTES, BOMB_RATIO = 1 << 30, 100

# Bytes of the driver's memory for each value of a stored row, each string, and each byte of a Parquet file.
CELL, TEXT, UNPACKED = 64, 32, 8

# A plan holds the delivered rows, the stored rows, the sort order of both, and the resulting rows.
CLEAR_TEXT_SHARE = 6

# Collected rows leave one part in this many of the memory free, for rows that are still unread.
LEFT = 3


class TooLarge(Failed):
    """A delivery needs more of the driver's memory than is left. Spark's tasks must read the delivery."""

    def __init__(self) -> None:
        super().__init__(
            "too-large",
            "The delivery needs more memory than the driver may use.",
            "Raise driver-memory in the section [delivery] of backstory.toml.",
        )


def unpacked_size(rows: int, columns: int, size: int) -> int:
    """The estimated size in bytes, as Arrow tables, of the rows in Parquet files of `size` bytes."""
    return max(1, rows * columns * CELL, size * UNPACKED)


def typed_size(rows: int, types: "Sequence[pa.DataType]", size: int) -> int:
    """A more accurate estimate for columns of these types. Strings are assumed to be short."""
    from pyarrow.types import is_decimal, is_primitive

    bits = [type_.bit_width for type_ in types if is_primitive(type_) or is_decimal(type_)]
    widths = [*(max(width // 8, 1) for width in bits), *[TEXT] * (len(types) - len(bits))]
    return max(1, rows * sum(widths), size * UNPACKED)


class Memory:
    """The driver's memory that all deliveries of a process share.

    `most` is the number of unpacked bytes that all deliveries together may hold: one part in
    `CLEAR_TEXT_SHARE` of the memory. The rest is for the plans made from these bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most // CLEAR_TEXT_SHARE
        self._lock = threading.Lock()
        self._held = 0

    def __reduce__(self) -> tuple[type["Memory"], tuple[int]]:
        """Recreate the limit in another process, without any reserved memory."""
        return Memory, (self.most * CLEAR_TEXT_SHARE,)

    @contextmanager
    def lease(self) -> Iterator["MemoryLease"]:
        """Lease memory to one delivery within the block."""
        lease = MemoryLease(self)
        try:
            yield lease
        finally:
            self.take(-lease.size)

    def take(self, size: int, leaving: int = 0) -> None:
        """Reserve bytes. A negative size releases them.

        Raises TooLarge, and reserves nothing, if fewer than `leaving` bytes would be left.
        """
        with self._lock:
            if size > 0 and self._held + size > self.most - leaving:
                raise TooLarge
            self._held += size


class MemoryLease:
    """The memory of one delivery, by file."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}

    @property
    def size(self) -> int:
        """The bytes leased for all files of the delivery."""
        return sum(self._files.values())

    def hold(self, file: str, size: int, *, spills: bool = False) -> None:
        """Set the size of a file's unpacked bytes.

        Raises TooLarge if too few bytes are available. A file that `spills` must also leave a part of the
        memory free.
        """
        with self._lock:
            leaving = self._memory.most // LEFT if spills else 0
            self._memory.take(size - self._files.get(file, 0), leaving)
            self._files[file] = size


class Meter:
    """A counter of the unpacked bytes of one file while it is read."""

    def __init__(self, file: BatchFile, lease: MemoryLease | None = None) -> None:
        self._file = file
        self._lease = lease
        self._most = max(BOMB_BYTES, BOMB_RATIO * file.size())
        self._count = 0

    def add(self, size: int) -> None:
        """Add bytes. Raises Refused for a decompression bomb, and TooLarge if the lease is exceeded."""
        self._count += size
        if self._count > self._most:
            raise self._file.unreadable(
                f"it contains more than {BOMB_BYTES >> 30} GiB and {BOMB_RATIO} times its own size"
            )
        if self._lease:
            self._lease.hold(str(self._file.path), self._count)


BLOCK: Final = 1 << 20
FULL: Final = {errno.ENOSPC, errno.EDQUOT}
# Messages for a full disk in the errors of the operating system and of SQLite.
FULL_WORDS: Final = ("No space left on device", "Disk quota exceeded", "SQLITE_FULL")
DISK_FULL: Final = "disk-full"


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum size in bytes of each file that is unpacked from a delivery."""

    most: int

    def copy(self, packed: "IO[bytes] | GzipFile", target: Path, name: str) -> None:
        """Write all bytes to `target`. If they exceed the bound, empty `target` again and raise Refused."""
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
    """The size limit for files that are unpacked from a delivered file."""
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


def no_room(fault: OSError | str, owner: object) -> TryAgain | None:
    """The error for `owner` if a fault, or a message from Java, Spark or SQLite, means a full disk."""
    is_full = any(word in fault for word in FULL_WORDS) if isinstance(fault, str) else fault.errno in FULL
    if not is_full:
        return None
    return TryAgain(
        DISK_FULL,
        f"The disk is full: a file of {owner} could not be written.",
        "Each commit is complete or absent; make room, or name another folder for temporary files with "
        "TMPDIR, then try again.",
    )
