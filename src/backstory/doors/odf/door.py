"""What the command line and the Python face ask of this door.

Who watches a pull: the command line prints what it hears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.doors.odf import registry
from backstory.doors.odf.adding import Added, add, add_each, add_one
from backstory.doors.odf.arguments import Argument, find_datasets, is_file, require_some
from backstory.doors.odf.ingestion import DatasetReceipt, head_of
from backstory.doors.odf.inspecting import (
    Inspected,
    inspect_dataset,
    inspected_file,
    list_entry,
    unreadable_entry,
)
from backstory.doors.odf.log_columns import encode_log
from backstory.doors.odf.polling import Poll, RunRequest
from backstory.doors.odf.pulling import pull
from backstory.doors.odf.pushing import Pushed, push
from backstory.doors.odf.registry import KnownDataset, RegisteredDataset
from backstory.errors import BackstoryError, UsageError
from backstory.journal.verify import Verdict, verify
from backstory.model.table import ODF, TableName
from backstory.sources.source import Progress, silent
from backstory.stores.iceberg.store import Store
from backstory.strategies.events.terms import EventEncoding

if TYPE_CHECKING:
    from backstory.doors.odf.adding import Added
    from backstory.doors.odf.ingestion import DatasetReceipt


def ignore(_: Any) -> None:
    """What happens while nobody watches."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Is told which manifest was added, whose turn has come, its stages with their bytes, and its end."""

    added: "Callable[[Added], None]" = ignore
    begun: Callable[[str], None] = ignore
    progress: Progress = silent
    ended: "Callable[[DatasetReceipt], None]" = ignore


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Added",
    "DatasetReceipt",
    "Inspected",
    "Pushed",
    "RunRequest",
    "Verdict",
    "Watcher",
    "add",
    "add_each",
    "events",
    "ingest",
    "inspect",
    "inspected_file",
    "is_file",
    "list_datasets",
    "pull_all",
    "verify_dataset",
]

UNWATCHED = Watcher()


def pull_all(
    store: Store,
    wanted: Sequence[Argument],
    asked: RunRequest,
    *,
    namespace: str = ODF,
    every: bool = False,
    watcher: Watcher = UNWATCHED,
    before: "Sequence[DatasetReceipt | Poll]" = (),
) -> list[DatasetReceipt]:
    """Pull files of manifests, which are added first, and datasets by name; one after the other.

    One that fails does not stop the others. Raises UsageError for a wrong manifest and an unknown
    name before anything is added or pulled. `before` are the receipts of other datasets of the same run,
    and what the source of the first of these was asked already.
    """
    require_some(wanted, every=every)
    read = find_datasets(registry.stored_datasets(store, namespace), wanted)
    for each in read:
        if each.dataset.written is not None:
            add_one(store, each, dry_run=True)
    datasets = [_add_manifest(store, each, watcher, dry_run=asked.dry_run) for each in read]
    lost: dict[TableName, BackstoryError] = {}
    if every:
        known = {each.name for each in datasets}
        others = registry.stored_datasets(store, namespace).all_or_errors()
        datasets += [
            each for name, each in others.items() if isinstance(each, KnownDataset) and name not in known
        ]
        lost = {name: each for name, each in others.items() if isinstance(each, BackstoryError)}
    receipts = [each for each in before if isinstance(each, DatasetReceipt)]
    alone = len(receipts) + len(datasets) == 1 and not lost
    for name, error in lost.items():
        receipts.append(
            report_receipt(DatasetReceipt(name.name, "failed", error=error), watcher, alone=False)
        )
    begun = [each for each in before if isinstance(each, Poll)]
    for dataset in datasets:
        watcher.begun(dataset.dataset.name)
        receipt = pull(store, dataset, asked, begun.pop() if begun else None)
        receipts.append(report_receipt(receipt, watcher, alone=alone))
    return receipts


def report_receipt(receipt: DatasetReceipt, watcher: Watcher, *, alone: bool) -> DatasetReceipt:
    """The receipt, once the watcher has heard of it; wrong usage of a dataset that is `alone` is raised."""
    if isinstance(receipt.error, UsageError) and alone:
        raise receipt.error
    watcher.ended(receipt)
    return receipt


def events(store: Store, name: str, encoding: str | None = None, *, namespace: str = ODF) -> "DataFrame":
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
    store: Store, name: str, pushed: Pushed, asked: RunRequest, *, namespace: str = ODF
) -> DatasetReceipt:
    """Push files into a dataset; UsageError without any."""
    if not pushed.files:
        raise UsageError("no-file", "No file is given.", "Name at least one.")
    receipt = push(store, registry.stored_datasets(store, namespace).existing(name), pushed, asked)
    if isinstance(receipt.error, UsageError):
        raise receipt.error
    return receipt


def list_datasets(store: Store, *, namespace: str = ODF) -> list[dict[str, Any]]:
    """The datasets: name, kind of source, when it was pulled last, rows, watermark; NULL for what is lost."""
    found = registry.stored_datasets(store, namespace).all_or_errors().items()
    return [
        unreadable_entry(name) if isinstance(each, BackstoryError) else list_entry(each, head_of(store, each))
        for name, each in found
    ]


def inspect(store: Store, name: str, *, namespace: str = ODF) -> Inspected:
    """A dataset's manifest, schema, lints and head; UsageError if there is no such dataset."""
    return inspect_dataset(store, registry.stored_datasets(store, namespace).existing(name))


def verify_dataset(store: Store, name: str, *, namespace: str = ODF) -> Verdict:
    """Whether a dataset is what its commits said; UsageError if there is none."""
    return verify(store, registry.stored_datasets(store, namespace).existing(name).name, registry.renamings)


def _add_manifest(
    store: Store, each: RegisteredDataset, watcher: Watcher, *, dry_run: bool
) -> RegisteredDataset:
    """Add the manifest that a file has for a dataset, if one has; the dataset as it is then."""
    if each.dataset.written is None:
        return each
    added = add_one(store, each, dry_run=dry_run)
    watcher.added(added)
    return each if dry_run and each.table is None else registry.reload(store, each.name)
