"""The commit of a delivery: rows, new columns, and a block of the chain that records them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import structlog

from backstory.doors.odf.batch import DeliveredSide
from backstory.doors.odf.columns import document_of
from backstory.doors.odf.data_types import declared_schema
from backstory.doors.odf.ingestion import Head, Ingestion, SourceFile, fetch_hash
from backstory.doors.odf.log_columns import LogColumns
from backstory.doors.odf.manifest.merge import Snapshot
from backstory.doors.odf.registry import SCHEMA
from backstory.doors.odf.sides import nest_data
from backstory.engine.spill import sort_rows
from backstory.errors import BackstoryError, Refused, TryAgain
from backstory.formats.delivered import shaped
from backstory.journal.arrow_hash import hash_of_table, hash_text, sum_of_words
from backstory.journal.chain import Block, canonical, schema_hash
from backstory.journal.log_table import bring_up_to_date, log_of
from backstory.journal.row_hash import ROWS, hash_of, observe_hash
from backstory.model.change import NOTHING, TOKEN, Change, Note, RowBatches
from backstory.model.instant import iso
from backstory.model.table import Column, Shape, TableName
from backstory.stores.iceberg.literals import literal, null_columns
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.spark_types import columns_from, spark_schema
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.strategies.events.numbering import number_events, sort_order
from backstory.strategies.events.plan import EventSummary
from backstory.strategies.events.sides import sorted_places
from backstory.strategies.events.terms import EventTerms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger()

DOOR = "odf"
# Rows are hashed while their files are written.
_HASHER = ThreadPoolExecutor(1, thread_name_prefix="hash")
SOURCE_FIELDS = ("source_state", "fetch", "complete", "contents", "watermark")


def event_of(meeting: Ingestion, rows: int, watermark: datetime | None) -> dict[str, Any]:
    """What the commit of so many rows says of itself; a manifest is told where it is another than before."""
    work, dataset, head = meeting.work, meeting.dataset, meeting.head
    contents = dict(head.event.get("contents") or {})
    if work.content is not None:
        contents[work.source_name] = work.content
    event = {
        "start": head.next_offset if rows else None,
        "end": head.next_offset + rows - 1 if rows else None,
        "prev_offset": head.next_offset - 1 if head.next_offset else None,
        "watermark": iso(watermark) if watermark else None,
        **_source_progress(work, head),
        "logical_hash": None,
        "source": work.source_name,
        "run_id": work.run.run_id,
        **({"token": work.token} if work.token else {}),
        "file": work.fetched.name,
        "manifest_hash": dataset.manifest_hash,
    }
    if work.fetched.spelled is not None:
        event["path"] = work.fetched.spelled
    if contents:
        event["contents"] = contents
    if snapshot_time := _snapshot_time(work, head):
        event["snapshot_time"] = snapshot_time
    if head.event.get("manifest_hash") != dataset.manifest_hash:
        event["manifest"] = dict(dataset.dataset.document)
    return event


def _source_progress(work: SourceFile, head: Head) -> dict[str, Any]:
    """What is known of the polling source: where it is, its state, and whether all that it had is here."""
    fetch, state = fetch_hash(work.source), work.fetched.state
    if fetch is None:
        return {name: head.event.get(name) for name in ("source_state", "fetch", "complete", "polled")}
    return {
        "source_state": state.to_dict() if state else None,
        "fetch": fetch,
        "complete": work.fetched.last,
        "polled": head.polls + 1,
    }


def _snapshot_time(work: SourceFile, head: Head) -> str | None:
    """The time of the newest snapshot; one that is of the run's own time tells nothing."""
    time, last = work.fetched.event_time, head.snapshot_time
    told = isinstance(work.source.merge, Snapshot) and time is not None and time != work.run.system_time
    newest = max(filter(None, (time if told else None, last)), default=None)
    return iso(newest) if newest else None


def records_more(event: Mapping[str, Any], head: Head) -> bool:
    """Whether an event without rows tells of a source what the head does not (section 2.1, step 10)."""
    return any(event.get(name) != head.event.get(name) for name in SOURCE_FIELDS)


@contextmanager
def rows_change(
    meeting: Ingestion,
    event: dict[str, Any],
    arrived: DeliveredSide,
    events: "pa.Table | RowBatches | DataFrame | None",
    found: EventSummary,
    terms: EventTerms,
) -> Iterator[Change]:
    """The events in their order, numbered, and the block that tells of them."""
    columns, names, start = meeting.dataset.columns, [f.name for f in arrived.data], meeting.head.next_offset
    counts = +found.counts
    with ExitStack() as kept:
        rows: DataFrame | pa.Table | RowBatches
        if isinstance(events, pa.Table | RowBatches):
            ordered = sort_rows(events, partial(sorted_places, terms=terms), kept)
            if isinstance(ordered, RowBatches):
                rows = RowBatches(partial(_number_pieces, columns, ordered, meeting.now, start))
            else:
                rows = columns.stored_rows(ordered, meeting.now, start)
        else:
            assert events is not None
            by = sort_order(terms, arrived.data)
            frame = nest_data(events, arrived.data)
            frame = kept.enter_context(number_events(frame, found.rows, by, start))
            rows = columns.stored_frame(frame, names, literal(meeting.now))
        yield block_change(meeting, event, arrived, rows, counts)


def _number_pieces(columns: LogColumns, events: RowBatches, now: datetime, start: int) -> Iterator[pa.Table]:
    for each in events.tables():
        yield columns.stored_rows(each, now, start)
        start += len(each)


def block_change(
    meeting: Ingestion,
    event: dict[str, Any],
    arrived: DeliveredSide | None = None,
    rows: "DataFrame | pa.Table | RowBatches | None" = None,
    counts: Mapping[str, int] = NOTHING,
) -> Change:
    """A block of the chain, with the rows that it tells of and the columns that are new."""
    store, table, before = meeting.work.store, meeting.dataset.table, meeting.head.block
    assert table is not None
    into = None
    if arrived is not None:
        wanted = columns_from(meeting.dataset.columns.schema(arrived.data, dated=arrived.dated))
        _refuse_retyped(table, wanted)
        into = extend_shape(table.shape, wanted)
    sequence, previous = (before.sequence + 1, before.hash) if before else (0, None)
    offset = meeting.dataset.columns.vocab.offset_column
    come, hash_text = _with_hash(rows, into or table.shape, offset, event)

    def block_properties(pending: StoredTable) -> Mapping[str, str]:
        event["logical_hash"] = hash_text()
        types = [(f.name, f.dataType.simpleString()) for f in spark_schema(store, pending.iceberg.schema())]
        event.update(schema_hash=schema_hash(types), counts=dict(counts))
        block = Block(sequence, previous, meeting.now, "AddData", event)
        return {TOKEN: meeting.work.token or block.hash, **block.properties()}

    into = into if into != table.shape else None
    properties = _properties(meeting, arrived)
    return Change(
        dict(counts),
        added=come,
        into=into,
        properties=properties,
        snapshot=True,
        late_properties=block_properties,
    )


def _with_hash(
    rows: "DataFrame | pa.Table | RowBatches | None", shape: Shape, offset: str, event: Mapping[str, Any]
) -> "tuple[DataFrame | pa.Table | RowBatches | None, Callable[[], str | None]]":
    """The rows as the table has them, and what tells their hash once they are written."""
    from pyspark.sql import Observation

    if rows is None:
        return None, lambda: None
    if isinstance(rows, pa.Table):
        rows = shaped(rows, shape.columns)
        return rows, _HASHER.submit(hash_of_table, rows, offset).result
    if isinstance(rows, RowBatches):
        sums: list[np.ndarray] = []
        pieces = RowBatches(partial(_hash_pieces, rows, shape, offset, sums))
        return pieces, lambda: hash_text(reduce(np.bitwise_xor, sums))
    written = Observation()
    rows = observe_hash(rows, offset, written)
    rows = rows.withColumns(null_columns(shape.columns, rows.columns))
    return rows, lambda: _written_hash(written.get, event)


def _hash_pieces(rows: RowBatches, shape: Shape, offset: str, sums: list[np.ndarray]) -> Iterator[pa.Table]:
    """The pieces as the table has them, each hashed while it is written."""
    sums.clear()
    for each in rows.tables():
        piece = shaped(each, shape.columns)
        words = _HASHER.submit(sum_of_words, piece, offset)
        yield piece
        sums.append(words.result())


def note_of(work: SourceFile) -> Note:
    """What a block's commit says of itself besides the block."""
    return Note(DOOR, work.token or "")


def extend_shape(shape: Shape, wanted: Sequence[Column]) -> Shape:
    """The shape with the columns that it lacks; one of another type makes way for the wanted one."""
    types = {each.name: each for each in wanted}
    kept = [
        each if types.get(each.name, each).type == each.type else types[each.name] for each in shape.columns
    ]
    new = [each for each in wanted if shape.column(each.name) is None]
    return replace(shape, columns=(*kept, *new))


def _refuse_retyped(table: StoredTable, wanted: Sequence[Column]) -> None:
    """Rows never change: no column of a log that has any makes way for another of its name."""
    stored = {each.name: each.type for each in table.shape.columns}
    retyped = [each.name for each in wanted if stored.get(each.name, each.type) != each.type]
    if retyped and table.rows:
        raise Refused(
            "incompatible-schema",
            f"The column {retyped[0]} of the log is of type {spark_type(stored[retyped[0]])}.",
            "Nothing was written; provide values of that type.",
            retyped,
        )


def write_log(store: Store, name: TableName) -> None:
    """Bring the log of a dataset up to date; it never hinders a pull, and a log that is behind is told of."""
    try:
        bring_up_to_date(store, existing(store, name))
    except BackstoryError as fault:
        log.warning(
            "the log is behind; do not expire snapshots until a pull has written it",
            table=str(log_of(name)),
            reason=fault.message,
        )


def _written_hash(written: Mapping[str, Any], event: Mapping[str, Any]) -> str | None:
    """The hash of the rows that were written; raises TryAgain if Spark counted some of them twice or not."""
    if written[ROWS] != event["end"] - event["start"] + 1:
        raise TryAgain(
            "recounted",
            f"Spark wrote {written[ROWS]} rows for the offsets {event['start']} to {event['end']}, because a "
            "task ran twice.",
            "Nothing was committed; run it again.",
        )
    return hash_of(written)


def _properties(meeting: Ingestion, arrived: DeliveredSide | None) -> dict[str, str]:
    """The dataset's columns, once they are known."""
    if arrived is None or meeting.dataset.schema is not None:
        return {}
    source = meeting.work.source
    declared = declared_schema(source.read) if source.preprocess is None else None
    document = document_of(arrived.data, declared, meeting.dataset.columns.time, dated=arrived.dated)
    return {SCHEMA: canonical(document)}
