"""Which files hold rows for which a condition holds, also those that no snapshot of now reads."""

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

from backstory.model.places import FILE
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.places import Surroundings, bare, places_of
from backstory.stores.iceberg.reachable import (
    ListedFile,
    NamedFiles,
    ReachableFiles,
    Strays,
    listed_files,
    named_files,
    strays,
)
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.scripts import forget_tasks, stage_tasks, tasks_of
from backstory.stores.iceberg.staged_rows import rows_of_tasks
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.unfinished import is_location, left_outside, unfinished

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
    there = {**(listed or {}), **dict(_elsewhere(table, named, listed or {}))}
    places, between = places_of(table.iceberg), unfinished(table).files
    former = replace(named.past, metadata=named.past.metadata.union(between) - named.now.metadata)
    own = {each for each in former.all if places.owns(each)}
    past = former.only({each for each in own if listed and bare(each) in listed})
    stray = strays(table, there, around, named.now, past)
    readings = list(_readings(store, table, columns))
    searching = _Searching(store, table, condition, readings, there)
    with translate_faults(table.shape.table):
        known = searching.named(named, sorted(named.now.data | past.data))
        ours, unsure = searching.strays(sorted(stray.own.data))
        foreign, unread = searching.others(sorted(stray.others))
    files = {*named.now.data, *past.data}
    rows = {each for each in stray.own.data | stray.others if each.endswith(".parquet")} - unread
    size = sum(named.files[each].size for each in files) + sum(there[each].bytes for each in rows)
    searched = {"files": len(files) + len(rows), "bytes": size}
    return FoundFiles(frozenset(known | ours), foreign, unread | unsure, searched, listed, named, past, stray)


def _elsewhere(
    table: StoredTable, named: NamedFiles, listed: Collection[str]
) -> Iterator[tuple[str, ListedFile]]:
    """The files of former metadata and erasures that are outside of the table's places, and still there."""
    places, io = places_of(table.iceberg), table.iceberg.io()
    left = {each for each in left_outside(table) if is_location(each)}
    for each in sorted((named.past.all | left) - named.now.all):
        if not places.owns(each) and bare(each) not in listed:
            file = io.newInputFile(each)
            if file.exists():
                yield bare(each), ListedFile(each, int(file.getLength()), NEVER)


@dataclass(frozen=True, slots=True)
class _Searching:
    store: Store
    table: StoredTable
    condition: "Column"
    readings: "Sequence[StructType]"
    listed: Mapping[str, ListedFile]

    def named(self, named: NamedFiles, locations: Collection[str]) -> set[str]:
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

    def strays(self, files: Sequence[str]) -> tuple[set[str], frozenset[str]]:
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
                found |= {bare(unquote(row["file"])) for row in told}
        except (Py4JJavaError, PySparkException):
            if len(files) == 1:
                return set(), frozenset(files)
            parts = [self.strays([each]) for each in files]
            return set().union(*(one for one, _ in parts)), frozenset().union(*(none for _, none in parts))
        return found, frozenset()

    def others(self, files: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The same of strays of unknown origin: one without any value of a key cannot be searched for it."""
        found, unread = set[str](), set[str]()
        for each in files:
            if not self.listed[each].bytes:
                continue
            if not each.endswith(".parquet"):
                unread.add(each)
                continue
            holding, unsure = self.strays([each])
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


def with_ids(store: Store, table: StoredTable, wanted: Mapping[str, tuple[str, ...]]) -> "StructType":
    """Columns of the table as Spark's reader of files takes them; of a struct the parts that are named."""
    from pyspark.sql.types import StructField, StructType

    known = {field["name"]: field for field in fields_of(store.jvm, table.iceberg.schema())}
    schema, fields = store.spark.table(store.sql_name(table.shape.table)).schema, list[StructField]()
    for name, parts in wanted.items():
        type_ = schema[name].dataType
        if parts and isinstance(type_, StructType):
            ids = {each["name"]: each["id"] for each in known[name]["type"]["fields"]}
            type_ = StructType([_field(part, type_[part].dataType, ids[part]) for part in parts])
        fields.append(_field(name, type_, known[name]["id"]))
    return StructType(fields)


def _field(name: str, type_: Any, id_: int) -> Any:
    from pyspark.sql.types import StructField

    return StructField(name, type_, nullable=True, metadata={ID: id_})


def _readings(store: Store, table: StoredTable, columns: "StructType") -> "Iterator[StructType]":
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
            [StructField(name, _plain(each.dataType), True, {NAMED: each.name}) for name, each in fields]
        )


def _plain(type_: Any) -> Any:
    """A type whose parts have no ids, by which Spark finds them by their names."""
    from pyspark.sql.types import StructField, StructType

    if isinstance(type_, StructType):
        return StructType([StructField(each.name, _plain(each.dataType), True) for each in type_])
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
