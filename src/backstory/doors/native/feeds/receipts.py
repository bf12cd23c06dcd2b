"""What a feed did, or would do (V58, V120, V125)."""

from dataclasses import dataclass
from typing import Final

from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.receipts import DeliveryPlan, DeliveryReceipt
from backstory.doors.native.request import bad_option
from backstory.model.table import TableName

# In their order: the first five are disjoint and count the delivered events, the others overlap with them.
COUNTS: Final = (
    *("began", "ended", "silent", "duplicate", "too_late"),
    *("late", "partial", "mismatched", "raised"),
)


@dataclass(frozen=True, slots=True, repr=False)
class FeedReceipt(DeliveryReceipt):
    """What a feed did: its events by outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class FeedPlan(DeliveryPlan):
    """What a feed would do with its events."""


def nothing_applied(into: TableName, request: FeedRequest) -> FeedReceipt | FeedPlan:
    """The answer to messages of which none is a change (V59); UsageError for a restatement of all keys."""
    if request.all_keys:
        raise bad_option(
            "None of the messages is a change, so nothing says what orders those that would be taken back.",
            "Give at least one change of the time that is restated.",
        )
    counts = dict.fromkeys(COUNTS, 0)
    return FeedPlan(str(into), counts, {}, {}, [], 0) if request.dry_run else FeedReceipt(str(into), counts)
