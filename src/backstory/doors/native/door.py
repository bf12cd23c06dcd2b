"""Snapshots and feeds: the calls of the warehouse and the command line."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from backstory.doors.native.databases import rows_of_database
from backstory.doors.native.feeds.agreement import unmodified_text, with_stored_envelope
from backstory.doors.native.feeds.feed import Answer as FeedAnswer
from backstory.doors.native.feeds.feed import NativeFeed, StreamBatch
from backstory.doors.native.feeds.messages import FeedRows, messages_of_lines, messages_of_rows, unwrap_feed
from backstory.doors.native.options import TABLE, ApplyRequest, SnapshotRequest, names_files, parse_options
from backstory.doors.native.receipts import answer_without_changes
from backstory.doors.native.retyping import with_types
from backstory.doors.native.snapshot import Answer, NativeSnapshot
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
from backstory.errors import BackstoryError, UsageError
from backstory.formats.memory import Memory, translate_disk_errors
from backstory.formats.source_files import SourceFiles, source_files
from backstory.model.table import TableName, table_name
from backstory.model.types import ColumnType
from backstory.sources.databases.address import is_database, parse_address
from backstory.stores.connect.store import open_connect
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.upkeep.previews import open_branch

__all__ = ["apply", "batch_writer", "parse_options", "snapshot"]
Request = SnapshotRequest | ApplyRequest
# Spark's local property with the id of a stream's query.
QUERY: Final = "sql.streaming.queryId"


def snapshot(store: IcebergStore, source: Any, into: TableName, request: SnapshotRequest) -> Answer:
    """Deliver a full copy to its table. Returns its receipt, or the plan of a dry run.

    The source is a frame of Spark or pandas, an Arrow table, a table of the warehouse, the address of a
    database, or files: the name of one, of a folder, or a glob. Without `at=`, the copy's time is just before
    the source was read. Rows that others commit during the copy are then newer than it, and are kept.
    """
    request = replace(request, begun=datetime.now(UTC))
    place = _place(store, into, request)
    with (
        with_remark(request.note, request.author),
        translate_disk_errors("the source"),
        _rows(store, source, partial(load, place, into), request) as rows,
    ):
        request = replace(request, begun=rows.instant or request.begun)
        return deliver(place, NativeSnapshot(into, with_types(rows, _types(request)), request))


def apply(
    store: IcebergStore, source: Any, into: TableName, request: ApplyRequest, batch: StreamBatch | None = None
) -> FeedAnswer:
    """Deliver a feed of changes to its table. Returns its receipt, or the plan of a dry run.

    The source is of the kinds that `snapshot` accepts. `batch` identifies the batch of a stream.
    """
    place = _place(store, into, request)
    table = load(place, into)
    if table is not None:
        refuse_feed(into, table.properties)
    request = with_stored_envelope(request, {} if table is None else table.properties)
    with (
        with_remark(request.note, request.author),
        translate_disk_errors("the source"),
        _feed_rows(store, source, into, table, request) as messages,
    ):
        if not messages:
            return answer_without_changes(into, request)
        rows, row_request = messages
        return deliver(place, NativeFeed(into, rows, row_request, _has_texts(source, request), batch))


def _place(store: IcebergStore, into: TableName, request: SnapshotRequest | ApplyRequest) -> IcebergStore:
    """The store of the table, or of its branch for a preview."""
    if request.branch is None:
        return store
    return open_branch(store, into, request.branch, dry_run=request.dry_run)


def batch_writer(
    store: IcebergStore, into: TableName, request: ApplyRequest
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that applies a batch. Refused ends the query and changes no table.

    Over Spark Connect the server runs a copy of the function, in a process and a session of its own.
    """
    if request.branch is not None:
        raise UsageError("bad-option", "A stream has no preview.", "Omit `branch=`.")
    if not store.has_java:
        return partial(_write_on_server, (store.catalog, store.format_version, store.memory), into, request)

    def write(rows: DataFrame, number: int) -> None:
        session = rows.sparkSession
        query = session.sparkContext.getLocalProperty(QUERY)
        batch = None if query is None else StreamBatch(query, number)
        own = replace(store, session=session)
        table = load(own, into)
        if batch is not None and table is not None and batch.is_committed(table):
            return
        try:
            apply(own, rows, into, request, batch)
        except BackstoryError as stop:
            raise _with_code(stop) from None

    return write


def _write_on_server(
    terms: tuple[str, int, Memory], into: TableName, request: ApplyRequest, rows: DataFrame, _: int
) -> None:
    """Apply a batch in its own session, without the id of its query, which only Java has."""
    try:
        apply(open_connect(rows.sparkSession, *terms), rows, into, request)
    except BackstoryError as stop:
        raise _with_code(stop) from None


def _with_code(stop: BackstoryError) -> BackstoryError:
    """The same error with code and keys in its message, because Spark reports only the message."""
    keys = f" Keys: {', '.join(map(str, stop.keys))}." if stop.keys else ""
    return stop.reword(f"{stop.code}: {stop.message}", f"{stop.remedy}{keys}")


@contextmanager
def _feed_rows(
    store: IcebergStore, source: Any, into: TableName, table: IcebergTable | None, request: ApplyRequest
) -> "Iterator[FeedRows]":
    """The rows of a feed, and the request that reads them. Empty if no message is a change."""
    if request.envelope is None:
        with _rows(store, source, lambda: table, request) as rows:
            yield rows, request
        return
    key = (request.key or ()) if table is None else table.shape.key
    with ExitStack() as resources:
        if (files := _files_of_messages(source, request)) is not None:
            messages = messages_of_lines(store, files.files, request, resources)
        else:
            rows = resources.enter_context(_rows(store, source, lambda: table, request))
            messages = messages_of_rows(store, rows)
        yield resources.enter_context(unwrap_feed(store, into, messages, request, key))


def _files_of_messages(source: Any, request: ApplyRequest) -> SourceFiles | None:
    """The files with a message of Debezium on each line, or None for other sources."""
    if request.envelope != "debezium" or not names_files(source):
        return None
    files = source_files(str(source), request.format)
    return files if files.format in {"jsonl", "json"} else None


def _has_texts(source: Any, request: ApplyRequest) -> bool:
    """Whether the source has times as strings, which are in UTC if they have no offset."""
    if not names_files(source):
        return False
    return source_files(str(source), request.format).format != "parquet"


def _types(request: Request) -> dict[str, ColumnType]:
    """The new types, by the copy's column names."""
    return {request.rename.get(name, name): type_ for name, type_ in request.retype.items()}


def _refuse_stream(frame: DataFrame) -> None:
    if frame.isStreaming:
        raise UsageError(
            "streaming-frame",
            "The frame is a stream, which has no last row.",
            "Write its batches: `frame.writeStream.foreachBatch(warehouse.apply_batch(into=TABLE, ...))`.",
        )


@contextmanager
def _rows(store: IcebergStore, source: Any, stored: LoadTable, request: Request) -> Iterator[SourceRows]:
    if isinstance(source, str) and is_database(source):
        if request.format is not None:
            raise UsageError("bad-option", "`format=` is for files.", "Leave it out.")
        database = parse_address(source, request.query)
        with rows_of_database(
            store, database, stored, request.rename, _types(request), request.files
        ) as rows:
            yield rows
        return
    if request.query is not None:
        raise UsageError("bad-option", "`query=` is for databases.", "Give the address of one as the source.")
    if not isinstance(source, str | Path) or str(source).startswith(TABLE):
        request.files.refuse_all("a table" if isinstance(source, str) else f"a {type(source).__name__}")
    if isinstance(source, DataFrame):
        _refuse_stream(source)
        yield rows_of_frame(source)
        return
    if isinstance(source, str) and source.startswith(TABLE):
        yield rows_of_table(store, table_name(source.removeprefix(TABLE)))
        return
    if isinstance(source, str | Path):
        files = source_files(str(source), request.format)
        unmodified = partial(unmodified_text, request) if isinstance(request, ApplyRequest) else None
        with rows_of_files(
            store, files, stored, request.rename, _types(request), request.files, unmodified=unmodified
        ) as rows:
            yield rows
        return
    if type(source).__module__.partition(".")[0] == "pandas":
        source = arrow_of_pandas(source)
    if not isinstance(source, pa.Table):
        raise UsageError(
            "bad-option",
            f"A {type(source).__name__} is not a source of rows.",
            "Give a DataFrame, an Arrow table, a file name or `table:schema.table`.",
        )
    yield rows_of_arrow(store, plain_arrow(source))
