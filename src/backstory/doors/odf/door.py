"""The door's functions for the command line and Python: add, pull, push, list, inspect, verify."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from backstory.doors.odf import registry
from backstory.doors.odf.adding import add, add_each, add_one
from backstory.doors.odf.arguments import Argument, find_datasets, require_some
from backstory.doors.odf.committing import head_of
from backstory.doors.odf.inspecting import (
    Inspected,
    inspect_table,
    list_entry,
    unreadable_entry,
)
from backstory.doors.odf.log_frames import encode_log
from backstory.doors.odf.polling import IngestRequest, Poll
from backstory.doors.odf.preprocess import lint_dataset
from backstory.doors.odf.pulling import pull
from backstory.doors.odf.pushing import PushedFiles, push
from backstory.doors.odf.receipts import UNWATCHED, Added, DatasetReceipt, Watcher, report_receipt
from backstory.doors.odf.registry import KnownDataset, RegisteredDataset
from backstory.errors import BackstoryError, UsageError
from backstory.journal.verify import Verdict, verify
from backstory.model.table import ODF, TableName
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import IcebergStore
from backstory.strategies.events.terms import EventEncoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Added",
    "DatasetReceipt",
    "IngestRequest",
    "Inspected",
    "PushedFiles",
    "Verdict",
    "Watcher",
    "add",
    "add_each",
    "events",
    "ingest",
    "inspect",
    "list_datasets",
    "newest_rows",
    "pull_all",
    "verify_dataset",
]


def pull_all(
    store: IcebergStore,
    wanted: Sequence[Argument],
    request: IngestRequest,
    *,
    namespace: str = ODF,
    every: bool = False,
    watcher: Watcher = UNWATCHED,
    before: "Sequence[DatasetReceipt | Poll]" = (),
) -> list[DatasetReceipt]:
    """Pull datasets one after the other, by name or by files of manifests, which are added first.

    A failure of one dataset does not stop the others. Raises UsageError for an invalid manifest or an unknown
    name, before anything is added or pulled. `before` are receipts of other datasets in the same run, and a
    poll of the first dataset.
    """
    require_some(wanted, every=every)
    datasets_read = find_datasets(registry.stored_datasets(store, namespace), wanted)
    for entry in datasets_read:
        if entry.dataset.written is not None:
            add_one(store, entry, dry_run=True)
    datasets = [_add_manifest(store, entry, watcher, dry_run=request.dry_run) for entry in datasets_read]
    unreadable: dict[TableName, BackstoryError] = {}
    if every:
        known = {entry.name for entry in datasets}
        others = registry.stored_datasets(store, namespace).all_or_errors()
        datasets += [
            entry for name, entry in others.items() if isinstance(entry, KnownDataset) and name not in known
        ]
        unreadable = {name: entry for name, entry in others.items() if isinstance(entry, BackstoryError)}
    receipts = [entry for entry in before if isinstance(entry, DatasetReceipt)]
    is_single = len(receipts) + len(datasets) == 1 and not unreadable
    for name, error in unreadable.items():
        receipts.append(
            report_receipt(DatasetReceipt(name.name, "failed", error=error), watcher, alone=False)
        )
    polls = [entry for entry in before if isinstance(entry, Poll)]
    for dataset in datasets:
        watcher.begun(dataset.dataset.name)
        receipt = pull(store, dataset, request, polls.pop() if polls else None)
        receipts.append(report_receipt(receipt, watcher, alone=is_single))
    return receipts


def events(
    store: IcebergStore, name: str, encoding: str | None = None, *, namespace: str = ODF
) -> "DataFrame":
    """A dataset's log as it is stored, or in the encoding `op` or `observed` (decision O2)."""
    dataset = registry.stored_datasets(store, namespace).existing(name)
    rows = store.spark.table(store.sql_name(dataset.name))
    if encoding is None:
        return rows
    if encoding not in {"op", "observed"} or (encoding == "observed" and dataset.columns.encoding is None):
        raise UsageError(
            "no-encoding",
            f"The log of {name} cannot be read as {encoding}.",
            "Snapshots, upserts and changelogs are read as op or observed, ledgers and appends as op.",
        )
    return encode_log(
        rows, dataset.columns, dataset.table.shape.key if dataset.table else (), EventEncoding(encoding)
    )


def ingest(
    store: IcebergStore, name: str, pushed: PushedFiles, request: IngestRequest, *, namespace: str = ODF
) -> DatasetReceipt:
    """Push files into a dataset. Raises UsageError if there are no files."""
    if not pushed.files:
        raise UsageError("no-file", "No file is given.", "Name at least one.")
    receipt = push(store, registry.stored_datasets(store, namespace).existing(name), pushed, request)
    if isinstance(receipt.error, UsageError):
        raise receipt.error
    return receipt


def list_datasets(store: IcebergStore, *, namespace: str = ODF) -> list[dict[str, Any]]:
    """The datasets with kind of source, last pull, rows and watermark.

    The fields of an unreadable dataset are NULL.
    """
    entries = registry.stored_datasets(store, namespace).all_or_errors().items()
    return [
        unreadable_entry(name)
        if isinstance(entry, BackstoryError)
        else list_entry(entry, head_of(store, entry))
        for name, entry in entries
    ]


def inspect(store: IcebergStore, name: str, *, namespace: str = ODF) -> Inspected:
    """A dataset's manifest, schema, lints and head. Raises UsageError for an unknown dataset."""
    dataset = registry.stored_datasets(store, namespace).existing(name)
    return inspect_table(dataset, partial(lint_dataset, store, dataset), head_of(store, dataset))


def newest_rows(store: IcebergStore, dataset: RegisteredDataset, count: int, skip: int) -> "DataFrame":
    """The newest `count` rows by offset, except the last `skip` rows, oldest first."""
    assert dataset.table is not None
    rows = store.spark.table(store.sql_name(dataset.name))
    offset = sf.col(quote(dataset.columns.vocab.offset_column))
    end = head_of(store, dataset).next_offset - skip
    return rows.where((offset >= end - count) & (offset < end)).orderBy(offset)


def verify_dataset(store: IcebergStore, name: str, *, namespace: str = ODF) -> Verdict:
    """Verify a dataset's rows against its commits. Raises UsageError for an unknown dataset."""
    return verify(store, registry.stored_datasets(store, namespace).existing(name).name, registry.renamings)


def _add_manifest(
    store: IcebergStore, dataset: RegisteredDataset, watcher: Watcher, *, dry_run: bool
) -> RegisteredDataset:
    """Add the dataset's manifest if it was read from a file. Returns the current dataset."""
    if dataset.dataset.written is None:
        return dataset
    added = add_one(store, dataset, dry_run=dry_run)
    watcher.added(added)
    return dataset if dry_run and dataset.table is None else registry.reload(store, dataset.name)
