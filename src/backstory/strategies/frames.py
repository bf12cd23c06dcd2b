"""Spark columns that can be compared, hashed (V16) and numbered.

NaN equals NaN and 0.0 equals -0.0 in Spark. Maps have no order. Events are sorted and numbered without gaps,
and no single task has to process a large number of events.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType

from backstory.spark.versions import persist_on_disk
from backstory.strategies.events.sides import OP, PLACE, TIME, sort_columns
from backstory.strategies.events.terms import EventTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


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
    """The value, or its number if it is nested. An empty list, NULL and a list of NULL differ.

    Maps have no order, so the numbers of their entries are sorted.
    """
    if isinstance(type_, StructType):
        words = [word for field in type_ for word in _words(value.getField(field.name), field.dataType)]
        return sf.when(value.isNotNull(), sf.xxhash64(*words))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        items = sf.transform(value, lambda each: sf.xxhash64(*_words(each, element)))
        return sf.when(value.isNotNull(), sf.xxhash64(sf.size(value), items))
    if isinstance(type_, MapType):
        key, item = type_.keyType, type_.valueType
        entries = sf.transform(
            sf.map_entries(value),
            lambda each: sf.xxhash64(*_words(each["key"], key), *_words(each["value"], item)),
        )
        return sf.when(value.isNotNull(), sf.xxhash64(sf.size(value), sf.sort_array(entries)))
    return value


ROWS_IN_PARTITION: Final = 100_000
OFFSET: Final = "offset"


def side_columns(op: "Column", time: "Column", place: "Column", data: "Iterable[Column]") -> "list[Column]":
    """The columns of a side: operation, time and place, then the data columns as `c0`, `c1` and so on.

    The columns' own names may contain dots, or differ only in case.
    """
    system = [op.cast("int").alias(OP), time.alias(TIME), place.cast("long").alias(PLACE)]
    return [*system, *(value.alias(f"c{number}") for number, value in enumerate(data))]


def number_data(events: "DataFrame", count: int) -> "DataFrame":
    """Events, with the names `c0`, `c1` and so on for their last `count` columns, which are the data."""
    system = events.columns[: len(events.columns) - count]
    return events.toDF(*system, *(f"c{number}" for number in range(count)))


def sort_order(terms: EventTerms, data: Sequence[Any]) -> "list[Column]":
    """The columns by which events are sorted. `data` are the fields of the data columns."""
    numbers = {field.name: f"c{number}" for number, field in enumerate(data)}
    names = sort_columns(terms, [field.name for field in data if not holds_map(field.dataType)])
    return [sf.col(numbers.get(name, name)).asc_nulls_first() for name in names]


@contextmanager
def number_events(
    events: "DataFrame", rows: int, by: "Sequence[Column]", start: int
) -> "Iterator[DataFrame]":
    """The events in sort order, with a column `offset` that counts from `start` without gaps."""
    if rows <= ROWS_IN_PARTITION:
        sorted_ = events.coalesce(1).sortWithinPartitions(*by)
        yield sorted_.withColumn(OFFSET, sf.monotonically_increasing_id() + sf.lit(start))
        return
    parts = -(-rows // ROWS_IN_PARTITION)
    placed = events.repartitionByRange(parts, *by).sortWithinPartitions(*by)
    placed = persist_on_disk(placed.withColumn(OFFSET, sf.monotonically_increasing_id()))
    try:
        yield close_gaps(placed, OFFSET, start)
    finally:
        placed.unpersist()


def close_gaps(rows: "DataFrame", name: str, start: int = 0) -> "DataFrame":
    """Turn the column `name`, made by `monotonically_increasing_id`, into numbers from `start` without gaps.

    Rows are counted first, so they must be in the same partitions each time they are read.
    """
    part = sf.shiftright(name, 33)
    sizes = {row["part"]: row["count"] for row in rows.groupBy(part.alias("part")).count().collect()}
    begins = list(accumulate((sizes.get(n, 0) for n in range(max(sizes, default=0))), initial=start))
    first = sf.element_at(sf.lit(begins), (part + 1).cast("int"))
    return rows.withColumn(name, first + sf.col(name).bitwiseAND(sf.lit((1 << 33) - 1)))
