"""What a feed did, or would do (V58, V120, V125)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backstory.model.receipt import Receipt

# In their order: the first five are disjoint and count the delivered events, the others overlap with them.
COUNTS: Final = ("began", "ended", "silent", "duplicate", "too_late", "late", "partial", "mismatched")


@dataclass(frozen=True, slots=True, repr=False)
class FeedReceipt(Receipt):
    """The table, its events by outcome, and the commit; the last two are None without one."""

    table: str
    counts: Mapping[str, int]
    schema_changes: Sequence[str] = ()
    recorded_at: str | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class FeedPlan(Receipt):
    """What a feed would do: `keys` are up to ten of each outcome.

    `columns` are the versions that begin by the columns that differ from the version before, `taken_back` the
    statements that the table would not make any more.
    """

    table: str
    counts: Mapping[str, int]
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)
    schema_changes: Sequence[str] = ()
    taken_back: int = 0
