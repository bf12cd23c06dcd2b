"""Spark's columns as ours, and Iceberg's as Spark's."""

import json
from typing import TYPE_CHECKING, Any, Final

from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.jvm import spark_type_json
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_KINDS: Final = {
    "boolean": Kind.BOOLEAN,
    # Iceberg has no smaller ones.
    "tinyint": Kind.INT,
    "smallint": Kind.INT,
    "int": Kind.INT,
    "bigint": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "date": Kind.NAIVE_DATE,
    "timestamp": Kind.UTC_DATETIME,
    "timestamp_ntz": Kind.NAIVE_DATETIME,
    "binary": Kind.BINARY,
}


def columns_from(fields: "StructType") -> tuple[Column, ...]:
    """Spark's columns as columns of a table, with their comments."""
    return tuple(
        Column(each.name, column_type(each.dataType), comment=each.metadata.get("comment", ""))
        for each in fields
    )


def column_type(type_: "DataType") -> ColumnType:
    """Spark's type as ours; NULL is allowed everywhere within it, but in the keys of maps."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(type_, StructType):
        return ColumnType(Kind.STRUCT, parts=tuple((each.name, column_type(each.dataType)) for each in type_))
    if isinstance(type_, ArrayType):
        return ColumnType(Kind.LIST, parts=(("element", column_type(type_.elementType)),))
    if isinstance(type_, MapType):
        key, value = column_type(type_.keyType), column_type(type_.valueType)
        return ColumnType(Kind.MAP, parts=(("key", key), ("value", value)))
    if isinstance(type_, DecimalType):
        return ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    return ColumnType(_KINDS.get(type_.simpleString(), Kind.STRING))


def spark_schema(store: Store, schema: Any) -> "StructType":
    """An Iceberg schema as Spark has it, comments included."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(spark_type_json(store.jvm, schema)))
