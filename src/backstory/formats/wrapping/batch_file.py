"""A batch file and its wrapping: first compression, then encryption (section 3.1)."""

import hashlib
import stat
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.errors import Refused
from backstory.formats.unchanged import refuse_changes, stamp_of
from backstory.model.types import ColumnType

if TYPE_CHECKING:
    from backstory.formats.wrapping.cipher import DecryptingReader

NOT_THERE = "the file does not exist or cannot be opened"


class Format(StrEnum):
    """The format of the content inside the wrapping."""

    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """The compression of the content, applied before encryption."""

    OFF = "off"
    ZSTD = "zstd"
    GZIP = "gzip"


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of all files in one delivery. An empty marker means that there is no marker."""

    format: Format = Format.CSV
    compression: Compression = Compression.OFF
    encrypted: bool = False
    null_string: str = ""
    unmodified_string: str = ""


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A path and, for an encrypted file, its key. The `repr` omits the key."""

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
        """A context that raises Refused if the file changes within it.

        Raises Refused immediately if there is no file.
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
        """A stream of the bytes as delivered.

        Raises Refused if the path is missing, a pipe, a device or a folder.
        """
        try:
            if not stat.S_ISREG(
                self.path.stat().st_mode
            ):  # check before opening, because opening a pipe or device has side effects
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
        from backstory.formats.wrapping.cipher import DecryptingReader

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
        """The error for a file whose bytes do not match the request."""
        return Refused(
            "unreadable-file",
            f"{self.name} cannot be read: {why}.",
            "Nothing was written; send the batch again with complete files and their own keys.",
        )
