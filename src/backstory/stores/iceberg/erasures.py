"""What an erasure is planned on, and what came of it or of an expiry.

What erasures leave in a table: a mark until they are finished, and the files that they may not delete.

Which files hold rows for which a condition holds, also those that no snapshot of now reads.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from uuid import uuid4

from backstory.model.layout import FILE
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_of_tasks
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.places import Surroundings, bare_location, places_of
from backstory.stores.iceberg.reachable import (
    ListedFile,
    NamedFiles,
    ReachableFiles,
    Strays,
    is_metadata,
    listed_files,
    named_files,
    refuse_writers,
    strays,
)
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.scripts import forget_tasks, stage_tasks, tasks_of
from backstory.stores.iceberg.store import Store, StoredTable

UNFINISHED: Final = "backstory.erasing"
LEFT: Final = "backstory.left"


@dataclass(frozen=True, slots=True)
class UnfinishedErasure:
    """An erasure whose files are still to be deleted: the digest of its `record`, which is empty for none.

    `files` are those that its commit left unnamed, `kept` those that are not the table's to delete: their
    locations, or what stands for one that may be named after a key.
    """

    record: str = ""
    files: Collection[str] = ()
    kept: Collection[str] = ()

    def text(self) -> str:
        """The text of the property."""
        return json.dumps({"record": self.record, "files": sorted(self.files), "kept": list(self.kept)})


def unfinished_erasure(table: StoredTable) -> UnfinishedErasure:
    """The erasure of a table that was interrupted."""
    told = json.loads(table.properties.get(UNFINISHED) or "{}")
    return UnfinishedErasure(**{name: told[name] for name in ("record", "files", "kept") if name in told})


def files_left_outside(table: StoredTable) -> list[str]:
    """The files with records of former erasures that no metadata names any more, as `kept` above."""
    return list(json.loads(table.properties.get(LEFT) or "[]"))


def is_location(name: str) -> bool:
    """Whether it is the location of such a file, and does not stand for one."""
    return "/" in name


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Columns are known by their ids, whatever they were called when a file was written.
SETTINGS: Final = (
    "spark.sql.parquet.fieldId.read.enabled",
    "spark.sql.parquet.fieldId.read.ignoreMissing",
)
ID: Final = "parquet.field.id"
# A file whose storage was not asked when it was written: none of those is the table's to delete.
NEVER: Final = datetime.min.replace(tzinfo=UTC)
NAME_MAPPING: Final = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files that hold such rows, what was searched, and what storage and metadata told of files.

    `holding` are data files that metadata names or named, and strays that are the table's own; of the other
    strays `foreign` hold such rows, and `unread` could not be searched. `past` are the files of former
    metadata that are still there, `listed` is None where the storage lists none.
    """

    holding: frozenset[str]
    foreign: frozenset[str]
    unread: frozenset[str]
    searched: Mapping[str, int]
    listed: Mapping[str, ListedFile] | None
    named: NamedFiles
    past: ReachableFiles
    strays: Strays


def search(
    store: Store,
    table: StoredTable,
    condition: "Column",
    columns: "StructType",
    around: Surroundings,
) -> FoundFiles:
    """The files that any snapshot reads, or that lie where the table has its files, with such rows.

    What metadata names is read as Iceberg reads it: by ids, by the mapping of names, with the constants of
    partitions and the defaults of columns. Strays are read by ids and by names; so are files of former
    metadata outside of the table's folder, which may be another's. `columns` are those of the condition, with
    the ids that they have in files.
    """
    named = named_files(store, table, former=True)
    listed = listed_files(table, around.shared)
    there = {**(listed or {}), **dict(_files_outside(table, named, listed or {}))}
    places, between = places_of(table.iceberg), unfinished_erasure(table).files
    former = replace(named.past, metadata=named.past.metadata.union(between) - named.now.metadata)
    own = {each for each in former.all if places.owns(each)}
    past = former.only({each for each in own if listed and bare_location(each) in listed})
    stray = strays(table, there, around, named.now, past)
    readings = list(_reading_schemas(store, table, columns))
    searching = _FileSearch(store, table, condition, readings, there)
    with translate_faults(table.shape.table):
        known = searching.search_named(named, sorted(named.now.data | past.data))
        ours, unsure = searching.search_strays(sorted(stray.own.data))
        foreign, unread = searching.search_others(sorted(stray.others))
    files = {*named.now.data, *past.data}
    rows = {each for each in stray.own.data | stray.others if each.endswith(".parquet")} - unread
    size = sum(named.files[each].size for each in files) + sum(there[each].bytes for each in rows)
    searched = {"files": len(files) + len(rows), "bytes": size}
    return FoundFiles(frozenset(known | ours), foreign, unread | unsure, searched, listed, named, past, stray)


def _files_outside(
    table: StoredTable, named: NamedFiles, listed: Collection[str]
) -> Iterator[tuple[str, ListedFile]]:
    """The files of former metadata and erasures that are outside of the table's places, and still there."""
    places, io = places_of(table.iceberg), table.iceberg.io()
    left = {each for each in files_left_outside(table) if is_location(each)}
    for each in sorted((named.past.all | left) - named.now.all):
        if not places.owns(each) and bare_location(each) not in listed:
            file = io.newInputFile(each)
            if file.exists():
                yield bare_location(each), ListedFile(each, int(file.getLength()), NEVER)


@dataclass(frozen=True, slots=True)
class _FileSearch:
    store: Store
    table: StoredTable
    condition: "Column"
    readings: "Sequence[StructType]"
    listed: Mapping[str, ListedFile]

    def search_named(self, named: NamedFiles, locations: Collection[str]) -> set[str]:
        """Of files that metadata names those with such rows, hidden ones too."""
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
        """Of strays those with such rows, and those that cannot be read."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql.functions import col

        if not files:
            return set(), frozenset()
        path, found = col("_metadata.file_path").alias("file"), set[str]()
        try:
            for each in self.readings:
                with _by_ids(self.store.spark):
                    told = self._read(each, files).where(self.condition).select(path).distinct().collect()
                found |= {bare_location(unquote(row["file"])) for row in told}
        except (Py4JJavaError, PySparkException):
            if len(files) == 1:
                return set(), frozenset(files)
            parts = [self.search_strays([each]) for each in files]
            return set().union(*(one for one, _ in parts)), frozenset().union(*(none for _, none in parts))
        return found, frozenset()

    def search_others(self, files: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The same of strays of unknown origin: one without any value of a key cannot be searched for it."""
        found, unread = set[str](), set[str]()
        for each in files:
            if not self.listed[each].bytes:
                continue
            if not each.endswith(".parquet"):
                unread.add(each)
                continue
            holding, unsure = self.search_strays([each])
            found |= holding
            if unsure or not (holding or self._has_key(each)):
                unread.add(each)
        return frozenset(found), frozenset(unread)

    def _has_key(self, file: str) -> bool:
        for each in self.readings:
            has = reduce(or_, (column(name).isNotNull() for name in each.names))
            with _by_ids(self.store.spark):
                if self._read(each, [file]).where(has).limit(1).collect():
                    return True
        return False

    def _read(self, columns: "StructType", files: Sequence[str]) -> "DataFrame":
        """The columns of the condition, by the names that it has for them."""
        rows = self.store.spark.read.schema(columns)
        frame = rows.parquet(*(self.listed[each].location for each in files))
        return frame.withColumnsRenamed(
            {each.name: each.metadata[NAMED] for each in columns if NAMED in each.metadata}
        )


# What a column is called that a file has by another name.
NAMED: Final = "backstory.named"


def columns_with_ids(store: Store, table: StoredTable, wanted: Mapping[str, tuple[str, ...]]) -> "StructType":
    """Columns of the table as Spark's reader of files takes them; of a struct the parts that are named."""
    from pyspark.sql.types import StructField, StructType

    known = {field["name"]: field for field in fields_of(store.jvm, table.iceberg.schema())}
    schema, fields = store.spark.table(store.sql_name(table.shape.table)).schema, list[StructField]()
    for name, parts in wanted.items():
        type_ = schema[name].dataType
        if parts and isinstance(type_, StructType):
            ids = {each["name"]: each["id"] for each in known[name]["type"]["fields"]}
            type_ = StructType([_field_with_id(part, type_[part].dataType, ids[part]) for part in parts])
        fields.append(_field_with_id(name, type_, known[name]["id"]))
    return StructType(fields)


def _field_with_id(name: str, type_: Any, id_: int) -> Any:
    from pyspark.sql.types import StructField

    return StructField(name, type_, nullable=True, metadata={ID: id_})


def _reading_schemas(store: Store, table: StoredTable, columns: "StructType") -> "Iterator[StructType]":
    """The columns by their ids, and by every name that they have or had, or that a mapping gives them."""
    from pyspark.sql.types import StructField, StructType

    yield columns
    ids = {each.name: int(each.metadata[ID]) for each in columns}
    told = json.loads(table.properties.get(NAME_MAPPING) or "[]")
    mapped = {int(each["field-id"]): each["names"] for each in told if "field-id" in each}
    namings = {tuple(ids)}
    for schema in dict(table.iceberg.schemas()).values():
        known = {field["id"]: field["name"] for field in fields_of(store.jvm, schema)}
        namings.add(tuple(known.get(id_, name) for name, id_ in ids.items()))
    most = max((len(mapped.get(id_, ())) for id_ in ids.values()), default=0)
    for place in range(most):
        choices = ((name, mapped.get(id_) or [name]) for name, id_ in ids.items())
        namings.add(tuple(names[min(place, len(names) - 1)] for name, names in choices))
    for names in sorted(namings):
        fields = zip(names, columns, strict=True)
        yield StructType(
            [
                StructField(name, _without_ids(each.dataType), True, {NAMED: each.name})
                for name, each in fields
            ]
        )


def _without_ids(type_: Any) -> Any:
    """A type whose parts have no ids, by which Spark finds them by their names."""
    from pyspark.sql.types import StructField, StructType

    if isinstance(type_, StructType):
        return StructType([StructField(each.name, _without_ids(each.dataType), True) for each in type_])
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
    """What an erasure is planned on: the files that were found, and what its commit tells.

    Of each tag `tags` says whether it is dropped, or follows to the snapshot that is left; `mark` stands in
    the table until the files are gone.
    """

    found: FoundFiles
    properties: Mapping[str, str]
    tags: Mapping[str, bool]
    mark: UnfinishedErasure


@dataclass(frozen=True, slots=True)
class Erased:
    """The snapshot that is left, how many files were rewritten, and the snapshots and files that went.

    `left` are files that are no more of the table and that hold rows or metadata of before: those that lie
    outside of its places, and those that could not be deleted.
    """

    snapshot_id: int | None
    rewritten: int
    snapshots: Sequence[int]
    data: Sequence[Mapping[str, Any]] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    statistics: Sequence[Mapping[str, Any]] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    """How many snapshots went, and the files that only they needed and that could not be deleted.

    Those are files outside of the table's folder, which may be another's.
    """

    snapshots: int = 0
    left: Sequence[str] = ()


def refuse_unfinished(table: StoredTable, found: FoundFiles) -> None:
    """Raises TryAgain where a file that would go may be that of a writer at work.

    A catalog may be about to name metadata that follows the table's own; what does not, no catalog will.
    """
    own, following = {bare_location(each) for each in own_strays(found).all}, found.strays.following
    files = (each for each in own if each in following or not is_metadata(each))
    refuse_writers(table, found.listed or {}, files)


def own_strays(found: FoundFiles) -> ReachableFiles:
    """The table's own strays that go: of data those with rows, all else may tell of some."""
    own = found.strays.own
    parts = (own.data & found.holding, own.deletes, own.statistics, own.metadata)
    located = {each: (found.listed or {})[each].location for each in own.all}
    return ReachableFiles(*(frozenset(located[each] for each in part) for part in parts))
