"""backstory keeps every version of every record, on Spark."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError, Violated

if TYPE_CHECKING:
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.reading.timelines import Timeline
    from backstory.table import Table
    from backstory.upkeep.relocating import relocate
    from backstory.warehouse import Warehouse, open  # noqa: A004

# Before pyarrow is loaded: memory freed by a delivery is kept for the next one (decision 0013).
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")

_LAZY = {
    "HistoryReceipt": "doors.historize.receipts",
    "Table": "table",
    "Timeline": "reading.timelines",
    "Warehouse": "warehouse",
    "open": "warehouse",
    "relocate": "upkeep.relocating",
}

__all__ = [
    "BackstoryError",
    "Failed",
    "HistoryReceipt",
    "Refused",
    "Table",
    "Timeline",
    "TryAgain",
    "UsageError",
    "Violated",
    "Warehouse",
    "open",
    "relocate",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"backstory.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'backstory' has no attribute {name!r}")
