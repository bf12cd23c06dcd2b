"""Which rows of data files are deleted: by deletion vectors, or by the position delete files before them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from backstory.stores.deletion_vectors import vector_positions
from backstory.stores.metadata.table_metadata import POSITIONS, VECTOR
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyroaring import BitMap64


# Where a deletion vector lies: its file, offset and length.
Vector = tuple[str, int, int]


class Unreadable(Exception):
    """What cannot be read exactly without Spark; the text says what."""


@dataclass(slots=True)
class DeletedPositions:
    """The positions of deleted rows by data file."""

    positions: "dict[str, BitMap64]" = field(default_factory=dict)

    def add(self, file: str, positions: "BitMap64") -> None:
        """These rows of the file are deleted too."""
        self.positions[file] = self.positions[file] | positions if file in self.positions else positions


def deleted_positions(
    deletes: "Iterable[DataFile]", opener: TableFiles, of: Collection[str] | None = None
) -> DeletedPositions:
    """What delete files hide; raises Unreadable for deletions by equality, and for what is not understood.

    A vector holds all deletions of its data file, also those of older position delete files. Those of other
    data files than `of` are not read where a manifest names the one that they are of.
    """
    found, older = DeletedPositions(), DeletedPositions()
    for file in deletes:
        if file.content.value != POSITIONS or file.key_metadata is not None:
            raise Unreadable("deletions by equality, or encrypted ones")
        if file.file_format.value == VECTOR:
            hidden, vector = vector_of(file)
            if of is None or hidden in of:
                found.add(hidden, read_vector(vector, opener))
        elif of is None or file_fields(file)["referenced_data_file"] in {None, *of}:
            with opener(file.file_path) as source:
                _add_positions(older, file, source)
    return DeletedPositions(older.positions | found.positions)


def file_fields(file: "DataFile") -> Mapping[str, Any]:
    """The fields of a file's entry in a manifest, by the names of the table specification."""
    from pyiceberg.manifest import DATA_FILE_TYPE

    return {each.name: value for each, value in zip(DATA_FILE_TYPE[3].fields, file._data, strict=True)}  # noqa: SLF001


def vector_of(file: "DataFile") -> tuple[str, Vector]:
    """The data file whose rows a deletion vector hides, and where the vector lies."""
    fields = file_fields(file)
    hidden, offset, length = (
        fields[name] for name in ("referenced_data_file", "content_offset", "content_size_in_bytes")
    )
    if None in {hidden, offset, length} or file.key_metadata is not None:
        raise Unreadable("a deletion vector of no data file")
    return hidden, (file.file_path, offset, length)


def read_vector(vector: Vector, opener: TableFiles) -> "BitMap64":
    """The positions that a vector hides."""
    path, offset, length = vector
    positions = vector_positions(opener.read(path, offset, length))
    if positions is None:
        raise Unreadable("a deletion vector that is not whole")
    return positions


def _add_positions(found: DeletedPositions, file: "DataFile", source: IO[bytes]) -> None:
    import pyarrow.parquet as pq
    from pyroaring import BitMap64

    if file.file_format.value != "PARQUET":
        raise Unreadable(f"deletions in {file.file_format.value}")
    rows = pq.read_table(source, columns=["file_path", "pos"])
    marked: dict[str, list[int]] = defaultdict(list)
    for path, position in zip(rows["file_path"].to_pylist(), rows["pos"].to_pylist(), strict=True):
        marked[path].append(position)
    for path, positions in marked.items():
        found.add(path, BitMap64(positions))
