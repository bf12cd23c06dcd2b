"""What a snapshot did, or would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# In their order; disjoint (V36).
COUNTS: Final = ("new", "changed", "closed", "reopened", "unchanged")


@dataclass(frozen=True, slots=True)
class SnapshotReceipt:
    """The table, its records by outcome, and the commit; the last two are None without one."""

    table: str
    counts: Mapping[str, int]
    schema_changes: Sequence[str] = ()
    recorded_at: str | None = None
    snapshot_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        return {
            "table": self.table,
            "counts": dict(self.counts),
            "schema_changes": list(self.schema_changes),
            "recorded_at": self.recorded_at,
            "snapshot_id": self.snapshot_id,
        }


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
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

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        return {
            "table": self.table,
            "counts": dict(self.counts),
            "keys": {outcome: list(keys) for outcome, keys in self.keys.items()},
            "columns": dict(self.columns),
            "schema_changes": list(self.schema_changes),
            "taken_back": self.taken_back,
        }
