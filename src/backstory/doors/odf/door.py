"""What the command line and the Python face ask of this door."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backstory.doors.odf import registry
from backstory.doors.odf.adding import Added, add, add_each, add_one
from backstory.doors.odf.arguments import Argument, find_datasets, is_file, require_some
from backstory.doors.odf.encodings import encoded
from backstory.doors.odf.inspecting import Inspected, in_a_row, inspect_dataset, inspected_file, unread
from backstory.doors.odf.polling import Poll, RunRequest
from backstory.doors.odf.pulling import pull
from backstory.doors.odf.pushing import Pushed, push
from backstory.doors.odf.receipts import DatasetReceipt
from backstory.doors.odf.registry import Known, Registered
from backstory.doors.odf.watching import Watcher
from backstory.doors.odf.work import head_of
from backstory.errors import BackstoryError, UsageError
from backstory.journal.verify import Verdict, verify
from backstory.model.table import ODF, TableName
from backstory.stores.iceberg.store import Store
from backstory.strategies.events.terms import EventEncoding

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
    "listed",
    "pull_all",
    "verified",
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
    read = find_datasets(registry.stored(store, namespace), wanted)
    for each in read:
        if each.dataset.written is not None:
            add_one(store, each, dry_run=True)
    datasets = [_add_manifest(store, each, watcher, dry_run=asked.dry_run) for each in read]
    lost: dict[TableName, BackstoryError] = {}
    if every:
        known = {each.name for each in datasets}
        others = registry.stored(store, namespace).all_or_errors()
        datasets += [each for name, each in others.items() if isinstance(each, Known) and name not in known]
        lost = {name: each for name, each in others.items() if isinstance(each, BackstoryError)}
    receipts = [each for each in before if isinstance(each, DatasetReceipt)]
    alone = len(receipts) + len(datasets) == 1 and not lost
    for name, error in lost.items():
        receipts.append(ended(DatasetReceipt(name.name, "failed", error=error), watcher, alone=False))
    begun = [each for each in before if isinstance(each, Poll)]
    for dataset in datasets:
        watcher.begun(dataset.dataset.name)
        receipt = pull(store, dataset, asked, begun.pop() if begun else None)
        receipts.append(ended(receipt, watcher, alone=alone))
    return receipts


def ended(receipt: DatasetReceipt, watcher: Watcher, *, alone: bool) -> DatasetReceipt:
    """The receipt, once the watcher has heard of it; wrong usage of a dataset that is `alone` is raised."""
    if isinstance(receipt.error, UsageError) and alone:
        raise receipt.error
    watcher.ended(receipt)
    return receipt


def events(store: Store, name: str, encoding: str | None = None, *, namespace: str = ODF) -> "DataFrame":
    """A dataset's log as it is stored, or in the encoding `op` or `observed` (decision O2)."""
    dataset = registry.stored(store, namespace).existing(name)
    rows = store.spark.table(store.sql_name(dataset.name))
    if encoding is None:
        return rows
    if encoding not in {"op", "observed"} or (encoding == "observed" and dataset.columns.encoding is None):
        raise UsageError(
            "no-encoding",
            f"The log of {name} cannot be read as {encoding}.",
            "Snapshots, upserts and changelogs are read as op or observed, ledgers and appends as op.",
        )
    return encoded(
        rows, dataset.columns, dataset.table.shape.key if dataset.table else (), EventEncoding(encoding)
    )


def ingest(
    store: Store, name: str, pushed: Pushed, asked: RunRequest, *, namespace: str = ODF
) -> DatasetReceipt:
    """Push files into a dataset; UsageError without any."""
    if not pushed.files:
        raise UsageError("no-file", "No file is given.", "Name at least one.")
    receipt = push(store, registry.stored(store, namespace).existing(name), pushed, asked)
    if isinstance(receipt.error, UsageError):
        raise receipt.error
    return receipt


def listed(store: Store, *, namespace: str = ODF) -> list[dict[str, Any]]:
    """The datasets: name, kind of source, when it was pulled last, rows, watermark; NULL for what is lost."""
    found = registry.stored(store, namespace).all_or_errors().items()
    return [
        unread(name) if isinstance(each, BackstoryError) else in_a_row(each, head_of(store, each))
        for name, each in found
    ]


def inspect(store: Store, name: str, *, namespace: str = ODF) -> Inspected:
    """A dataset's manifest, schema, lints and head; UsageError if there is no such dataset."""
    return inspect_dataset(store, registry.stored(store, namespace).existing(name))


def verified(store: Store, name: str, *, namespace: str = ODF) -> Verdict:
    """Whether a dataset is what its commits said; UsageError if there is none."""
    return verify(store, registry.stored(store, namespace).existing(name).name, registry.renamings)


def _add_manifest(store: Store, each: Registered, watcher: Watcher, *, dry_run: bool) -> Registered:
    """Add the manifest that a file has for a dataset, if one has; the dataset as it is then."""
    if each.dataset.written is None:
        return each
    added = add_one(store, each, dry_run=dry_run)
    watcher.added(added)
    return each if dry_run and each.table is None else registry.reload(store, each.name)
