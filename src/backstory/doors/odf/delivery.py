"""One delivery of a source becomes one commit of its dataset, or none (sections 2.1 and 5.1).

What a delivery is refused for, in words, with up to ten keys and the remedy (sections 2.3 to 2.6).
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backstory.doors.odf.batch import DeliveredSide, delivered_side, refuse_failed
from backstory.doors.odf.columns import typed_columns
from backstory.doors.odf.committing import (
    block_change,
    event_of,
    note_of,
    records_more,
    rows_change,
    write_log,
)
from backstory.doors.odf.data_types import arrow_schema, declared_schema
from backstory.doors.odf.file_rows import prepare_file, read_batch
from backstory.doors.odf.ingestion import (
    COUNTS,
    DatasetReceipt,
    Head,
    Ingestion,
    PullRun,
    SourceFile,
    cache_of,
    fetch_hash,
    head_to_extend,
    token_of,
)
from backstory.doors.odf.manifest.dataset import DatasetSource
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.doors.odf.manifest.merge import (
    ChangelogStream,
    OnLate,
    Snapshot,
    UpsertStream,
    Validation,
    terms_of,
)
from backstory.doors.odf.preprocess import keeps_order, refuse_failing_rows, run_query
from backstory.doors.odf.registry import RegisteredDataset
from backstory.doors.odf.sides import LogMerge
from backstory.engine.deliver import Plan, deliver
from backstory.engine.plans import PlanResult
from backstory.engine.staging import StagedRows
from backstory.errors import Refused, UsageError
from backstory.formats.wrapping.room import translate_disk_errors
from backstory.journal.chain import blocks
from backstory.journal.log_table import read_all_blocks
from backstory.model.change import Change, Commit, exceeds
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.observe.metrics import time_stage
from backstory.sources.source import FetchedFile
from backstory.spark.session_settings import hold_settings
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store
from backstory.strategies.events.plan import EVENTS, EventSummary
from backstory.strategies.events.terms import (
    ABSENT,
    CONFLICTING,
    KNOWN_CONFLICT,
    NULL_KEY,
    NULL_SEQUENCE,
    PRESENT,
    TOO_MANY_RETRACTED,
    UNLIKE,
    UNPAIRED,
    WRONG_OP,
    EventTerms,
    Moment,
    Strategy,
)

# What it is, and what to do.
PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    NULL_KEY: (
        "have no value in the primary key",
        "Nothing was written; filter them in preprocess, or choose another primaryKey.",
    ),
    WRONG_OP: (
        "have an operation that the strategy does not know",
        "Nothing was written; 0 and 3 add, 1 removes, and in a changelog 2 begins a correction.",
    ),
    NULL_SEQUENCE: ("have no value in sequenceColumn", "Nothing was written; give each row a value there."),
    CONFLICTING: (
        "share a primary key with a row of different content",
        "Nothing was written; widen the primaryKey, or keep one of the rows in preprocess.",
    ),
    KNOWN_CONFLICT: (
        "have a known primary key but different content",
        "Nothing was written; onConflict: ignore drops such rows, correct (with encoding: op) corrects.",
    ),
    PRESENT: ("add a record that exists already (V3)", "Nothing was written; send -C and +C to change it."),
    ABSENT: (
        "retract or correct a record that does not exist (V4)",
        "Nothing was written; send what is missing.",
    ),
    UNLIKE: (
        "retract or correct a record that has changed since (V4)",
        "Nothing was written; -R and -C must repeat the stored record, event time included.",
    ),
    UNPAIRED: (
        "are a -C or +C without its other half next to it (V5)",
        "Nothing was written; send both, one after the other.",
    ),
}
MANY_RETRACTED: Final = 0.5


def refuse_problems(found: EventSummary, name: str) -> None:
    """Raises Refused for the first problem that rows of the file `name` have."""
    for problem, (what, remedy) in PROBLEMS.items():
        if count := found.problems[problem]:
            rows = f"{count} row{'' if count == 1 else 's'} of {name}"
            raise Refused(problem, f"{rows} {what}.", remedy, found.keys(problem))


def refuse_retractions(found: EventSummary, terms: EventTerms) -> list[str]:
    """A warning where a snapshot retracts more than half; Refused where it retracts more than it may."""
    gone, counts = found.counts["retracted"], found.counts
    if terms.strategy is not Strategy.SNAPSHOT or not gone:
        return []
    stored = gone + counts["corrected"] + counts["unchanged"]
    told = f"The snapshot retracts {gone} of {stored} records."
    if terms.max_retract is not None and exceeds(gone, terms.max_retract, stored):
        raise Refused(
            TOO_MANY_RETRACTED,
            told,
            f"Nothing was written; maxRetract is {terms.max_retract:g}. Raise it if these records are "
            "really gone.",
            found.retracted_keys(),
        )
    return [told] if exceeds(gone, MANY_RETRACTED, stored) else []


def refuse_late(work: SourceFile, head: Head) -> list[str]:
    """A warning for a snapshot that is older than the last one; Refused where the manifest says so.

    One that is pushed without a time is of its run's: others may have come while it waited for them.
    """
    merge, time, last = work.source.merge, work.fetched.event_time, head.snapshot_time
    if time is None and work.after is None:
        time, last = work.run.system_time, head.system_time
    if not isinstance(merge, Snapshot) or time is None or last is None or time >= last:
        return []
    told = f"The snapshot of {iso(time)} is older than the last one, of {iso(last)}."
    if merge.on_late_snapshot is OnLate.ERROR:
        raise Refused("late-snapshot", told, "Ingest snapshots in order, or set onLateSnapshot: warn.")
    return [told]


def refuse_lost_order(work: SourceFile) -> None:
    """Upserts and changelogs go by the order of arrival, which a query may lose (D13)."""
    merge = work.source.merge
    ordered = isinstance(merge, UpsertStream) and merge.sequence_column
    if work.source.preprocess is None or ordered or not isinstance(merge, UpsertStream | ChangelogStream):
        return
    if work.frame is not None and not keeps_order(work.frame):
        raise UsageError(
            "arrival-order-lost",
            "The query of preprocess changes the order of the rows.",
            "Only select and filter rows, or name a sequenceColumn (UpsertStream).",
        )


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deliver_file(
    store: Store,
    name: TableName,
    dataset: Callable[[], RegisteredDataset],
    source: DatasetSource,
    fetched: FetchedFile,
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
        with time_stage("decode"):
            read, content = _read(store, dataset(), source, fetched, run, held)
        frame = None if read is None else read.frame
        if frame is not None and source.preprocess is not None:
            run.stage("Preprocessing data")
            frame = held.enter_context(run_query(store, frame, source.preprocess, name.schema))
        declared = declared_schema(source.read) is not None
        token = token_of(source, fetched, run)
        work = SourceFile(store, source, fetched, after, run, token, read, frame, declared, content, dataset)
        receipt, committed = deliver(store, FileDelivery(name, work))
        if committed:
            write_log(store, name)
        return receipt, committed


@dataclass(frozen=True, slots=True)
class FileDelivery:
    """A file that was read, as a delivery of its dataset; the result says whether there was a commit."""

    name: TableName
    work: SourceFile

    @property
    def tables(self) -> Sequence[TableName]:
        """The dataset."""
        return [self.name]

    @contextmanager
    def open_plan(self, store: Store) -> Iterator[Plan[tuple[DatasetReceipt, bool]]]:
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
        meeting = Ingestion(work, dataset, head, now)
        with _compare(meeting) as (change, receipt):
            told = replace(receipt, notes=(*notes, *receipt.notes))

            def ended(committed: Commit | None) -> tuple[DatasetReceipt, bool]:
                return told, committed is not None

            yield Plan(dataset.table, change, note, ended, work.run.dry_run)


@contextmanager
def _compare(meeting: Ingestion) -> Iterator[tuple[Change | None, DatasetReceipt]]:
    work, head = meeting.work, meeting.head
    if work.frame is not None and not _repeats(work, head):
        with _merge(meeting, work.frame) as found:
            yield found
        return
    event = event_of(meeting, 0, head.watermark)
    change = block_change(meeting, event) if records_more(event, head) else None
    yield change, _receipt(meeting.dataset, head, meeting.now)


def _read(
    store: Store,
    dataset: RegisteredDataset,
    source: DatasetSource,
    fetched: FetchedFile,
    run: PullRun,
    held: ExitStack,
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
    expected = typed_columns(dataset.dataset, source)
    queried = source.preprocess is not None
    read = read_batch(store, ready, source.read, schema, folder, expected, held=held, queried=queried)
    return read, content


def _is_outrun(work: SourceFile, dataset: RegisteredDataset, head: Head) -> bool:
    """Whether another pull was faster: it may have brought the same or something newer.

    The next pull asks from there, or of another place, if the manifest names one by now.
    """
    if dataset.table is None or work.after is None:
        return False
    moved = fetch_hash(dataset.dataset.polling) != fetch_hash(work.source)
    state = work.fetched.state
    return moved or head.polls != work.after or (state is not None and head.state_of(work.source) == state)


def _has_run(work: SourceFile, dataset: RegisteredDataset) -> bool:
    """Whether this run committed the file before (R81): the log knows of runs whose snapshots expired."""
    token = work.token
    if token is None or dataset.table is None:
        return False
    told = blocks(dataset.table)
    if not told or told[-1].sequence:
        told = read_all_blocks(work.store, dataset.table)
    return any(block.event.get("token") == token for block in told)


def _repeats(work: SourceFile, head: Head) -> bool:
    """Whether a changelog has the content of the one before (V7)."""
    contents = head.event.get("contents") or {}
    return work.content is not None and contents.get(work.source_name) == work.content


@contextmanager
def _merge(meeting: Ingestion, frame: "DataFrame") -> Iterator[tuple[Change | None, DatasetReceipt]]:
    work, dataset, head = meeting.work, meeting.dataset, meeting.head
    work.run.stage("Merging data")
    columns = dataset.columns
    inferred = not work.declared and work.source.preprocess is None
    with hold_settings(work.store.session):
        arrived = delivered_side(frame, work.source, columns, dataset.expected_columns, inferred=inferred)
    refuse_lost_order(work)
    late = refuse_late(work, head)
    terms = terms_of(work.source.merge, columns.time, columns.encoding, timed=arrived.timed)
    with ExitStack() as held:
        with time_stage("plan"), translate_faults(dataset.name), refuse_failing_rows():
            fallback = _in_column(work.fetched.event_time or meeting.now, arrived)
            moment = Moment(meeting.now, fallback, _in_column(head.watermark, arrived), head.next_offset)
            merge = LogMerge(work.store, dataset, work.read, arrived, terms, moment, held)
            planned = held.enter_context(merge.open_plan())
            refuse_failed(planned.sums.counts, arrived.required, columns.time)
            found = EventSummary.of(planned.sums)
            refuse_problems(found, work.fetched.name)
            notes = late + refuse_retractions(found, terms)
        held.enter_context(translate_faults(dataset.name))
        held.enter_context(refuse_failing_rows())
        change = held.enter_context(_change(meeting, arrived, planned, found, terms))
        yield change, replace(_receipt(dataset, head, meeting.now, found), notes=tuple(notes))


@contextmanager
def _change(
    meeting: Ingestion, arrived: DeliveredSide, planned: PlanResult, found: EventSummary, terms: EventTerms
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
    elif records_more(event, meeting.head) or (meeting.dataset.schema is None and arrived.known):
        yield block_change(meeting, event, arrived if arrived.known else None)
    else:
        yield None


def _in_column(instant: datetime | None, arrived: DeliveredSide) -> datetime | date | None:
    """An instant as the event-time column has it."""
    return instant.date() if instant is not None and arrived.dated else instant


def _receipt(
    dataset: RegisteredDataset, head: Head, now: datetime | None, found: EventSummary | None = None
) -> DatasetReceipt:
    counts = {name: found.counts[name] if found else 0 for name in COUNTS}
    if found is None or not found.rows:
        return DatasetReceipt(dataset.dataset.name, "up-to-date", counts, None, head.watermark, now)
    span = (head.next_offset, head.next_offset + found.rows - 1)
    return DatasetReceipt(
        dataset.dataset.name, "updated", counts, span, head.watermark_after(found.newest), now
    )
