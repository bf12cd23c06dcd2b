"""Events that Spark has, sorted and numbered without a gap; many never go through one task."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from backstory.spark.versions import persist_on_disk
from backstory.strategies.events.sides import LEAD, OP, PLACE, ROW, TIME, sort_columns
from backstory.strategies.events.terms import EventTerms
from backstory.strategies.frames import holds_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_IN_PARTITION: Final = 100_000
OFFSET: Final = "offset"


def struct_field(struct: str, name: str) -> "Column":
    """A field of a struct, whatever its name."""
    from pyspark.sql.functions import col

    return col(struct).getField(name)


def sort_order(terms: EventTerms, row_fields: Sequence[Any]) -> "list[Column]":
    """How events are sorted whose `ROW` has these fields."""
    from pyspark.sql.functions import col

    names = sort_columns(terms, [each.name for each in row_fields if not holds_map(each.dataType)])
    own = {OP, TIME, LEAD, PLACE}
    return [(col(name) if name in own else struct_field(ROW, name)).asc_nulls_first() for name in names]


@contextmanager
def number_events(
    events: "DataFrame", rows: int, by: "Sequence[Column]", start: int
) -> "Iterator[DataFrame]":
    """The events sorted, with `offset` from `start` on without a gap; many never go through one task."""
    from pyspark.sql.functions import lit
    from pyspark.sql.functions import monotonically_increasing_id as placed_id

    if rows <= ROWS_IN_PARTITION:
        sorted_ = events.coalesce(1).sortWithinPartitions(*by)
        yield sorted_.withColumn(OFFSET, placed_id() + lit(start))
        return
    parts = -(-rows // ROWS_IN_PARTITION)
    placed = events.repartitionByRange(parts, *by).sortWithinPartitions(*by)
    placed = persist_on_disk(placed.withColumn(OFFSET, placed_id()))
    try:
        yield close_gaps(placed, OFFSET, start)
    finally:
        placed.unpersist()


def close_gaps(rows: "DataFrame", name: str, start: int = 0) -> "DataFrame":
    """The rows, which `monotonically_increasing_id` numbered in a column, numbered from `start` on.

    They are counted first, so they must lie in the same partitions whenever they are read.
    """
    from pyspark.sql.functions import col, element_at, lit, shiftright

    part = shiftright(name, 33)
    sizes = {row["part"]: row["count"] for row in rows.groupBy(part.alias("part")).count().collect()}
    begins = list(accumulate((sizes.get(n, 0) for n in range(max(sizes, default=0))), initial=start))
    first = element_at(lit(begins), (part + 1).cast("int"))
    return rows.withColumn(name, first + col(name).bitwiseAND(lit((1 << 33) - 1)))
