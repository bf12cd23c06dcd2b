"""Sources that have nothing new for their datasets, asked without Spark."""

from collections.abc import Sequence
from functools import partial

from backstory.doors.odf.adding import Added
from backstory.doors.odf.lints import lints_of
from backstory.doors.odf.manifest.fetch import FilesGlob
from backstory.doors.odf.polling import Asked, Facts, RunRequest, ask, failed, tell_notes, warn_of_secrets
from backstory.doors.odf.receipts import DatasetReceipt
from backstory.doors.odf.registry import Known, described, registered
from backstory.doors.odf.small_datasets import dataset_here, is_pulled_by, output_here
from backstory.doors.odf.wanted import Wanted, is_same, looked_at, meant, require_some
from backstory.doors.odf.work import Head, cache_in
from backstory.errors import BackstoryError
from backstory.journal.small_log import log_is_complete, logged_here, newest_block_here
from backstory.model.table import TableName
from backstory.stores.metadata.described import Catalog, Described
from backstory.stores.metadata.embedded import EmbeddedCatalog
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files


def wanted_here(
    catalog: Catalog, namespace: str, wanted: Sequence[Wanted], *, every: bool
) -> tuple[list[Added], list[TableName]]:
    """The datasets that arguments mean, and what was said of manifests, none of which brings anything new.

    Raises UsageError as a pull does, and Unreadable for a manifest to add and for one with queries.
    """
    require_some(wanted, every=every)
    datasets = described(catalog, namespace)
    found = meant(datasets, wanted)
    added = [_unchanged(each) for each in found if each.dataset.written is not None]
    names = [each.name for each in found]
    others = datasets.standing() if every else {}
    if any(isinstance(each, BackstoryError) for each in others.values()):
        raise Unreadable("a table whose metadata cannot be read")
    return added, list(dict.fromkeys([*names, *others]))


def _unchanged(wanted: Known[Described]) -> Added:
    dataset = wanted.dataset
    told = looked_at(dataset, partial(lints_of, dataset, partial(output_here, wanted)))
    before = None if wanted.table is None else registered(wanted.table)
    if before is None or not is_same(before.dataset, dataset):
        raise Unreadable("a manifest to add")
    return Added(dataset.name, None, "unchanged", told)


def asked_here(files: Files, asked: RunRequest) -> Asked | DatasetReceipt:
    """What the polling source of a dataset has that is new; the dataset's receipt if there is nothing.

    Unreadable, before the source is asked, for a dataset that Spark must look at.
    """
    dataset, run = dataset_here(files), asked.run()
    facts = _facts(files, dataset)
    warn_of_secrets(dataset)
    try:
        found = ask(dataset, facts, asked, run)
    except BackstoryError as error:
        return failed(dataset, facts.head, error)
    if isinstance(found, DatasetReceipt) or found.answer.status == "new":
        return found
    return tell_notes(found.told(found.nothing(dataset)))


def _facts(files: Files, dataset: Known[Described]) -> Facts:
    head = Head(newest_block_here(files))
    if files.table.rows != head.next_offset:
        raise Unreadable("rows missing from the newest known commit")
    if not isinstance(files.catalog, EmbeddedCatalog):
        raise Unreadable("a warehouse that is not local")
    if not log_is_complete(files):
        raise Unreadable("commits that the log lacks")
    if _queries(dataset) and not is_pulled_by(dataset):
        raise Unreadable("queries that have not been checked yet")
    source = dataset.dataset.polling
    blocks = logged_here(files) if source is not None and isinstance(source.fetch, FilesGlob) else []
    return Facts(head, cache_in(files.catalog.folder, dataset.name), lambda: blocks, lambda: None)


def _queries(dataset: Known[Described]) -> bool:
    return any(source.preprocess is not None for _, source in dataset.dataset.sources())
