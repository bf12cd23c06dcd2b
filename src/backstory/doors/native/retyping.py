"""Changes to a column's type that keep every stored and delivered value exactly the same (N2)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, create_map, lit, transform
from pyspark.sql.types import NullType, StructField, StructType

from backstory.doors.native.evolution import EvolvedShape, delivered_columns, moved_ids
from backstory.doors.native.refusals import keys_of, texts_of
from backstory.doors.native.sources import ReadColumns, SourceRows
from backstory.doors.native.stored_rows import place_names
from backstory.errors import MAX_KEYS, Refused, option
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import Memory
from backstory.formats.values.casts import misfits
from backstory.model.layout import FILE, MEMORY, POSITION
from backstory.model.table import Column, Shape
from backstory.model.types import ColumnType, Kind, added_fields, fits
from backstory.model.versions_layout import COLUMNS, SETTLED
from backstory.stores.iceberg.frames import spark_fields
from backstory.stores.iceberg.literals import Changes, cast_batch, column, quote, retype_rows, text_literal
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.table_metadata import Unreadable

PLACES: Final = (Column(FILE, ColumnType(Kind.STRING)), Column(POSITION, ColumnType(Kind.LONG)))
NAME: Final = "backstory: column"


def with_types(source: SourceRows, types: Mapping[str, ColumnType]) -> SourceRows:
    """The source with some columns in other types. Raises Refused for values that do not fit exactly."""
    columns, empty = delivered_columns(source.fields)
    wanted = {
        col.name: types[col.name]
        for col in columns
        if col.name in types and col.name not in empty and col.type.flat and types[col.name] != col.type
    }
    if not wanted:
        return source
    stored = {col.name: col.type for col in columns}
    typed = [replace(col, type=wanted.get(col.name, col.type)) for col in columns]
    changes = [(column_, stored[column_.name]) for column_ in typed if column_.name in wanted]

    def frame() -> DataFrame:
        return retype_rows(cast_frame(source.frame(), stored), typed, stored, exactly=True)

    reading = source.batches and partial(_read_retyped, source.batches, changes)
    types_of_spark = spark_fields(arrow_schema(wanted))
    fields = [
        StructField(field.name, types_of_spark[field.name].dataType, metadata=field.metadata)
        if field.name in wanted
        else field
        for field in source.fields
    ]
    return replace(source, fields=StructType(fields), frame=frame, batches=reading)


def cast_frame(rows: DataFrame, types: Mapping[str, ColumnType]) -> DataFrame:
    """The columns of a frame, cast to these types. Casts are SQL, so that Java parses them in one call."""
    casts = (f"CAST({quote(name)} AS {spark_type(type_)}) AS {quote(name)}" for name, type_ in types.items())
    return rows.selectExpr(*casts)


def with_floats_as_stored(source: SourceRows, stored: Shape, rename: Mapping[str, str]) -> SourceRows:
    """The source with FLOAT columns as DOUBLE if the table has DOUBLE, without changing displayed numbers."""
    types = {rename.get(col.name, col.name): col.type for col in stored.columns}
    double = ColumnType(Kind.DOUBLE)
    floats = [field.name for field in source.fields if field.dataType.typeName() == "float"]
    wider = [name for name in floats if types.get(name) == double]
    # A feed may drop columns whose names are reserved, so the names are not checked here.
    return with_types(source, dict.fromkeys(wider, double)) if wider else source


def _read_retyped(reading: ReadColumns, changes: Changes, names: Sequence[str]) -> Iterator[pa.Table]:
    named = [(column, old) for column, old in changes if column.name in names]
    types = arrow_schema({column.name: column.type for column, _ in named})
    for rows in reading(names):
        batches = [cast_batch(named, batch, exactly=True) for batch in rows.to_batches()]
        fields = (types.field(field.name) if field.name in types.names else field for field in rows.schema)
        yield pa.Table.from_batches(batches, pa.schema(fields))


def is_empty(source: SourceRows, memory: Memory) -> bool:
    """Whether a source has no rows. Spark checks this if the driver cannot read the rows."""
    if source.batches is not None and memory.most:
        with suppress(Unreadable):
            return not any(map(len, source.batches([field.name for field in source.fields])))
    return source.frame().isEmpty()


def without_types(source: SourceRows) -> SourceRows:
    """The source without rows. Its columns have unknown types."""
    fields = StructType([StructField(field.name, NullType()) for field in source.fields])
    nothing = [f"NULL AS {quote(field.name)}" for field in fields]
    return SourceRows(fields, lambda: source.frame().limit(0).selectExpr(*nothing))


def refuse_misfits(store: IcebergStore, table: IcebergTable, evolved: EvolvedShape) -> None:
    """Raise Refused, with up to ten keys, for stored values that do not fit their column's new type."""
    if not evolved.retyped:
        return
    former_name = evolved.former_name
    parted = {source for _, _, source in table.partitioning}
    changes = [
        (col, evolved.retyped[col.name]) for col in evolved.shape.columns if col.name in evolved.retyped
    ]
    for column_, _ in changes:
        if former_name(column_.name) in parted:
            raise Refused(
                "type-changed",
                f"Column {column_.name} cannot change its type: the table is partitioned by it.",
                "Nothing was written; drop the partition field first.",
                [column_.name],
            )
    changes = [(column_, old) for column_, old in changes if not fits(old, column_.type)]
    if not changes:
        return
    rows = store.spark.table(store.sql_name(table.shape.table))
    key = evolved.shape.key
    values = [column(former_name(col.name)).alias(f"value {col.name}") for col, _ in changes]
    texts = texts_of(rows, [*map(former_name, key)], *values).toDF(
        *key, *(f"value {col.name}" for col, _ in changes)
    )
    schema = ", ".join(f"{quote(name)} string" for name in (*key, NAME))
    misfits_ = map_batches(texts, partial(_misfits_of_batches, changes, len(key)), schema)
    some = misfits_.take(MAX_KEYS)
    for column_, old in changes:
        if any(row[-1] == column_.name for row in some):
            remedy = f"cast it to {old} at the source, or give it another name"
            if column_.type.kind is not Kind.STRING:
                holds_all = option("retype", {column_.name: str(Kind.STRING)})
                remedy = f"use a type that holds all of its values, such as {holds_all}"
            raise Refused(
                "type-changed",
                f"Column {column_.name} has stored {old} values that do not fit {column_.type} exactly.",
                f"Nothing was written; {remedy}.",
                keys_of(misfits_.where(column(NAME) == column_.name).select(*map(quote, key)), key),
            )


def _misfits_of_batches(
    changes: Changes, keys: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place, (column_, old) in enumerate(changes):
            rows = pa.array(misfits(batch.column(keys + place), old, column_.type, MAX_KEYS), pa.int64())
            names = pa.array([column_.name] * len(rows), pa.string())
            yield pa.record_batch(
                [*(batch.column(place).take(rows).cast(pa.string()) for place in range(keys)), names],
                names=[*batch.schema.names[:keys], NAME],
            )


def stored_column(before: Column | None, now: Column, name: str) -> str:
    """A stored column cast to its new type, or NULL. New fields of structs are NULL."""
    value = "NULL" if before is None else quote(name)
    if before is not None and added_fields(before.type, now.type):
        value = _grow_value(value, before.type, now.type)
    return f"CAST({value} AS {spark_type(now.type)}) AS {quote(now.name)}"


def _grow_value(value: str, before: ColumnType, now: ColumnType, depth: int = 0) -> str:
    """A nested value as a Spark expression, with NULL in the new fields of its structs."""
    if before == now:
        return value
    old, inner = dict(before.parts), f"part_{depth}"
    if now.kind is Kind.LIST:
        return (
            f"transform({value}, {inner} -> {_grow_value(inner, old['element'], now.parts[0][1], depth + 1)})"
        )
    if now.kind is Kind.MAP:
        grown = _grow_value(inner, old["value"], dict(now.parts)["value"], depth + 1)
        return f"transform_values({value}, (key_{depth}, {inner}) -> {grown})"
    parts = (
        f"{text_literal(name)}, "
        + (_grow_value(f"{value}.{quote(name)}", old[name], type_, depth) if name in old else "NULL")
        for name, type_ in now.parts
    )
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def retyped_rows(store: IcebergStore, table: IcebergTable, evolved: EvolvedShape) -> DataFrame:
    """All stored rows with their new names and types, places and row ids.

    Marks of copies list columns by field id, so the ids of retyped columns are replaced in them.
    """
    assert evolved.stored is not None
    wanted = {col.name: col for col in evolved.shape.columns}
    # All other columns only grow. They grow first, because an exact cast accepts no new fields of structs.
    grown = [col if col.name in evolved.retyped else wanted[col.name] for col in evolved.stored.columns]
    columns = [
        stored_column(before, now, evolved.former_name(now.name))
        for before, now in zip(evolved.stored.columns, grown, strict=True)
    ]
    rows = store.spark.table(store.sql_name(table.shape.table)).selectExpr(*columns, *place_names(table))
    stored = {col.name: col.type for col in (*grown, *PLACES)}
    retyped = retype_rows(rows, (*evolved.shape.columns, *PLACES), stored, exactly=True)
    if SETTLED not in table.properties:
        return retyped
    pairs = [lit(id_) for pair in moved_ids(table, evolved).items() for id_ in pair]
    ids = transform(column(MEMORY)[COLUMNS], lambda id_: coalesce(create_map(*pairs)[id_], id_))
    return retyped.withColumn(MEMORY, column(MEMORY).withField(COLUMNS, ids))
