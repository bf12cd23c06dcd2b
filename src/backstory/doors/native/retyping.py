"""Columns that take another type: every value, stored or delivered, is exactly the same in it (N2)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.doors.native.evolution import EvolvedShape, delivered_columns, moved_ids
from backstory.doors.native.refusals import keys_of, texts_of
from backstory.doors.native.sources import ReadColumns, SourceRows
from backstory.errors import MAX_KEYS, Refused, option
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import Memory
from backstory.formats.values.exact_casts import misfits
from backstory.model.layout import FILE, MEMORY, POSITION, ROW_ID
from backstory.model.table import Column, Shape
from backstory.model.types import ColumnType, Kind, fits
from backstory.model.versions_layout import COLUMNS, SETTLED
from backstory.stores.iceberg.casting import Changes, exact_batch, retype_rows
from backstory.stores.iceberg.frames import keeps_row_ids, spark_fields
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.deletes import Unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PLACES: Final = (Column(FILE, ColumnType(Kind.STRING)), Column(POSITION, ColumnType(Kind.LONG)))
NAME: Final = "backstory: column"


def with_types(source: SourceRows, types: Mapping[str, ColumnType]) -> SourceRows:
    """The source with these of its columns in other types; a value that is none of its type is refused."""
    columns, empty = delivered_columns(source.fields)
    wanted = {
        each.name: types[each.name]
        for each in columns
        if each.name in types and each.name not in empty and each.type.flat and types[each.name] != each.type
    }
    if not wanted:
        return source
    stored = {each.name: each.type for each in columns}
    typed = [replace(each, type=wanted.get(each.name, each.type)) for each in columns]
    changes = [(each, stored[each.name]) for each in typed if each.name in wanted]

    def frame() -> "DataFrame":
        casts = (
            f"CAST({quote(each.name)} AS {spark_type(each.type)}) AS {quote(each.name)}" for each in columns
        )
        return retype_rows(source.frame().selectExpr(*casts), typed, stored, exact_batch)

    reading = source.batches and partial(_read_retyped, source.batches, changes)
    return replace(source, fields=_retyped_fields(source.fields, wanted), frame=frame, batches=reading)


def with_floats_as_stored(source: SourceRows, stored: Shape, rename: Mapping[str, str]) -> SourceRows:
    """The source with its FLOAT columns as DOUBLE where the table has them so: the numbers that they show."""
    columns, _ = delivered_columns(source.fields)
    types = {rename.get(each.name, each.name): each.type for each in stored.columns}
    float_, double = ColumnType(Kind.FLOAT), ColumnType(Kind.DOUBLE)
    wider = [each.name for each in columns if each.type == float_ and types.get(each.name) == double]
    return with_types(source, dict.fromkeys(wider, double))


def _read_retyped(reading: ReadColumns, changes: Changes, names: Sequence[str]) -> Iterator[pa.Table]:
    named = [(column, old) for column, old in changes if column.name in names]
    types = arrow_schema({column.name: column.type for column, _ in named})
    for rows in reading(names):
        batches = [exact_batch(named, batch) for batch in rows.to_batches()]
        fields = (types.field(each.name) if each.name in types.names else each for each in rows.schema)
        yield pa.Table.from_batches(batches, pa.schema(fields))


def _retyped_fields(fields: "StructType", wanted: Mapping[str, ColumnType]) -> "StructType":
    from pyspark.sql.types import StructField, StructType

    types = spark_fields(arrow_schema(dict(wanted)))
    told = [
        StructField(each.name, types[each.name].dataType, metadata=each.metadata)
        if each.name in wanted
        else each
        for each in fields
    ]
    return StructType(told)


def is_empty(source: SourceRows, memory: Memory) -> bool:
    """Whether a source has no rows; Spark reads those that the driver cannot, or may not hold."""
    if source.batches is not None and memory.most:
        with suppress(Unreadable):
            return not any(map(len, source.batches([each.name for each in source.fields])))
    return source.frame().isEmpty()


def without_types(source: SourceRows) -> SourceRows:
    """A source without rows, whose columns have no types."""
    from pyspark.sql.types import NullType, StructField, StructType

    fields = StructType([StructField(each.name, NullType()) for each in source.fields])
    nothing = [f"NULL AS {quote(each.name)}" for each in fields]
    return SourceRows(fields, lambda: source.frame().limit(0).selectExpr(*nothing))


def refuse_misfits(store: Store, table: StoredTable, evolved: EvolvedShape) -> None:
    """Refused, with up to ten keys, where a stored value is none of its column's new type."""
    if not evolved.retyped:
        return
    former = {new: old for old, new in evolved.renamed.items()}
    parted = {
        str(table.iceberg.schema().findColumnName(each.sourceId())) for each in table.iceberg.spec().fields()
    }
    changes = [
        (each, evolved.retyped[each.name]) for each in evolved.shape.columns if each.name in evolved.retyped
    ]
    for each, _ in changes:
        if former.get(each.name, each.name) in parted:
            raise Refused(
                "type-changed",
                f"Column {each.name} cannot change its type: the table is partitioned by it.",
                "Nothing was written; drop the partition field first.",
                [each.name],
            )
    changes = [(each, old) for each, old in changes if not fits(old, each.type)]
    if not changes:
        return
    rows = store.spark.table(store.sql_name(table.shape.table))
    key = evolved.shape.key
    values = (column(former.get(each.name, each.name)).alias(f"value {each.name}") for each, _ in changes)
    texts = texts_of(rows, [former.get(name, name) for name in key], *values).toDF(
        *key, *(f"value {each.name}" for each, _ in changes)
    )
    schema = ", ".join(f"{quote(name)} string" for name in (*key, NAME))
    found = map_batches(texts, partial(_misfits_of_batches, changes, len(key)), schema)
    some = found.take(MAX_KEYS)
    for each, old in changes:
        if any(row[-1] == each.name for row in some):
            remedy = option("retype", {each.name: str(Kind.STRING)})
            raise Refused(
                "type-changed",
                f"Column {each.name} has stored {old} values that do not fit {each.type} exactly.",
                f"Nothing was written; use a type that holds all of its values, such as {remedy}.",
                keys_of(found.where(column(NAME) == each.name).select(*map(quote, key)), key),
            )


def _misfits_of_batches(
    changes: Changes, keys: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place, (column_, old) in enumerate(changes):
            rows = pa.array(misfits(batch.column(keys + place), old, column_.type, MAX_KEYS), pa.int64())
            names = pa.array([column_.name] * len(rows), pa.string())
            yield pa.record_batch(
                [*(batch.column(each).take(rows).cast(pa.string()) for each in range(keys)), names],
                names=[*batch.schema.names[:keys], NAME],
            )


def retyped_rows(store: Store, table: StoredTable, evolved: EvolvedShape) -> "DataFrame":
    """All stored rows under their new names and in their new types, with their places and ids.

    What marks of copies tell of the columns stays true of them under their new ids.
    """
    from pyspark.sql.functions import coalesce, create_map, lit, transform

    assert evolved.stored is not None
    former = {new: old for old, new in evolved.renamed.items()}
    names = [
        f"{quote(former.get(each.name, each.name))} AS {quote(each.name)}" for each in evolved.stored.columns
    ]
    places = [FILE, POSITION, *([ROW_ID] if keeps_row_ids(table) else [])]
    rows = store.spark.table(store.sql_name(table.shape.table)).selectExpr(*names, *places)
    stored = {each.name: each.type for each in (*evolved.stored.columns, *PLACES)}
    found = retype_rows(rows, (*evolved.shape.columns, *PLACES), stored, exact_batch)
    if SETTLED not in table.properties:
        return found
    pairs = [lit(each) for pair in moved_ids(store, table, evolved).items() for each in pair]
    ids = transform(column(MEMORY)[COLUMNS], lambda id_: coalesce(create_map(*pairs)[id_], id_))
    return found.withColumn(MEMORY, column(MEMORY).withField(COLUMNS, ids))
