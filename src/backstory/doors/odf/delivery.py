"""The delivery of one file: one commit of its dataset, no commit, or a refusal (sections 2.1 to 2.6)."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backstory.doors.odf import committing
from backstory.doors.odf.batch import DeliveredSide, delivered_side, expected_columns, refuse_failed
from backstory.doors.odf.columns import arrow_schema, declared_schema, typed_columns
from backstory.doors.odf.file_rows import prepare_file, read_batch
from backstory.doors.odf.manifest import events as odf
from backstory.doors.odf.preprocess import keeps_order, refuse_failing_rows, run_query
from backstory.doors.odf.receipts import COUNTS, DatasetReceipt, Head, fetch_hash
from backstory.doors.odf.registry import RegisteredDataset
from backstory.doors.odf.sides import LogMerge
from backstory.engine.deliver import Plan, deliver
from backstory.engine.plans import PlanResult
from backstory.engine.staging import StagedRows
from backstory.errors import Refused, UsageError
from backstory.formats.memory import translate_disk_errors
from backstory.journal.chain import stored_journal, walk
from backstory.model.change import Change, exceeds
from backstory.model.instant import iso
from backstory.observe import time_stage
from backstory.spark.session import hold_settings
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import IcebergStore
from backstory.strategies.events.plan import EVENTS, newest_time, outcomes_of, sample_keys
from backstory.strategies.events.terms import (
    EventEncoding,
    EventTerms,
    Moment,
    OnConflict,
    RowProblem,
    Strategy,
)
from backstory.strategies.part_plan import PlanSums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The error message and the remedy for each problem. Nothing was written.
PROBLEMS: Final[Mapping[RowProblem, tuple[str, str]]] = {
    RowProblem.NULL_KEY: (
        "have no value in the primary key",
        "filter them in preprocess, or choose another primaryKey.",
    ),
    RowProblem.WRONG_OP: (
        "have an operation that the strategy does not support",
        "0 and 3 add, 1 removes, and in a changelog 2 begins a correction.",
    ),
    RowProblem.NULL_SEQUENCE: (
        "have no value in sequenceColumn",
        "give each row a value there.",
    ),
    RowProblem.CONFLICTING: (
        "share a primary key with a row of different content",
        "widen the primaryKey, or keep one of the rows in preprocess.",
    ),
    RowProblem.KNOWN_CONFLICT: (
        "have a known primary key but different content",
        "onConflict: ignore drops such rows, correct (with encoding: op) corrects.",
    ),
    RowProblem.PRESENT: (
        "add a record that exists already (V3)",
        "send -C and +C to change it.",
    ),
    RowProblem.ABSENT: (
        "retract or correct a record that does not exist (V4)",
        "send the missing records first.",
    ),
    RowProblem.UNLIKE: (
        "retract or correct a record that has changed since (V4)",
        "-R and -C must repeat the stored record, event time included.",
    ),
    RowProblem.UNPAIRED: (
        "are a -C or +C without its other half next to it (V5)",
        "send both, one after the other.",
    ),
}
MANY_RETRACTED: Final = 0.5


def refuse_problems(sums: PlanSums, name: str) -> None:
    """Raise Refused for the first problem in the rows of the file `name`, with up to ten keys."""
    for problem, (description, mend) in PROBLEMS.items():
        if count := sums.counts[problem]:
            rows = f"{count} row{'' if count == 1 else 's'} of {name}"
            remedy = f"Nothing was written; {mend}"
            raise Refused(problem.value, f"{rows} {description}.", remedy, sample_keys(sums, problem))


def refuse_retractions(sums: PlanSums, terms: EventTerms) -> list[str]:
    """Return a warning if a snapshot retracts more than half of the records.

    Raises Refused if the share exceeds `maxRetract`.
    """
    retracted, counts = sums.counts["retracted"], sums.counts
    if terms.strategy is not Strategy.SNAPSHOT or not retracted:
        return []
    stored = retracted + counts["corrected"] + counts["unchanged"]
    message = f"The snapshot retracts {retracted} of {stored} records."
    if terms.max_retract is not None and exceeds(retracted, terms.max_retract, stored):
        raise Refused(
            "too-many-retracted",
            message,
            f"Nothing was written; maxRetract is {terms.max_retract:g}. Raise it if these records are "
            "really gone.",
            sample_keys(sums, "retracted"),
        )
    return [message] if exceeds(retracted, MANY_RETRACTED, stored) else []


def refuse_late(file: committing.DatasetFile, head: Head) -> list[str]:
    """Return a warning if a snapshot is older than the previous snapshot.

    Raises Refused if the manifest requires it. A pushed snapshot without a time has its run's time. Newer
    runs may have committed while the snapshot waited.
    """
    merge, time, last = file.source.merge, file.fetched.event_time, head.snapshot_time
    if time is None and file.after is None:
        time, last = file.run.now, head.system_time
    if not isinstance(merge, odf.SnapshotMerge) or time is None or last is None or time >= last:
        return []
    message = f"The snapshot of {iso(time)} is older than the last one, of {iso(last)}."
    if merge.on_late_snapshot is odf.OnLate.ERROR:
        raise Refused("late-snapshot", message, "Ingest snapshots in order, or set onLateSnapshot: warn.")
    return [message]


def refuse_lost_order(file: committing.DatasetFile) -> None:
    """Raise UsageError if a query loses the order of arrival, which upserts and changelogs need (D13)."""
    merge = file.source.merge
    needed = isinstance(merge, odf.ChangelogStream) or (
        isinstance(merge, odf.UpsertStream) and not merge.sequence_column
    )
    queried = needed and file.source.preprocess is not None
    if queried and file.frame is not None and not keeps_order(file.frame):
        raise UsageError(
            "arrival-order-lost",
            "The query of preprocess changes the order of the rows.",
            "Only select and filter rows, or name a sequenceColumn (UpsertStream).",
        )


def deliver_file(file: committing.DatasetFile) -> tuple[DatasetReceipt, bool]:
    """Ingest one file.

    Returns the receipt, and whether there was a commit. There is no commit if nothing changed. Raises Refused
    for rows that would corrupt the log. Raises TryAgain if other writers always committed first or the disk
    is full.
    """
    store, preprocess = file.store, file.source.preprocess
    with ExitStack() as resources:
        resources.enter_context(translate_disk_errors(file.fetched.name))
        with time_stage("decode"):
            dataset = file.dataset()
            rows, content = _read(file, dataset, resources)
        frame = None if rows is None else rows.frame
        if frame is not None and preprocess is not None:
            file.run.stage("Preprocessing data")
            frame = resources.enter_context(run_query(store, frame, preprocess, dataset.name.schema))
        file = replace(file, token=committing.token_of(file), read=rows, frame=frame, content=content)
        receipt, committed = deliver(store, [dataset.name], partial(_open_plan, file))
        if committed:
            committing.write_log(store, dataset.name)
        return receipt, committed


@contextmanager
def _open_plan(
    file: committing.DatasetFile, store: IcebergStore
) -> Iterator[Plan[tuple[DatasetReceipt, bool]]]:
    """A context with the plan of the delivery, whose rows can be read until it is closed.

    The plan's result is the receipt, and whether there was a commit.
    """
    dataset = file.dataset()
    head = committing.head_to_extend(store, dataset)
    note = committing.note_of(file)
    if _is_outrun(file, dataset, head) or _has_run(file, dataset):
        unchanged = _receipt(dataset, head, head.system_time, PlanSums())
        yield Plan(dataset.table, None, note, lambda _: (unchanged, False))
        return
    now = file.run.now
    notes = [] if dataset.table is None else list(dataset.table.foreign_writes)
    if head.system_time is not None and now < head.system_time:
        newest = f"{iso(head.system_time)}, the newest one of the dataset"
        notes.append(f"The system time {iso(now)} was raised to {newest}.")
        now = head.system_time
    with ExitStack() as resources:
        change, receipt = _compare(committing.Ingestion(file, dataset, head, now), resources)
        receipt = replace(receipt, notes=(*notes, *receipt.notes))
        yield Plan(dataset.table, change, note, lambda made: (receipt, made is not None), file.run.dry_run)


def _compare(ingestion: committing.Ingestion, resources: ExitStack) -> tuple[Change | None, DatasetReceipt]:
    file, head = ingestion.file, ingestion.head
    if file.frame is not None and not _is_repeated(file, head):
        return _merge(ingestion, file.frame, resources)
    event = committing.event_of(ingestion, 0, head.watermark)
    change = committing.block_change(ingestion, event) if committing.records_more(event, ingestion) else None
    return change, _receipt(ingestion.dataset, head, ingestion.now, PlanSums())


def _read(
    file: committing.DatasetFile, dataset: RegisteredDataset, resources: ExitStack
) -> tuple[StagedRows | None, str | None]:
    """The rows of a file, and the digest of its content if its rows must not be merged twice.

    The rows can be read until `resources` is closed. The rows are None for an empty file without declared
    columns.
    """
    source, run = file.source, file.run
    run.stage("Preparing data")
    folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="backstory-odf-")))
    steps = source.prepare if isinstance(source, odf.SetPollingSource) else ()
    logs = committing.cache_of(file.store, dataset.name)
    ready = prepare_file(file.fetched.path, file.fetched.name, steps, folder, rights=run.rights, logs=logs)
    run.stage("Reading data")
    content = None
    if _is_known_by_content(file):
        with ready.path.open("rb") as content_file:
            content = hashlib.file_digest(content_file, "sha3_256").hexdigest()
    declared = declared_schema(source.read)
    schema = arrow_schema(declared) if declared else None
    expected = typed_columns(dataset.dataset, source)
    queried = source.preprocess is not None
    read = read_batch(
        file.store, ready, source.read, schema, folder, expected, held=resources, queried=queried
    )
    return read, content


def _is_known_by_content(file: committing.DatasetFile) -> bool:
    """Whether the content of the newest file is recorded, because merging it twice would not be harmless.

    A strict changelog would be refused, and the rows of an append would be added again.
    """
    source, merge = file.source, file.source.merge
    if isinstance(merge, odf.Append) and isinstance(source, odf.SetPollingSource):
        return isinstance(source.fetch, odf.Url) and file.fetched.state is not None
    return isinstance(merge, odf.ChangelogStream) and merge.validation is odf.Validation.STRICT


def _is_repeated(file: committing.DatasetFile, head: Head) -> bool:
    """Whether the file has the same content as the source's previous file (V7).

    An append accepts equal rows of another day, so its file must also have the same state.
    """
    if file.content is None or file.content != (head.event.get("contents") or {}).get(file.source_name):
        return False
    return not isinstance(file.source.merge, odf.Append) or head.state_of(file.source) == file.fetched.state


def _is_outrun(file: committing.DatasetFile, dataset: RegisteredDataset, head: Head) -> bool:
    """Whether another pull was faster, so that the file's data may already be in the dataset.

    The next pull continues from the newest commit, or from another place if the manifest changed. An
    unchanged state does not show this: a server may give new content an old state (5.1).
    """
    if dataset.table is None or file.after is None:
        return False
    moved = fetch_hash(dataset.dataset.polling) != fetch_hash(file.source)
    return moved or head.polls != file.after


def _has_run(file: committing.DatasetFile, dataset: RegisteredDataset) -> bool:
    """Whether this run already committed the file (R81). The log records runs whose snapshots expired."""
    token = file.token
    if token is None or dataset.table is None:
        return False
    committed = list(walk(dataset.table))
    if not committed or committed[-1].sequence:
        committed = stored_journal(file.store, dataset.table).all_blocks()
    return any(block.event.get("token") == token for block in committed)


def _merge(
    ingestion: committing.Ingestion, frame: "DataFrame", resources: ExitStack
) -> tuple[Change | None, DatasetReceipt]:
    file, dataset, head = ingestion.file, ingestion.dataset, ingestion.head
    file.run.stage("Merging data")
    columns = dataset.columns
    inferred = declared_schema(file.source.read) is None and file.source.preprocess is None
    with hold_settings(file.store.session):
        delivered = delivered_side(frame, file.source, columns, expected_columns(dataset), inferred=inferred)
    refuse_lost_order(file)
    late = refuse_late(file, head)
    terms = _terms_of(file.source.merge, columns.time, columns.encoding, timed=delivered.timed)
    with time_stage("plan"), translate_faults(dataset.name), refuse_failing_rows():
        fallback = _in_column(file.fetched.event_time or ingestion.now, delivered)
        moment = Moment(ingestion.now, fallback, _in_column(head.watermark, delivered), head.next_offset)
        merge = LogMerge(file.store, dataset, file.read, delivered, terms, moment, resources)
        planned = merge.plan()
        refuse_failed(planned.sums.counts, delivered.required, columns.time)
        newest = newest_time(planned.sums)
        refuse_problems(planned.sums, file.fetched.name)
        notes = late + refuse_retractions(planned.sums, terms)
    resources.enter_context(translate_faults(dataset.name))
    resources.enter_context(refuse_failing_rows())
    watermark = head.watermark_after(newest)
    change = _change(ingestion, merge, planned, watermark)
    receipt = _receipt(dataset, head, ingestion.now, planned.sums)
    return change, replace(receipt, watermark=watermark, notes=tuple(notes))


def _change(
    ingestion: committing.Ingestion, merge: LogMerge, planned: PlanResult, watermark: datetime | None
) -> Change | None:
    """The change, or None if neither the log nor the source's progress changes.

    A dry run only counts rows.
    """
    rows = planned.sums.counts[EVENTS]
    if ingestion.file.run.dry_run:
        return Change(outcomes_of(planned.sums)) if rows else None
    delivered, event = merge.delivered, committing.event_of(ingestion, rows, watermark)
    if rows:
        ingestion.file.run.stage("Committing data")
        return committing.rows_change(ingestion, event, merge, planned)
    if committing.records_more(event, ingestion) or (ingestion.dataset.schema is None and delivered.known):
        return committing.block_change(ingestion, event, delivered if delivered.known else None)
    return None


def _terms_of(merge: odf.Merge, time: str, encoding: EventEncoding | None, *, timed: bool) -> EventTerms:
    """The settings of a merge.

    `time` is the event-time column. `timed` is whether the source supplies the event time.
    """
    key, compare = odf.key_of(merge), getattr(merge, "compare_columns", None)
    position = key.index(time) if time in key else None
    adds_time = isinstance(merge, odf.Ledger) and position is None and timed and merge.event_time_in_key
    return EventTerms(
        Strategy(merge.kind),
        key=tuple(name for name in key if name != time),
        time_at=0 if adds_time else position,
        time_required=position is not None,
        compare=tuple(name for name in compare if name != time) if compare else None,  # an empty list is all
        compare_time=not compare or time in compare,
        encoding=encoding,
        on_conflict=getattr(merge, "on_conflict", OnConflict.IGNORE),
        max_retract=getattr(merge, "max_retract", None),
        strict=getattr(merge, "validation", odf.Validation.STRICT) is odf.Validation.STRICT,
        sequence=getattr(merge, "sequence_column", None),
    )


def _in_column(instant: datetime | None, delivered: DeliveredSide) -> datetime | date | None:
    """Convert an instant to the type of the event-time column."""
    return instant.date() if instant is not None and delivered.dated else instant


def _receipt(dataset: RegisteredDataset, head: Head, now: datetime | None, sums: PlanSums) -> DatasetReceipt:
    rows, start = sums.counts[EVENTS], head.next_offset
    return DatasetReceipt(
        dataset.dataset.name,
        "updated" if rows else "up-to-date",
        {name: sums.counts[name] for name in COUNTS},
        (start, start + rows - 1) if rows else None,
        head.watermark,
        now,
    )
