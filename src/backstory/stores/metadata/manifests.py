"""How many rows a table has, from what its manifests tell of each file; no file of rows is opened.

Deletion vectors tell how many rows of a partition are gone, not which. So open versions are known exactly
where all rows of a partition with deletions are open, or none: histories are partitioned so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, Final

from backstory.model.layout import MEMORY, Layout
from backstory.model.remembered import ROLE
from backstory.stores.metadata.described import Counts, Described
from backstory.stores.table_files import TableFiles

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


def counted(table: Described, opener: TableFiles) -> Counts | None:
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


def _measure(table: Described) -> "Callable[[DataFile], tuple[int | None, int | None]]":
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


def _ids(table: Described) -> dict[str, int]:
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

    listed = list(read_manifest_list(_Files(opener).new_input(manifests)))
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
    source = _Files(opener).new_input(manifest.manifest_path)
    with AvroFile[ManifestEntry](source, MANIFEST_ENTRY_SCHEMAS[3], types, enums) as entries:
        for entry in entries:
            if entry.status is not ManifestEntryStatus.DELETED:
                file = entry.data_file
                yield (manifest.partition_spec_id, tuple(file.partition._data)), file  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class _Files:
    """Files as pyiceberg asks for them; its own need libraries that take a second to load."""

    opener: TableFiles

    def new_input(self, location: str) -> Any:
        return _File(self.opener, location)


@dataclass(frozen=True, slots=True)
class _File:
    opener: TableFiles
    location: str

    def open(self, seekable: bool = True) -> IO[bytes]:  # noqa: FBT001, FBT002, ARG002 - pyiceberg's
        return self.opener(self.location)
