"""Pull: fetch from a dataset's polling source, and ingest each new file in a commit (section 5)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from backstory.doors.odf import registry
from backstory.doors.odf.committing import (
    DatasetFile,
    Ingestion,
    block_change,
    cache_of,
    event_of,
    head_of,
    head_to_extend,
    note_of,
    write_log,
)
from backstory.doors.odf.delivery import deliver_file
from backstory.doors.odf.manifest.events import AddPushSource, Csv
from backstory.doors.odf.manifest.merge import Append
from backstory.doors.odf.polling import (
    IngestRequest,
    Poll,
    PollContext,
    ask,
    failed_receipt,
    log_notes,
    unchanged_receipt,
    warn_of_secrets,
)
from backstory.doors.odf.preprocess import refuse_forbidden_queries
from backstory.doors.odf.receipts import DatasetReceipt, Head, PullRun, sum_up
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.deliver import Plan, deliver
from backstory.errors import BackstoryError, Refused
from backstory.journal.chain import read_all_blocks
from backstory.model.change import Commit
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.sources.savepoint import forget
from backstory.sources.source import FetchedFile
from backstory.stores.iceberg.store import IcebergStore

log = structlog.get_logger()


def pull(
    store: IcebergStore, dataset: RegisteredDataset, request: IngestRequest, before: Poll | None = None
) -> DatasetReceipt:
    """Pull a dataset.

    The receipt contains the error, if there is one. `before` is a poll that was made without the store. The
    pull continues from it.
    """
    run = before.run if before else request.run()
    try:
        return log_notes(_pull(store, dataset, request, run, before))
    except BackstoryError as error:
        return failure_of(store, dataset, error)


def failure_of(store: IcebergStore, dataset: RegisteredDataset, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that is unchanged because of an error."""
    head = Head()
    with suppress(BackstoryError):
        head = head_of(store, dataset)
    return failed_receipt(dataset, head, error)


def _pull(
    store: IcebergStore, dataset: RegisteredDataset, request: IngestRequest, run: PullRun, before: Poll | None
) -> DatasetReceipt:
    poll: Poll | DatasetReceipt | None = before
    if poll is None:
        warn_of_secrets(dataset)
        head = head_to_extend(store, dataset)
        if request.set_watermark is not None:
            return _set_watermark(store, dataset, request.set_watermark, run)
        poll = ask(dataset, _poll_context(store, dataset, head), request, run)
    if isinstance(poll, DatasetReceipt):
        return poll
    receipts: list[DatasetReceipt] = []
    try:
        for receipt in _ingest(store, dataset, poll):
            receipts.append(receipt)  # noqa: PERF402 - receipts before an error count
    except BackstoryError as error:
        unchanged = failure_of(store, dataset, error)
        summary = replace(sum_up(receipts, unchanged), status="failed", error=error)
    else:
        summary = sum_up(receipts, poll.empty_receipt(dataset))
    if not run.dry_run and summary.status != "updated":
        write_log(store, dataset.name)  # an earlier run may have ended before it wrote its log
    if run.dry_run and len(receipts) > 1:
        return poll.with_warnings(
            summary, f"Each of the {len(receipts)} files was compared with the dataset as it is now."
        )
    return poll.with_warnings(summary)


def _poll_context(store: IcebergStore, dataset: RegisteredDataset, head: Head) -> PollContext:
    return PollContext(
        head,
        cache_of(store, dataset.name),
        lambda: () if dataset.table is None else read_all_blocks(store, dataset.table),
        lambda: refuse_forbidden_queries(store, dataset.name, dataset.dataset),
    )


def _ingest(store: IcebergStore, dataset: RegisteredDataset, poll: Poll) -> Iterator[DatasetReceipt]:
    """Yield each file's receipt after its commit, so that an interrupt keeps earlier commits (R79)."""
    after, run = poll.head.polls, poll.run
    for fetched in poll.answer.deliveries:
        if fetched.taken_up is not None:
            log.info(f"using the download of {iso(fetched.taken_up)}; a refetch downloads it again")
        reload = _reloader(store, dataset)
        receipt, committed = deliver_file(store, dataset.name, reload, poll.source, fetched, run, after=after)
        after += committed
        if not run.dry_run:
            forget(fetched, poll.context)
        yield receipt


def _reloader(store: IcebergStore, dataset: RegisteredDataset) -> Callable[[], RegisteredDataset]:
    """A function that loads the current dataset, or returns the given dataset if it is not added."""
    return (lambda: dataset) if dataset.table is None else (lambda: registry.reload(store, dataset.name))


def _set_watermark(
    store: IcebergStore, dataset: RegisteredDataset, watermark: datetime, run: PullRun
) -> DatasetReceipt:
    """Set the watermark manually, without a poll. It may only move forward (decision O20)."""
    if dataset.table is None:
        raise Refused("no-dataset", f"{dataset.name} has no rows yet.", "Pull it first.")
    return deliver(store, WatermarkDelivery(dataset.name, watermark, run))


@dataclass(frozen=True, slots=True)
class WatermarkDelivery:
    """A watermark that was set manually, as a delivery of its dataset."""

    name: TableName
    watermark: datetime
    run: PullRun

    @property
    def tables(self) -> Sequence[TableName]:
        """The dataset's table name."""
        return [self.name]

    @contextmanager
    def open_plan(self, store: IcebergStore) -> Iterator[Plan[DatasetReceipt]]:
        """Plan a block without rows. There is no change if the watermark is the same."""
        dataset = registry.reload(store, self.name)
        head, watermark, name = head_to_extend(store, dataset), self.watermark, dataset.dataset.name
        if head.watermark is not None and watermark < head.watermark:
            raise Refused(
                "watermark-back",
                f"The watermark of {name} is already {iso(head.watermark)}.",
                "A watermark only moves forward.",
            )
        by_hand = AddPushSource(sourceName="watermark", read=Csv(), merge=Append())  # type: ignore[call-arg]
        no_file = FetchedFile(Path(), "--set-watermark", None, None)
        file = DatasetFile(
            store, by_hand, no_file, None, self.run, None, None, None, False, None, lambda: dataset
        )
        if watermark == head.watermark:
            unchanged = unchanged_receipt(dataset, head)
            yield Plan(dataset.table, None, note_of(file), lambda _: unchanged)
            return
        now = max(filter(None, (self.run.system_time, head.system_time)))
        ingestion = Ingestion(file, dataset, head, now)
        change = block_change(ingestion, event_of(ingestion, 0, watermark))

        def finish(committed: Commit | None) -> DatasetReceipt:
            if committed is not None:
                write_log(store, dataset.name)
            return DatasetReceipt(
                name, "updated", watermark=watermark, system_time=now, before=head.watermark
            )

        yield Plan(dataset.table, change, note_of(file), finish, self.run.dry_run)
