"""Messages that the driver cannot hold: unwrapped in Spark's tasks, in the types of all of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.feeds.unwrapping import (
    KEY,
    VALUE,
    FeedRows,
    MessageRows,
    are_texts,
    read_beside,
    unwrap_messages,
)
from backstory.doors.native.source import Source
from backstory.engine.staging import local_fields, storable, with_void_columns
from backstory.engine.tasks import buckets_of, by_bucket
from backstory.formats.envelopes.joint_types import as_type, joint_column
from backstory.formats.envelopes.log_positions import refuse_several
from backstory.formats.envelopes.log_source import LogSource
from backstory.formats.kept_cells import KEEPS
from backstory.model.change_feed import COMMIT_VERSION
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.buckets import bucket_of, buckets_for, bytes_of
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.workers import carrying, map_batches
from backstory.strategies.feeds.terms import BEFORE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEED: Final = "The feed"
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class MessageTypes:
    """The columns of all rows that messages become: `own` are the records', the rest stands beside."""

    schema: pa.Schema
    own: tuple[str, ...]
    order: tuple[str, ...]
    images: frozenset[str]
    log: LogSource | None


def unwrap_in_tasks(messages: "DataFrame", request: FeedRequest, key: Sequence[str]) -> FeedRows:
    """The rows of a feed with what its messages say of each, and a request that reads it there.

    Nothing where no message is a change. A first look tells the types of all messages. Raises what
    `unwrap_messages` raises; numbers of messages are those in their part of the feed.
    """
    asked, key = _for_workers(request), tuple(key)
    if request.envelope == "changes":
        types, rows = _changes(messages, asked, key)
    else:
        if are_texts(messages.columns):
            texts = [name for name in (KEY, VALUE) if name in messages.columns]
            messages = messages.select(*map(quoted, texts))
        described = _types(messages, asked, key)
        if described is None:
            return ()
        types = described
        rows = map_batches(messages, partial(_unwrap, asked, key, types), local_fields(types.schema))
    rows = with_void_columns(rows, types.schema)
    source = Source(rows.schema, lambda: rows, images=types.images)
    return source, read_beside(request, types.order, types.schema.names, types.log)


def _for_workers(request: FeedRequest) -> FeedRequest:
    """What unwrapping needs of a request; a worker can be sent it."""
    order = None if request.sequence_by is None else tuple(map(str, request.sequence_by))
    return FeedRequest(envelope=request.envelope, unmodified=request.unmodified, sequence_by=order)


def _types(messages: "DataFrame", request: FeedRequest, key: tuple[str, ...]) -> MessageTypes | None:
    describe = partial(_describe, request, key)
    described = map_batches(messages, describe, "columns binary, also string").collect()
    parts = [(_schema(each["columns"]), json.loads(each["also"])) for each in described]
    parts = [each for each in parts if each[1]["events"]]
    if not parts:
        return None
    logs = [LogSource(*map(frozenset, also["log"])) for _, also in parts if also["log"] is not None]
    log = reduce(LogSource.joined, logs) if logs else None
    if log is not None:
        refuse_several(log, FEED)
    names = dict.fromkeys(name for schema, _ in parts for name in schema.names)
    found = {name: [each.field(name).type for each, _ in parts if name in each.names] for name in names}
    own = tuple(dict.fromkeys(name for _, also in parts for name in also["own"]))
    joint = {name: joint_column(name, types, FEED) for name, types in found.items()}
    # What some parts do not have at all, they leave as it was.
    joint |= {KEEPS.format(name): pa.bool_() for name in own if len(found[name]) < len(parts)}
    images = frozenset(name for _, also in parts for name in also["images"])
    return MessageTypes(pa.schema(list(joint.items())), own, tuple(parts[0][1]["order"]), images, log)


def _schema(columns: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(columns))


def _describe(request: FeedRequest, key: tuple[str, ...], batches: Batches) -> Batches:
    """The columns of each part's rows, and what they are."""
    for batch in batches:
        with carrying():
            rows = unwrap_messages(pa.Table.from_batches([batch]), request, key)
        log = rows.log and [sorted(each) for each in (rows.log.connectors, rows.log.servers, rows.log.tables)]
        also = {"own": rows.own, "order": rows.order, "images": sorted(rows.images), "log": log}
        columns = rows.rows.schema.serialize().to_pybytes()
        cells = [[columns], [json.dumps({**also, "events": len(rows.rows) > 0})]]
        yield pa.record_batch([pa.array(each) for each in cells], names=["columns", "also"])


def _unwrap(request: FeedRequest, key: tuple[str, ...], types: MessageTypes, batches: Batches) -> Batches:
    for batch in batches:
        with carrying():
            rows = unwrap_messages(pa.Table.from_batches([batch]), request, key)
            typed = _in_types(rows, types)
        yield from typed.to_batches()


def _in_types(rows: MessageRows, types: MessageTypes) -> pa.Table:
    """The rows of a part in the columns of all."""
    count, columns = len(rows.rows), []
    lacking = {KEEPS.format(name): name not in rows.own for name in types.own}
    for field in storable(types.schema):
        if field.name in rows.rows.column_names:
            columns.append(as_type(rows.rows[field.name].combine_chunks(), field.type))
        else:
            columns.append(pa.repeat(pa.scalar(lacking.get(field.name), field.type), count))
    return pa.table(columns, schema=storable(types.schema))


def _changes(
    messages: "DataFrame", request: FeedRequest, key: tuple[str, ...]
) -> "tuple[MessageTypes, DataFrame]":
    """Rows of a feed of changes: those of a record in one commit are unwrapped together."""
    nothing = messages.limit(0)
    rows = unwrap_messages(arrow_of(nothing), request, key)
    images = pa.struct([(name, rows.rows[name].type) for name in rows.own])
    types = MessageTypes(
        pa.schema([*rows.rows.schema, (BEFORE, images)]), rows.own, rows.order, frozenset(rows.own), rows.log
    )
    by = [column(name) for name in (*key, COMMIT_VERSION)]
    buckets = buckets_for(messages.count(), bytes_of(messages))
    numbered = messages.select(bucket_of(by, buckets), *map(quoted, messages.columns))
    unwrapped = map_batches(
        by_bucket(numbered, buckets),
        partial(_unwrap_buckets, request, key, types, tuple(messages.columns)),
        local_fields(types.schema),
    )
    return types, unwrapped


def _unwrap_buckets(
    request: FeedRequest, key: tuple[str, ...], types: MessageTypes, names: tuple[str, ...], batches: Batches
) -> Batches:
    for messages in buckets_of(batches):
        with carrying():
            typed = _in_types(unwrap_messages(messages.select(names), request, key), types)
        yield from typed.to_batches()
