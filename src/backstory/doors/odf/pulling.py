"""Pull: ask a dataset's source, and ingest what is new, a commit for each file (section 5)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from backstory.doors.odf import registry
from backstory.doors.odf.committing import block_change, event_of, note_of, write_log
from backstory.doors.odf.delivery import deliver_file
from backstory.doors.odf.ingestion import (
    DatasetReceipt,
    Head,
    Ingestion,
    PullRun,
    SourceFile,
    cache_of,
    head_of,
    head_to_extend,
    sum_up,
)
from backstory.doors.odf.manifest.events import AddPushSource, Csv
from backstory.doors.odf.manifest.merge import Append
from backstory.doors.odf.polling import (
    Poll,
    PollContext,
    RunRequest,
    ask,
    failed_receipt,
    log_notes,
    warn_of_secrets,
)
from backstory.doors.odf.preprocess import refuse_forbidden_queries
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.deliver import Plan, deliver
from backstory.errors import BackstoryError, Refused
from backstory.journal.log_table import read_all_blocks
from backstory.model.change import Commit
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.sources.savepoint import forget
from backstory.sources.source import FetchedFile
from backstory.stores.iceberg.store import Store

log = structlog.get_logger()


def pull(
    store: Store, dataset: RegisteredDataset, asked: RunRequest, before: Poll | None = None
) -> DatasetReceipt:
    """Ask the polling source of a dataset; its error, if there is one, stands in the receipt.

    `before` is what was asked without the store; what came of it goes on from there.
    """
    run = before.run if before else asked.run()
    try:
        return log_notes(_pull(store, dataset, asked, run, before))
    except BackstoryError as error:
        return failure_of(store, dataset, error)


def failure_of(store: Store, dataset: RegisteredDataset, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that stays as it is."""
    head = Head()
    with suppress(BackstoryError):
        head = head_of(store, dataset)
    return failed_receipt(dataset, head, error)


def _pull(
    store: Store, dataset: RegisteredDataset, asked: RunRequest, run: PullRun, before: Poll | None
) -> DatasetReceipt:
    poll: Poll | DatasetReceipt | None = before
    if poll is None:
        warn_of_secrets(dataset)
        head = head_to_extend(store, dataset)
        if asked.set_watermark is not None:
            return _set_watermark(store, dataset, asked.set_watermark, run)
        poll = ask(dataset, _facts(store, dataset, head), asked, run)
    if isinstance(poll, DatasetReceipt):
        return poll
    receipts: list[DatasetReceipt] = []
    try:
        for receipt in _ingest(store, dataset, poll):
            receipts.append(receipt)  # noqa: PERF402 - what was committed before an error counts
    except BackstoryError as error:
        standing = failure_of(store, dataset, error)
        summary = replace(sum_up(receipts, standing), status="failed", error=error)
    else:
        summary = sum_up(receipts, poll.empty_receipt(dataset))
    if not run.dry_run and summary.status != "updated":
        write_log(store, dataset.name)  # a run before may have ended between its commit and its log
    if run.dry_run and len(receipts) > 1:
        return poll.with_warnings(
            summary, f"Each of the {len(receipts)} files was compared with the dataset as it is now."
        )
    return poll.with_warnings(summary)


def _facts(store: Store, dataset: RegisteredDataset, head: Head) -> PollContext:
    return PollContext(
        head,
        cache_of(store, dataset.name),
        lambda: () if dataset.table is None else read_all_blocks(store, dataset.table),
        lambda: refuse_forbidden_queries(store, dataset.name, dataset.dataset),
    )


def _ingest(store: Store, dataset: RegisteredDataset, found: Poll) -> Iterator[DatasetReceipt]:
    """Each file's receipt, as soon as it is committed: an interrupt or an error keeps those before (R79)."""
    after, run = found.head.polls, found.run
    for fetched in found.answer.deliveries:
        if fetched.taken_up is not None:
            log.info(f"using the download of {iso(fetched.taken_up)}; a refetch asks the source again")
        reload = _reloader(store, dataset)
        receipt, committed = deliver_file(
            store, dataset.name, reload, found.source, fetched, run, after=after
        )
        after += committed
        if not run.dry_run:
            forget(fetched, found.asking)
        yield receipt


def _reloader(store: Store, dataset: RegisteredDataset) -> Callable[[], RegisteredDataset]:
    """A function that reads the dataset as it is when called; a dataset not yet added stays as given."""
    return (lambda: dataset) if dataset.table is None else (lambda: registry.reload(store, dataset.name))


def _set_watermark(
    store: Store, dataset: RegisteredDataset, watermark: datetime, run: PullRun
) -> DatasetReceipt:
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
    def open_plan(self, store: Store) -> Iterator[Plan[DatasetReceipt]]:
        """A block without rows; none if the watermark is the one that there is."""
        dataset = registry.reload(store, self.name)
        head, watermark, name = head_to_extend(store, dataset), self.watermark, dataset.dataset.name
        if head.watermark is not None and watermark < head.watermark:
            raise Refused(
                "watermark-back",
                f"The watermark of {name} is already {iso(head.watermark)}.",
                "A watermark only moves forward.",
            )
        by_hand = AddPushSource(sourceName="watermark", read=Csv(), merge=Append())  # type: ignore[call-arg]
        nothing = FetchedFile(Path(), "--set-watermark", None, None)
        work = SourceFile(
            store, by_hand, nothing, None, self.run, None, None, None, False, None, lambda: dataset
        )
        if watermark == head.watermark:
            same = DatasetReceipt(name, "up-to-date", watermark=watermark, system_time=head.system_time)
            yield Plan(dataset.table, None, note_of(work), lambda _: same)
            return
        now = max(filter(None, (self.run.system_time, head.system_time)))
        meeting = Ingestion(work, dataset, head, now)
        change = block_change(meeting, event_of(meeting, 0, watermark))

        def ended(committed: Commit | None) -> DatasetReceipt:
            if committed is not None:
                write_log(store, dataset.name)
            return DatasetReceipt(
                name, "updated", watermark=watermark, system_time=now, before=head.watermark
            )

        yield Plan(dataset.table, change, note_of(work), ended, self.run.dry_run)
