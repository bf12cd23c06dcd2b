"""What a snapshot did, or would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backstory.model.receipt import Receipt

# In their order; disjoint (V36).
COUNTS: Final = ("new", "changed", "closed", "reopened", "unchanged")


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotReceipt(Receipt):
    """The table, its records by outcome, and the commit; the last two are None without one."""

    table: str
    counts: Mapping[str, int]
    schema_changes: Sequence[str] = ()
    recorded_at: str | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotPlan(Receipt):
    """What a snapshot would do (V120).

    `keys` are up to ten of each outcome, `columns` the records that change by the columns that differ,
    `taken_back` the statements that the table would not make any more.
    """

    table: str
    counts: Mapping[str, int]
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)
    schema_changes: Sequence[str] = ()
    taken_back: int = 0
