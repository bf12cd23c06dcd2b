"""One delivery of a source becomes one commit of its dataset, or none (sections 2.1 and 5.1)."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from backstory.doors.odf.batch import DeliveredSide, batch, refuse_failed
from backstory.doors.odf.columns import expected_columns
from backstory.doors.odf.committing import block_change, event_of, note_of, rows_change, says_more, write_log
from backstory.doors.odf.data_types import arrow_schema, declared_schema
from backstory.doors.odf.dataset import Source
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.doors.odf.manifest.merge import ChangelogStream, Validation
from backstory.doors.odf.merging import terms_of
from backstory.doors.odf.preparing import prepare_file
from backstory.doors.odf.querying import refuse_failing_rows, run_query
from backstory.doors.odf.receipts import COUNTS, DatasetReceipt
from backstory.doors.odf.refusals import refuse_late, refuse_lost_order, refuse_problems, refuse_retractions
from backstory.doors.odf.registry import Registered
from backstory.doors.odf.sides import Merge
from backstory.doors.odf.staging import read_batch
from backstory.doors.odf.work import (
    Head,
    Meeting,
    PullRun,
    Work,
    cache_of,
    fetch_hash,
    head_to_extend,
    token_of,
)
from backstory.engine.deliver import Plan, deliver
from backstory.engine.planned import Planned
from backstory.engine.staging import StagedRows
from backstory.formats.wrapping.room import translate_disk_errors
from backstory.journal.chain import blocks
from backstory.journal.log_table import read_all_blocks
from backstory.model.change import Change, Committed
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.observe.metrics import timed
from backstory.sources.fetched import Fetched
from backstory.spark.settled import hold_settings
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store
from backstory.strategies.events.happened import Happened
from backstory.strategies.events.plan import EVENTS
from backstory.strategies.events.terms import EventTerms, Moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deliver_file(
    store: Store,
    name: TableName,
    dataset: Callable[[], Registered],
    source: Source,
    fetched: Fetched,
    run: PullRun,
    *,
    after: int | None = None,
) -> tuple[DatasetReceipt, bool]:
    """Ingest one file; the receipt, and whether there was a commit: there is none when nothing changed.

    `dataset` gives the dataset of that name as it stands, `after` is how many polls it had taken in when
    its source was asked. Raises Refused for rows that would corrupt the log, and TryAgain if other
    writers always came first, or if the disk is full.
    """
    with ExitStack() as held:
        held.enter_context(translate_disk_errors(fetched.name))
        with timed("decode"):
            read, content = _read(store, dataset(), source, fetched, run, held)
        frame = None if read is None else read.frame
        if frame is not None and source.preprocess is not None:
            run.stage("Preprocessing data")
            frame = held.enter_context(run_query(store, frame, source.preprocess, name.schema))
        declared = declared_schema(source.read) is not None
        token = token_of(source, fetched, run)
        work = Work(store, source, fetched, after, run, token, read, frame, declared, content, dataset)
        receipt, committed = deliver(store, FileDelivery(name, work))
        if committed:
            write_log(store, name)
        return receipt, committed


@dataclass(frozen=True, slots=True)
class FileDelivery:
    """A file that was read, as a delivery of its dataset; the result says whether there was a commit."""

    name: TableName
    work: Work

    @property
    def tables(self) -> Sequence[TableName]:
        """The dataset."""
        return [self.name]

    @contextmanager
    def planned(self, store: Store) -> Iterator[Plan[tuple[DatasetReceipt, bool]]]:
        """Compare the rows with the dataset as it stands."""
        work, dataset = self.work, self.work.dataset()
        head = head_to_extend(store, dataset)
        note = note_of(work)
        if _is_outrun(work, dataset, head) or _has_run(work, dataset):
            known = _receipt(dataset, head, head.system_time)
            yield Plan(dataset.table, None, note, lambda _: (known, False))
            return
        now = work.run.system_time
        notes = [] if dataset.table is None else list(dataset.table.foreign_writes)
        if head.system_time is not None and now < head.system_time:
            notes.append(
                f"The system time {iso(now)} was raised to {iso(head.system_time)}, the newest one of the "
                "dataset."
            )
            now = head.system_time
        meeting = Meeting(work, dataset, head, now)
        with _compared(meeting) as (change, receipt):
            told = replace(receipt, notes=(*notes, *receipt.notes))

            def ended(committed: Committed | None) -> tuple[DatasetReceipt, bool]:
                return told, committed is not None

            yield Plan(dataset.table, change, note, ended, work.run.dry_run)


@contextmanager
def _compared(meeting: Meeting) -> Iterator[tuple[Change | None, DatasetReceipt]]:
    work, head = meeting.work, meeting.head
    if work.frame is not None and not _repeats(work, head):
        with _merged(meeting, work.frame) as found:
            yield found
        return
    event = event_of(meeting, 0, head.watermark)
    change = block_change(meeting, event) if says_more(event, head) else None
    yield change, _receipt(meeting.dataset, head, meeting.now)


def _read(
    store: Store, dataset: Registered, source: Source, fetched: Fetched, run: PullRun, held: ExitStack
) -> tuple[StagedRows | None, str | None]:
    """The rows of a file, while `held` is open, and of a strict changelog a digest.

    There are none, and no columns, in a file without a byte whose columns nobody declared.
    """
    run.stage("Preparing data")
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="backstory-odf-")))
    steps = source.prepare if isinstance(source, SetPollingSource) else ()
    logs = cache_of(store, dataset.name)
    ready = prepare_file(fetched.path, fetched.name, steps, folder, rights=run.rights, logs=logs)
    run.stage("Reading data")
    content = None
    if isinstance(source.merge, ChangelogStream) and source.merge.validation is Validation.STRICT:
        with ready.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha3_256").hexdigest()
    declared = declared_schema(source.read)
    schema = arrow_schema(declared) if declared else None
    expected = expected_columns(dataset.dataset, source)
    queried = source.preprocess is not None
    read = read_batch(store, ready, source.read, schema, folder, expected, held=held, queried=queried)
    return read, content


def _is_outrun(work: Work, dataset: Registered, head: Head) -> bool:
    """Whether another pull was faster: it may have brought the same or something newer.

    The next pull asks from there, or of another place, if the manifest names one by now.
    """
    if dataset.table is None or work.after is None:
        return False
    moved = fetch_hash(dataset.dataset.polling) != fetch_hash(work.source)
    state = work.fetched.state
    return moved or head.polled != work.after or (state is not None and head.state_of(work.source) == state)


def _has_run(work: Work, dataset: Registered) -> bool:
    """Whether this run committed the file before (R81): the log knows of runs whose snapshots expired."""
    token = work.token
    if token is None or dataset.table is None:
        return False
    told = blocks(dataset.table)
    if not told or told[-1].sequence:
        told = read_all_blocks(work.store, dataset.table)
    return any(block.event.get("token") == token for block in told)


def _repeats(work: Work, head: Head) -> bool:
    """Whether a changelog has the content of the one before (V7)."""
    contents = head.event.get("contents") or {}
    return work.content is not None and contents.get(work.source_name) == work.content


@contextmanager
def _merged(meeting: Meeting, frame: "DataFrame") -> Iterator[tuple[Change | None, DatasetReceipt]]:
    work, dataset, head = meeting.work, meeting.dataset, meeting.head
    work.run.stage("Merging data")
    columns = dataset.columns
    inferred = not work.declared and work.source.preprocess is None
    with hold_settings(work.store.session):
        arrived = batch(frame, work.source, columns, dataset.expected, inferred=inferred)
    refuse_lost_order(work)
    late = refuse_late(work, head)
    terms = terms_of(work.source.merge, columns.time, columns.encoding, timed=arrived.timed)
    with ExitStack() as held:
        with timed("plan"), translate_faults(dataset.name), refuse_failing_rows():
            fallback = _in_column(work.fetched.event_time or meeting.now, arrived)
            moment = Moment(meeting.now, fallback, _in_column(head.watermark, arrived), head.next_offset)
            merge = Merge(work.store, dataset, work.read, arrived, terms, moment, held)
            planned = held.enter_context(merge.planned())
            refuse_failed(planned.sums.counts, arrived.required, columns.time)
            found = Happened.of(planned.sums)
            refuse_problems(found, work.fetched.name)
            notes = late + refuse_retractions(found, terms)
        held.enter_context(translate_faults(dataset.name))
        held.enter_context(refuse_failing_rows())
        change = held.enter_context(_change(meeting, arrived, planned, found, terms))
        yield change, replace(_receipt(dataset, head, meeting.now, found), notes=tuple(notes))


@contextmanager
def _change(
    meeting: Meeting, arrived: DeliveredSide, planned: Planned, found: Happened, terms: EventTerms
) -> Iterator[Change | None]:
    """None if neither the log nor what is known of the source changes; in a dry run the rows are counted."""
    if meeting.work.run.dry_run:
        yield Change(+found.counts) if found.rows else None
        return
    event = event_of(meeting, found.rows, meeting.head.watermark_after(found.newest))
    if found.rows:
        meeting.work.run.stage("Committing data")
        with rows_change(meeting, event, arrived, planned.rows(EVENTS), found, terms) as change:
            yield change
    elif says_more(event, meeting.head) or (meeting.dataset.schema is None and arrived.known):
        yield block_change(meeting, event, arrived if arrived.known else None)
    else:
        yield None


def _in_column(instant: datetime | None, arrived: DeliveredSide) -> datetime | date | None:
    """An instant as the event-time column has it."""
    return instant.date() if instant is not None and arrived.dated else instant


def _receipt(
    dataset: Registered, head: Head, now: datetime | None, found: Happened | None = None
) -> DatasetReceipt:
    counts = {name: found.counts[name] if found else 0 for name in COUNTS}
    if found is None or not found.rows:
        return DatasetReceipt(dataset.dataset.name, "up-to-date", counts, None, head.watermark, now)
    span = (head.next_offset, head.next_offset + found.rows - 1)
    return DatasetReceipt(
        dataset.dataset.name, "updated", counts, span, head.watermark_after(found.newest), now
    )
