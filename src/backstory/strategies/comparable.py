"""Whether values are alike on Spark (V16): NULL is NULL, NaN is NaN, 0.0 is -0.0, and maps have no order."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def comparable(value: "Column", type_: "DataType") -> "Column":
    """The value as one that Spark can compare and hash: its maps as entries in the order of their keys."""
    from pyspark.sql.functions import lit, map_entries, sort_array, struct, transform, when
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not holds_map(type_):
        return value
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return transform(value, lambda each: comparable(each, element))
    if isinstance(type_, MapType):
        item = type_.valueType
        return sort_array(
            transform(
                map_entries(value),
                lambda each: struct(each["key"].alias("key"), comparable(each["value"], item).alias("value")),
            )
        )
    assert isinstance(type_, StructType)
    fields = (comparable(value.getField(each.name), each.dataType).alias(each.name) for each in type_)
    return when(value.isNotNull(), struct(*fields)).otherwise(lit(None))


def holds_map(type_: "DataType") -> bool:
    """Whether values of a type hold maps, which Spark neither compares nor sorts."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type_, ArrayType):
        return holds_map(type_.elementType)
    if isinstance(type_, StructType):
        return any(holds_map(each.dataType) for each in type_)
    return isinstance(type_, MapType)


def alike(one: "Column", other: "Column", type_: "DataType") -> "Column":
    """Whether two values of a type are one."""
    return comparable(one, type_).eqNullSafe(comparable(other, type_))
