"""How much clear text deliveries may hold: together on the driver, and each file against a bomb."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backstory.errors import Failed
from backstory.formats.wrapping.batch_file import BatchFile

if TYPE_CHECKING:
    import pyarrow as pa

# A file that grows beyond both is no delivery: real ones, of distinct keys, grow ten- to thirtyfold.
BOMB_BYTES, BOMB_RATIO = 1 << 30, 100

# Bytes of the driver's memory: of a value of a stored row, of one of a text, and for one of a Parquet file.
CELL, TEXT, UNPACKED = 64, 32, 8

# A plan holds the rows that came, those that are stored, the order of both, and what becomes of them.
CLEAR_TEXT_SHARE = 6

# Rows that gather leave such a part of the memory to those that are yet to be read.
LEFT = 3


class TooLarge(Failed):
    """A delivery needs more of the driver's memory than is left; Spark's tasks must take it."""

    def __init__(self) -> None:
        super().__init__(
            "too-large",
            "The delivery needs more memory than the driver may use.",
            "Raise driver-memory in the section [delivery] of backstory.toml.",
        )


def unpacked_size(rows: int, columns: int, size: int) -> int:
    """What the rows of Parquet files of this size may take, as Arrow tables."""
    return max(1, rows * columns * CELL, size * UNPACKED)


def typed_size(rows: int, types: "Sequence[pa.DataType]", size: int) -> int:
    """The same for columns of these types, more exactly; texts are taken for short ones."""
    from pyarrow.types import is_decimal, is_primitive

    fixed = [each.bit_width for each in types if is_primitive(each) or is_decimal(each)]
    widths = [*(max(each // 8, 1) for each in fixed), *[TEXT] * (len(types) - len(fixed))]
    return max(1, rows * sum(widths), size * UNPACKED)


class Memory:
    """What all deliveries of a process may take of the driver's memory at a time.

    They are held to a share of it in clear text: the rest is for what becomes of that.
    """

    def __init__(self, most: int) -> None:
        self._most = most // CLEAR_TEXT_SHARE
        self._lock = threading.Lock()
        self._held = 0

    @contextmanager
    def lease(self) -> Iterator["MemoryLease"]:
        """A delivery's part, given back at the end."""
        lease = MemoryLease(self)
        try:
            yield lease
        finally:
            self.take(-lease.size)

    @property
    def most(self) -> int:
        """The bytes of clear text that deliveries may hold together."""
        return self._most

    def take(self, size: int, leaving: int = 0) -> None:
        """Take bytes, or give them back; raises TooLarge, and takes none, if so many would not be left."""
        with self._lock:
            if size > 0 and self._held + size > self._most - leaving:
                raise TooLarge
            self._held += size


class MemoryLease:
    """What one delivery holds, file by file."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(self._files.values())

    def hold(self, file: str, size: int) -> None:
        """The file now takes this much; raises TooLarge if that is more than is left."""
        self._hold(file, size, 0)

    def gather(self, file: str, size: int) -> None:
        """The same for what could be spilled as well; raises TooLarge if little would be left."""
        self._hold(file, size, self._memory.most // LEFT)

    def _hold(self, file: str, size: int, leaving: int) -> None:
        with self._lock:
            self._memory.take(size - self._files.get(file, 0), leaving)
            self._files[file] = size


class Meter:
    """Counts the clear bytes of one file as they come."""

    def __init__(self, file: BatchFile, lease: MemoryLease | None = None) -> None:
        self._file = file
        self._lease = lease
        self._most = max(BOMB_BYTES, BOMB_RATIO * file.size())
        self._count = 0

    def add(self, size: int) -> None:
        """So many bytes more; raises Refused for a bomb, TooLarge for more than the lease can hold."""
        self._count += size
        if self._count > self._most:
            raise self._file.unreadable(
                f"it holds more than {BOMB_BYTES >> 30} GiB and {BOMB_RATIO} times its own size"
            )
        if self._lease:
            self._lease.hold(str(self._file.path), self._count)
