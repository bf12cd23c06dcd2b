"""Spark columns that can be compared and hashed (V16).

NaN equals NaN and 0.0 equals -0.0 in Spark. Maps have no order.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import ArrayType, DataType, MapType


def comparable(value: "Column", type_: "DataType") -> "Column":
    """The value in a form that Spark can compare and hash: a map becomes a list of entries sorted by key."""
    if not holds_map(type_):
        return value
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return sf.transform(value, lambda each: comparable(each, element))
    if isinstance(type_, MapType):
        item = type_.valueType
        return sf.sort_array(
            sf.transform(
                sf.map_entries(value),
                lambda each: sf.struct(
                    each["key"].alias("key"), comparable(each["value"], item).alias("value")
                ),
            )
        )
    assert isinstance(type_, StructType)
    fields = (comparable(value.getField(field.name), field.dataType).alias(field.name) for field in type_)
    return sf.when(value.isNotNull(), sf.struct(*fields)).otherwise(sf.lit(None))


def holds_map(type_: "DataType") -> bool:
    """Whether values of a type contain maps, which Spark neither compares nor sorts."""
    if isinstance(type_, ArrayType):
        return holds_map(type_.elementType)
    if isinstance(type_, StructType):
        return any(holds_map(field.dataType) for field in type_)
    return isinstance(type_, MapType)


def fingerprint(values: "Sequence[tuple[Column, DataType]]", salt: int) -> "list[Column]":
    """The two halves, each a LONG, of a number of 128 bits that differs if a value differs (E9)."""
    words = [word for value, type_ in values for word in _words(value, type_)]
    return [sf.xxhash64(sf.lit(salt), *words), sf.xxhash64(*reversed(words), sf.lit(salt))]


def _words(value: "Column", type_: "DataType") -> "list[Column]":
    """The columns to hash for a value: the value, and whether it is NULL, because Spark's hash skips NULL."""
    return [value.isNull(), _hashable(value, type_)]


def _hashable(value: "Column", type_: "DataType") -> "Column":
    """A nested value as a number. An empty list, NULL, and a list of NULL have different numbers."""
    if isinstance(type_, StructType):
        words = [word for field in type_ for word in _words(value.getField(field.name), field.dataType)]
        return sf.when(value.isNotNull(), sf.xxhash64(*words))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        items = sf.transform(value, lambda each: sf.xxhash64(*_words(each, element)))
        return sf.when(value.isNotNull(), sf.xxhash64(sf.size(value), items))
    if isinstance(type_, MapType):
        return _hashable(comparable(value, type_), _entries(type_))
    return value


def _entries(type_: "MapType") -> "ArrayType":
    """The type of a map after `comparable`: a list of its entries."""
    fields = [StructField("key", type_.keyType), StructField("value", _comparable_type(type_.valueType))]
    return ArrayType(StructType(fields))


def _comparable_type(type_: "DataType") -> "DataType":
    if isinstance(type_, MapType):
        return _entries(type_)
    if isinstance(type_, ArrayType):
        return ArrayType(_comparable_type(type_.elementType))
    if isinstance(type_, StructType):
        return StructType([StructField(field.name, _comparable_type(field.dataType)) for field in type_])
    return type_
