"""One delivery of a source, and the dataset that it is for.

What became of a dataset: the objects that `pull` and `ingest` give.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Any, Final, Literal

from backstory.doors.odf.manifest.dataset import DatasetSource
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.staging import StagedRows
from backstory.errors import BackstoryError, Refused
from backstory.journal.chain import Block, canonical, sha3, walk
from backstory.journal.log_table import newest_block
from backstory.model.instant import parse_instant
from backstory.model.receipt import NOT_IN_JSON, Receipt
from backstory.model.table import TableName
from backstory.settings import Rights
from backstory.sources.source import FetchedFile, SourceState
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# What a polling source is called.
DEFAULT_SOURCE: Final = "default"
# What a fetch step says of where its data lie, and not of their order or how often they are asked for.
PLACE: Final = {"kind", "url", "headers", "path"}


def ignore_stage(_stage: str) -> None:
    """The stages of a delivery that nobody watches."""


def cache_of(store: Store, dataset: TableName) -> Path:
    """The folder of a dataset's downloads: in an embedded warehouse, else in the user's cache."""
    return cache_in(store.folder or Path.home() / ".cache" / "backstory" / store.catalog, dataset)


def cache_in(folder: Path, dataset: TableName) -> Path:
    """The folder of a dataset's downloads in another one."""
    return folder / ".downloads" / dataset.schema / dataset.name.lower()


@dataclass(frozen=True, slots=True)
class PullRun:
    """What one call does to datasets: when, as which run, whether in earnest; `stage` hears what goes on."""

    system_time: datetime
    run_id: str | None = None
    dry_run: bool = False
    rights: Rights = field(default_factory=Rights)
    stage: Callable[[str], None] = ignore_stage


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read, for a dataset.

    `after` is how many polls the dataset had taken in when the source was asked, None for a push; `token`
    makes a repeated run recognisable. `read` is what the file has, `frame` its rows after preprocess; they
    are None where not even columns are known. `declared` says that the manifest names the columns,
    `content` is a digest of a strict changelog's file, and `dataset` gives the dataset as it stands.
    """

    store: Store
    source: DatasetSource
    fetched: FetchedFile
    after: int | None
    run: PullRun
    token: str | None
    read: StagedRows | None
    frame: "DataFrame | None"
    declared: bool
    content: str | None
    dataset: Callable[[], RegisteredDataset]

    @property
    def source_name(self) -> str:
        """The name of the source."""
        return getattr(self.source, "source_name", DEFAULT_SOURCE)


def token_of(source: DatasetSource, fetched: FetchedFile, run: PullRun) -> str | None:
    """What makes a repeated run recognisable (R81): each file of a run has its own; None without a run id.

    It is of the file's place for one that was polled, of its name and content for one that was pushed: a
    second attempt may bring it to another folder.
    """
    if run.run_id is None:
        return None
    told = fetch_hash(source)
    if told is None:
        with fetched.path.open("rb") as file:
            told = hashlib.file_digest(file, "sha3_256").hexdigest()
    return f"{run.run_id} {getattr(source, 'source_name', DEFAULT_SOURCE)} {fetched.name} {told}"


def fetch_hash(source: DatasetSource | None) -> str | None:
    """What tells the place that a polling source asks from another; None for a push source."""
    if not isinstance(source, SetPollingSource):
        return None
    step = source.fetch.model_dump(mode="json", by_alias=True, include=PLACE)
    if "path" in step:
        step["path"] = normpath(step["path"])
    return sha3(canonical(step))


@dataclass(frozen=True, slots=True)
class Head:
    """A dataset as its newest commit left it."""

    block: Block | None = None

    @property
    def event(self) -> Mapping[str, Any]:
        """What that commit says of itself."""
        return self.block.event if self.block else {}

    def is_newest_source(self, source: DatasetSource) -> bool:
        """Whether the newest data came from this polling source."""
        fetch = fetch_hash(source)
        return fetch is not None and self.event.get("fetch") == fetch

    def state_of(self, source: DatasetSource) -> SourceState | None:
        """What the source said of itself, if it is still the same one."""
        state = self.event.get("source_state") if self.is_newest_source(source) else None
        return SourceState.from_dict(state) if state else None

    def is_complete(self, source: DatasetSource) -> bool:
        """Whether all that the source had when it was asked last is here."""
        return self.is_newest_source(source) and bool(self.event.get("complete"))

    @property
    def next_offset(self) -> int:
        """The offset that the next row gets."""
        end, before = self.event.get("end"), self.event.get("prev_offset")
        last = before if end is None else end
        return 0 if last is None else int(last) + 1

    @property
    def watermark(self) -> datetime | None:
        """The greatest event time so far; a day's is its midnight."""
        told = self.event.get("watermark")
        return parse_instant(told) if told else None

    def watermark_after(self, newest: datetime | None) -> datetime | None:
        """The watermark once rows up to an event time have come: it never goes back."""
        return max(filter(None, (self.watermark, newest)), default=None)

    @property
    def polls(self) -> int:
        """How many commits brought what a polling source gave."""
        return int(self.event.get("polled") or 0)

    @property
    def snapshot_time(self) -> datetime | None:
        """The time of the newest snapshot that told one."""
        told = self.event.get("snapshot_time")
        return parse_instant(told) if told else None

    @property
    def system_time(self) -> datetime | None:
        """The system time of the newest commit."""
        return self.block.system_time if self.block else None


def head_to_extend(store: Store, dataset: RegisteredDataset) -> Head:
    """The head of a dataset that a commit shall follow.

    Raises Refused if its table holds more rows than the newest commit that is known tells of, as when others
    expired a commit that the log did not have yet: its offsets would be used twice. So for fewer rows, where
    all that tells of commits is the log.
    """
    head = head_of(store, dataset)
    rows, told = (dataset.table.rows if dataset.table else 0), head.next_offset
    if dataset.table is None or rows == told or (rows < told and next(walk(dataset.table), None) is not None):
        return head
    name = dataset.dataset.name
    raise Refused(
        "log-behind" if rows > told else "rows-lost",
        f"The table of {name} holds {rows} rows, but its newest known commit counts {told}.",
        "Nothing was written; restore table and log from a backup, or add the manifest under another name.",
    )


def head_of(store: Store, dataset: RegisteredDataset) -> Head:
    """The head of a dataset, also of one that is not there yet."""
    return Head(None if dataset.table is None else newest_block(store, dataset.table))


@dataclass(frozen=True, slots=True)
class Ingestion:
    """A delivery and the dataset that it meets, as it stands now; `now` is the commit's system time."""

    work: SourceFile
    dataset: RegisteredDataset
    head: Head
    now: datetime


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
    notes: tuple[str, ...] = field(default=(), metadata=NOT_IN_JSON)
    before: datetime | None = field(default=None, metadata=NOT_IN_JSON)
    hint: str = field(default="", metadata=NOT_IN_JSON)


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
