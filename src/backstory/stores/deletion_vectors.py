"""Deletion vectors as bytes: positions of deleted rows in the format of Iceberg's Puffin specification."""

import struct
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyroaring import BitMap64

_MAGIC: Final = bytes.fromhex("d1d33964")


def vector_bytes(positions: "BitMap64") -> bytes:
    """The bytes of a deletion vector: length, bitmap, checksum."""
    bitmap = _MAGIC + positions.serialize()
    return struct.pack(">I", len(bitmap)) + bitmap + _checksum(bitmap)


def vector_positions(content: bytes) -> "BitMap64 | None":
    """The positions in a deletion vector, or None if the bytes are damaged or not a deletion vector."""
    from pyroaring import BitMap64

    bitmap, checksum = content[4:-4], content[-4:]
    if bitmap[:4] != _MAGIC or checksum != _checksum(bitmap):
        return None
    return BitMap64.deserialize(bitmap[4:])


def _checksum(bitmap: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(bitmap))
