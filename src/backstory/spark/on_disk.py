"""Rows that Spark computes once and keeps: on disk, for in memory they would take what its tasks sort in."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def persist_on_disk(rows: "DataFrame") -> "DataFrame":
    """The same frame, whose rows are kept once they are computed, until it is unpersisted."""
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.DISK_ONLY)
