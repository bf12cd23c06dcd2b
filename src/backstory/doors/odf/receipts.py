"""The results of pulls and pushes, and the state of a dataset from which pulls and pushes start."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from posixpath import normpath
from typing import Any, Final, Literal

from backstory.doors.odf.lints import Lint
from backstory.doors.odf.manifest.dataset import DatasetSource
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import Block, canonical, sha3
from backstory.model.instant import parse_instant
from backstory.model.receipt import NOT_IN_JSON, Receipt
from backstory.model.table import TableName
from backstory.sources.source import Progress, SourceState, ignore_progress

# The name of a polling source.
DEFAULT_SOURCE: Final = "default"
# The fields of a fetch step that determine the location of its data, not their order or the schedule of
# fetches.
PLACE_FIELDS: Final = {"kind", "url", "headers", "path"}
COUNTS = ("appended", "retracted", "corrected", "unchanged", "conflicts", "late")


def ignore(_: Any) -> None:
    """Do nothing with an event."""


def cache_in(folder: Path, dataset: TableName) -> Path:
    """The folder of a dataset's downloads below `folder`."""
    return folder / ".downloads" / dataset.schema / dataset.name.lower()


def fetch_hash(source: DatasetSource | None) -> str | None:
    """The hash of the place from which a polling source fetches, or None for a push source."""
    if not isinstance(source, SetPollingSource):
        return None
    step = source.fetch.model_dump(mode="json", by_alias=True, include=PLACE_FIELDS)
    if "path" in step:
        step["path"] = normpath(step["path"])
    return sha3(canonical(step))


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a dataset after its newest commit."""

    block: Block | None = None

    @property
    def event(self) -> Mapping[str, Any]:
        """The event in the newest commit's block, or an empty mapping if there is no commit."""
        return self.block.event if self.block else {}

    def is_newest_source(self, source: DatasetSource) -> bool:
        """Whether the newest data are from this polling source."""
        fetch = fetch_hash(source)
        return fetch is not None and self.event.get("fetch") == fetch

    def state_of(self, source: DatasetSource) -> SourceState | None:
        """The source's recorded state, or None if the newest data are from another source."""
        state = self.event.get("source_state") if self.is_newest_source(source) else None
        return SourceState.from_dict(state) if state else None

    def is_complete(self, source: DatasetSource) -> bool:
        """Whether the dataset has everything that the source had at the last fetch."""
        return self.is_newest_source(source) and bool(self.event.get("complete"))

    @property
    def next_offset(self) -> int:
        """The offset of the next row."""
        end, before = self.event.get("end"), self.event.get("prev_offset")
        last = before if end is None else end
        return 0 if last is None else int(last) + 1

    @property
    def watermark(self) -> datetime | None:
        """The greatest event time so far. If event times are days, it is the midnight of the greatest day."""
        text = self.event.get("watermark")
        return parse_instant(text) if text else None

    def watermark_after(self, newest: datetime | None) -> datetime | None:
        """The watermark after rows whose greatest event time is `newest`. It never decreases."""
        return max(filter(None, (self.watermark, newest)), default=None)

    @property
    def polls(self) -> int:
        """The number of commits from polling sources."""
        return int(self.event.get("polled") or 0)

    @property
    def snapshot_time(self) -> datetime | None:
        """The time of the newest snapshot that has a time of its own."""
        text = self.event.get("snapshot_time")
        return parse_instant(text) if text else None

    @property
    def system_time(self) -> datetime | None:
        """The system time of the newest commit."""
        return self.block.system_time if self.block else None


@dataclass(frozen=True, slots=True, repr=False)
class DatasetReceipt(Receipt):
    """The result of a pull or push for a dataset.

    `offsets` are the first and the last new offset, or None if there are no new rows. `watermark` and
    `system_time` are in UTC, or None. The other fields are for people only: `before` is the former watermark,
    `hint` explains the status, and `notes` are warnings.
    """

    dataset: str
    status: Literal["updated", "up-to-date", "uncacheable", "disabled", "failed"]
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    offsets: tuple[int, int] | None = None
    watermark: datetime | None = None
    system_time: datetime | None = None
    error: BackstoryError | None = None
    notes: tuple[str, ...] = field(default=(), metadata=NOT_IN_JSON)
    before: datetime | None = field(default=None, metadata=NOT_IN_JSON)
    hint: str = field(default="", metadata=NOT_IN_JSON)


def sum_up(receipts: "list[DatasetReceipt]", before: DatasetReceipt) -> DatasetReceipt:
    """One receipt for all commits of a pull (decision O17), or `before` if there were no commits."""
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


@dataclass(frozen=True, slots=True, repr=False)
class Added(Receipt):
    """The receipt for an added manifest, with its lints.

    The name is missing if the manifest could not be read.
    """

    dataset: str | None
    file: Path | None
    status: Literal["added", "updated", "unchanged", "failed"]
    lints: tuple[Lint, ...] = ()
    error: BackstoryError | None = None


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks of a pull, for an added manifest and for the start, progress and receipt of a dataset."""

    added: Callable[[Added], None] = ignore
    begun: Callable[[str], None] = ignore
    progress: Progress = ignore_progress
    ended: Callable[[DatasetReceipt], None] = ignore


NO_WATCHER = Watcher()


def report_receipt(receipt: DatasetReceipt, watcher: Watcher, *, alone: bool) -> DatasetReceipt:
    """Pass the receipt to the watcher and return it. If the dataset is `alone`, raise its UsageError."""
    if isinstance(receipt.error, UsageError) and alone:
        raise receipt.error
    watcher.ended(receipt)
    return receipt
