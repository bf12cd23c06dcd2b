"""Pull: ask a dataset's source, and ingest what is new, a commit for each file (section 5)."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from backstory.doors.odf import registry
from backstory.doors.odf.allowed_queries import refuse_forbidden_queries
from backstory.doors.odf.committing import block_change, event_of, note_of, write_log
from backstory.doors.odf.delivery import deliver_file
from backstory.doors.odf.fetching import source_of
from backstory.doors.odf.lints import secrets
from backstory.doors.odf.manifest.events import AddPushSource, SetPollingSource
from backstory.doors.odf.manifest.fetch import FilesGlob
from backstory.doors.odf.manifest.merge import Append
from backstory.doors.odf.manifest.read import Csv
from backstory.doors.odf.receipts import DatasetReceipt, sum_up
from backstory.doors.odf.registry import Registered
from backstory.doors.odf.work import Head, Meeting, PullRun, Work, cache_of, head_of, head_to_extend
from backstory.engine.deliver import Plan, deliver
from backstory.errors import BackstoryError, Refused
from backstory.journal.log_table import logged
from backstory.model.change import Committed
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.settings import Rights
from backstory.sources.asking import Asking, Progress, silent
from backstory.sources.fetched import Answer, Fetched
from backstory.sources.polling import fetch
from backstory.sources.savepoint import forget
from backstory.stores.iceberg.store import Store

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


def pull(store: Store, dataset: Registered, asked: RunRequest) -> DatasetReceipt:
    """Ask the polling source of a dataset; its error, if there is one, stands in the receipt."""
    run = asked.run()
    try:
        return tell_notes(_pulled(store, dataset, asked, run))
    except BackstoryError as error:
        return failure_of(store, dataset, error)


def failure_of(store: Store, dataset: Registered, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that stays as it is."""
    head = Head()
    with suppress(BackstoryError):
        head = head_of(store, dataset)
    name = dataset.dataset.name
    return DatasetReceipt(name, "failed", watermark=head.watermark, system_time=head.system_time, error=error)


def tell_notes(receipt: DatasetReceipt) -> DatasetReceipt:
    """The same receipt, once its notes were told."""
    for note in receipt.notes:
        log.warning(note, dataset=receipt.dataset)
    return receipt


def _pulled(store: Store, dataset: Registered, asked: RunRequest, run: PullRun) -> DatasetReceipt:
    for lint in secrets(dataset.dataset):
        log.warning(f"{lint.place}: {lint.message}. {lint.remedy}", dataset=dataset.dataset.name)
    head = head_to_extend(store, dataset)
    nothing = DatasetReceipt(
        dataset.dataset.name, "up-to-date", watermark=head.watermark, system_time=head.system_time
    )
    if asked.set_watermark is not None:
        return _marked(store, dataset, asked.set_watermark, run)
    source = dataset.dataset.polling
    if source is None or dataset.dataset.polling_disabled:
        return replace(nothing, status="disabled", hint=NO_SOURCE if source is None else SWITCHED_OFF)
    refuse_forbidden_queries(store, dataset.name, dataset.dataset)
    asking = _asking(store, dataset, source, head, asked, run)
    answer = fetch(source_of(source.fetch), asking)
    uncacheable = replace(nothing, status="uncacheable", hint=UNCACHEABLE)
    asked_in_vain = uncacheable if answer.status == "uncacheable" else nothing
    receipts: list[DatasetReceipt] = []
    try:
        for receipt in _ingested(store, dataset, source, answer, asking, run, after=head.polled):
            receipts.append(receipt)  # noqa: PERF402 - what was committed before an error counts
    except BackstoryError as error:
        before = failure_of(store, dataset, error)
        found = replace(sum_up(receipts, before), status="failed", error=error)
    else:
        found = sum_up(receipts, asked_in_vain)
    if not run.dry_run and found.status != "updated":
        write_log(store, dataset.name)  # a run before may have ended between its commit and its log
    notes = (*answer.warnings, *found.notes)
    if run.dry_run and len(receipts) > 1:
        notes += (f"Each of the {len(receipts)} files was compared with the dataset as it stands now.",)
    return replace(found, notes=notes, before=head.watermark)


def _ingested(
    store: Store,
    dataset: Registered,
    source: SetPollingSource,
    answer: Answer,
    asking: Asking,
    run: PullRun,
    *,
    after: int,
) -> Iterator[DatasetReceipt]:
    """Each file's receipt, as soon as it is committed: an interrupt or an error keeps those before (R79)."""
    for fetched in answer.deliveries:
        if fetched.taken_up is not None:
            log.info(f"using the download of {iso(fetched.taken_up)}; --refetch asks again")
        standing = _standing(store, dataset)
        receipt, committed = deliver_file(store, dataset.name, standing, source, fetched, run, after=after)
        after += committed
        if not run.dry_run:
            forget(fetched, asking)
        yield receipt


def _standing(store: Store, dataset: Registered) -> Callable[[], Registered]:
    """The dataset as it stands whenever it is asked for; one that is not added stays as it is."""
    return (lambda: dataset) if dataset.table is None else (lambda: registry.reload(store, dataset.name))


def _asking(
    store: Store, dataset: Registered, source: SetPollingSource, head: Head, asked: RunRequest, run: PullRun
) -> Asking:
    seen: frozenset[str] = frozenset()
    if isinstance(source.fetch, FilesGlob) and dataset.table is not None and head.block is not None:
        told = (block.event.get("path") for block in logged(store, dataset.table))
        seen = frozenset(str(path) for path in told if path is not None)
    return Asking(
        system_time=run.system_time,
        folder=dataset.dataset.folder,
        cache=cache_of(store, dataset.name),
        environment=os.environ,
        state=head.state_of(source),
        asked_before=head.has_asked(source),
        complete=head.is_complete(source),
        seen=seen,
        refetch=asked.refetch,
        fetch_uncacheable=asked.fetch_uncacheable,
        progress=asked.progress,
        unpacked_limit=run.rights.unpacked_limit,
    )


def _marked(store: Store, dataset: Registered, watermark: datetime, run: PullRun) -> DatasetReceipt:
    """Set the watermark by hand, forward only; nothing is polled (decision O20)."""
    if dataset.table is None:
        raise Refused("no-dataset", f"{dataset.name} has no rows yet.", "Pull it first.")
    return deliver(store, WatermarkDelivery(dataset.name, watermark, run))


@dataclass(frozen=True, slots=True)
class WatermarkDelivery:
    """A watermark that is set by hand, as a delivery of its dataset."""

    name: TableName
    watermark: datetime
    run: PullRun

    @property
    def tables(self) -> Sequence[TableName]:
        """The dataset."""
        return [self.name]

    @contextmanager
    def planned(self, store: Store) -> Iterator[Plan[DatasetReceipt]]:
        """A block without rows; none if the watermark is the one that there is."""
        dataset = registry.reload(store, self.name)
        head, watermark, name = head_to_extend(store, dataset), self.watermark, dataset.dataset.name
        if head.watermark is not None and watermark < head.watermark:
            raise Refused(
                "watermark-back",
                f"The watermark of {name} is {iso(head.watermark)} already.",
                "It only goes forward.",
            )
        by_hand = AddPushSource(sourceName="watermark", read=Csv(), merge=Append())  # type: ignore[call-arg]
        nothing = Fetched(Path(), "--set-watermark", None, None)
        work = Work(store, by_hand, nothing, None, self.run, None, None, None, False, None, lambda: dataset)
        if watermark == head.watermark:
            same = DatasetReceipt(name, "up-to-date", watermark=watermark, system_time=head.system_time)
            yield Plan(dataset.table, None, note_of(work), lambda _: same)
            return
        now = max(filter(None, (self.run.system_time, head.system_time)))
        meeting = Meeting(work, dataset, head, now)
        change = block_change(meeting, event_of(meeting, 0, watermark))

        def ended(committed: Committed | None) -> DatasetReceipt:
            if committed is not None:
                write_log(store, dataset.name)
            return DatasetReceipt(
                name, "updated", watermark=watermark, system_time=now, before=head.watermark
            )

        yield Plan(dataset.table, change, note_of(work), ended, self.run.dry_run)
