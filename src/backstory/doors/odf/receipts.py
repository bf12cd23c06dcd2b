"""What became of a dataset: the objects that `pull` and `ingest` give."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from backstory.errors import BackstoryError
from backstory.model.receipt import UNTOLD, Receipt

COUNTS = ("appended", "retracted", "corrected", "unchanged", "conflicts", "late")

Status = Literal["updated", "up-to-date", "uncacheable", "disabled", "failed"]


@dataclass(frozen=True, slots=True, repr=False)
class DatasetReceipt(Receipt):
    """A dataset after a pull: `offsets` are the first and the last new one, None without new rows.

    `watermark` and `system_time` are UTC, None if there is none. For people only: `before` is the watermark
    that was, `hint` says why the status is what it is, `notes` are warnings.
    """

    dataset: str
    status: Status
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    offsets: tuple[int, int] | None = None
    watermark: datetime | None = None
    system_time: datetime | None = None
    error: BackstoryError | None = None
    notes: tuple[str, ...] = field(default=(), metadata=UNTOLD)
    before: datetime | None = field(default=None, metadata=UNTOLD)
    hint: str = field(default="", metadata=UNTOLD)


def sum_up(receipts: "list[DatasetReceipt]", before: DatasetReceipt) -> DatasetReceipt:
    """One receipt for the commits of a pull (decision O17); `before` if there was none."""
    if not receipts:
        return before
    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    for receipt in receipts:
        counts.update(receipt.counts)
    spans = [receipt.offsets for receipt in receipts if receipt.offsets]
    last = receipts[-1]
    return DatasetReceipt(
        last.dataset,
        "updated" if any(receipt.status == "updated" for receipt in receipts) else "up-to-date",
        dict(counts),
        (spans[0][0], spans[-1][1]) if spans else None,
        last.watermark,
        last.system_time,
        notes=tuple(note for receipt in receipts for note in receipt.notes),
    )
