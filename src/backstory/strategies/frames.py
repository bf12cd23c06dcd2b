"""Values as Spark compares and hashes them (V16): NaN is NaN, 0.0 is -0.0, and maps have no order.

Counts that a plan makes on its way, read from the plan that filled a cache.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import ArrayType, DataType, MapType


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


def fingerprint(values: "Sequence[tuple[Column, DataType]]", salt: int) -> "list[Column]":
    """The two halves of a number of 128 bits that differs where a value does (E9), each a LONG."""
    from pyspark.sql.functions import lit, xxhash64

    words = [word for value, type_ in values for word in _words(value, type_)]
    return [xxhash64(lit(salt), *words), xxhash64(*reversed(words), lit(salt))]


def _words(value: "Column", type_: "DataType") -> "list[Column]":
    """What a value is hashed by: whether it is NULL, which Spark's hash passes over, and the value."""
    return [value.isNull(), _hashable(value, type_)]


def _hashable(value: "Column", type_: "DataType") -> "Column":
    """A nested value as a number: an empty list, NULL and a list of NULL have three."""
    from pyspark.sql.functions import size, transform, when, xxhash64
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type_, StructType):
        words = [word for each in type_ for word in _words(value.getField(each.name), each.dataType)]
        return when(value.isNotNull(), xxhash64(*words))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        items = transform(value, lambda each: xxhash64(*_words(each, element)))
        return when(value.isNotNull(), xxhash64(size(value), items))
    if isinstance(type_, MapType):
        return _hashable(comparable(value, type_), _entries(type_))
    return value


def _entries(type_: "MapType") -> "ArrayType":
    """The type of a map that is `comparable`: a list of its entries."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    fields = [StructField("key", type_.keyType), StructField("value", _comparable_type(type_.valueType))]
    return ArrayType(StructType(fields))


def _comparable_type(type_: "DataType") -> "DataType":
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(type_, MapType):
        return _entries(type_)
    if isinstance(type_, ArrayType):
        return ArrayType(_comparable_type(type_.elementType))
    if isinstance(type_, StructType):
        return StructType([StructField(each.name, _comparable_type(each.dataType)) for each in type_])
    return type_


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def observed_counts(cached: "DataFrame") -> "defaultdict[str, Counter[str]]":
    """For each observation below a cached frame its counts; 0 where an empty side was not even read.

    Spark's own `Observation` hears of them later, by another thread, or never: an adaptive plan that
    finds a side empty drops its node.
    """
    relation = cached._jdf.queryExecution().withCachedData()  # noqa: SLF001
    return _read_counts(cached, relation.cacheBuilder().cachedPlan())


def _read_counts(frame: "DataFrame", plan: Any) -> "defaultdict[str, Counter[str]]":
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    collect = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.CollectMetricsExec$")
    metrics = collect.getField("MODULE$").get(None).collect(plan).iterator()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    while metrics.hasNext():
        metric = metrics.next()
        row = metric._2()  # noqa: SLF001
        counts = {name: row.getLong(place) for place, name in enumerate(row.schema().fieldNames())}
        found[metric._1()] = Counter(counts)  # noqa: SLF001
    return found
