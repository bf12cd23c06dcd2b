"""The ingestion of one file into a dataset: the run, the file, the dataset's head, and the receipt."""

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
from backstory.stores.iceberg.store import IcebergStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# The name of a polling source.
DEFAULT_SOURCE: Final = "default"
# The fields of a fetch step that determine the location of its data, not their order or the schedule of
# fetches.
PLACE_FIELDS: Final = {"kind", "url", "headers", "path"}

COUNTS = ("appended", "retracted", "corrected", "unchanged", "conflicts", "late")


def ignore_stage(_stage: str) -> None:
    """Do nothing with the stage of a delivery."""


def cache_of(store: IcebergStore, dataset: TableName) -> Path:
    """The folder of a dataset's downloads: in the embedded warehouse, or else in the user's cache folder."""
    return cache_in(store.folder or Path.home() / ".cache" / "backstory" / store.catalog, dataset)


def cache_in(folder: Path, dataset: TableName) -> Path:
    """The folder of a dataset's downloads below `folder`."""
    return folder / ".downloads" / dataset.schema / dataset.name.lower()


@dataclass(frozen=True, slots=True)
class PullRun:
    """The time, id and rights of one call. `stage` is called with the name of each stage."""

    system_time: datetime
    run_id: str | None = None
    dry_run: bool = False
    rights: Rights = field(default_factory=Rights)
    stage: Callable[[str], None] = ignore_stage


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file that was read for a dataset.

    `after` is the dataset's number of polls when the source was fetched, or None for a push. `token`
    identifies a repeated run. `read` are the file's rows. `frame` are its rows after preprocess, or None if
    no columns are known. `declared` is true if the manifest declares the columns. `content` is the digest of
    a strict changelog's file. `dataset` loads the current dataset.
    """

    store: IcebergStore
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
    """The token by which a file of a run is recognized if the run is repeated (R81).

    It is None without a run id. It contains the place of a polled file, or the name and content of a pushed
    file, whose folder may differ in a second attempt.
    """
    if run.run_id is None:
        return None
    place_or_content = fetch_hash(source)
    if place_or_content is None:
        with fetched.path.open("rb") as file:
            place_or_content = hashlib.file_digest(file, "sha3_256").hexdigest()
    return f"{run.run_id} {getattr(source, 'source_name', DEFAULT_SOURCE)} {fetched.name} {place_or_content}"


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
        """The recorded state of the source, or None if the newest data are from another source."""
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
        """The greatest event time so far. For a day, it is its midnight."""
        text = self.event.get("watermark")
        return parse_instant(text) if text else None

    def watermark_after(self, newest: datetime | None) -> datetime | None:
        """The watermark after rows with event times up to `newest`. It never decreases."""
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


def head_to_extend(store: IcebergStore, dataset: RegisteredDataset) -> Head:
    """The head of a dataset, for a commit that follows it.

    Raises Refused if the table has more rows than the newest known commit counts, because offsets would be
    used twice. This happens if other programs expire a commit before the log contains it. Fewer rows are
    refused if commits are known only from the log.
    """
    head = head_of(store, dataset)
    rows, counted = (dataset.table.rows if dataset.table else 0), head.next_offset
    if (
        dataset.table is None
        or rows == counted
        or (rows < counted and next(walk(dataset.table), None) is not None)
    ):
        return head
    name = dataset.dataset.name
    raise Refused(
        "log-behind" if rows > counted else "rows-lost",
        f"The table of {name} holds {rows} rows, but its newest known commit counts {counted}.",
        "Nothing was written; restore table and log from a backup, or add the manifest under another name.",
    )


def head_of(store: IcebergStore, dataset: RegisteredDataset) -> Head:
    """The head of a dataset. It is empty if the dataset has no table."""
    return Head(None if dataset.table is None else newest_block(store, dataset.table))


@dataclass(frozen=True, slots=True)
class Ingestion:
    """A file, and the current dataset that it is ingested into. `now` is the commit's system time."""

    file: DatasetFile
    dataset: RegisteredDataset
    head: Head
    now: datetime


Status = Literal["updated", "up-to-date", "uncacheable", "disabled", "failed"]


@dataclass(frozen=True, slots=True, repr=False)
class DatasetReceipt(Receipt):
    """The result of a pull or push for a dataset.

    `offsets` are the first and the last new offset, or None if there are no new rows. `watermark` and
    `system_time` are in UTC, or None. The other fields are for people only: `before` is the former watermark,
    `hint` explains the status, `notes` are warnings.
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
