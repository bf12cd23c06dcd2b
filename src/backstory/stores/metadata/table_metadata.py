"""What Iceberg's metadata of a table tells, whoever read it, and what every catalog of it answers.

How many rows a table has, from what its manifests tell of each file; no file of rows is opened.

Deletion vectors tell how many rows of a partition are gone, not which. So open versions are known exactly
where all rows of a partition with deletions are open, or none: histories are partitioned so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from backstory.model.change import COLUMNS_STATE, DOOR, foreign_writes
from backstory.model.layout import MEMORY, Layout
from backstory.model.table import Shape, TableName
from backstory.model.versions_layout import ROLE
from backstory.stores.iceberg.schema import columns_of_fields, names_of_property
from backstory.stores.iceberg.store import SOURCE_NAMES, shape_of_properties
from backstory.stores.refusals import no_table
from backstory.stores.table_files import TableFiles


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """One commit that has not expired: what it did, and what its writer said of it."""

    id: int
    committed_at: datetime
    operation: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """A table as its metadata, in the JSON of Iceberg's specification, tells."""

    shape: Shape
    metadata: Mapping[str, Any]
    location: str

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return self.metadata.get("properties") or {}

    @property
    def tags(self) -> Mapping[str, int]:
        """Names for snapshots."""
        refs = (self.metadata.get("refs") or {}).items()
        return {name: each["snapshot-id"] for name, each in refs if each["type"] == "tag"}

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """The fields of its columns as they are now."""
        return _fields(self.metadata)

    def fields_then(self, schema_id: int | None) -> Sequence[Mapping[str, Any]]:
        """The fields of its columns in the state of this number; None for the present one."""
        return (
            self.fields if schema_id is None else _fields({**self.metadata, "current-schema-id": schema_id})
        )

    def snapshot_by_id(self, snapshot_id: int | None) -> Mapping[str, Any] | None:
        """The snapshot with this id; None if it has expired."""
        return next(
            (each for each in self.metadata.get("snapshots") or [] if each["snapshot-id"] == snapshot_id),
            None,
        )

    @property
    def commits(self) -> list[CommitMetadata]:
        """Every commit that has not expired, oldest first, also those that were rolled back."""
        return [_commit(each) for each in self.metadata.get("snapshots") or []]

    @property
    def newest(self) -> CommitMetadata | None:
        """The commit whose rows the table has; None for a table that has no commits."""
        return None if self.snapshot is None else _commit(self.snapshot)

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        """The snapshot of the newest commit."""
        return self.snapshot_by_id(self.metadata.get("current-snapshot-id"))

    @property
    def ancestry(self) -> Iterator[Mapping[str, Any]]:
        """The snapshots that made the table what it is, newest first; one that expired ends the walk."""
        found = self.snapshot
        while found is not None:
            yield found
            found = self.snapshot_by_id(found.get("parent-snapshot-id"))

    @property
    def foreign_writes(self) -> Sequence[str]:
        """What other programs did to it since its door last wrote, in words."""
        left, now = self.properties.get(COLUMNS_STATE), self.metadata.get("current-schema-id")
        known = left is not None and str(now) != left
        numbers = [each.get("schema-id") for each in self.metadata.get("schemas") or ()]
        then = self.fields_then(int(left or 0)) if known and int(left or 0) in numbers else None
        names = [
            None if each is None else {field["id"]: field["name"] for field in each}
            for each in (then, self.fields)
        ]
        commits = (
            (each.id, each.operation, each.properties.get(DOOR)) for each in map(_commit, self.ancestry)
        )
        return foreign_writes(self.shape.layout, commits, names[0], names[1] or {})

    @property
    def rows(self) -> int:
        """The number of rows that data files hold, deleted ones included; 0 when there are none."""
        return 0 if self.newest is None else int(self.newest.properties.get("total-records") or 0)

    @property
    def commit_properties(self) -> Iterator[Callable[[str], str | None]]:
        """A getter of the commit's properties for each commit of the ancestry, newest first."""
        return ((each.get("summary") or {}).get for each in self.ancestry)

    def newest_property(self, name: str) -> str | None:
        """The property of this name of the newest commit that has it."""
        return next(filter(None, (property_of(name) for property_of in self.commit_properties)), None)


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows of a table; `open` are versions that nothing ended, `memory` rows that are no versions.

    What cannot be counted is None.
    """

    rows: int | None
    open: int | None
    memory: int = 0


def deletes_by_value(told: Callable[[str], str | None]) -> bool:
    """Whether another writer deleted rows of a snapshot by value, by what its summary has under a name."""
    return (told("total-equality-deletes") or "0") != "0"


class Catalog(Protocol):
    """Where tables are described; `searched` names it, and who named it."""

    @property
    def searched(self) -> str: ...

    def tables(self) -> list[TableName]:
        """Every table, sorted."""

    def describe(self, table: TableName) -> TableMetadata | None:
        """A table as it stands now, or None if there is none."""

    def count(self, table: TableMetadata) -> Counts:
        """The rows of a table."""


class ReadableCatalog(Catalog, Protocol):
    """A catalog whose files are read here."""

    def opener(self, table: TableMetadata) -> TableFiles:
        """How the files of a table are opened."""


def table_of_metadata(table: TableName, told: Mapping[str, Any], location: str) -> TableMetadata:
    """The table that metadata at a location tells of."""
    properties = told.get("properties") or {}
    columns = columns_of_fields(_fields(told), names_of_property(table, properties, SOURCE_NAMES, {}))
    return TableMetadata(shape_of_properties(table, columns, properties), told, location)


def existing(catalog: Catalog, table: TableName) -> TableMetadata:
    """The table as it stands now; UsageError if there is none."""
    found = catalog.describe(table)
    if found is None:
        raise no_table(table, searched=catalog.searched)
    return found


def _fields(told: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    schemas = told.get("schemas") or [told["schema"]]
    current = told.get("current-schema-id", schemas[-1].get("schema-id"))
    found: Sequence[Mapping[str, Any]] = next(
        each["fields"] for each in schemas if each.get("schema-id") == current
    )
    return found


def _commit(snapshot: Mapping[str, Any]) -> CommitMetadata:
    summary = dict(snapshot.get("summary") or {})
    operation = summary.pop("operation", "")
    committed_at = datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC)
    return CommitMetadata(snapshot["snapshot-id"], committed_at, operation, summary)


if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile

    Known = dict[str, list[tuple[object, DataFile]]]

TRUE: Final = b"\x01"
DATA, POSITIONS = 0, 1  # what a file of a manifest holds
VECTOR: Final = "PUFFIN"


@dataclass(slots=True)
class _Group:
    """The rows of the files of one partition; `open` and `memory` are None where nothing tells."""

    rows: int = 0
    deleted: int = 0
    open: int | None = 0
    memory: int | None = 0

    def add(self, rows: int, open_: int | None, memory: int | None) -> None:
        self.rows += rows
        self.open = None if self.open is None or open_ is None else self.open + open_
        self.memory = None if self.memory is None or memory is None else self.memory + memory

    def left(self, of: int | None) -> int | None:
        """How many of so many rows are left; None if deletions could be of them or of others."""
        if of is None or not self.deleted or not of:
            return of
        return self.rows - self.deleted if of == self.rows else None


def counts_of_manifests(table: TableMetadata, opener: TableFiles) -> Counts | None:
    """The rows as the manifests tell them; None where only the rows themselves do."""
    snapshot, span = table.snapshot, table.shape.layout.span
    if snapshot is None:
        return Counts(0, 0 if span else None)
    groups: dict[object, _Group] = defaultdict(_Group)
    measure = _measure(table)
    for partition, file in live_files(snapshot["manifest-list"], opener):
        if file.content.value == DATA:
            groups[partition].add(file.record_count, *measure(file))
        elif file.content.value == POSITIONS and file.file_format.value == VECTOR:
            groups[partition].deleted += file.record_count
        else:
            return None  # a row may be hidden twice
    found = groups.values()
    open_ = _sum(each.left(each.open) for each in found)
    memory = _sum(each.left(each.memory) for each in found)
    if open_ is None or memory is None:
        return None
    rows = sum(each.rows - each.deleted for each in found) - memory
    return Counts(rows, open_ if span else None, memory)


def _sum(parts: Iterator[int | None]) -> int | None:
    found = list(parts)
    return None if None in found else sum(each or 0 for each in found)


def _measure(table: TableMetadata) -> "Callable[[DataFile], tuple[int | None, int | None]]":
    """How many rows of a file are open versions, and how many are none, as its statistics tell."""
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
    """How many rows of a file have the value true, where all have the same."""
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
    """The ids of columns by name, and of the role that a row of layout `versions` has."""
    found = {each["name"]: int(each["id"]) for each in table.fields}
    nested: list[Any] = [each["type"]["fields"] for each in table.fields if each["name"] == MEMORY]
    roles = {each["name"]: int(each["id"]) for fields in nested for each in fields if each["name"] == ROLE}
    return found | roles if table.shape.layout is Layout.VERSIONS else found


def live_files(
    manifests: str, opener: TableFiles, known: "Known | None" = None
) -> "Iterator[tuple[object, DataFile]]":
    """Each live file of a snapshot, with the partition that it lies in.

    `known` keeps what manifests hold, for snapshots that share them.
    """
    from pyiceberg.manifest import read_manifest_list

    listed = list(read_manifest_list(_PyicebergFiles(opener).new_input(manifests)))
    opener.open_ahead(each.manifest_path for each in listed if each.manifest_path not in (known or {}))
    for manifest in listed:
        if known is None:  # entries that nobody keeps are let go one by one: many cost the collector dearly
            yield from _live_entries(manifest, opener)
            continue
        if manifest.manifest_path not in known:
            known[manifest.manifest_path] = list(_live_entries(manifest, opener))
        yield from known[manifest.manifest_path]


def _live_entries(manifest: "ManifestFile", opener: TableFiles) -> "Iterator[tuple[object, DataFile]]":
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )

    types: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    kinds: dict[int, type[Enum]] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    # Asked for each file: a dictionary looks a value up ten times as fast as an enum does.
    enums: dict[int, Any] = {
        number: {each.value: each for each in kind}.__getitem__ for number, kind in kinds.items()
    }
    # pyiceberg's own reading leaves out what format version 3 tells: where a deletion vector lies.
    source = _PyicebergFiles(opener).new_input(manifest.manifest_path)
    with AvroFile[ManifestEntry](source, MANIFEST_ENTRY_SCHEMAS[3], types, enums) as entries:
        for entry in entries:
            if entry.status is not ManifestEntryStatus.DELETED:
                file = entry.data_file
                yield (manifest.partition_spec_id, tuple(file.partition._data)), file  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class _PyicebergFiles:
    """Files as pyiceberg asks for them; its own need libraries that take a second to load."""

    opener: TableFiles

    def new_input(self, location: str) -> Any:
        return _PyicebergFile(self.opener, location)


@dataclass(frozen=True, slots=True)
class _PyicebergFile:
    opener: TableFiles
    location: str

    def open(self, seekable: bool = True) -> IO[bytes]:  # noqa: FBT001, FBT002, ARG002 - pyiceberg's
        return self.opener(self.location)
