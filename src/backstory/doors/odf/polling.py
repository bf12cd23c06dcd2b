"""Ask the polling source of a dataset what it has that is new (section 5); no row of it is read yet.

The fetch step of a manifest in the words of `sources` (sections 1.3 and 1.4).
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from backstory.doors.odf.ingestion import DatasetReceipt, Head, PullRun
from backstory.doors.odf.lints import secrets
from backstory.doors.odf.manifest import events as manifest
from backstory.doors.odf.manifest.events import FilesGlob, SetPollingSource
from backstory.doors.odf.registry import KnownDataset
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import Block
from backstory.model.change import BY_OTHERS
from backstory.settings import Rights
from backstory.sources import fetching
from backstory.sources.fetching import fetch
from backstory.sources.source import (
    Answer,
    Asking,
    EventTime,
    FetchStep,
    GlobOfFiles,
    MetadataTime,
    PathTime,
    Progress,
    Resource,
    SystemTime,
    silent,
)
from backstory.stores.port import TableLike


def source_of(step: manifest.Fetch) -> FetchStep:
    """What the step asks for; UsageError `unsupported-source` for a kind that is parsed only (O12)."""
    match step:
        case manifest.Url():
            return Resource(
                step.url,
                tuple((header.name, header.value) for header in step.headers),
                _event_time(step.event_time),
                once=step.cache is not None,
                always=step.refetch is manifest.Refetch.ALWAYS,
            )
        case manifest.FilesGlob():
            return GlobOfFiles(
                step.path,
                _event_time(step.event_time),
                by_event_time=step.order is manifest.Order.BY_EVENT_TIME,
                once=step.cache is not None,
            )
    raise UsageError(
        "unsupported-source",
        f"Sources of kind {step.kind} cannot be pulled.",
        "Export its data to files or to an HTTP server, and fetch them with Url or FilesGlob.",
    )


def check(step: manifest.Fetch) -> None:
    """Raise UsageError if the step's scheme or event time cannot be had; other kinds are passed over."""
    if isinstance(step, manifest.Url | manifest.FilesGlob):
        fetching.check(source_of(step))


def _event_time(told: manifest.EventTime | None) -> EventTime | None:
    match told:
        case manifest.FromMetadata():
            return MetadataTime()
        case manifest.FromSystemTime():
            return SystemTime()
        case manifest.FromPath():
            return PathTime(told.pattern, told.timestamp_format)
    return None


log = structlog.get_logger()

NO_SOURCE = "Dataset does not specify a polling source"
SWITCHED_OFF = "the polling source is disabled"
UNCACHEABLE = "use --fetch-uncacheable to update"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the caller of a pull or a push asks for."""

    system_time: datetime | None = None
    fetch_uncacheable: bool = False
    refetch: bool = False
    set_watermark: datetime | None = None
    run_id: str | None = None
    dry_run: bool = False
    rights: Rights = field(default_factory=Rights)
    progress: Progress = field(default=silent)

    def run(self) -> PullRun:
        """The run that this begins: its system time is now, unless another was asked for."""
        return PullRun(
            self.system_time or datetime.now(UTC),
            self.run_id,
            self.dry_run,
            self.rights,
            lambda stage: self.progress(stage, 0, None),
        )


@dataclass(frozen=True, slots=True)
class PollContext:
    """What must be known of a dataset before its source is asked, whoever reads it.

    `cache` is the folder of its downloads, `logged` gives all of its blocks, and `allow_queries` raises
    UsageError if its manifest has a query that it must not have.
    """

    head: Head
    cache: Path
    logged: Callable[[], Iterable[Block]]
    allow_queries: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Poll:
    """One request to a polling source: its run, the answer, and the head of the dataset at that time."""

    run: PullRun
    head: Head
    source: SetPollingSource
    asking: Asking
    answer: Answer

    def empty_receipt(self, dataset: KnownDataset[TableLike]) -> DatasetReceipt:
        """The receipt where the answer has nothing new."""
        receipt = unchanged_receipt(dataset, self.head)
        if self.answer.status == "uncacheable":
            return replace(receipt, status="uncacheable", hint=UNCACHEABLE)
        return receipt

    def with_warnings(self, receipt: DatasetReceipt, *more: str) -> DatasetReceipt:
        """The receipt with the warnings of the source, and more notes."""
        return replace(
            receipt, notes=(*self.answer.warnings, *receipt.notes, *more), before=self.head.watermark
        )


def ask(
    dataset: KnownDataset[TableLike], facts: PollContext, asked: RunRequest, run: PullRun
) -> Poll | DatasetReceipt:
    """Ask the source; the receipt of a dataset that has none which may be asked."""
    source = dataset.dataset.polling
    if source is None or dataset.dataset.polling_disabled:
        why = NO_SOURCE if source is None else SWITCHED_OFF
        return replace(unchanged_receipt(dataset, facts.head), status="disabled", hint=why)
    facts.allow_queries()
    asking = _asking(dataset, source, facts, asked, run)
    return Poll(run, facts.head, source, asking, fetch(source_of(source.fetch), asking))


def unchanged_receipt(dataset: KnownDataset[TableLike], head: Head) -> DatasetReceipt:
    """The receipt of a dataset that has all there is."""
    name = dataset.dataset.name
    return DatasetReceipt(name, "up-to-date", watermark=head.watermark, system_time=head.system_time)


def failed_receipt(dataset: KnownDataset[TableLike], head: Head, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that stays as it is."""
    return replace(unchanged_receipt(dataset, head), status="failed", error=error)


def warn_of_secrets(dataset: KnownDataset[TableLike]) -> None:
    """Log each secret that stands in the manifest, by its place."""
    for lint in secrets(dataset.dataset):
        log.warning(f"{lint.place}: {lint.message}. {lint.remedy}", dataset=dataset.dataset.name)


def log_notes(receipt: DatasetReceipt) -> DatasetReceipt:
    """The same receipt, once its notes are logged that the engine does not log."""
    for note in receipt.notes:
        if not note.startswith(BY_OTHERS):
            log.warning(note, dataset=receipt.dataset)
    return receipt


def _asking(
    dataset: KnownDataset[TableLike],
    source: SetPollingSource,
    facts: PollContext,
    asked: RunRequest,
    run: PullRun,
) -> Asking:
    head, seen = facts.head, frozenset[str]()
    if isinstance(source.fetch, FilesGlob) and dataset.table is not None and head.block is not None:
        told = (block.event.get("path") for block in facts.logged())
        seen = frozenset(str(path) for path in told if path is not None)
    return Asking(
        system_time=run.system_time,
        folder=dataset.dataset.folder,
        cache=facts.cache,
        environment=os.environ,
        state=head.state_of(source),
        asked_before=head.is_newest_source(source),
        complete=head.is_complete(source),
        seen=seen,
        refetch=asked.refetch,
        fetch_uncacheable=asked.fetch_uncacheable,
        progress=asked.progress,
        unpacked_limit=run.rights.unpacked_limit,
    )
