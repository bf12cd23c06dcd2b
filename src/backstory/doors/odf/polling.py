"""Ask the polling source of a dataset what it has that is new (section 5); no row of it is read yet."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from backstory.doors.odf.fetching import source_of
from backstory.doors.odf.lints import secrets
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.doors.odf.manifest.fetch import FilesGlob
from backstory.doors.odf.receipts import DatasetReceipt
from backstory.doors.odf.registry import Known
from backstory.doors.odf.work import Head, PullRun
from backstory.errors import BackstoryError
from backstory.journal.chain import Block
from backstory.model.foreign_writes import BY_OTHERS
from backstory.settings import Rights
from backstory.sources.asking import Asking, Progress, silent
from backstory.sources.fetched import Answer
from backstory.sources.polling import fetch
from backstory.stores.port import ToldTable

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
class Facts:
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

    def nothing(self, dataset: Known[ToldTable]) -> DatasetReceipt:
        """The receipt where the answer has nothing new."""
        receipt = unchanged(dataset, self.head)
        if self.answer.status == "uncacheable":
            return replace(receipt, status="uncacheable", hint=UNCACHEABLE)
        return receipt

    def with_warnings(self, receipt: DatasetReceipt, *more: str) -> DatasetReceipt:
        """The receipt with the warnings of the source, and more notes."""
        return replace(
            receipt, notes=(*self.answer.warnings, *receipt.notes, *more), before=self.head.watermark
        )


def ask(dataset: Known[ToldTable], facts: Facts, asked: RunRequest, run: PullRun) -> Poll | DatasetReceipt:
    """Ask the source; the receipt of a dataset that has none which may be asked."""
    source = dataset.dataset.polling
    if source is None or dataset.dataset.polling_disabled:
        why = NO_SOURCE if source is None else SWITCHED_OFF
        return replace(unchanged(dataset, facts.head), status="disabled", hint=why)
    facts.allow_queries()
    asking = _asking(dataset, source, facts, asked, run)
    return Poll(run, facts.head, source, asking, fetch(source_of(source.fetch), asking))


def unchanged(dataset: Known[ToldTable], head: Head) -> DatasetReceipt:
    """The receipt of a dataset that has all there is."""
    name = dataset.dataset.name
    return DatasetReceipt(name, "up-to-date", watermark=head.watermark, system_time=head.system_time)


def failed(dataset: Known[ToldTable], head: Head, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that stays as it is."""
    return replace(unchanged(dataset, head), status="failed", error=error)


def warn_of_secrets(dataset: Known[ToldTable]) -> None:
    """Log each secret that stands in the manifest, by its place."""
    for lint in secrets(dataset.dataset):
        log.warning(f"{lint.place}: {lint.message}. {lint.remedy}", dataset=dataset.dataset.name)


def tell_notes(receipt: DatasetReceipt) -> DatasetReceipt:
    """The same receipt, once its notes are logged that the engine does not log."""
    for note in receipt.notes:
        if not note.startswith(BY_OTHERS):
            log.warning(note, dataset=receipt.dataset)
    return receipt


def _asking(
    dataset: Known[ToldTable], source: SetPollingSource, facts: Facts, asked: RunRequest, run: PullRun
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
