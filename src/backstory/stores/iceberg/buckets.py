"""Rows by bucket: those of one key are in one, and each is planned in one of Spark's tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from backstory.formats.memory import UNPACKED
from backstory.stores.iceberg.jvm import scanned_bytes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The bucket of a row. No column of a source is called so.
BUCKET: Final = "backstory bucket"
# A task holds a bucket in one piece, and Java one more: so many rows, fewer of wide ones, but not too few.
ROWS_IN_BUCKET: Final = 100_000
BYTES_IN_BUCKET: Final = 32 << 20
LEAST_ROWS: Final = 1000
# Of a plan that does not tell how many bytes it is.
UNTOLD: Final = 1 << 50


def bucket_of(key: "Sequence[Column]", buckets: int) -> "Column":
    """The bucket of a key among so many.

    Both zeros are one key, and any NaN.
    """
    from pyspark.sql.functions import lit, pmod, xxhash64

    return pmod(xxhash64(*key), lit(buckets)).alias(BUCKET)


def buckets_for(rows: int, size: int) -> int:
    """How many buckets there are for so many rows, of so many bytes together."""
    return 1 + max(rows // ROWS_IN_BUCKET, min(size // BYTES_IN_BUCKET, rows // LEAST_ROWS))


def bytes_of(rows: "DataFrame") -> int:
    """About how many bytes a frame's rows are made of: files unpacked, and what Spark keeps as it is."""
    leaves = rows.select("*")._jdf.queryExecution().optimizedPlan().collectLeaves()  # noqa: SLF001
    return sum(_bytes_of_leaf(leaves.apply(place)) for place in range(int(leaves.size())))


def _bytes_of_leaf(leaf: Any) -> int:
    planned = int(leaf.stats().sizeInBytes())
    planned = planned if planned < UNTOLD else 0
    if leaf.nodeName() == "LogicalRelation":
        return planned * UNPACKED
    files = scanned_bytes(leaf) if leaf.nodeName() == "DataSourceV2ScanRelation" else None
    return planned if files is None else max(planned, files * UNPACKED)
