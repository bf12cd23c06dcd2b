"""Spark types of delivered columns that are unknown, wholly or in part, because no value shows them."""

from typing import TYPE_CHECKING

from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.schema import column_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def nested_types(type_: "DataType") -> "list[DataType]":
    """The type, and all types within it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    inner: list[DataType] = []
    if isinstance(type_, ArrayType):
        inner = [type_.elementType]
    elif isinstance(type_, MapType):
        inner = [type_.keyType, type_.valueType]
    elif isinstance(type_, StructType):
        inner = [field.dataType for field in type_]
    return [type_, *(deep for part in inner for deep in nested_types(part))]


def filled_type(type_: "DataType", stored: ColumnType | None) -> ColumnType:
    """A type whose unknown parts have the stored column's types, or else STRING."""
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    parts = {} if stored is None else dict(stored.parts)
    if isinstance(type_, NullType):
        return stored or ColumnType(Kind.STRING)
    if isinstance(type_, StructType):
        fields = tuple((part.name, filled_type(part.dataType, parts.get(part.name))) for part in type_)
        return ColumnType(Kind.STRUCT, parts=fields)
    if isinstance(type_, ArrayType):
        element = filled_type(type_.elementType, parts.get("element"))
        return ColumnType(Kind.LIST, parts=(("element", element),))
    if isinstance(type_, MapType):
        key, value = (
            filled_type(part, parts.get(name))
            for name, part in (("key", type_.keyType), ("value", type_.valueType))
        )
        return ColumnType(Kind.MAP, parts=(("key", key), ("value", value)))
    return column_type(type_)


def has_known_part(type_: "DataType") -> bool:
    """Whether the type has a known part, other than lists, structs and maps."""
    return any(part.typeName() not in {"void", "array", "struct", "map"} for part in nested_types(type_))
