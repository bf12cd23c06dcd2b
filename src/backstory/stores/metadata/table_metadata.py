"""An Iceberg table's metadata, its number of rows (from manifests), and its deletion vectors.

No data file is read. Deletion vectors show how many rows are deleted in a partition, but not which rows these
are. Hence open versions are counted exactly if each partition with deletions has only open rows or no open
rows. Histories are partitioned accordingly.
"""

import gzip
import json
import struct
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.errors import Failed
from backstory.model.change import COLUMNS_STATE, DOOR, foreign_writes
from backstory.model.instant import parse_instant
from backstory.model.layout import FILE, MEMORY, POSITION, Layout
from backstory.model.table import Shape, TableName
from backstory.model.versions_layout import RECORDED, ROLE
from backstory.stores.branches import BRANCH, ancestors, in_effect
from backstory.stores.iceberg.schema import columns_of_fields, names_by_id, shape_of
from backstory.stores.port import file_garbled, no_table
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.io import InputFile
    from pyiceberg.manifest import DataFile, ManifestFile

_GZIP: Final = b"\x1f\x8b"
# Opens a file by its location.
Opener = Callable[[str], IO[bytes]]


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """A commit that has not expired: its operation, and the properties from its writer.

    `version` is its sequence number. `parent` is the previous commit's id, or None for the first commit.
    """

    id: int
    committed_at: datetime
    operation: str
    properties: Mapping[str, str]
    version: int
    parent: int | None
    schema_id: int | None = None

    @property
    def recorded_at(self) -> datetime:
        """The recorded time of the commit, which is also in its rows, or else Iceberg's time (V94, V111)."""
        recorded = self.properties.get(RECORDED)
        return parse_instant(recorded) if recorded else self.committed_at


@dataclass(frozen=True)
class TableMetadata:
    """A table with its metadata, in the JSON of Iceberg's specification. `files` opens the table's files."""

    shape: Shape
    metadata: Mapping[str, Any]
    location: str
    files: TableFiles = field(default_factory=TableFiles, compare=False)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("properties") or {}

    @property
    def tags(self) -> Mapping[str, int]:
        """Snapshot ids by tag."""
        refs = (self.metadata.get("refs") or {}).items()
        return {name: ref["snapshot-id"] for name, ref in refs if ref["type"] == "tag"}

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """The current fields of the table's columns."""
        return _fields(self.metadata)

    def fields_then(self, schema_id: int | None) -> Sequence[Mapping[str, Any]]:
        """The fields of the table's columns in the schema with this id, by default in the current one."""
        return (
            self.fields if schema_id is None else _fields({**self.metadata, "current-schema-id": schema_id})
        )

    @property
    def schema_id(self) -> int:
        """The id of the current schema."""
        return int(self.metadata.get("current-schema-id", 0))

    def shape_then(self, schema_id: int | None) -> Shape:
        """The table's shape in an earlier state of its columns. Key columns have their names from then."""
        fields = self.fields_then(schema_id)
        columns = columns_of_fields(fields, {each.name: each.source_name for each in self.shape.columns})
        ids, names = {each["name"]: each["id"] for each in self.fields}, names_by_id(fields)
        key = tuple(names[ids[name]] for name in self.shape.key if ids.get(name) in names)
        return replace(self.shape, columns=columns, key=key)

    def snapshot_by_id(self, snapshot_id: int | None) -> Mapping[str, Any] | None:
        """The snapshot with this id, or None if it has expired."""
        return next(
            (one for one in self.metadata.get("snapshots") or [] if one["snapshot-id"] == snapshot_id), None
        )

    @property
    def commits(self) -> list[CommitMetadata]:
        """Every commit that has not expired, oldest first, including commits that were rolled back.

        Commits to other branches are excluded until they are published.
        """
        commits = [commit_of(snapshot) for snapshot in self.metadata.get("snapshots") or []]
        if not any(BRANCH in commit.properties for commit in commits):
            return commits
        ours = {snapshot["snapshot-id"] for snapshot in self.ancestry}
        return [commit for commit in commits if BRANCH not in commit.properties or commit.id in ours]

    @property
    def newest(self) -> CommitMetadata | None:
        """The current commit, or None if the table has no commits."""
        return None if self.snapshot is None else commit_of(self.snapshot)

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        """The current snapshot."""
        return self.snapshot_by_id(self.metadata.get("current-snapshot-id"))

    @property
    def ancestry(self) -> Iterator[Mapping[str, Any]]:
        """The current snapshot and its ancestors, newest first, ending before the first expired one."""
        return iter(ancestors(self.metadata, self.metadata.get("current-snapshot-id")))

    @property
    def lineage(self) -> Iterator[CommitMetadata]:
        """The current commit and its ancestors, newest first, ending before the first expired one."""
        return map(commit_of, self.ancestry)

    @property
    def foreign_writes(self) -> Sequence[str]:
        """Descriptions of the writes of other programs since the door's last write."""
        left = self.properties.get(COLUMNS_STATE)
        known = left is not None and str(self.schema_id) != left
        numbers = [schema.get("schema-id") for schema in self.metadata.get("schemas") or ()]
        then = self.fields_then(int(left or 0)) if known and int(left or 0) in numbers else None
        before = None if then is None else names_by_id(then)
        commits = ((commit.id, commit.operation, commit.properties.get(DOOR)) for commit in self.lineage)
        return foreign_writes(self.shape.layout, commits, before, names_by_id(self.fields))

    @property
    def rows(self) -> int:
        """The number of rows in data files, including deleted rows, or 0 for a table without commits."""
        return 0 if self.newest is None else int(self.newest.properties.get("total-records") or 0)

    def newest_property(self, name: str) -> str | None:
        """The value of a property in the newest commit that has it."""
        return next(filter(None, (commit.properties.get(name) for commit in self.lineage)), None)


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows of a table. `open` counts open versions, and `memory` counts rows that are not versions.

    A number that cannot be determined is None.
    """

    rows: int | None
    open: int | None
    memory: int = 0


class Catalog(Protocol):
    """A catalog of readable tables. `description` is the catalog's name, and the origin of that name."""

    @property
    def description(self) -> str: ...

    def tables(self) -> list[TableName]:
        """Every table, sorted."""

    def describe(self, table: TableName) -> TableMetadata | None:
        """The current metadata of a table, or None if it does not exist."""

    def count(self, table: TableMetadata) -> Counts:
        """The number of rows of a table."""


def table_of_metadata(
    table: TableName, metadata: Mapping[str, Any], location: str, branch: str | None = None
) -> TableMetadata:
    """The table, or its branch, with this metadata, which is stored at the location.

    Raises UsageError if the branch does not exist.
    """
    metadata = in_effect(metadata, table, branch)
    shape = shape_of(table, _fields(metadata), metadata.get("properties") or {})
    return TableMetadata(shape, metadata, location)


def parse_metadata(content: bytes) -> dict[str, Any]:
    """The content of a metadata file, compressed or not. Raises ValueError for any other content."""
    try:
        metadata = json.loads(gzip.decompress(content) if content[:2] == _GZIP else content)
    except (OSError, EOFError, zlib.error) as stop:
        raise ValueError(str(stop)) from stop
    if not isinstance(metadata, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as for other content
    return metadata


def existing(catalog: Catalog, table: TableName) -> TableMetadata:
    """The current metadata of a table. Raises UsageError if it does not exist."""
    table_metadata = catalog.describe(table)
    if table_metadata is None:
        raise no_table(table, searched=catalog.description)
    return table_metadata


def _fields(metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    schemas = metadata.get("schemas") or [metadata["schema"]]
    current = metadata.get("current-schema-id", schemas[-1].get("schema-id"))
    for schema in schemas:
        if schema.get("schema-id") == current:
            fields: Sequence[Mapping[str, Any]] = schema["fields"]
            return fields
    raise file_garbled("the table", f"metadata without schema {current}")


def commit_of(snapshot: Mapping[str, Any]) -> CommitMetadata:
    """The commit that made a snapshot, from its metadata."""
    summary = dict(snapshot.get("summary") or {})
    operation = summary.pop("operation", "")
    committed_at = datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC)
    version, parent = snapshot.get("sequence-number", 0), snapshot.get("parent-snapshot-id")
    id_, schema_id = snapshot["snapshot-id"], snapshot.get("schema-id")
    return CommitMetadata(id_, committed_at, operation, summary, version, parent, schema_id)


TRUE: Final = b"\x01"
DATA, POSITIONS = 0, 1  # the content of a file in a manifest
EXISTING, DELETED = 0, 2  # the status of a file in a manifest
VECTOR: Final = "PUFFIN"


@dataclass(slots=True)
class _Group:
    """The row counts of one partition. Counts that the statistics of its files do not contain are None."""

    rows: int = 0
    deleted: int = 0
    open: int | None = 0
    memory: int | None = 0

    def add(self, rows: int, open_: int | None, memory: int | None) -> None:
        self.rows += rows
        self.open = None if self.open is None or open_ is None else self.open + open_
        self.memory = None if self.memory is None or memory is None else self.memory + memory

    def left(self, of: int | None) -> int | None:
        """The number of undeleted rows among these `of` rows, or None if it is unknown."""
        if of is None or not self.deleted or not of:
            return of
        return self.rows - self.deleted if of == self.rows else None


def counts_of_manifests(table: TableMetadata) -> Counts | None:
    """The numbers of rows, from manifests, or None if the rows must be read to count them."""
    snapshot, span = table.snapshot, table.shape.layout.span
    if snapshot is None:
        return Counts(0, 0 if span else None)
    groups: dict[object, _Group] = defaultdict(_Group)
    measure = _measure(table)
    for partition, file in live_files(snapshot, table.files):
        if file.content.value == DATA:
            groups[partition].add(file.record_count, *measure(file))
        elif file.content.value == POSITIONS and file.file_format.value == VECTOR:
            groups[partition].deleted += file.record_count
        else:
            return None  # a row may be deleted twice
    partitions = groups.values()
    open_ = _sum(group.left(group.open) for group in partitions)
    memory = _sum(group.left(group.memory) for group in partitions)
    if open_ is None or memory is None:
        return None
    rows = sum(group.rows - group.deleted for group in partitions) - memory
    return Counts(rows, open_ if span else None, memory)


def _sum(parts: Iterator[int | None]) -> int | None:
    numbers = list(parts)
    return None if None in numbers else sum(number or 0 for number in numbers)


def _measure(table: TableMetadata) -> "Callable[[DataFile], tuple[int | None, int | None]]":
    """A function that counts a file's open versions and its rows of memory, from its statistics."""
    layout, ids = table.shape.layout, _ids(table)
    span = layout.span

    def open_of(file: "DataFile") -> int | None:
        if span is None:
            return 0
        if span.open == f"{span.end} IS NULL":
            return (file.null_value_counts or {}).get(ids.get(span.end, -1))
        return _true_of(file, ids.get(span.open, -1))

    def memory_of(file: "DataFile") -> int | None:
        if layout is not Layout.VERSIONS:
            return 0
        nulls = (file.null_value_counts or {}).get(ids.get(ROLE, -1))
        return None if nulls is None else file.record_count - nulls

    return lambda file: (open_of(file), memory_of(file))


def _true_of(file: "DataFile", field: int) -> int | None:
    """The number of rows in which a field is true, or None if the file's statistics do not determine it."""
    nulls = (file.null_value_counts or {}).get(field)
    if nulls is None:
        return None
    if nulls == file.record_count:
        return 0
    least, most = ((bounds or {}).get(field) for bounds in (file.lower_bounds, file.upper_bounds))
    if least is None or least != most:
        return None
    return file.record_count - nulls if least == TRUE else 0


def _ids(table: TableMetadata) -> dict[str, int]:
    """The ids of columns by name. For layout `versions` they include the role, a part of a struct."""
    ids = {field["name"]: int(field["id"]) for field in table.fields}
    memories: list[Any] = [field["type"]["fields"] for field in table.fields if field["name"] == MEMORY]
    roles = {part["name"]: int(part["id"]) for parts in memories for part in parts if part["name"] == ROLE}
    return ids | roles if table.shape.layout is Layout.VERSIONS else ids


def live_files(snapshot: Mapping[str, Any], opener: TableFiles) -> "Iterator[tuple[object, DataFile]]":
    """Each live file of a snapshot, with its partition. Entries are released one by one, which is fast.

    Raises Failed for a manifest or list that was truncated after a whole block. Other readers, including
    Spark, would mistake it for a shorter one.
    """
    manifests = manifests_of(snapshot, opener)
    opener.open_ahead(manifest.manifest_path for manifest in manifests)
    for manifest in manifests:
        for status, file in entries_of(manifest, opener):
            if status != DELETED:
                yield (manifest.partition_spec_id, tuple(file.partition._data)), file  # noqa: SLF001


def changed_files(snapshot: Mapping[str, Any], opener: TableFiles) -> "Iterator[tuple[str, DataFile]]":
    """Each file that a snapshot's commit added (`+`) or removed (`-`). Raises the errors of `live_files`."""
    manifests = manifests_of(snapshot, opener)
    manifests = [one for one in manifests if one.added_snapshot_id == snapshot["snapshot-id"]]
    opener.open_ahead(manifest.manifest_path for manifest in manifests)
    for manifest in manifests:
        for status, file in entries_of(manifest, opener):
            if status != EXISTING:
                yield "-" if status == DELETED else "+", file


def _file_cut(location: str) -> Failed:
    return file_garbled("the table", location.rpartition("/")[2])


def manifests_of(snapshot: Mapping[str, Any], opener: Opener) -> "list[ManifestFile]":
    """The manifests of a snapshot. Raises Failed if it has none, but its summary counts data files."""
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        MANIFEST_LIST_FILE_SCHEMAS,
        ManifestContent,
        ManifestFile,
        PartitionFieldSummary,
    )

    location = snapshot["manifest-list"]
    # pyiceberg's own reader ignores a field of format version 3: the first row's id.
    source = cast("InputFile", PyicebergFile(opener, location))
    types: dict[int, Any] = {-1: ManifestFile, 508: PartitionFieldSummary}
    enums: dict[int, Any] = {517: ManifestContent}
    with AvroFile[ManifestFile](source, MANIFEST_LIST_FILE_SCHEMAS[3], types, enums) as entries:
        manifests = list(entries)
    if not manifests and ((snapshot.get("summary") or {}).get("total-data-files") or "0") != "0":
        raise _file_cut(location)
    return manifests


def entries_of(manifest: "ManifestFile", opener: Opener) -> "Iterator[tuple[int, DataFile]]":
    """The files of a manifest with their status. Live data files get a first row id, if they have none.

    Raises Failed if there are fewer files than the manifest list records.
    """
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        DATA_FILE_TYPE,
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )

    types: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    kinds: dict[int, type[Enum]] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    # Used for each file: a dictionary is ten times as fast as an enum. Some writers use small letters.
    enums: dict[int, Any] = {
        number: {text: one for one in kind for text in (one.value, str(one.value).lower())}.__getitem__
        for number, kind in kinds.items()
    }
    # pyiceberg's own reader ignores fields of format version 3: the place of a deletion vector.
    source = cast("InputFile", PyicebergFile(opener, manifest.manifest_path))
    row_id = next(at for at, field in enumerate(DATA_FILE_TYPE[3].fields) if field.name == "first_row_id")
    next_row, count = manifest[-1], 0
    with AvroFile[ManifestEntry](source, MANIFEST_ENTRY_SCHEMAS[3], types, enums) as entries:
        for entry in entries:
            count += 1
            status, file = entry.status.value, entry.data_file
            if status != DELETED and (next_row is None or file[row_id] is None):
                file[row_id] = next_row
                next_row = None if next_row is None else next_row + file.record_count
            yield status, file
    if count < _recorded_entries(manifest):
        raise _file_cut(manifest.manifest_path)


def _recorded_entries(manifest: "ManifestFile") -> int:
    """The number of files in a manifest, which its list records. Format version 1 may omit it."""
    counts = (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
    return sum(number or 0 for number in counts)


class IncompleteFile(OSError):
    """An Avro file is incomplete. The message names it."""


@dataclass(frozen=True, slots=True)
class PyicebergFile:
    """An Avro file for pyiceberg, whose own classes need libraries that take a second to load."""

    opener: Opener
    location: str

    def open(self, seekable: bool = True) -> IO[bytes]:  # noqa: FBT001, FBT002, ARG002 - pyiceberg's
        """The content. Raises IncompleteFile for a truncated file, as pyiceberg would end the process."""
        from pyiceberg.avro.decoder import StreamingBinaryDecoder
        from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
        from pyiceberg.avro.resolver import construct_reader

        with self.opener(self.location) as file:
            content = file.read()
        try:
            header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(StreamingBinaryDecoder(content))
        except EOFError:
            header = None
        if header is None or not content.endswith(header.sync):
            raise IncompleteFile(f"{self.location} is incomplete")
        return BytesIO(content)


class Unreadable(Exception):
    """Some content cannot be read exactly without Spark. The message names it."""


def may_delete_from(file: "DataFile", paths: Sequence[bytes]) -> bool:
    """Whether a delete file may apply to one of the data files at these paths, which must be sorted."""
    least, greatest = ((bounds or {}).get(PATH_FIELD) for bounds in (file.lower_bounds, file.upper_bounds))
    if (path := file_fields(file)["referenced_data_file"]) is not None:
        least = greatest = path.encode()
    if least is None or greatest is None:
        return bool(paths)
    place = bisect_left(paths, least)
    return place < len(paths) and paths[place] <= greatest


def file_fields(file: "DataFile") -> Mapping[str, Any]:
    """The fields of a file's entry in a manifest, by their names in the table specification."""
    from pyiceberg.manifest import DATA_FILE_TYPE

    fields = DATA_FILE_TYPE[3].fields
    return {field.name: value for field, value in zip(fields, file._data, strict=True)}  # noqa: SLF001


# The columns of a Parquet file of position deletes, and their field ids.
FILE_PATH, POSITION_IN_FILE = "file_path", "pos"
PATH_FIELD, POSITION_FIELD = 2147483546, 2147483545


def read_position_deletes(source: IO[bytes]) -> dict[str, BitMap64]:
    """The positions in a Parquet file of position deletes, by data file."""
    names = [FILE_PATH, POSITION_IN_FILE]
    return positions_by_file(
        pq.read_table(source, columns=names).select(names).rename_columns([FILE, POSITION])
    )


def positions_by_file(rows: pa.Table) -> dict[str, BitMap64]:
    """The positions `_pos` of each `_file`."""
    if not rows.num_rows:
        return {}
    files = rows[FILE].unify_dictionaries().combine_chunks()
    encoded = files if pa.types.is_dictionary(files.type) else files.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    positions = rows[POSITION].to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return {
        file: BitMap64(positions[bounds[place] : bounds[place + 1]])
        for place, file in enumerate(encoded.dictionary.to_pylist())
        if bounds[place] < bounds[place + 1]
    }


def add_positions(positions: dict[Any, BitMap64], more: Mapping[Any, BitMap64]) -> None:
    """Add positions by file to others, in place."""
    for file, added in more.items():
        if file in positions:
            positions[file] |= added
        else:
            positions[file] = added


_MAGIC: Final = bytes.fromhex("d1d33964")


def vector_bytes(positions: BitMap64) -> bytes:
    """The bytes of a deletion vector: length, bitmap, checksum."""
    bitmap = _MAGIC + positions.serialize()
    return struct.pack(">I", len(bitmap)) + bitmap + _checksum(bitmap)


def vector_positions(content: bytes) -> BitMap64 | None:
    """The positions in a deletion vector, or None if the bytes are damaged or not a deletion vector."""
    bitmap, checksum = content[4:-4], content[-4:]
    if bitmap[:4] != _MAGIC or checksum != _checksum(bitmap):
        return None
    return BitMap64.deserialize(bitmap[4:])


def _checksum(bitmap: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(bitmap))
