"""Which data files hold rows for which a condition holds, also those that no snapshot of now reads."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.reachable import ListedFile, ReachableFiles, bare, in_folder, reachable
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

# Columns are known by their ids, whatever they were called when a file was written.
SETTINGS: Final = (
    "spark.sql.parquet.fieldId.read.enabled",
    "spark.sql.parquet.fieldId.read.ignoreMissing",
)
ID: Final = "parquet.field.id"


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The data files that hold such rows, what was searched, and what storage and metadata told of files.

    `listed` is None where the storage lists none.
    """

    holding: frozenset[str]
    searched: Mapping[str, int]
    listed: Mapping[str, ListedFile] | None
    named: ReachableFiles


def holding(store: Store, table: StoredTable, condition: "Column", columns: "StructType") -> FoundFiles:
    """The files that any snapshot reads, or that lie in the table's folder, with rows of the condition.

    `columns` are those of the condition, with the ids that they have in files.
    """
    from pyspark.sql.functions import col

    known = reachable(store, table)
    named = {bare(each): each for each in known.data}
    listed = in_folder(table)
    stray = {each: each for each in listed or {} if each.endswith(".parquet") and "/metadata/" not in each}
    files = {**stray, **named}
    if not files:
        return FoundFiles(frozenset(), {"files": 0, "bytes": 0}, listed, known)
    with translate_faults(table.shape.table), _by_ids(store.spark):
        rows = store.spark.read.schema(columns).parquet(*sorted(files.values())).where(condition)
        told = rows.select(col("_metadata.file_path").alias("file")).distinct().collect()
    found = (files[bare(unquote(row["file"]))] for row in told)
    size = sum(listed[each].bytes for each in files if listed and each in listed)
    return FoundFiles(frozenset(found), {"files": len(files), "bytes": size}, listed, known)


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
