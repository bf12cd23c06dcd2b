"""The ingestion of one file into a dataset: the run, the file, the dataset's head, and the receipt."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from backstory.doors.odf.manifest.dataset import DatasetSource
from backstory.doors.odf.receipts import DEFAULT_SOURCE, Head, PullRun, cache_in, fetch_hash
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.staging import StagedRows
from backstory.errors import Refused
from backstory.journal.chain import walk
from backstory.journal.log_table import newest_block
from backstory.model.table import TableName
from backstory.sources.source import FetchedFile
from backstory.stores.iceberg.store import IcebergStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def cache_of(store: IcebergStore, dataset: TableName) -> Path:
    """The folder of a dataset's downloads: in the embedded warehouse, or else in the user's cache folder."""
    return cache_in(store.folder or Path.home() / ".cache" / "backstory" / store.catalog, dataset)


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
