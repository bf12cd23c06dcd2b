"""Erasures of rows: the search for files that contain them, the plan, the mark in a table, and the outcome.

The search includes files that no current snapshot references. The mark remains in a table until every file of
an erasure is deleted. Another property lists the files that erasures may not delete.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from backstory.model.layout import FILE
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_of_tasks
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.schema import names_by_id
from backstory.stores.iceberg.scripts import forget_tasks, stage_tasks, tasks_of
from backstory.stores.iceberg.storage import (
    ListedFile,
    NamedFiles,
    ReachableFiles,
    SharedFolders,
    UnnamedFiles,
    bare_location,
    is_metadata,
    listed_files,
    named_files,
    places_of,
    refuse_writers,
    strays,
)
from backstory.stores.iceberg.store import IcebergStore, IcebergTable

UNFINISHED: Final = "backstory.erasing"
LEFT: Final = "backstory.left"


@dataclass(frozen=True, slots=True)
class UnfinishedErasure:
    """An erasure whose files are not all deleted yet.

    `record` is the record's digest, or empty. No metadata has named `files` since the erasure's commit.
    `kept` are files that the table may not delete: their locations, or a substitute for a location that may
    contain a key.
    """

    record: str = ""
    files: Collection[str] = ()
    kept: Collection[str] = ()

    def text(self) -> str:
        """The value of the table's property."""
        return json.dumps({"record": self.record, "files": sorted(self.files), "kept": list(self.kept)})


def unfinished_erasure(table: IcebergTable) -> UnfinishedErasure:
    """The interrupted erasure of a table, or an empty one."""
    mark = json.loads(table.properties.get(UNFINISHED) or "{}")
    return UnfinishedErasure(**{name: mark[name] for name in ("record", "files", "kept") if name in mark})


def files_left_outside(table: IcebergTable) -> list[str]:
    """The files with erased records that no metadata names, in the form of `UnfinishedErasure.kept`."""
    return list(json.loads(table.properties.get(LEFT) or "[]"))


def is_location(name: str) -> bool:
    """Whether the string is a file's location, and not a substitute for it."""
    return "/" in name


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# With these settings, Spark finds columns by their ids, regardless of their names in a file.
SETTINGS: Final = ("spark.sql.parquet.fieldId.read.enabled", "spark.sql.parquet.fieldId.read.ignoreMissing")
ID: Final = "parquet.field.id"
# The modification time of files that no listing contains. The table may not delete them.
NEVER: Final = datetime.min.replace(tzinfo=UTC)
NAME_MAPPING: Final = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files that contain the rows of a search, and the files that were searched.

    `holding` are data files that metadata names or named, and the table's own strays. `foreign` are other
    strays with matching rows, and `unread` are files that could not be searched. `searched` has counts of
    files and bytes. `past` are existing files of former metadata. `listed` is None if the storage does not
    list files.
    """

    holding: frozenset[str]
    foreign: frozenset[str]
    unread: frozenset[str]
    searched: Mapping[str, int]
    listed: Mapping[str, ListedFile] | None
    named: NamedFiles
    past: ReachableFiles
    strays: UnnamedFiles


def search(
    store: IcebergStore, table: IcebergTable, condition: "Column", columns: StructType, around: SharedFolders
) -> FoundFiles:
    """The files with rows that meet the condition, in any snapshot or in the table's folders.

    Files that metadata names are read as Iceberg reads them: by ids, name mapping, partition constants and
    column defaults. Other files are read by ids and by names. Files of former metadata outside of the table's
    folder are read by ids and by names too, because these files may be another table's. `columns` are the
    columns of the condition, with their ids in files.
    """
    named = named_files(store, table, former=True)
    listed = listed_files(table, around.shared)
    existing = {**(listed or {}), **dict(_files_outside(table, named, listed or {}))}
    places, between = places_of(table), unfinished_erasure(table).files
    former = named.past._replace(metadata=named.past.metadata.union(between) - named.now.metadata)
    own = {location for location in former.all if places.owns(location)}
    past = former.only({location for location in own if listed and bare_location(location) in listed})
    stray = strays(table, existing, around, named.now, past)
    readings = list(_reading_schemas(table, columns))
    searching = _FileSearch(store, table, condition, readings, existing)
    with translate_faults(table.shape.table):
        known = searching.search_named(named, sorted(named.now.data | past.data))
        ours, unsure = searching.search_strays(sorted(stray.own.data))
        foreign, unread = searching.search_others(sorted(stray.others))
    files = {*named.now.data, *past.data}
    rows = {location for location in stray.own.data | stray.others if location.endswith(".parquet")} - unread
    size = sum(named.files[location].size for location in files) + sum(
        existing[location].bytes for location in rows
    )
    counts = {"files": len(files) + len(rows), "bytes": size}
    return FoundFiles(frozenset(known | ours), foreign, unread | unsure, counts, listed, named, past, stray)


def _files_outside(
    table: IcebergTable, named: NamedFiles, listed: Collection[str]
) -> Iterator[tuple[str, ListedFile]]:
    """The existing files of former metadata and erasures outside of the table's folder."""
    places, io = places_of(table), table.iceberg.io()
    outside = {location for location in files_left_outside(table) if is_location(location)}
    for location in sorted((named.past.all | outside) - named.now.all):
        if not places.owns(location) and bare_location(location) not in listed:
            file = io.newInputFile(location)
            if file.exists():
                yield bare_location(location), ListedFile(location, int(file.getLength()), NEVER)


@dataclass(frozen=True, slots=True)
class _FileSearch:
    store: IcebergStore
    table: IcebergTable
    condition: "Column"
    readings: Sequence[StructType]
    listed: Mapping[str, ListedFile]

    def search_named(self, named: NamedFiles, locations: Collection[str]) -> set[str]:
        """The files that metadata names and that contain matching rows, including hidden rows."""
        if not locations:
            return set()
        jvm, iceberg, group = self.store.jvm, self.table.iceberg, str(uuid4())
        tasks = tasks_of(jvm, iceberg, named.rows, dict.fromkeys(locations))
        tables = stage_tasks(jvm, iceberg, group, tasks)
        try:
            rows = rows_of_tasks(self.store, group, tables).where(self.condition)
            return {row[FILE] for row in rows.select(FILE).distinct().collect()}
        finally:
            forget_tasks(jvm, iceberg, group)

    def search_strays(self, files: Sequence[str]) -> tuple[set[str], frozenset[str]]:
        """The strays with matching rows, and the strays that cannot be read."""
        if not files:
            return set(), frozenset()
        path, holding = sf.col("_metadata.file_path").alias("file"), set[str]()
        try:
            for schema in self.readings:
                with _by_ids(self.store.spark):
                    rows = self._read(schema, files).where(self.condition).select(path).distinct().collect()
                holding |= {bare_location(unquote(row["file"])) for row in rows}
        except (Py4JJavaError, PySparkException):
            if len(files) == 1:
                return set(), frozenset(files)
            parts = [self.search_strays([file]) for file in files]
            return set().union(*(some for some, _ in parts)), frozenset().union(*(bad for _, bad in parts))
        return holding, frozenset()

    def search_others(self, files: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The strays of unknown origin with matching rows, and the unreadable strays that may have such rows.

        A file without any value of a key counts as unread.
        """
        holding, unread = set[str](), set[str]()
        for file in files:
            if not self.listed[file].bytes:
                continue
            if not file.endswith(".parquet"):
                unread.add(file)
                continue
            in_file, unsure = self.search_strays([file])
            holding |= in_file
            if unsure or not (in_file or self._has_key(file)):
                unread.add(file)
        return frozenset(holding), frozenset(unread)

    def _has_key(self, file: str) -> bool:
        for schema in self.readings:
            has_key = reduce(or_, (column(name).isNotNull() for name in schema.names))
            with _by_ids(self.store.spark):
                if self._read(schema, [file]).where(has_key).limit(1).collect():
                    return True
        return False

    def _read(self, columns: StructType, files: Sequence[str]) -> "DataFrame":
        """The columns of the condition, renamed to the names in the condition."""
        rows = self.store.spark.read.schema(columns)
        frame = rows.parquet(*(self.listed[file].location for file in files))
        return frame.withColumnsRenamed(
            {field.name: field.metadata[NAMED] for field in columns if NAMED in field.metadata}
        )


# The key of a column's name in the condition, if a file has it under another name.
NAMED: Final = "backstory.named"


def columns_with_ids(
    store: IcebergStore, table: IcebergTable, wanted: Mapping[str, tuple[str, ...]]
) -> StructType:
    """Columns of the table with their ids, for Spark's file reader. A struct has only the named parts."""
    known = {field["name"]: field for field in table.fields}
    schema, fields = store.spark.table(store.sql_name(table.shape.table)).schema, list[StructField]()
    for name, parts in wanted.items():
        type_ = schema[name].dataType
        if parts and isinstance(type_, StructType):
            ids = {part["name"]: part["id"] for part in known[name]["type"]["fields"]}
            type_ = StructType([_field_with_id(part, type_[part].dataType, ids[part]) for part in parts])
        fields.append(_field_with_id(name, type_, known[name]["id"]))
    return StructType(fields)


def _field_with_id(name: str, type_: Any, id_: int) -> Any:
    return StructField(name, type_, nullable=True, metadata={ID: id_})


def _reading_schemas(table: IcebergTable, columns: StructType) -> Iterator[StructType]:
    """The columns, identified by their ids, and by each current, former or mapped name."""
    yield columns
    ids = {field.name: int(field.metadata[ID]) for field in columns}
    mapping = json.loads(table.properties.get(NAME_MAPPING) or "[]")
    mapped = {int(entry["field-id"]): entry["names"] for entry in mapping if "field-id" in entry}
    namings = {tuple(ids)}
    for schema in table.metadata["schemas"]:
        known = names_by_id(schema["fields"])
        namings.add(tuple(known.get(id_, name) for name, id_ in ids.items()))
    most = max((len(mapped.get(id_, ())) for id_ in ids.values()), default=0)
    for place in range(most):
        choices = ((name, mapped.get(id_) or [name]) for name, id_ in ids.items())
        namings.add(tuple(names[min(place, len(names) - 1)] for name, names in choices))
    for names in sorted(namings):
        fields = zip(names, columns, strict=True)
        yield StructType(
            [
                StructField(name, _without_ids(field.dataType), True, {NAMED: field.name})
                for name, field in fields
            ]
        )


def _without_ids(type_: Any) -> Any:
    """The type without field ids, so that Spark matches its fields by name."""
    if isinstance(type_, StructType):
        return StructType([StructField(part.name, _without_ids(part.dataType), True) for part in type_])
    return type_


@contextmanager
def _by_ids(spark: "SparkSession") -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name in SETTINGS:
        spark.conf.set(name, "true")
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


@dataclass(frozen=True, slots=True)
class Erasure:
    """The plan of an erasure: the files with its rows, and the properties of its commit.

    `tags` has True for a tag that is dropped, and False for a tag that moves to the remaining snapshot.
    `mark` remains in the table until the files are deleted.
    """

    files: FoundFiles
    properties: Mapping[str, str]
    tags: Mapping[str, bool]
    mark: UnfinishedErasure


@dataclass(frozen=True, slots=True)
class Erased:
    """The outcome of an erasure: the remaining snapshot, the number of rewritten files, and removed files.

    `left` are files with earlier rows or metadata that still exist. They are outside of the table's folder,
    or could not be deleted.
    """

    snapshot_id: int | None
    rewritten: int
    snapshots: Sequence[int]
    data: Sequence[Mapping[str, Any]] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    statistics: Sequence[Mapping[str, Any]] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Expiry:
    """The commits and cursors that may expire.

    `snapshots` is the number of commits before the instant `before`. `cursors` are the cursors that were not
    moved within their age limit. `renewed` has the cursors that are up to date, with their new age limit in
    milliseconds.
    """

    before: datetime
    snapshots: int
    cursors: Sequence[str]
    renewed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Expired:
    """The number of expired snapshots, and the files that only those snapshots needed but that still exist.

    The remaining files are outside of the table's folder, where another table may use them, or could not be
    deleted.
    """

    snapshots: int = 0
    left: Sequence[str] = ()


def refuse_unfinished(table: IcebergTable, files: FoundFiles) -> None:
    """Raise TryAgain if another writer may still be writing a file that is to be deleted.

    Stray metadata counts only if it follows the table's current metadata, because only then may a catalog be
    about to name it.
    """
    own, following = {bare_location(location) for location in own_strays(files).all}, files.strays.following
    risky = (location for location in own if location in following or not is_metadata(location))
    refuse_writers(table, files.listed or {}, risky)


def own_strays(files: FoundFiles) -> ReachableFiles:
    """The table's own strays to delete: data files with the rows, and all other files."""
    own = files.strays.own
    parts = (own.data & files.holding, own.deletes, own.statistics, own.metadata)
    located = {location: (files.listed or {})[location].location for location in own.all}
    return ReachableFiles(*(frozenset(located[location] for location in part) for part in parts))
