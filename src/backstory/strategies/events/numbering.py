"""Sort and number events in Spark without gaps. No single task has to process a large number of events."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from backstory.spark.versions import persist_on_disk
from backstory.strategies.events.sides import LEAD, OP, PLACE, ROW, TIME, sort_columns
from backstory.strategies.events.terms import EventTerms
from backstory.strategies.frames import holds_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_IN_PARTITION: Final = 100_000
OFFSET: Final = "offset"


def struct_field(struct: str, name: str) -> "Column":
    """A field of a struct. Its name may contain dots."""
    return sf.col(struct).getField(name)


def sort_order(terms: EventTerms, row_fields: Sequence[Any]) -> "list[Column]":
    """The columns by which events are sorted; the events have these fields in `ROW`."""
    names = sort_columns(terms, [field.name for field in row_fields if not holds_map(field.dataType)])
    system = {OP, TIME, LEAD, PLACE}
    return [(sf.col(name) if name in system else struct_field(ROW, name)).asc_nulls_first() for name in names]


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
