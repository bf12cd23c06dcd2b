"""The ingestion of a file and its commit: rows, new columns, and the block that records them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import structlog
from pyspark.sql import Observation

from backstory.doors.odf.batch import DeliveredSide, document_of
from backstory.doors.odf.columns import declared_schema
from backstory.doors.odf.manifest.dataset import DatasetSource
from backstory.doors.odf.manifest.events import SnapshotMerge
from backstory.doors.odf.polling import IngestRequest
from backstory.doors.odf.receipts import DEFAULT_SOURCE, Head, cache_in, fetch_hash
from backstory.doors.odf.registry import SCHEMA, LogColumns, RegisteredDataset
from backstory.doors.odf.sides import LogMerge, log_schema, stored_frame
from backstory.engine.plans import PlanResult
from backstory.engine.row_buffers import sort_rows
from backstory.engine.staging import StagedRows
from backstory.errors import BackstoryError, Refused, TryAgain
from backstory.formats.delivered import shape_rows
from backstory.journal import chain
from backstory.journal.arrow_hash import hash_of_table, hash_text, sum_of_words
from backstory.journal.row_hash import ROWS, hash_of, observe_hash
from backstory.model.change import NOTHING, TOKEN, Change, Note, RowBatches
from backstory.model.instant import iso
from backstory.model.table import Column, Shape, TableName
from backstory.sources.source import FetchedFile
from backstory.stores.iceberg.literals import literal, null_columns
from backstory.stores.iceberg.schema import columns_from, spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.strategies.events.plan import EVENTS, outcomes_of
from backstory.strategies.events.sides import sorted_places
from backstory.strategies.frames import number_data, number_events, sort_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger()

DOOR = "odf"
# Rows are hashed while their files are written.
_HASHER = ThreadPoolExecutor(1, thread_name_prefix="hash")
SOURCE_FIELDS = ("source_state", "fetch", "complete", "contents", "watermark")


def cache_of(store: IcebergStore, dataset: TableName) -> Path:
    """The folder of a dataset's downloads: in the embedded warehouse, or else in the user's cache folder."""
    return cache_in(store.folder or Path.home() / ".cache" / "backstory" / store.catalog, dataset)


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file to ingest into a dataset.

    `dataset` loads the current dataset. `after` is the dataset's number of polls when the source was fetched,
    or None for a push. The other fields are set once the file is read. `token` identifies a repeated run.
    `read` has the file's rows. `frame` contains its rows after preprocess, or None if no columns are known.
    `content` is the digest of a file whose rows must not be merged twice.
    """

    store: IcebergStore
    source: DatasetSource
    fetched: FetchedFile
    run: IngestRequest
    dataset: Callable[[], RegisteredDataset]
    after: int | None = None
    token: str | None = None
    read: StagedRows | None = None
    frame: "DataFrame | None" = None
    content: str | None = None

    @property
    def source_name(self) -> str:
        """The name of the source. A polling source has no name of its own."""
        return getattr(self.source, "source_name", DEFAULT_SOURCE)


def token_of(file: DatasetFile) -> str | None:
    """The token by which a file of a run is recognized if the run is repeated (R81).

    Without a run id, there is no token. The token contains the place of a polled file, or the name and
    content of a pushed file. The folder of a pushed file may differ when the run is repeated.
    """
    if file.run.run_id is None:
        return None
    place_or_content = fetch_hash(file.source)
    if place_or_content is None:
        with file.fetched.path.open("rb") as content:
            place_or_content = hashlib.file_digest(content, "sha3_256").hexdigest()
    return f"{file.run.run_id} {file.source_name} {file.fetched.name} {place_or_content}"


def head_to_extend(store: IcebergStore, dataset: RegisteredDataset) -> Head:
    """The head of a dataset, for a commit that follows it.

    Raises Refused if the table has more rows than its newest known commit recorded, because offsets would be
    used twice. This happens if other programs expire a commit before the log contains it. Also raises Refused
    for fewer rows, if commits are known only from the log.
    """
    head = head_of(store, dataset)
    rows, counted = (dataset.table.rows if dataset.table else 0), head.next_offset
    if (
        dataset.table is None
        or rows == counted
        or (rows < counted and next(chain.walk(dataset.table), None) is not None)
    ):
        return head
    name = dataset.dataset.name
    raise Refused(
        "log-behind" if rows > counted else "rows-lost",
        f"The table of {name} holds {rows} rows, but its newest known commit counts {counted}.",
        "Nothing was written; restore table and log from a backup, or add the manifest under another name.",
    )


def head_of(store: IcebergStore, dataset: RegisteredDataset) -> Head:
    """The head of a dataset, which is empty if the dataset has no table."""
    return Head(None if dataset.table is None else chain.stored_journal(store, dataset.table).newest())


@dataclass(frozen=True, slots=True)
class Ingestion:
    """A file, and the current dataset that it is ingested into. `now` is the commit's system time."""

    file: DatasetFile
    dataset: RegisteredDataset
    head: Head
    now: datetime


def event_of(ingestion: Ingestion, rows: int, watermark: datetime | None) -> dict[str, Any]:
    """The event that records a commit of `rows` rows. It includes the manifest if that has changed."""
    file, dataset, head = ingestion.file, ingestion.dataset, ingestion.head
    contents = dict(head.event.get("contents") or {})
    if file.content is not None:
        contents[file.source_name] = file.content
    event = {
        "start": head.next_offset if rows else None,
        "end": head.next_offset + rows - 1 if rows else None,
        "prev_offset": head.next_offset - 1 if head.next_offset else None,
        "watermark": iso(watermark) if watermark else None,
        **_source_progress(file, head),
        "logical_hash": None,
        "source": file.source_name,
        "run_id": file.run.run_id,
        **({"token": file.token} if file.token else {}),
        "file": file.fetched.name,
        "manifest_hash": dataset.manifest_hash,
    }
    if file.fetched.spelled is not None:
        event["path"] = file.fetched.spelled
    if contents:
        event["contents"] = contents
    if snapshot_time := _snapshot_time(file, head):
        event["snapshot_time"] = snapshot_time
    if head.event.get("manifest_hash") != dataset.manifest_hash:
        event["manifest"] = dict(dataset.dataset.document)
    return event


def _source_progress(file: DatasetFile, head: Head) -> dict[str, Any]:
    """The progress of the polling source: its place, its state, and whether all of its data were ingested."""
    fetch, state = fetch_hash(file.source), file.fetched.state
    if fetch is None:
        return {name: head.event.get(name) for name in ("source_state", "fetch", "complete", "polled")}
    return {
        "source_state": state.to_dict() if state else None,
        "fetch": fetch,
        "complete": file.fetched.last,
        "polled": head.polls + 1,
    }


def _snapshot_time(file: DatasetFile, head: Head) -> str | None:
    """The time of the newest snapshot. A time equal to the run's time counts as no time."""
    time, last = file.fetched.event_time, head.snapshot_time
    has_own_time = isinstance(file.source.merge, SnapshotMerge) and time is not None and time != file.run.now
    newest = max(filter(None, (time if has_own_time else None, last)), default=None)
    return iso(newest) if newest else None


def records_more(event: Mapping[str, Any], ingestion: Ingestion) -> bool:
    """Whether an event without rows records new progress of the source (section 2.1, step 10).

    A refetch records the manifest that read the source again.
    """
    fields = (*SOURCE_FIELDS, "manifest_hash") if ingestion.file.run.refetch else SOURCE_FIELDS
    return any(event.get(name) != ingestion.head.event.get(name) for name in fields)


def rows_change(ingestion: Ingestion, event: dict[str, Any], merge: LogMerge, planned: PlanResult) -> Change:
    """The change that adds the sorted and numbered events, with the block that records them."""
    columns, start, data = ingestion.dataset.columns, ingestion.head.next_offset, merge.delivered.data
    events, sums = planned.rows(EVENTS), planned.sums
    rows: DataFrame | pa.Table | RowBatches
    if isinstance(events, pa.Table | RowBatches):
        ordered = sort_rows(events, partial(sorted_places, terms=merge.terms), merge.resources)
        if isinstance(ordered, RowBatches):
            rows = RowBatches(partial(_number_batches, columns, ordered, ingestion.now, start))
        else:
            rows = columns.stored_rows(ordered, ingestion.now, start)
    else:
        assert events is not None
        by = sort_order(merge.terms, data)
        frame = number_data(events, len(data))
        frame = merge.resources.enter_context(number_events(frame, sums.counts[EVENTS], by, start))
        rows = stored_frame(columns, frame, [field.name for field in data], literal(ingestion.now))
    return block_change(ingestion, event, merge.delivered, rows, outcomes_of(sums))


def _number_batches(columns: LogColumns, events: RowBatches, now: datetime, start: int) -> Iterator[pa.Table]:
    for table in events.tables():
        yield columns.stored_rows(table, now, start)
        start += len(table)


def block_change(
    ingestion: Ingestion,
    event: dict[str, Any],
    delivered: DeliveredSide | None = None,
    rows: "DataFrame | pa.Table | RowBatches | None" = None,
    counts: Mapping[str, int] = NOTHING,
) -> Change:
    """The change that adds a block to the chain, with its rows and new columns."""
    table, before = ingestion.dataset.table, ingestion.head.block
    assert table is not None
    into = None
    if delivered is not None:
        wanted = columns_from(log_schema(ingestion.dataset.columns, delivered.data, dated=delivered.dated))
        into = _extend_shape(table, wanted)
    sequence, previous = (before.sequence + 1, before.hash) if before else (0, None)
    offset = ingestion.dataset.columns.vocab.offset_column
    added, hash_text = _with_hash(rows, into or table.shape, offset, event)

    def block_properties(pending: IcebergTable) -> Mapping[str, str]:
        event["logical_hash"] = hash_text()
        hashed = chain.schema_hash(chain.column_types(pending.fields))
        event.update(schema_hash=hashed, counts=dict(counts))
        block = chain.Block(sequence, previous, ingestion.now, "AddData", event)
        return {TOKEN: ingestion.file.token or block.hash, **block.properties()}

    return Change(
        dict(counts),
        added=added,
        into=into if into != table.shape else None,
        properties=_properties(ingestion, delivered),
        snapshot=True,
        late_properties=block_properties,
    )


def _with_hash(
    rows: "DataFrame | pa.Table | RowBatches | None", shape: Shape, offset: str, event: Mapping[str, Any]
) -> "tuple[DataFrame | pa.Table | RowBatches | None, Callable[[], str | None]]":
    """The rows with the table's columns, and a function that returns the rows' hash once they are written."""
    if rows is None:
        return None, lambda: None
    if isinstance(rows, pa.Table):
        rows = shape_rows(rows, shape.columns)
        return rows, _HASHER.submit(hash_of_table, rows, offset).result
    if isinstance(rows, RowBatches):
        sums: list[np.ndarray] = []
        pieces = RowBatches(partial(_hash_pieces, rows, shape, offset, sums))
        return pieces, lambda: hash_text(reduce(np.bitwise_xor, sums))
    observation = Observation()
    rows = observe_hash(rows, offset, observation)
    rows = rows.withColumns(null_columns(shape.columns, rows.columns))
    return rows, lambda: _written_hash(observation.get, event)


def _hash_pieces(rows: RowBatches, shape: Shape, offset: str, sums: list[np.ndarray]) -> Iterator[pa.Table]:
    """The batches in the table's columns. Each batch is hashed while it is written."""
    sums.clear()
    for table in rows.tables():
        piece = shape_rows(table, shape.columns)
        words = _HASHER.submit(sum_of_words, piece, offset)
        yield piece
        sums.append(words.result())


def note_of(file: DatasetFile) -> Note:
    """The note for a commit, with the door and the token of the file."""
    return Note(DOOR, file.token or "")


def _extend_shape(table: IcebergTable, wanted: Sequence[Column]) -> Shape:
    """The table's shape with the wanted columns, which replace columns of other types.

    Raises Refused if a column in a log with rows would change its type, because rows never change.
    """
    stored = {column.name: column for column in table.shape.columns}
    retyped = {c.name: c for c in wanted if c.name in stored and c.type != stored[c.name].type}
    if retyped and table.rows:
        name = next(iter(retyped))
        raise Refused(
            "incompatible-schema",
            f"The column {name} of the log is of type {spark_type(stored[name].type)}.",
            "Nothing was written; provide values of that type.",
            list(retyped),
        )
    columns = [retyped.get(name, column) for name, column in stored.items()]
    new = [column for column in wanted if column.name not in stored]
    return replace(table.shape, columns=(*columns, *new))


def write_log(store: IcebergStore, name: TableName) -> None:
    """Bring the log of a dataset up to date. An error is only logged, so that the pull does not fail."""
    try:
        chain.bring_up_to_date(store, existing(store, name))
    except BackstoryError as fault:
        log.warning(
            "the log is behind; do not expire snapshots until a pull has written it",
            table=str(chain.log_of(name)),
            reason=fault.message,
        )


def _written_hash(written: Mapping[str, Any], event: Mapping[str, Any]) -> str | None:
    """The hash of the written rows. Raises TryAgain if Spark's count of the rows differs from the offsets."""
    if written[ROWS] != event["end"] - event["start"] + 1:
        raise TryAgain(
            "recounted",
            f"Spark wrote {written[ROWS]} rows for the offsets {event['start']} to {event['end']}, because a "
            "task ran twice.",
            "Nothing was committed; run it again.",
        )
    return hash_of(written)


def _properties(ingestion: Ingestion, delivered: DeliveredSide | None) -> dict[str, str]:
    """The table property with the dataset's columns, if this commit is the first for which they are known."""
    if delivered is None or ingestion.dataset.schema is not None:
        return {}
    source = ingestion.file.source
    declared = declared_schema(source.read) if source.preprocess is None else None
    document = document_of(delivered.data, declared, ingestion.dataset.columns.time, dated=delivered.dated)
    return {SCHEMA: chain.canonical(document)}
