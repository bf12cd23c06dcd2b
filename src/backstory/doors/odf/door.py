"""The door's functions for the command line and Python: add, pull, push, list, inspect, verify."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import structlog
from pydantic import TypeAdapter
from pyspark.sql import functions as sf

from backstory.doors.odf import committing, registry
from backstory.doors.odf.adding import add_one
from backstory.doors.odf.delivery import deliver_file
from backstory.doors.odf.inspecting import Inspected, inspect_table, list_entry, unreadable_entry
from backstory.doors.odf.manifest.events import AddPushSource, Append, Csv, Read
from backstory.doors.odf.options import InputFormat
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
from backstory.doors.odf.preprocess import lint_dataset, refuse_forbidden_queries
from backstory.doors.odf.receipts import (
    NO_WATCHER,
    DatasetReceipt,
    Head,
    Watcher,
    report_receipt,
    sum_up,
)
from backstory.doors.odf.registry import (
    Argument,
    KnownDataset,
    RegisteredDataset,
    find_datasets,
    require_some,
)
from backstory.doors.odf.sides import encode_log
from backstory.engine.deliver import Plan, deliver
from backstory.errors import BackstoryError, Failed, Refused, UsageError, option
from backstory.journal.chain import stored_journal
from backstory.journal.verify import Verdict, verify
from backstory.model.change import Commit
from backstory.model.instant import iso
from backstory.model.table import ODF, TableName
from backstory.sources.savepoint import forget
from backstory.sources.source import FetchedFile
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import IcebergStore
from backstory.strategies.events.terms import EventEncoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger()


def pull(
    store: IcebergStore, dataset: RegisteredDataset, request: IngestRequest, before: Poll | None = None
) -> DatasetReceipt:
    """Pull a dataset.

    The receipt contains the error, if there is one. `before` is a poll that was made without the store. The
    pull continues from that poll.
    """
    run = before.run if before else request.begin()
    try:
        return log_notes(_pull(store, dataset, run, before))
    except BackstoryError as error:
        return failure_of(store, dataset, error)


def failure_of(store: IcebergStore, dataset: RegisteredDataset, error: BackstoryError) -> DatasetReceipt:
    """The receipt of a dataset that is unchanged because of an error."""
    head = Head()
    with suppress(BackstoryError):
        head = committing.head_of(store, dataset)
    return failed_receipt(dataset, head, error)


def _pull(
    store: IcebergStore, dataset: RegisteredDataset, run: IngestRequest, before: Poll | None
) -> DatasetReceipt:
    poll: Poll | DatasetReceipt | None = before
    if poll is None:
        warn_of_secrets(dataset)
        head = committing.head_to_extend(store, dataset)
        if run.set_watermark is not None:
            if dataset.table is None:
                raise Refused("no-dataset", f"{dataset.name} has no rows yet.", "Pull it first.")
            plan = partial(_plan_watermark, dataset.name, run.set_watermark, run)
            return deliver(store, [dataset.name], plan)
        context = PollContext(
            head,
            committing.cache_of(store, dataset.name),
            lambda: () if dataset.table is None else stored_journal(store, dataset.table).all_blocks(),
            lambda: refuse_forbidden_queries(store, dataset.name, dataset.dataset),
        )
        poll = ask(dataset, context, run)
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
        committing.write_log(store, dataset.name)  # an earlier run may have ended before it wrote its log
    if run.dry_run and len(receipts) > 1:
        return poll.with_warnings(
            summary, f"Each of the {len(receipts)} files was compared with the dataset as it is now."
        )
    return poll.with_warnings(summary)


def _ingest(store: IcebergStore, dataset: RegisteredDataset, poll: Poll) -> Iterator[DatasetReceipt]:
    """Yield each file's receipt after its commit, so that an interrupt keeps earlier commits (R79)."""
    after, run = poll.head.polls, poll.run

    def current() -> RegisteredDataset:
        return dataset if dataset.table is None else registry.reload(store, dataset.name)

    for fetched in poll.answer.deliveries:
        if fetched.taken_up is not None:
            log.info(f"using the download of {iso(fetched.taken_up)}; a refetch downloads it again")
        file = committing.DatasetFile(store, poll.source, fetched, run, current, after)
        try:
            receipt, committed = deliver_file(file)
        except (Failed, Refused) as error:
            raise _with_age(error, fetched) from None
        after += committed
        if not run.dry_run:
            forget(fetched, poll.context)
        yield receipt


def _with_age(error: BackstoryError, fetched: FetchedFile) -> BackstoryError:
    """The error, with a remedy for a file that is a kept download and not what the source has now."""
    if fetched.taken_up is None:
        return error
    age = f"This is the download of {iso(fetched.taken_up)}"
    again = f"once the source is repaired, use {option('refetch', True)} to fetch it again."
    return error.reword(remedy=f"{error.remedy} {age}; {again}".strip())


@contextmanager
def _plan_watermark(
    name: TableName, watermark: datetime, run: IngestRequest, store: IcebergStore
) -> Iterator[Plan[DatasetReceipt]]:
    """Plan a block without rows, for a watermark that was set manually.

    The watermark may only move forward (decision O20). Nothing changes if the dataset already has this
    watermark.
    """
    dataset = registry.reload(store, name)
    head = committing.head_to_extend(store, dataset)
    if head.watermark is not None and watermark < head.watermark:
        raise Refused(
            "watermark-back",
            f"The watermark of {dataset.dataset.name} is already {iso(head.watermark)}.",
            "A watermark only moves forward.",
        )
    by_hand = AddPushSource(sourceName="watermark", read=Csv(), merge=Append())  # type: ignore[call-arg]
    no_file = FetchedFile(Path(), "--set-watermark", None, None)
    file = committing.DatasetFile(store, by_hand, no_file, run, lambda: dataset)
    if watermark == head.watermark:
        unchanged = unchanged_receipt(dataset, head)
        yield Plan(dataset.table, None, committing.note_of(file), lambda _: unchanged)
        return
    now = max(filter(None, (run.now, head.system_time)))
    ingestion = committing.Ingestion(file, dataset, head, now)
    change = committing.block_change(ingestion, committing.event_of(ingestion, 0, watermark))

    def finish(committed: Commit | None) -> DatasetReceipt:
        if committed is not None:
            committing.write_log(store, dataset.name)
        return DatasetReceipt(
            dataset.dataset.name, "updated", watermark=watermark, system_time=now, before=head.watermark
        )

    yield Plan(dataset.table, change, committing.note_of(file), finish, run.dry_run)


FORMATS: Final[tuple[str, ...]] = get_args(InputFormat)
# Endings that differ from the names of their formats.
ENDINGS: Final = {"jsonl": "ndjson", "zip": "esrishapefile"}


@dataclass(frozen=True, slots=True)
class PushedFiles:
    """Files to ingest in this order, and the options that their names do not contain."""

    files: Sequence[Path]
    source_name: str | None = None
    event_time: datetime | None = None
    input_format: str | None = None


def push(
    store: IcebergStore, dataset: RegisteredDataset, pushed: PushedFiles, request: IngestRequest
) -> DatasetReceipt:
    """Ingest files into a dataset.

    The first error ends the push and is reported in the receipt. Commits of earlier files are kept. Raises
    UsageError for an unknown source or format, before any file is ingested.
    """
    run = request.begin()
    receipts: list[DatasetReceipt] = []
    head = committing.head_of(store, dataset)
    unchanged = unchanged_receipt(dataset, head)
    sources = sources_of(dataset, pushed)
    if sources is None:
        return replace(unchanged, status="disabled", hint="the push source is disabled")
    for path, source in zip(pushed.files, sources, strict=True):
        try:
            refuse_forbidden_queries(store, dataset.name, dataset.dataset)
            if not path.is_file():
                raise Failed("not-found", f"There is no file {path}.", "Check its name.")
            fetched = FetchedFile(path, path.name, pushed.event_time, None)
            current = partial(registry.reload, store, dataset.name)
            receipt, _ = deliver_file(committing.DatasetFile(store, source, fetched, run, current))
        except BackstoryError as error:
            return replace(sum_up(receipts, failure_of(store, dataset, error)), status="failed", error=error)
        receipts.append(log_notes(receipt))
    if not run.dry_run and all(receipt.status == "up-to-date" for receipt in receipts):
        committing.write_log(store, dataset.name)  # an earlier run may have ended before it wrote its log
    return replace(sum_up(receipts, unchanged), before=head.watermark)


def sources_of(dataset: RegisteredDataset, pushed: PushedFiles) -> list[AddPushSource] | None:
    """The push source for each file, or None if it is disabled.

    A dataset without sources appends all rows, with a source named `auto` (section 3.6, B69). It reads each
    file in the format that its name shows.
    """
    known, name = dataset.dataset, pushed.source_name
    if name is None and len(known.push) == 1:
        name = next(iter(known.push))
    wanted = name or "default"
    if wanted in known.disabled_push:
        return None
    if wanted in known.push:
        return [_read_as(known.push[wanted], pushed.input_format)] * len(pushed.files)
    if known.push or known.polling is not None:
        raise UsageError(
            "no-source",
            f"The dataset {known.name} has no push source {wanted}.",
            f"It has {', '.join(known.push) or 'a polling source only: use `backstory pull`'}.",
        )
    formats = [pushed.input_format or _format_of(path) for path in pushed.files]
    auto = {"sourceName": "auto", "merge": {"kind": "Append"}}
    return [AddPushSource.model_validate({**auto, "read": _reading(format_)}) for format_ in formats]


def _reading(format_: str) -> dict[str, object]:
    if format_ not in FORMATS:
        raise UsageError(
            "unknown-format", f"There is no format {format_}.", f"Known are {', '.join(FORMATS)}."
        )
    header = {"header": True, "inferSchema": True} if format_ == "csv" else {}
    return {"kind": format_, **header}


def _format_of(path: Path) -> str:
    ending = path.suffix.lower().removeprefix(".")
    format_ = ENDINGS.get(ending, ending)
    if format_ not in FORMATS:
        raise UsageError(
            "unknown-format",
            f"The name {path.name} does not show the format.",
            f"Use `input_format=FORMAT`; formats are {', '.join(FORMATS)}.",
        )
    return format_


def _read_as(source: AddPushSource, format_: str | None) -> AddPushSource:
    """The source with its schema, but read in this format instead of the manifest's format."""
    if format_ is None or format_ == source.read.kind.lower():
        return source
    schema = source.read.model_dump(by_alias=True, include={"schema_", "ddl_schema"}, exclude_unset=True)
    read = TypeAdapter(Read).validate_python({**schema, **_reading(format_)})
    return source.model_copy(update={"read": read})


def pull_all(
    store: IcebergStore,
    wanted: Sequence[Argument],
    request: IngestRequest,
    *,
    namespace: str = ODF,
    every: bool = False,
    watcher: Watcher = NO_WATCHER,
    before: "Sequence[DatasetReceipt | Poll]" = (),
) -> list[DatasetReceipt]:
    """Pull datasets one after the other.

    Each argument is a dataset's name, or a manifest file, which is added first. A failure of one dataset does
    not stop the others. Raises UsageError for an invalid manifest or an unknown name, before anything is
    added or pulled. `before` contains the receipts of other datasets in the same run, and a poll of the first
    dataset.
    """
    require_some(wanted, every=every)
    datasets_read = find_datasets(registry.stored_datasets(store, namespace), wanted)
    manifests = [entry for entry in datasets_read if entry.dataset.written is not None]
    for entry in manifests:
        add_one(store, entry, dry_run=True)
    for entry in manifests:
        watcher.added(add_one(store, entry, dry_run=request.dry_run))
    datasets = [
        entry
        if entry.dataset.written is None or (request.dry_run and entry.table is None)
        else registry.reload(store, entry.name)
        for entry in datasets_read
    ]
    unreadable: dict[TableName, BackstoryError] = {}
    if every:
        known = {entry.name for entry in datasets}
        others = registry.stored_datasets(store, namespace).all_or_errors()
        datasets += [
            entry for name, entry in others.items() if isinstance(entry, KnownDataset) and name not in known
        ]
        unreadable = {name: entry for name, entry in others.items() if isinstance(entry, BackstoryError)}
    receipts = [entry for entry in before if isinstance(entry, DatasetReceipt)]
    is_single = len(receipts) + len(datasets) == 1 and not unreadable
    for name, error in unreadable.items():
        receipts.append(
            report_receipt(DatasetReceipt(name.name, "failed", error=error), watcher, alone=False)
        )
    polls = [entry for entry in before if isinstance(entry, Poll)]
    for dataset in datasets:
        watcher.begun(dataset.dataset.name)
        receipt = pull(store, dataset, request, polls.pop() if polls else None)
        receipts.append(report_receipt(receipt, watcher, alone=is_single))
    return receipts


def events(
    store: IcebergStore, name: str, encoding: str | None = None, *, namespace: str = ODF
) -> "DataFrame":
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
    store: IcebergStore, name: str, pushed: PushedFiles, request: IngestRequest, *, namespace: str = ODF
) -> DatasetReceipt:
    """Push files into a dataset. Raises UsageError if there are no files."""
    if not pushed.files:
        raise UsageError("no-file", "No file is given.", "Name at least one.")
    receipt = push(store, registry.stored_datasets(store, namespace).existing(name), pushed, request)
    if isinstance(receipt.error, UsageError):
        raise receipt.error
    return receipt


def list_datasets(store: IcebergStore, *, namespace: str = ODF) -> list[dict[str, Any]]:
    """The datasets with their kind of source, last pull, number of rows, and watermark.

    The fields of an unreadable dataset are NULL.
    """
    entries = registry.stored_datasets(store, namespace).all_or_errors().items()
    return [
        unreadable_entry(name)
        if isinstance(entry, BackstoryError)
        else list_entry(entry, committing.head_of(store, entry))
        for name, entry in entries
    ]


def inspect(store: IcebergStore, name: str, *, namespace: str = ODF) -> Inspected:
    """A dataset's manifest, schema, lints and head. Raises UsageError for an unknown dataset."""
    dataset = registry.stored_datasets(store, namespace).existing(name)
    return inspect_table(dataset, partial(lint_dataset, store, dataset), committing.head_of(store, dataset))


def newest_rows(store: IcebergStore, dataset: RegisteredDataset, count: int, skip: int) -> "DataFrame":
    """The newest `count` rows by offset, except the last `skip` rows, oldest first."""
    assert dataset.table is not None
    rows = store.spark.table(store.sql_name(dataset.name))
    offset = sf.col(quote(dataset.columns.vocab.offset_column))
    end = committing.head_of(store, dataset).next_offset - skip
    return rows.where((offset >= end - count) & (offset < end)).orderBy(offset)


def verify_dataset(store: IcebergStore, name: str, *, namespace: str = ODF) -> Verdict:
    """Verify a dataset's rows against its commits. Raises UsageError for an unknown dataset."""
    return verify(store, registry.stored_datasets(store, namespace).existing(name).name, registry.renamings)
