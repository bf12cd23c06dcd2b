"""backstory: every version of every record, on Spark."""

from typing import TYPE_CHECKING, Any

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError, Violated

if TYPE_CHECKING:
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.warehouse import Table, Timeline, Warehouse, open  # noqa: A004

_LAZY = ("Table", "Timeline", "Warehouse", "open")

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
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from backstory import warehouse

        return getattr(warehouse, name)
    if name == "HistoryReceipt":
        from backstory.doors.historize.receipts import HistoryReceipt

        return HistoryReceipt
    raise AttributeError(f"module 'backstory' has no attribute {name!r}")
