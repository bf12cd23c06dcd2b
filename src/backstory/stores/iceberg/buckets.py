"""Rows by bucket: those of one key are in one, and each is planned in one of Spark's tasks."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_IN_BUCKET: Final = 100_000


def bucket_of(key: "Sequence[Column]", rows: int) -> "Column":
    """The bucket of a key, where about so many `rows` have one; both zeros are one key, and any NaN."""
    from pyspark.sql.functions import lit, pmod, xxhash64

    return pmod(xxhash64(*key), lit(1 + rows // ROWS_IN_BUCKET)).alias("bucket")


def plan_buckets(
    sides: "Sequence[tuple[DataFrame, Sequence[Column]]]",
    rows: int,
    plan: Callable[[Any, Any], Any],
    schema: Any,
) -> "DataFrame":
    """What `plan` makes of each bucket's rows, Arrow tables of two sides; each side comes with its key.

    A table without rows has no columns either.
    """
    left, right = (side.groupBy(bucket_of(key, rows)) for side, key in sides)
    return left.cogroup(right).applyInArrow(plan, schema)
