"""The commit of a delivery: rows, columns that are new, and a block of the chain that tells of them."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from backstory.doors.odf.batch import Batch
from backstory.doors.odf.data_types import declared_schema
from backstory.doors.odf.manifest.merge import Snapshot
from backstory.doors.odf.registry import SCHEMA
from backstory.doors.odf.schemas import document_of
from backstory.doors.odf.work import Head, Meeting, Work, fetch_hash
from backstory.errors import BackstoryError, TryAgain
from backstory.journal.chain import Block, canonical, schema_hash
from backstory.journal.log_table import brought_up_to_date, log_of
from backstory.journal.row_hash import ROWS, hash_of, hashed
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.stores.iceberg.commit import Note
from backstory.stores.iceberg.event_log import append, spark_schema, stage_log
from backstory.stores.iceberg.literals import literal
from backstory.stores.iceberg.store import Store, existing
from backstory.strategies.events.plan import Happened, numbered, order
from backstory.strategies.events.terms import Terms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger()

DOOR = "odf"
TOLD = ("source_state", "fetch", "complete", "contents", "watermark")
NOTHING: Mapping[str, int] = MappingProxyType({})


def event_of(at: Meeting, rows: int, watermark: datetime | None) -> dict[str, Any]:
    """What the commit of so many rows says of itself; a manifest is told where it is another than before."""
    work, the, head = at.work, at.the, at.head
    contents = dict(head.event.get("contents") or {})
    if work.content is not None:
        contents[work.source_name] = work.content
    event = {
        "start": head.next_offset if rows else None,
        "end": head.next_offset + rows - 1 if rows else None,
        "prev_offset": head.next_offset - 1 if head.next_offset else None,
        "watermark": iso(watermark) if watermark else None,
        **_source_told(work, head),
        "logical_hash": None,
        "source": work.source_name,
        "run_id": work.run.run_id,
        **({"token": work.token} if work.token else {}),
        "file": work.fetched.name,
        "manifest_hash": the.manifest_hash,
    }
    if work.fetched.spelled is not None:
        event["path"] = work.fetched.spelled
    if contents:
        event["contents"] = contents
    if snapshot_time := _snapshot_time(work, head):
        event["snapshot_time"] = snapshot_time
    if head.event.get("manifest_hash") != the.manifest_hash:
        event["manifest"] = dict(the.dataset.document)
    return event


def _source_told(work: Work, head: Head) -> dict[str, Any]:
    """What is known of the polling source: where it is, its state, and whether all that it had is here."""
    fetch, state = fetch_hash(work.source), work.fetched.state
    if fetch is None:
        return {name: head.event.get(name) for name in ("source_state", "fetch", "complete", "polled")}
    return {
        "source_state": state.to_dict() if state else None,
        "fetch": fetch,
        "complete": work.fetched.last,
        "polled": head.polled + 1,
    }


def _snapshot_time(work: Work, head: Head) -> str | None:
    """The time of the newest snapshot; one that is of the run's own time tells nothing."""
    time, last = work.fetched.event_time, head.snapshot_time
    told = isinstance(work.source.merge, Snapshot) and time is not None and time != work.run.system_time
    newest = max(filter(None, (time if told else None, last)), default=None)
    return iso(newest) if newest else None


def says_more(event: Mapping[str, Any], head: Head) -> bool:
    """Whether an event without rows tells of a source what the head does not (section 2.1, step 10)."""
    return any(event.get(name) != head.event.get(name) for name in TOLD)


def commit_rows(at: Meeting, event: dict[str, Any], came: Batch, found: Happened, terms: Terms) -> None:
    """Number the events and commit them."""
    columns, names = at.the.columns, [field.name for field in came.data]
    with numbered(found.events, found.rows, order(terms, came.data), at.head.next_offset) as placed:
        commit_block(at, event, came, columns.stored(placed, names, literal(at.now)), +found.counts)


def commit_block(
    at: Meeting,
    event: dict[str, Any],
    came: Batch | None = None,
    rows: "DataFrame | None" = None,
    counts: Mapping[str, int] = NOTHING,
) -> None:
    """Make the one commit; the log table follows it (decision O10)."""
    from pyspark.sql import Observation

    store, the, before = at.work.store, at.the, at.head.block
    assert the.table is not None
    fields = the.columns.schema(came.data, dated=came.dated) if came else None
    staged = stage_log(store, the.table, fields, _properties(at, came))
    types = [(f.name, f.dataType.simpleString()) for f in spark_schema(store, staged.table().schema())]
    event |= {"schema_hash": schema_hash(types), "counts": dict(counts)}
    sequence, previous = (before.sequence + 1, before.hash) if before else (0, None)
    written = Observation()
    if rows is not None:
        rows = hashed(rows, the.columns.vocab.offset_column, written)

    def note() -> Note:
        if rows is not None:
            event["logical_hash"] = _written_hash(written.get, event)
        block = Block(sequence, previous, at.now, "AddData", event)
        return Note(DOOR, at.work.token or block.hash, dict(counts), block.properties())

    append(store, the.table, rows, note, staged=staged)
    write_log(store, the.name)


def write_log(store: Store, name: TableName) -> None:
    """Bring the log of a dataset up to date; it never hinders a pull, and a log that is behind is told of."""
    try:
        brought_up_to_date(store, existing(store, name))
    except BackstoryError as fault:
        log.warning(
            "the log is behind; expire no snapshots before a pull has written it",
            table=str(log_of(name)),
            reason=fault.message,
        )


def _written_hash(written: Mapping[str, Any], event: Mapping[str, Any]) -> str | None:
    """The hash of the rows that were written; raises TryAgain if Spark counted some of them twice or not."""
    if written[ROWS] != event["end"] - event["start"] + 1:
        raise TryAgain(
            "recounted",
            f"{written[ROWS]} rows were seen on their way to offsets {event['start']} to {event['end']}.",
            "Nothing was committed; a part of the work was done twice, do all of it again.",
        )
    return hash_of(written)


def _properties(at: Meeting, came: Batch | None) -> dict[str, str]:
    """The dataset's columns, once they are known."""
    if came is None or at.the.schema is not None:
        return {}
    source = at.work.source
    declared = declared_schema(source.read) if source.preprocess is None else None
    document = document_of(came.data, declared, at.the.columns.time, dated=came.dated)
    return {SCHEMA: canonical(document)}
