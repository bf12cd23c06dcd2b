"""One delivery of a source becomes one commit of its dataset, or none (sections 2.1 and 5.1)."""

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.attempts import attempted
from backstory.doors.odf.batch import Batch, batch, refuse_failed
from backstory.doors.odf.committing import commit_block, commit_rows, event_of, says_more
from backstory.doors.odf.data_types import arrow_schema, declared_schema
from backstory.doors.odf.dataset import Source
from backstory.doors.odf.fetch.fetched import Fetched
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.doors.odf.manifest.merge import ChangelogStream
from backstory.doors.odf.merging import terms_of
from backstory.doors.odf.preparing import prepared
from backstory.doors.odf.querying import failing_rows_refused, queried
from backstory.doors.odf.receipts import COUNTS, DatasetReceipt
from backstory.doors.odf.refusals import refuse_late, refuse_lost_order, refuse_problems, refuse_retractions
from backstory.doors.odf.registry import Registered
from backstory.doors.odf.staging import read_batch
from backstory.doors.odf.work import Head, Meeting, Run, Work, head_of
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.observe.metrics import timed
from backstory.strategies.events.plan import Happened, happened
from backstory.strategies.events.sides import near
from backstory.strategies.events.terms import Moment, Terms
from backstory.tables.faults import translated
from backstory.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A log of so many rows is worth a look at the delivered keys first.
LONG: Final = 100_000


def delivered(
    store: Store,
    name: TableName,
    dataset: Callable[[], Registered],
    source: Source,
    fetched: Fetched,
    run: Run,
) -> DatasetReceipt:
    """Ingest one file, and give the receipt; nothing is committed when nothing changed.

    `dataset` gives the dataset of that name as it stands. Raises Refused for rows that would corrupt the
    log, and TryAgain if other writers always came first.
    """
    with tempfile.TemporaryDirectory(prefix="backstory-odf-") as folder, ExitStack() as held:
        declared = declared_schema(source.read)
        schema = arrow_schema(declared) if declared else None
        with timed("decode"):
            frame, content = _read(store, source, schema, fetched, run, Path(folder))
        if frame is not None and source.preprocess is not None:
            run.stage("Preprocessing data")
            frame = held.enter_context(queried(store, frame, source.preprocess))
        work = Work(store, source, fetched, run, frame, schema is not None, content, dataset)
        return attempted(store, [name], lambda: _once(work))


def _read(
    store: Store, source: Source, schema: pa.Schema | None, fetched: Fetched, run: Run, folder: Path
) -> "tuple[DataFrame | None, str | None]":
    """The rows of a file, and for a changelog a digest of it.

    There are none, and no columns, in a file without a byte whose columns nobody declared.
    """
    run.stage("Preparing data")
    steps = source.prepare if isinstance(source, SetPollingSource) else ()
    ready = prepared(fetched.path, fetched.name, steps, folder, allow_commands=run.allow_commands)
    run.stage("Reading data")
    content = None
    if isinstance(source.merge, ChangelogStream):
        with ready.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha3_256").hexdigest()
    return read_batch(store, ready, source.read, schema, folder), content


def _once(work: Work) -> DatasetReceipt:
    the = work.dataset()
    head = head_of(work.store, the)
    if _is_known(work, the, head):
        return _receipt(the, head, head.system_time)
    now, notes = work.run.system_time, []
    if head.system_time is not None and now < head.system_time:
        notes.append(f"The system time {iso(now)} is raised to the newest one, {iso(head.system_time)}.")
        now = head.system_time
    at = Meeting(work, the, head, now)
    if work.frame is not None:
        receipt = _merged(at, work.frame)
    else:
        event = event_of(at, 0, head.watermark)
        if says_more(event, head) and not work.run.dry_run:
            commit_block(at, event)
        receipt = _receipt(the, head, now)
    return replace(receipt, notes=(*notes, *receipt.notes))


def _is_known(work: Work, the: Registered, head: Head) -> bool:
    """Whether the delivery was here before: by its source's state, its run, or the content of a changelog."""
    if the.table is None or head.block is None:
        return False
    state = work.fetched.state
    if state is not None and state.to_dict() == head.state_of(work.source):
        return True  # another process was faster
    if work.content is not None and (head.event.get("contents") or {}).get(work.source_name) == work.content:
        return True  # V7
    token = work.token
    snapshots = the.table.iceberg.snapshots() if token else ()
    return any(each.summary().get("backstory.token") == token for each in snapshots)


def _merged(at: Meeting, frame: "DataFrame") -> DatasetReceipt:
    work, the, head = at.work, at.the, at.head
    work.run.stage("Merging data")
    columns = the.columns
    inferred = not work.declared and work.source.preprocess is None
    came = batch(frame, work.source, columns, the.expected, inferred=inferred)
    refuse_lost_order(work)
    late = refuse_late(work, head)
    terms = terms_of(work.source.merge, columns.time, columns.encoding, timed=came.timed)
    with timed("plan"), translated(the.name), failing_rows_refused():
        fallback = _in_column(work.fetched.event_time or at.now, came)
        moment = Moment(at.now, fallback, _in_column(head.watermark, came), head.next_offset)
        logged = _logged(work, the, came, terms) if head.next_offset else None
        with happened(logged, came.rows, terms, moment) as found:
            refuse_failed(found.seen.get(came.seen, {}), columns.time)
            refuse_problems(found, terms, work.fetched.name)
            notes = late + refuse_retractions(found, terms)
            _commit(at, came, found, terms)
            return replace(_receipt(the, head, at.now, found), notes=tuple(notes))


def _commit(at: Meeting, came: Batch, found: Happened, terms: Terms) -> None:
    """One commit, none if neither the log nor what is known of the source changes."""
    if at.work.run.dry_run:
        return
    event = event_of(at, found.rows, at.head.watermark_after(found.newest))
    if found.rows:
        at.work.run.stage("Committing data")
        commit_rows(at, event, came, found, terms)
    elif says_more(event, at.head) or at.the.schema is None:
        commit_block(at, event, came)


def _logged(work: Work, the: Registered, came: Batch, terms: Terms) -> "DataFrame":
    rows = work.store.spark.table(work.store.sql_name(the.name))
    logged = the.columns.logged(rows, [field.name for field in came.data])
    long = the.table is not None and the.table.rows > LONG
    return near(logged, came.rows, terms) if long else logged


def _in_column(instant: datetime | None, came: Batch) -> datetime | date | None:
    """An instant as the event-time column has it."""
    return instant.date() if instant is not None and came.dated else instant


def _receipt(
    the: Registered, head: Head, now: datetime | None, found: Happened | None = None
) -> DatasetReceipt:
    counts = {name: found.counts[name] if found else 0 for name in COUNTS}
    if found is None or not found.rows:
        return DatasetReceipt(the.dataset.name, "up-to-date", counts, None, head.watermark, now)
    span = (head.next_offset, head.next_offset + found.rows - 1)
    return DatasetReceipt(the.dataset.name, "updated", counts, span, head.watermark_after(found.newest), now)
