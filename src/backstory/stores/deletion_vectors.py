"""Positions of deleted rows as the bytes of a deletion vector, as Iceberg specifies Puffin's blobs."""

import struct
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyroaring import BitMap64

_MAGIC: Final = bytes.fromhex("d1d33964")


def vector_bytes(marked: "BitMap64") -> bytes:
    """The bytes that hold these positions: length, bitmap, checksum."""
    bitmap = _MAGIC + marked.serialize()
    return struct.pack(">I", len(bitmap)) + bitmap + _checksum(bitmap)


def vector_positions(content: bytes) -> "BitMap64 | None":
    """The positions that the bytes hold; None where these are no whole deletion vector."""
    from pyroaring import BitMap64

    bitmap, checked = content[4:-4], content[-4:]
    if bitmap[:4] != _MAGIC or checked != _checksum(bitmap):
        return None
    return BitMap64.deserialize(bitmap[4:])


def _checksum(bitmap: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(bitmap))
