"""A batch file, its compression and encryption (section 3.1), and checks that a file does not change."""

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from backstory.errors import BackstoryError, Failed, Refused
from backstory.model.types import ColumnType

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

    This error takes precedence over any error that the block itself raises.
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
    """Yield the items of `reads`, which reads a file.

    Raises Failed if the file has changed when reading ends or fails.
    """
    with refuse_changes(stamp):
        yield from reads


def source_changed(name: str = "The source") -> Failed:
    """The error for a source that changed during reading, or returned different rows the second time."""
    remedy = "Nothing was written; deliver it again, once it is complete."
    return Failed("source-changed", f"{name} changed while it was read.", remedy)


BLOCK = 16
KEY_SIZE = 32
WINDOW = 1 << 22


class DecryptingReader(io.RawIOBase):
    """A stream that decrypts an open file, with one window in memory at a time.

    Raises Refused if the key is not 32 bytes long, the file is not an IV with whole cipher blocks, or the
    padding is wrong. Wrong padding means a wrong key or a truncated file.
    """

    def __init__(self, file: BinaryIO, key: bytes, name: str) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CBC
        from cryptography.hazmat.primitives.padding import PKCS7

        super().__init__()
        size = os.fstat(file.fileno()).st_size
        if len(key) != KEY_SIZE:
            raise _unreadable(name, "its key is not 32 bytes long")
        if size < 2 * BLOCK or size % BLOCK:
            raise _unreadable(name, "its size is not an IV and whole cipher blocks")
        self._name = name
        self._file = file
        self._decryptor = Cipher(AES(key), CBC(self._file.read(BLOCK))).decryptor()
        self._unpadder = PKCS7(AES.block_size).unpadder()
        self._clear = memoryview(b"")
        self._done = False

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` decrypted bytes, or no bytes at the end."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(WINDOW), b""))
        while not self._clear and not self._done:
            self._clear = memoryview(self._next_window())
        taken, self._clear = self._clear[:size], self._clear[size:]
        return bytes(taken)

    def close(self) -> None:
        """Close this reader and the encrypted file."""
        if not self.closed:
            self._file.close()
        super().close()

    def _next_window(self) -> bytes:
        window = self._file.read(WINDOW)
        if window:
            return self._unpadder.update(self._decryptor.update(window))
        self._done = True
        try:
            tail = self._unpadder.update(self._decryptor.finalize())
            return tail + self._unpadder.finalize()
        except ValueError as broken:
            raise _unreadable(self._name, "its padding is wrong") from broken


def _unreadable(name: str, why: str) -> Refused:
    return Refused(
        "unreadable-file",
        f"{name} cannot be decrypted: {why}; the key is wrong or the file was cut.",
        "Nothing was written; send the file again with its own key.",
    )


NOT_THERE = "the file does not exist or cannot be opened"


class Format(StrEnum):
    """The format of a file's content, inside compression and encryption."""

    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """The compression of the content, applied before encryption."""

    OFF = "off"
    ZSTD = "zstd"
    GZIP = "gzip"


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of all files in one delivery.

    An empty `null_string` or `unmodified_string` means that the files contain no such marker.
    """

    format: Format = Format.CSV
    compression: Compression = Compression.OFF
    encrypted: bool = False
    null_string: str = ""
    unmodified_string: str = ""


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A delivered file: its path and, if it is encrypted, its key. The `repr` omits the key."""

    path: Path
    key: bytes | None = field(default=None, repr=False)
    told_as: str = ""

    @property
    def name(self) -> str:
        """The file's name in messages."""
        return self.told_as or self.path.name

    def size(self) -> int:
        """The size of the delivered file in bytes, or 0 if there is no file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def digest(self) -> str:
        """The SHA-256 of the delivered bytes in hexadecimal. Raises Refused if there is no file."""
        with self.delivered_bytes() as delivered:
            return hashlib.file_digest(delivered, "sha256").hexdigest()

    def refuse_changes(self) -> AbstractContextManager[None]:
        """A context manager that raises Refused if the file changes within the block.

        The call itself raises Refused if the file does not exist.
        """
        try:
            return refuse_changes(stamp_of(self.path), self._has_changed)
        except (OSError, ValueError) as missing:
            raise self.unreadable(NOT_THERE) from missing

    def _has_changed(self) -> Refused:
        return Refused(
            "source-changed",
            f"{self.name} changed while it was read.",
            "Nothing was written; send the batch again, once its files are complete.",
        )

    def delivered_bytes(self) -> BufferedReader:
        """A stream of the bytes as delivered. Raises Refused unless the path is a readable regular file."""
        try:
            # Checked before opening, because opening a pipe or device has side effects.
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise self.unreadable("it is not a regular file")
            return self.path.open("rb")
        except (OSError, ValueError) as missing:
            raise self.unreadable(NOT_THERE) from missing

    def open(self, encoding: Encoding) -> Any:
        """A stream of the decrypted and decompressed bytes. It is empty for an empty file."""
        import pyarrow as pa

        delivered = self.delivered_bytes()
        if self.size() == 0:
            delivered.close()
            return pa.BufferReader(b"")
        clear = self._decrypt(delivered) if encoding.encrypted else delivered
        if encoding.compression is Compression.OFF:
            return clear
        return pa.CompressedInputStream(pa.PythonFile(clear, mode="r"), encoding.compression.value)

    def _decrypt(self, delivered: BufferedReader) -> "DecryptingReader":
        try:
            if self.key is None:
                raise self.unreadable("the request has no key for it")
            return DecryptingReader(delivered, self.key, self.name)
        except Refused:
            delivered.close()
            raise

    def unreadable_cell(self, place: str, column: str, type_: ColumnType) -> Refused:
        """The error for a value that does not match its column's type. `place` is its line or row."""
        return Refused(
            "unreadable-cell",
            f"{self.name}, {place}, column {column}: the value is not of type {type_}.",
            "Nothing was written; fix the value at its source or change the column's type.",
        )

    def unreadable(self, why: str) -> Refused:
        """The error for a delivered file that cannot be read. `why` is a clause with the cause."""
        return Refused(
            "unreadable-file",
            f"{self.name} cannot be read: {why}.",
            "Nothing was written; send the batch again with complete files and their own keys.",
        )
