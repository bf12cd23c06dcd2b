"""Polls: new files are fetched from a dataset's polling source, and no rows are read (sections 1.3, 1.4, 5).

If a source has no new files, neither a store nor Spark is needed.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from attrs import evolve, frozen
from attrs import field as attrs_field

from backstory.doors.odf.columns import arrow_schema, declared_schema
from backstory.doors.odf.file_rows import read_options
from backstory.doors.odf.inspecting import dataset_here, is_pulled_by, output_here
from backstory.doors.odf.lints import Lint, lints, refuse_errors, secrets
from backstory.doors.odf.manifest.dataset import Dataset
from backstory.doors.odf.manifest.events import Append, FilesGlob, SetPollingSource, Url
from backstory.doors.odf.receipts import Added, DatasetReceipt, Head, cache_in
from backstory.doors.odf.registry import (
    Argument,
    KnownDataset,
    dataset_of,
    described_datasets,
    find_datasets,
    require_some,
)
from backstory.engine.run_context import Remark
from backstory.errors import BackstoryError, UsageError
from backstory.formats.reading import refuse_unwritable
from backstory.journal.chain import Block, canonical, journal_in_files, sha3
from backstory.model.change import BY_OTHERS
from backstory.model.instant import optional_instant
from backstory.model.table import TableName
from backstory.settings import Rights
from backstory.sources import fetching
from backstory.sources.source import Answer, FetchContext, Progress, ignore_progress
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import TableLike

log = structlog.get_logger()

READ_OTHERWISE: Final = (
    "The manifest's prepare, read or preprocess changed since the last commit, but the source is unchanged. "
    "Use --refetch to read it again."
)


def check_manifest(dataset: Dataset, lints: Iterable[Lint]) -> tuple[Lint, ...]:
    """The lints of a manifest. Raises UsageError if the manifest cannot be added."""
    lints = tuple(lints)
    refuse_errors(lints)
    if dataset.polling is not None and isinstance(dataset.polling.fetch, Url | FilesGlob):
        fetching.check(dataset.polling.fetch)
    for _, source in dataset.sources():
        declared = declared_schema(source.read)
        options = read_options(source.read)
        if declared is not None:
            refuse_unwritable(options, arrow_schema(declared))
    return lints


@frozen
class IngestRequest(Remark):
    """The options of a pull or a push, with the rights of the configuration and a function for progress."""

    system_time: datetime | None = attrs_field(default=None, converter=optional_instant)
    fetch_uncacheable: bool = False
    refetch: bool = False
    set_watermark: datetime | None = attrs_field(default=None, converter=optional_instant)
    run_id: str | None = None
    dry_run: bool = False
    rights: Rights = attrs_field(factory=Rights)
    progress: Progress = ignore_progress

    def begin(self) -> "IngestRequest":
        """The request of a run, whose system time is the present unless the options set a time."""
        return evolve(self, system_time=self.system_time or datetime.now(UTC))

    @property
    def now(self) -> datetime:
        """The system time of a run that has begun."""
        assert self.system_time is not None
        return self.system_time

    def stage(self, name: str) -> None:
        """Report the beginning of a stage."""
        self.progress(name, 0, None)


@dataclass(frozen=True, slots=True)
class PollContext:
    """The state of a dataset that a poll needs, independent of the store.

    `cache` is the folder of the dataset's downloads. `logged` returns all blocks of the dataset.
    `allow_queries` raises UsageError if the manifest contains a forbidden query.
    """

    head: Head
    cache: Path
    logged: Callable[[], Iterable[Block]]
    allow_queries: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Poll:
    """One fetch from a polling source: its run, its answer, and the dataset's head at that time."""

    run: IngestRequest
    head: Head
    source: SetPollingSource
    context: FetchContext
    answer: Answer

    def empty_receipt(self, dataset: KnownDataset[TableLike]) -> DatasetReceipt:
        """The receipt for an answer without new files."""
        receipt = unchanged_receipt(dataset, self.head)
        if self.answer.status == "uncacheable":
            return replace(receipt, status="uncacheable", hint="use --fetch-uncacheable to update")
        return receipt

    def with_warnings(self, receipt: DatasetReceipt, *more: str) -> DatasetReceipt:
        """The receipt, with the warnings of the fetch and additional notes."""
        return replace(
            receipt, notes=(*self.answer.warnings, *receipt.notes, *more), before=self.head.watermark
        )


def ask(dataset: KnownDataset[TableLike], state: PollContext, run: IngestRequest) -> Poll | DatasetReceipt:
    """Fetch from the source. Returns a receipt if the dataset has no enabled polling source."""
    source = dataset.dataset.polling
    if source is None or dataset.dataset.polling_disabled:
        off = "the polling source is disabled"
        why = "Dataset does not specify a polling source" if source is None else off
        return replace(unchanged_receipt(dataset, state.head), status="disabled", hint=why)
    state.allow_queries()
    step = source.fetch
    if not isinstance(step, Url | FilesGlob):
        raise UsageError(
            "unsupported-source",
            f"Sources of kind {step.kind} cannot be pulled.",
            "Export its data to files or to an HTTP server, and fetch them with Url or FilesGlob.",
        )
    head, seen = state.head, frozenset[str]()
    if isinstance(step, FilesGlob) and dataset.table is not None and head.block is not None:
        paths = (block.event.get("path") for block in state.logged())
        seen = frozenset(str(path) for path in paths if path is not None)
    context = FetchContext(
        system_time=run.now,
        folder=dataset.dataset.folder,
        cache=state.cache,
        environment=os.environ,
        state=head.state_of(source),
        asked_before=head.is_newest_source(source),
        complete=head.is_complete(source),
        seen=seen,
        refetch=run.refetch,
        fetch_uncacheable=run.fetch_uncacheable,
        progress=run.progress,
        unpacked_limit=run.rights.unpacked_limit,
    )
    answer = fetching.fetch(step, context)
    if answer.status == "up-to-date" and _is_read_otherwise(dataset.dataset, state):
        answer.warnings.append(READ_OTHERWISE)
    return Poll(run, head, source, context, answer)


def _is_read_otherwise(dataset: Dataset, state: PollContext) -> bool:
    """Whether a fetch again would read the unchanged source in another way than the newest commit did."""
    source = dataset.polling
    assert source is not None
    if not isinstance(source.fetch, Url) or source.fetch.cache or isinstance(source.merge, Append):
        return False
    blocks = list(state.logged()) if _has_other_manifest(dataset, state.head) else []
    manifests = (block.event["manifest"] for block in reversed(blocks) if block.event.get("manifest"))
    before = next(manifests, None)
    return before is not None and _reading_of(before) != _reading_of(dataset.document)


def _has_other_manifest(dataset: Dataset, head: Head) -> bool:
    """Whether the manifest changed since the newest commit."""
    return head.block is not None and head.event.get("manifest_hash") != sha3(canonical(dataset.document))


def _reading_of(manifest: Mapping[str, Any]) -> list[Any]:
    """The steps between the polling source and the merge, in a manifest's document."""
    events = [event for event in manifest["content"]["metadata"] if event["kind"] == "SetPollingSource"]
    return [event.get(name) for event in events[-1:] for name in ("prepare", "read", "preprocess")]


def unchanged_receipt(dataset: KnownDataset[TableLike], head: Head) -> DatasetReceipt:
    """The receipt of a dataset that is up to date."""
    name = dataset.dataset.name
    return DatasetReceipt(name, "up-to-date", watermark=head.watermark, system_time=head.system_time)


def failed_receipt(dataset: KnownDataset[TableLike], head: Head, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that is unchanged because of an error."""
    return replace(unchanged_receipt(dataset, head), status="failed", error=error)


def warn_of_secrets(dataset: KnownDataset[TableLike]) -> None:
    """Log a warning for each secret in the manifest, with its place."""
    for lint in secrets(dataset.dataset):
        log.warning(f"{lint.place}: {lint.message}. {lint.remedy}", dataset=dataset.dataset.name)


def log_notes(receipt: DatasetReceipt) -> DatasetReceipt:
    """Log the notes of a receipt that the engine does not log, and return the receipt."""
    for note in receipt.notes:
        if not note.startswith(BY_OTHERS):
            log.warning(note, dataset=receipt.dataset)
    return receipt


def choose_datasets(
    catalog: Catalog, namespace: str, wanted: Sequence[Argument], *, every: bool
) -> tuple[list[Added], list[TableName]]:
    """The datasets that arguments name, and an unchanged receipt for each of their manifests.

    Raises UsageError as a pull does, and Unreadable for a new or changed manifest and for a manifest with
    queries.
    """
    require_some(wanted, every=every)
    datasets = described_datasets(catalog, namespace)
    datasets_read = find_datasets(datasets, wanted)
    added = []
    for known in datasets_read:
        dataset, stored = known.dataset, dataset_of(known.table)
        if dataset.written is None:
            continue
        findings = check_manifest(dataset, lints(dataset, partial(output_here, known)))
        if stored is None or not stored.dataset.has_manifest_of(dataset):
            raise Unreadable("a manifest to add")
        added.append(Added(dataset.name, None, "unchanged", findings))
    names = [known.name for known in datasets_read]
    others = datasets.all_or_errors() if every else {}
    if any(isinstance(entry, BackstoryError) for entry in others.values()):
        raise Unreadable("a table whose metadata cannot be read")
    return added, list(dict.fromkeys([*names, *others]))


def ask_source(files: TableReader, request: IngestRequest) -> Poll | DatasetReceipt:
    """Fetch from the polling source of a dataset.

    Returns the dataset's receipt if nothing is new. Raises Unreadable, before the fetch, for a dataset that
    needs Spark.
    """
    dataset = dataset_here(files)
    context = _poll_context(files, dataset)
    warn_of_secrets(dataset)
    try:
        poll = ask(dataset, context, request.begin())
    except BackstoryError as error:
        return failed_receipt(dataset, context.head, error)
    if isinstance(poll, DatasetReceipt) or poll.answer.status == "new":
        return poll
    return log_notes(poll.with_warnings(poll.empty_receipt(dataset)))


def _poll_context(files: TableReader, dataset: KnownDataset[TableMetadata]) -> PollContext:
    journal = journal_in_files(files)
    head = Head(journal.newest())
    if files.table.rows != head.next_offset:
        raise Unreadable("rows missing from the newest known commit")
    if not isinstance(files.catalog, EmbeddedCatalog):
        raise Unreadable("a warehouse that is not local")
    if not journal.log_is_complete():
        raise Unreadable("commits that the log lacks")
    has_queries = any(source.preprocess is not None for _, source in dataset.dataset.sources())
    if has_queries and not is_pulled_by(dataset):
        raise Unreadable("queries that have not been checked yet")
    source = dataset.dataset.polling
    is_glob = source is not None and isinstance(source.fetch, FilesGlob)
    blocks = journal.all_blocks() if is_glob or _has_other_manifest(dataset.dataset, head) else []
    return PollContext(head, cache_in(files.catalog.folder, dataset.name), lambda: blocks, lambda: None)
