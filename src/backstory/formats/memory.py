"""Limits on the unpacked bytes of deliveries: for all together on the driver, and for each file."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backstory.errors import Failed
from backstory.formats.wrapping.batch_file import BatchFile

if TYPE_CHECKING:
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
    """A delivery needs more of the driver's memory than is left. Spark tasks must read it."""

    def __init__(self) -> None:
        super().__init__(
            "too-large",
            "The delivery needs more memory than the driver may use.",
            "Raise driver-memory in the section [delivery] of backstory.toml.",
        )


def unpacked_size(rows: int, columns: int, size: int) -> int:
    """The estimated bytes of rows of Parquet files as Arrow tables.

    `size` is the size of the files in bytes.
    """
    return max(1, rows * columns * CELL, size * UNPACKED)


def typed_size(rows: int, types: "Sequence[pa.DataType]", size: int) -> int:
    """A more accurate estimate for columns of these types. Strings are assumed to be short."""
    from pyarrow.types import is_decimal, is_primitive

    bits = [type_.bit_width for type_ in types if is_primitive(type_) or is_decimal(type_)]
    widths = [*(max(width // 8, 1) for width in bits), *[TEXT] * (len(types) - len(bits))]
    return max(1, rows * sum(widths), size * UNPACKED)


class Memory:
    """The driver's memory that all deliveries of a process share.

    Their unpacked bytes may use one share of it; the rest is for the plans that are made from them.
    """

    def __init__(self, most: int) -> None:
        self._most = most // CLEAR_TEXT_SHARE
        self._lock = threading.Lock()
        self._held = 0

    def __reduce__(self) -> tuple[type["Memory"], tuple[int]]:
        """The same limit in another process, which holds nothing yet."""
        return Memory, (self._most * CLEAR_TEXT_SHARE,)

    @contextmanager
    def lease(self) -> Iterator["MemoryLease"]:
        """Lease memory to one delivery within the block."""
        lease = MemoryLease(self)
        try:
            yield lease
        finally:
            self.take(-lease.size)

    @property
    def most(self) -> int:
        """The number of unpacked bytes that all deliveries together may hold."""
        return self._most

    def take(self, size: int, leaving: int = 0) -> None:
        """Reserve bytes. A negative size releases them.

        Raises TooLarge, and reserves nothing, if fewer than `leaving` bytes would be left.
        """
        with self._lock:
            if size > 0 and self._held + size > self._most - leaving:
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

    def hold(self, file: str, size: int) -> None:
        """Set the size of a file's unpacked bytes.

        Raises TooLarge if more bytes are needed than are available.
        """
        self._hold(file, size, 0)

    def gather(self, file: str, size: int) -> None:
        """Set the size of a file that could be spilled to disk instead.

        Raises TooLarge if too little would be left.
        """
        self._hold(file, size, self._memory.most // LEFT)

    def _hold(self, file: str, size: int, leaving: int) -> None:
        with self._lock:
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
