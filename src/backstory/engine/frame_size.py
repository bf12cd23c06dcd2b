"""Whether the driver can take the rows of a frame, as far as its plan tells before it runs."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from backstory.formats.memory import CELL, UNPACKED, MemoryLease, TooLarge
from backstory.stores.iceberg.frames import hold_memory_of_rows
from backstory.stores.iceberg.jvm import scanned_bytes
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A frame whose plan does not tell its size may have so many parts, each of which is asked for a few rows.
PARTS: Final = 64
UNKNOWN_SIZE: Final = 1 << 60
NARROWING: Final = frozenset(["Project", "Filter"])


def few_rows(store: Store, columns: int) -> int:
    """So many rows of so many columns are taken without asking what they may need."""
    return min(FEW, store.memory.most // (CELL * max(1, columns)))


def hold_frame(store: Store, frame: "DataFrame", size: int | None, what: str, lease: MemoryLease) -> bool:
    """Hold the memory that the rows may need, which is `size` if not None; whether they surely need no more.

    Raises TooLarge.
    """
    if size is not None:
        hold_memory_of_rows(store, lease, what, size)
        return True
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - Python has no name for it
    planned, scanned = _planned_size(plan), _scanned_size(plan)
    if scanned is not None:
        with suppress(TooLarge):
            hold_memory_of_rows(store, lease, what, max(planned, scanned))
            return True
    hold_memory_of_rows(store, lease, what, planned)
    return False


def _scanned_size(plan: Any) -> int | None:
    """What the files may take of which a frame is rows, all or fewer, by its plan; None for other frames.

    Spark takes texts of a table for short ones, so that its plan alone could tell too few.
    """
    while plan.nodeName() in NARROWING:
        plan = plan.child()
    if plan.nodeName() == "LogicalRelation":
        return int(plan.stats().sizeInBytes()) * UNPACKED
    size = scanned_bytes(plan) if plan.nodeName() == "DataSourceV2ScanRelation" else None
    return None if size is None else size * UNPACKED


def _planned_size(plan: Any) -> int:
    """What the rows may take by Spark's own plan; little where it does not tell, but reads from few parts."""
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
