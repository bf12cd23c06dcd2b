"""The deleted rows of data files: deletion vectors as bytes, and the position delete files before them."""

import struct
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from backstory.stores.metadata.table_metadata import POSITIONS, VECTOR
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyroaring import BitMap64


# The place of a deletion vector: its file, offset and length.
Vector = tuple[str, int, int]


class Unreadable(Exception):
    """Something cannot be read exactly without Spark; the text names it."""


@dataclass(slots=True)
class DeletedPositions:
    """The positions of deleted rows by data file."""

    positions: "dict[str, BitMap64]" = field(default_factory=dict)

    def add(self, file: str, positions: "BitMap64") -> None:
        """Add deleted rows of the file."""
        self.positions[file] = self.positions[file] | positions if file in self.positions else positions


def deleted_positions(
    deletes: "Iterable[DataFile]", opener: TableFiles, of: Collection[str] | None = None
) -> DeletedPositions:
    """The deleted positions; raises Unreadable for equality deletes and unknown kinds.

    A vector holds all deletions of its data file, including the deletions of older position delete files.
    With `of`, only deletions of these data files are read, if the manifest names the data file.
    """
    vectors, older = DeletedPositions(), DeletedPositions()
    for file in deletes:
        if file.content.value != POSITIONS or file.key_metadata is not None:
            raise Unreadable("deletions by equality, or encrypted ones")
        if file.file_format.value == VECTOR:
            data_file, vector = vector_of(file)
            if of is None or data_file in of:
                vectors.add(data_file, read_vector(vector, opener))
        elif of is None or file_fields(file)["referenced_data_file"] in {None, *of}:
            with opener(file.file_path) as source:
                _add_positions(older, file, source)
    return DeletedPositions(older.positions | vectors.positions)


def file_fields(file: "DataFile") -> Mapping[str, Any]:
    """The fields of a file's entry in a manifest, by their names in the table specification."""
    from pyiceberg.manifest import DATA_FILE_TYPE

    fields = DATA_FILE_TYPE[3].fields
    return {field.name: value for field, value in zip(fields, file._data, strict=True)}  # noqa: SLF001


def vector_of(file: "DataFile") -> tuple[str, Vector]:
    """The data file that a deletion vector applies to, and the place of the vector."""
    fields = file_fields(file)
    data_file, offset, length = (
        fields[name] for name in ("referenced_data_file", "content_offset", "content_size_in_bytes")
    )
    if None in {data_file, offset, length} or file.key_metadata is not None:
        raise Unreadable("a deletion vector without a data file")
    return data_file, (file.file_path, offset, length)


def read_vector(vector: Vector, opener: TableFiles) -> "BitMap64":
    """The positions in a vector."""
    path, offset, length = vector
    positions = vector_positions(opener.read(path, offset, length))
    if positions is None:
        raise Unreadable("an incomplete deletion vector")
    return positions


def _add_positions(deleted: DeletedPositions, file: "DataFile", source: IO[bytes]) -> None:
    import pyarrow.parquet as pq
    from pyroaring import BitMap64

    if file.file_format.value != "PARQUET":
        raise Unreadable(f"deletions in {file.file_format.value}")
    rows = pq.read_table(source, columns=["file_path", "pos"])
    by_path: dict[str, list[int]] = defaultdict(list)
    for path, position in zip(rows["file_path"].to_pylist(), rows["pos"].to_pylist(), strict=True):
        by_path[path].append(position)
    for path, positions in by_path.items():
        deleted.add(path, BitMap64(positions))


_MAGIC: Final = bytes.fromhex("d1d33964")


def vector_bytes(positions: "BitMap64") -> bytes:
    """The bytes of a deletion vector: length, bitmap, checksum."""
    bitmap = _MAGIC + positions.serialize()
    return struct.pack(">I", len(bitmap)) + bitmap + _checksum(bitmap)


def vector_positions(content: bytes) -> "BitMap64 | None":
    """The positions in a deletion vector; None if the bytes are damaged or not a deletion vector."""
    from pyroaring import BitMap64

    bitmap, checksum = content[4:-4], content[-4:]
    if bitmap[:4] != _MAGIC or checksum != _checksum(bitmap):
        return None
    return BitMap64.deserialize(bitmap[4:])


def _checksum(bitmap: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(bitmap))
