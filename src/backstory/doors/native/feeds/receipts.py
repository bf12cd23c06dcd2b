"""What a feed did, or would do (V58, V120, V125)."""

from dataclasses import dataclass
from typing import Final

from backstory.doors.native.receipts import DeliveryPlan, DeliveryReceipt

# In their order: the first five are disjoint and count the delivered events, the others overlap with them.
COUNTS: Final = ("began", "ended", "silent", "duplicate", "too_late", "late", "partial", "mismatched")


@dataclass(frozen=True, slots=True, repr=False)
class FeedReceipt(DeliveryReceipt):
    """What a feed did: its events by outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class FeedPlan(DeliveryPlan):
    """What a feed would do with its events."""
