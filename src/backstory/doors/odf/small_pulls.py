"""Polls without Spark. If a source has no new files, no store is needed."""

from collections.abc import Sequence
from functools import partial

from backstory.doors.odf.arguments import Argument, check_manifest, find_datasets, is_same, require_some
from backstory.doors.odf.inspecting import dataset_here, is_pulled_by, output_here
from backstory.doors.odf.lints import lints_of
from backstory.doors.odf.manifest.events import FilesGlob
from backstory.doors.odf.polling import (
    IngestRequest,
    Poll,
    PollContext,
    ask,
    failed_receipt,
    log_notes,
    warn_of_secrets,
)
from backstory.doors.odf.receipts import Added, DatasetReceipt, Head, cache_in
from backstory.doors.odf.registry import KnownDataset, dataset_of, described_datasets
from backstory.errors import BackstoryError
from backstory.journal.chain import all_blocks_in_files, log_is_complete, newest_block_in_files
from backstory.model.table import TableName
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import TableReader


def choose_datasets(
    catalog: Catalog, namespace: str, wanted: Sequence[Argument], *, every: bool
) -> tuple[list[Added], list[TableName]]:
    """The datasets that arguments name, and a receipt for each of their manifests, all unchanged.

    Raises UsageError as a pull does, and Unreadable for a new or changed manifest and for a manifest with
    queries.
    """
    require_some(wanted, every=every)
    datasets = described_datasets(catalog, namespace)
    datasets_read = find_datasets(datasets, wanted)
    added = [_unchanged_manifest(dataset) for dataset in datasets_read if dataset.dataset.written is not None]
    names = [dataset.name for dataset in datasets_read]
    others = datasets.all_or_errors() if every else {}
    if any(isinstance(dataset, BackstoryError) for dataset in others.values()):
        raise Unreadable("a table whose metadata cannot be read")
    return added, list(dict.fromkeys([*names, *others]))


def _unchanged_manifest(known: KnownDataset[TableMetadata]) -> Added:
    dataset = known.dataset
    lints = check_manifest(dataset, partial(lints_of, dataset, partial(output_here, known)))
    before = None if known.table is None else dataset_of(known.table)
    if before is None or not is_same(before.dataset, dataset):
        raise Unreadable("a manifest to add")
    return Added(dataset.name, None, "unchanged", lints)


def ask_source(files: TableReader, request: IngestRequest) -> Poll | DatasetReceipt:
    """Fetch from the polling source of a dataset.

    Returns the dataset's receipt if nothing is new. Raises Unreadable, before the fetch, for a dataset that
    needs Spark.
    """
    dataset, run = dataset_here(files), request.run()
    context = _poll_context(files, dataset)
    warn_of_secrets(dataset)
    try:
        poll = ask(dataset, context, request, run)
    except BackstoryError as error:
        return failed_receipt(dataset, context.head, error)
    if isinstance(poll, DatasetReceipt) or poll.answer.status == "new":
        return poll
    return log_notes(poll.with_warnings(poll.empty_receipt(dataset)))


def _poll_context(files: TableReader, dataset: KnownDataset[TableMetadata]) -> PollContext:
    head = Head(newest_block_in_files(files))
    if files.table.rows != head.next_offset:
        raise Unreadable("rows missing from the newest known commit")
    if not isinstance(files.catalog, EmbeddedCatalog):
        raise Unreadable("a warehouse that is not local")
    if not log_is_complete(files):
        raise Unreadable("commits that the log lacks")
    has_queries = any(source.preprocess is not None for _, source in dataset.dataset.sources())
    if has_queries and not is_pulled_by(dataset):
        raise Unreadable("queries that have not been checked yet")
    source = dataset.dataset.polling
    blocks = all_blocks_in_files(files) if source is not None and isinstance(source.fetch, FilesGlob) else []
    return PollContext(head, cache_in(files.catalog.folder, dataset.name), lambda: blocks, lambda: None)
