"""Snapshots and feeds: the functions that the warehouse and the command line call."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, singledispatch
from typing import Any, Final

import pyarrow as pa
from attrs import evolve
from pyspark.sql import DataFrame

from backstory.doors.native.databases import rows_of_database
from backstory.doors.native.feeds.agreement import unmodified_text, with_stored_envelope
from backstory.doors.native.feeds.expressions import read_feed_rows
from backstory.doors.native.feeds.feed import Answer as FeedAnswer
from backstory.doors.native.feeds.feed import StreamBatch, open_feed
from backstory.doors.native.feeds.messages import FeedRows, messages_of_lines, unwrap_feed
from backstory.doors.native.options import ApplyRequest, DeliveryRequest, SnapshotRequest, source_of
from backstory.doors.native.receipts import answer_without_changes
from backstory.doors.native.retyping import with_types
from backstory.doors.native.snapshot import Answer, open_copy
from backstory.doors.native.sources import (
    LoadTable,
    SourceRows,
    arrow_of_pandas,
    plain_arrow,
    rows_of_arrow,
    rows_of_files,
    rows_of_frame,
    rows_of_table,
)
from backstory.doors.native.whole_rows import refuse_feed
from backstory.engine.deliver import deliver
from backstory.engine.run_context import with_remark
from backstory.errors import BackstoryError, UsageError, bad_option
from backstory.formats.memory import Memory, translate_disk_errors
from backstory.formats.source_files import SourceFiles
from backstory.model.table import TableName
from backstory.sources.databases.address import Database
from backstory.stores.connect.store import open_connect
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.upkeep.previews import open_branch

# Spark's local property with the id of a stream's query.
QUERY: Final = "sql.streaming.queryId"


def snapshot(store: IcebergStore, source: Any, request: SnapshotRequest) -> Answer:
    """Deliver a full copy to its table. Returns its receipt, or the plan of a dry run.

    `source_of` returns the source. Without `at=`, the copy's time is just before the source was read. Rows
    that others commit during the copy are then newer than the copy, and are kept.
    """
    request = evolve(request, begun=datetime.now(UTC))
    place = _place(store, request)
    with (
        with_remark(request.note, request.author),
        translate_disk_errors("the source"),
        _rows(source, store, partial(load, place, request.into), request) as rows,
    ):
        request = evolve(request, begun=rows.instant or request.begun)
        typed = with_types(rows, request.new_types)
        return deliver(place, [request.into], partial(open_copy, typed, request))


def apply(
    store: IcebergStore, source: Any, request: ApplyRequest, batch: StreamBatch | None = None
) -> FeedAnswer:
    """Deliver a feed of changes to its table. Returns its receipt, or the plan of a dry run.

    `source_of` returns the source. `batch` identifies the batch of a stream.
    """
    place = _place(store, request)
    table = load(place, request.into)
    if table is not None:
        refuse_feed(request.into, table.properties)
    request = with_stored_envelope(request, {} if table is None else table.properties)
    with (
        with_remark(request.note, request.author),
        translate_disk_errors("the source"),
        _feed_rows(store, source, table, request) as messages,
    ):
        if not messages:
            return answer_without_changes(request)
        rows, row_request = messages
        # Times as strings are in UTC if they have no offset.
        zoned = isinstance(source, SourceFiles) and source.format != "parquet"
        return deliver(place, [request.into], partial(open_feed, rows, row_request, batch, zoned=zoned))


def _place(store: IcebergStore, request: DeliveryRequest) -> IcebergStore:
    """The store itself, or the store of the table's branch for a preview."""
    if request.branch is None:
        return store
    return open_branch(store, request.into, request.branch, dry_run=request.dry_run)


def batch_writer(store: IcebergStore, request: ApplyRequest) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that applies a batch.

    A Refused error ends the query and changes no table. Over Spark Connect, the server runs a copy of the
    function, in a process and a session of its own.
    """
    if request.branch is not None:
        raise bad_option("A stream has no preview.", "Omit `branch=`.")
    if not store.has_java:
        return partial(_write_on_server, (store.catalog, store.format_version, store.memory), request)

    def write(rows: DataFrame, number: int) -> None:
        session = rows.sparkSession
        query = session.sparkContext.getLocalProperty(QUERY)
        batch = None if query is None else StreamBatch(query, number)
        own = replace(store, session=session)
        table = load(own, request.into)
        if batch is not None and table is not None and batch.is_committed(table):
            return
        try:
            apply(own, source_of(rows, request), request, batch)
        except BackstoryError as stop:
            raise _with_code(stop) from None

    return write


def _write_on_server(terms: tuple[str, int, Memory], request: ApplyRequest, rows: DataFrame, _: int) -> None:
    """Apply a batch in its own session, without the id of its query, which only Java provides."""
    try:
        apply(open_connect(rows.sparkSession, *terms), source_of(rows, request), request)
    except BackstoryError as stop:
        raise _with_code(stop) from None


def _with_code(stop: BackstoryError) -> BackstoryError:
    """A copy of the error with code and keys in the message, because Spark reports only the message."""
    keys = f" Keys: {', '.join(map(str, stop.keys))}." if stop.keys else ""
    return stop.reword(f"{stop.code}: {stop.message}", f"{stop.remedy}{keys}")


@contextmanager
def _feed_rows(
    store: IcebergStore, source: Any, table: IcebergTable | None, request: ApplyRequest
) -> "Iterator[FeedRows]":
    """The rows of a feed, and the request that reads them, or an empty tuple if no message is a change."""
    if request.envelope is None:
        with _rows(source, store, lambda: table, request) as rows:
            yield rows, request
        return
    key = (request.key or ()) if table is None else table.shape.key
    with ExitStack() as resources:
        in_lines = isinstance(source, SourceFiles) and source.format in {"jsonl", "json"}
        if in_lines and request.envelope == "debezium":
            messages = messages_of_lines(store, source.files, request, resources)
        else:
            rows = resources.enter_context(_rows(source, store, lambda: table, request))
            messages = partial(read_feed_rows, store, rows, {}), rows.frame
        yield resources.enter_context(unwrap_feed(store, messages, request, key))


@singledispatch
def _rows(
    source: Any,
    store: IcebergStore,
    stored: LoadTable,  # noqa: ARG001
    request: DeliveryRequest,  # noqa: ARG001
) -> AbstractContextManager[SourceRows]:
    """The rows of a source, which can be read until the context ends.

    Each kind of source (see `source_of`) has its own function.
    """
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        return nullcontext(rows_of_arrow(store, plain_arrow(arrow_of_pandas(source))))
    raise bad_option(
        f"A {type(source).__module__.partition('.')[0]}.{type(source).__name__} is not a source of rows.",
        "Give a frame of Spark or pandas, an Arrow table, a file name or `table:schema.table`.",
    )


@_rows.register(Database)
def _(source: Database, store: IcebergStore, stored: LoadTable, request: DeliveryRequest) -> Any:
    return rows_of_database(store, source, stored, request.rename, request.new_types, request.type)


@_rows.register(SourceFiles)
def _(source: SourceFiles, store: IcebergStore, stored: LoadTable, request: DeliveryRequest) -> Any:
    unmodified = partial(unmodified_text, request) if isinstance(request, ApplyRequest) else None
    return rows_of_files(
        store, source, stored, request.rename, request.new_types, request, unmodified=unmodified
    )


@_rows.register(TableName)
def _(source: TableName, store: IcebergStore, *_: Any) -> Any:
    return nullcontext(rows_of_table(store, source))


@_rows.register(DataFrame)
def _(source: DataFrame, *_: Any) -> Any:
    if source.isStreaming:
        raise UsageError(
            "streaming-frame",
            "The frame is a stream, which has no last row.",
            "Write its batches: `frame.writeStream.foreachBatch(warehouse.apply_batch(into=TABLE, ...))`.",
        )
    return nullcontext(rows_of_frame(source))


@_rows.register(pa.Table)
def _(source: pa.Table, store: IcebergStore, *_: Any) -> Any:
    return nullcontext(rows_of_arrow(store, plain_arrow(source)))
