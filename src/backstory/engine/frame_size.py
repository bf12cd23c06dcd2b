"""The size of a frame, estimated from its plan before it runs.

It shows whether the driver can hold the rows.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from backstory.formats.memory import CELL, UNPACKED, MemoryLease, TooLarge
from backstory.stores.iceberg.frames import hold_memory_of_rows
from backstory.stores.iceberg.jvm import scanned_bytes
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.store import IcebergStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A frame of unknown size may have at most this many partitions, because each is read for a few rows.
PARTS: Final = 64
UNKNOWN_SIZE: Final = 1 << 60
NARROWING: Final = frozenset(["Project", "Filter"])


def few_rows(store: IcebergStore, columns: int) -> int:
    """The number of rows with this many columns that may be collected without knowing their size."""
    return min(FEW, store.memory.most // (CELL * max(1, columns)))


def hold_frame(
    store: IcebergStore, frame: "DataFrame", size: int | None, what: str, lease: MemoryLease
) -> bool:
    """Reserve memory for the rows of a frame, and return whether the estimate is an upper bound.

    `size` is the number of bytes, or None to estimate it from the plan. Raises TooLarge if there is too
    little memory.
    """
    if size is not None:
        hold_memory_of_rows(store, lease, what, size)
        return True
    if not store.has_java:
        return False
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - Python has no name for it
    planned, scanned = _planned_size(plan), _scanned_size(plan)
    if scanned is not None:
        with suppress(TooLarge):
            hold_memory_of_rows(store, lease, what, max(planned, scanned))
            return True
    hold_memory_of_rows(store, lease, what, planned)
    return False


def _scanned_size(plan: Any) -> int | None:
    """An upper bound of the bytes in the files that a frame reads.

    Returns None if the frame does more than filter rows. Spark assumes short strings, so its own estimate
    could be too small.
    """
    while plan.nodeName() in NARROWING:
        plan = plan.child()
    if plan.nodeName() == "LogicalRelation":
        return int(plan.stats().sizeInBytes()) * UNPACKED
    size = scanned_bytes(plan) if plan.nodeName() == "DataSourceV2ScanRelation" else None
    return None if size is None else size * UNPACKED


def _planned_size(plan: Any) -> int:
    """The bytes that Spark's plan estimates, or 1 if the size is unknown and there are few partitions."""
    size, leaves = int(plan.stats().sizeInBytes()), plan.collectLeaves()
    if size < UNKNOWN_SIZE:
        return max(1, size * UNPACKED)
    parts = 0
    for place in range(int(leaves.size())):
        leaf = leaves.apply(place)
        if leaf.nodeName() != "LogicalRDD":
            return size
        parts += int(leaf.rdd().getNumPartitions())
    return 1 if parts <= PARTS else size
