"""The messages of an envelope as rows of a feed, unwrapped by the driver or in Spark's tasks (V61 to V65)."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve

from backstory.doors.native.feeds.expressions import read_feed_rows
from backstory.doors.native.options import ApplyRequest, EnvelopeName
from backstory.doors.native.sources import SourceRows, rows_of_arrow
from backstory.engine.runner import plan_here_or_in_tasks
from backstory.engine.staging import local_fields, stage_rows, storable_schema, with_void_columns
from backstory.engine.tasks import buckets_of, by_bucket
from backstory.errors import UsageError, bad_option
from backstory.formats.batch_file import require_unchanged
from backstory.formats.encoded import utf8_lines
from backstory.formats.envelopes.change_feed import unwrap_changes
from backstory.formats.envelopes.debezium import refuse_several, unwrap_debezium
from backstory.formats.envelopes.events import FEED, UNAVAILABLE, LogSource, Unwrapped, as_type, joint_column
from backstory.formats.envelopes.messages import debezium_lines, debezium_messages
from backstory.formats.memory import UNPACKED, MemoryLease
from backstory.formats.produced import ProducedRows
from backstory.formats.rows import KEEPS
from backstory.formats.source_files import SourceFile, unpack
from backstory.model.change_feed import COMMIT_VERSION
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import bucket_of, buckets_for, bytes_of
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.iceberg.workers import carry_errors, map_batches
from backstory.strategies.feeds.terms import BEFORE_IMAGE

# Extra columns of unwrapped rows; no source has such names.
TIME, OPERATION, ORDERED = "{}: time", "{}: operation", "{}: {}"
# The columns of Kafka's messages.
KEY: Final = "key"
VALUE: Final = "value"
# The rows of a feed and the request that reads them, or an empty tuple if no message is a change.
FeedRows = tuple[SourceRows, ApplyRequest] | tuple[()]


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
LINES: Final = pa.schema([(VALUE, pa.string())])
LINES_AT_ONCE: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class MessageRows:
    """The rows of messages: the record's `own` columns, and extra columns with their meaning.

    `order` has the columns that order the rows: positions in the `log`, or requested paths. `images` are the
    own columns with before-images.
    """

    rows: pa.Table
    own: tuple[str, ...]
    order: tuple[str, ...]
    images: frozenset[str]
    log: LogSource | None = None


def unwrap_here(
    store: IcebergStore, messages: pa.Table, request: ApplyRequest, key: Sequence[str]
) -> FeedRows:
    """The rows of messages, and a request that reads them, or an empty tuple if no message is a change.

    In that case, the columns of the order are unknown. Raises the errors of `unwrap_messages`.
    """
    rows = unwrap_messages(messages, request, key)
    if not len(rows.rows):
        return ()
    source = replace(rows_of_arrow(store, rows.rows), images=rows.images)
    return source, with_message_columns(request, rows.order, rows.rows.column_names, rows.log)


def unwrap_messages(messages: pa.Table, request: ApplyRequest, key: Sequence[str]) -> MessageRows:
    """The rows of messages: structs or strings of Debezium, or rows of a feed of changes.

    Strings are in a column `value`, with an optional `key`. Raises Refused for malformed messages, and
    UsageError if the order is unknown.
    """
    assert request.envelope is not None
    return ENVELOPES[request.envelope].unwrap(messages, request, key)


def _unwrap_change_rows(messages: pa.Table, request: ApplyRequest, key: Sequence[str]) -> MessageRows:
    return _message_rows(unwrap_changes(messages, key), messages, request)


def _unwrap_debezium(messages: pa.Table, request: ApplyRequest, key: Sequence[str]) -> MessageRows:
    unavailable = request.unmodified or UNAVAILABLE
    if are_texts(messages.column_names):
        keys = _texts(messages[KEY]) if KEY in messages.column_names else None
        messages = debezium_messages(keys, _texts(messages[VALUE]), unavailable=unavailable)
    return _message_rows(unwrap_debezium(messages, key, unavailable=unavailable), messages, request)


def are_texts(names: Collection[str]) -> bool:
    """Whether messages with these columns are strings, as in Kafka."""
    return VALUE in names and not {"op", "payload"} & set(names)


def _texts(values: pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks().cast(pa.string())


def _message_rows(events: Unwrapped, messages: pa.Table, request: ApplyRequest) -> MessageRows:
    name = str(request.envelope)
    if events.unordered and request.sequence_by is None:
        raise UsageError(
            "bad-option",
            f"The order of changes of the connector {events.unordered} is unknown.",
            "Name it with `sequence_by=`: paths into the message, such as source.ts_us,source.pos.",
        )
    order = {TIME.format(name): events.instants}
    order |= {ORDERED.format(name, part): events.sequence[part] for part in events.sequence.column_names}
    # Tables store the envelope's own order.
    own = request.sequence_by is None or [*map(str, request.sequence_by)] == [f"`{name}`" for name in order]
    if request.sequence_by is not None and not own:
        order = {str(path): _at_path(messages, str(path)).take(events.places) for path in request.sequence_by}
    beside: dict[str, Any] = {**order, OPERATION.format(name): events.kinds}
    beside |= {KEEPS.format(name): events.unmodified[name] for name in events.unmodified.column_names}
    if events.before is not None and len(events.before):
        before = events.before.to_struct_array().combine_chunks()
        parts = [before.field(place) for place in range(before.type.num_fields)]
        mask = pc.invert(events.has_before)
        beside[BEFORE_IMAGE] = pa.StructArray.from_arrays(parts, fields=list(before.type), mask=mask)
    rows = pa.table({**{name: events.rows[name] for name in events.rows.column_names}, **beside})
    images = events.before.column_names if events.before is not None else ()
    log = events.source if own else None
    return MessageRows(rows, tuple(events.rows.column_names), tuple(order), frozenset(images), log)


def with_message_columns(
    request: ApplyRequest, order: Sequence[str], names: Collection[str], log: LogSource | None
) -> ApplyRequest:
    """The request that reads the meaning of rows from the extra columns."""
    operation = OPERATION.format(request.envelope)
    own = {*order, operation, BEFORE_IMAGE}
    return evolve(
        request,
        sequence_by=tuple(f"`{name}`" for name in order),
        apply_as_deletes=f"`{operation}` = 'delete'",
        apply_as_truncates=f"`{operation}` = 'truncate'",
        drop=[*(request.drop or ()), *(own & set(names))],
        is_unwrapped=True,
        log=log,
    )


def _at_path(messages: pa.Table, path: str) -> pa.Array:
    """The values at a path in the messages, such as `source.lsn`."""
    first, *rest = path.split(".")
    if first not in messages.column_names:
        raise bad_option(f"The messages have no {first}.", f"They have {', '.join(messages.column_names)}.")
    values = messages[first].combine_chunks()
    for name in rest:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            raise bad_option(f"The messages have no {path}.", "Name a path that they have.")
        values = pc.struct_field(values, name)
    return values


@dataclass(frozen=True, slots=True)
class MessageTypes:
    """The columns and types of all rows of messages. `own` are the record's columns."""

    schema: pa.Schema
    own: tuple[str, ...]
    order: tuple[str, ...]
    images: frozenset[str]
    log: LogSource | None


def unwrap_in_tasks(messages: "DataFrame", request: ApplyRequest, key: Sequence[str]) -> FeedRows:
    """The rows of messages unwrapped in Spark's tasks, and a request that reads them.

    The result is empty if no message is a change. A first pass determines the types of all messages. Raises
    the errors of `unwrap_messages`. The message numbers in these errors count within a part of the feed.
    """
    assert request.envelope is not None
    unwrapped = ENVELOPES[request.envelope].unwrap_in_tasks(messages, _for_workers(request), tuple(key))
    if unwrapped is None:
        return ()
    types, rows = unwrapped
    rows = with_void_columns(rows, types.schema)
    source = SourceRows(rows.schema, lambda: rows, images=types.images)
    return source, with_message_columns(request, types.order, types.schema.names, types.log)


def _for_workers(request: ApplyRequest) -> ApplyRequest:
    """The parts of a request that unwrapping needs, in a form that workers can unpickle."""
    order = None if request.sequence_by is None else tuple(map(str, request.sequence_by))
    return ApplyRequest(
        into=str(request.into), envelope=request.envelope, unmodified=request.unmodified, sequence_by=order
    )


def _unwrap_debezium_in_tasks(
    messages: "DataFrame", request: ApplyRequest, key: tuple[str, ...]
) -> "tuple[MessageTypes, DataFrame] | None":
    if are_texts(messages.columns):
        texts = [name for name in (KEY, VALUE) if name in messages.columns]
        messages = messages.select(*map(quote, texts))
    types = _joint_types(messages, request, key)
    if types is None:
        return None
    unwrap = partial(_unwrap_batches, request, key, types)
    return types, map_batches(messages, unwrap, local_fields(types.schema))


def _joint_types(messages: "DataFrame", request: ApplyRequest, key: tuple[str, ...]) -> MessageTypes | None:
    describe = partial(_describe, request, key)
    described = map_batches(messages, describe, "columns binary, also string").collect()
    parts = [(pa.ipc.read_schema(pa.py_buffer(row["columns"])), json.loads(row["also"])) for row in described]
    parts = [part for part in parts if part[1]["events"]]
    if not parts:
        return None
    logs = [LogSource(*map(frozenset, also["log"])) for _, also in parts if also["log"] is not None]
    log = reduce(LogSource.join, logs) if logs else None
    if log is not None:
        refuse_several(log)
    names = dict.fromkeys(name for schema, _ in parts for name in schema.names)
    types_by_name = {
        name: [schema.field(name).type for schema, _ in parts if name in schema.names] for name in names
    }
    own = tuple(dict.fromkeys(name for _, also in parts for name in also["own"]))
    joint = {name: joint_column(name, types, FEED) for name, types in types_by_name.items()}
    # A column that a part lacks is unmodified in its rows.
    joint |= {KEEPS.format(name): pa.bool_() for name in own if len(types_by_name[name]) < len(parts)}
    images = frozenset(name for _, also in parts for name in also["images"])
    return MessageTypes(pa.schema(list(joint.items())), own, tuple(parts[0][1]["order"]), images, log)


def _describe(request: ApplyRequest, key: tuple[str, ...], batches: Batches) -> Batches:
    """The schema of each part's rows, with their own columns, order, images and log as JSON."""
    for batch in batches:
        with carry_errors():
            rows = unwrap_messages(pa.Table.from_batches([batch]), request, key)
        log = rows.log and [
            sorted(names) for names in (rows.log.connectors, rows.log.servers, rows.log.tables)
        ]
        also = {"own": rows.own, "order": rows.order, "images": sorted(rows.images), "log": log}
        columns = rows.rows.schema.serialize().to_pybytes()
        cells = [[columns], [json.dumps({**also, "events": len(rows.rows) > 0})]]
        yield pa.record_batch([pa.array(cell) for cell in cells], names=["columns", "also"])


def _unwrap_batches(
    request: ApplyRequest, key: tuple[str, ...], types: MessageTypes, batches: Batches
) -> Batches:
    for batch in batches:
        with carry_errors():
            rows = unwrap_messages(pa.Table.from_batches([batch]), request, key)
            typed = _in_types(rows, types)
        yield from typed.to_batches()


def _in_types(rows: MessageRows, types: MessageTypes) -> pa.Table:
    """The rows of a part, with the columns of all parts."""
    count, columns = len(rows.rows), []
    lacking = {KEEPS.format(name): name not in rows.own for name in types.own}
    for field in storable_schema(types.schema):
        if field.name in rows.rows.column_names:
            columns.append(as_type(rows.rows[field.name].combine_chunks(), field.type))
        else:
            columns.append(pa.repeat(pa.scalar(lacking.get(field.name), field.type), count))
    return pa.table(columns, schema=storable_schema(types.schema))


def _unwrap_change_feed(
    messages: "DataFrame", request: ApplyRequest, key: tuple[str, ...]
) -> "tuple[MessageTypes, DataFrame]":
    """The rows of a feed of changes. Rows of a record in one commit are unwrapped together."""
    nothing = messages.limit(0)
    rows = unwrap_messages(arrow_of(nothing), request, key)
    images = pa.struct([(name, rows.rows[name].type) for name in rows.own])
    types = MessageTypes(
        pa.schema([*rows.rows.schema, (BEFORE_IMAGE, images)]),
        rows.own,
        rows.order,
        frozenset(rows.own),
        rows.log,
    )
    by = [column(name) for name in (*key, COMMIT_VERSION)]
    buckets = buckets_for(messages.count(), bytes_of(messages))
    numbered = messages.select(bucket_of(by, buckets), *map(quote, messages.columns))
    unwrapped = map_batches(
        by_bucket(numbered, buckets),
        partial(_unwrap_buckets, request, key, types, tuple(messages.columns)),
        local_fields(types.schema),
    )
    return types, unwrapped


def _unwrap_buckets(
    request: ApplyRequest, key: tuple[str, ...], types: MessageTypes, names: tuple[str, ...], batches: Batches
) -> Batches:
    for messages in buckets_of(batches):
        with carry_errors():
            typed = _in_types(unwrap_messages(messages.select(names), request, key), types)
        yield from typed.to_batches()


class Envelope(NamedTuple):
    """How messages in an envelope become rows of a feed: on the driver, and in Spark's tasks."""

    unwrap: Callable[[pa.Table, ApplyRequest, Sequence[str]], MessageRows]
    unwrap_in_tasks: Callable[
        ["DataFrame", ApplyRequest, tuple[str, ...]], "tuple[MessageTypes, DataFrame] | None"
    ]


ENVELOPES: Final[Mapping[EnvelopeName, Envelope]] = {
    "debezium": Envelope(_unwrap_debezium, _unwrap_debezium_in_tasks),
    "changes": Envelope(_unwrap_change_rows, _unwrap_change_feed),
}
assert ENVELOPES.keys() == {*get_args(EnvelopeName)}


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in an envelope.

    `table` reads them all or raises TooLarge, and `frame` reads them with Spark.
    """

    table: Callable[[MemoryLease], pa.Table]
    frame: "Callable[[], DataFrame]"


def messages_of_rows(store: IcebergStore, rows: SourceRows) -> Messages:
    """The rows of a source as messages."""
    return Messages(partial(read_feed_rows, store, rows, {}), rows.frame)


def messages_of_lines(
    store: IcebergStore, files: Sequence[SourceFile], request: ApplyRequest, resources: ExitStack
) -> Messages:
    """The lines of files as messages of Debezium. Temporary files are removed with `resources`."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="backstory-native-")))
    lines = [unpack(file, folder) for file in files]
    encoding, unavailable = request.text_encoding, request.unmodified or UNAVAILABLE

    def table(lease: MemoryLease) -> pa.Table:
        lease.hold("feed", UNPACKED * sum(file.path.stat().st_size for file in lines))
        read = [
            debezium_lines(file.path, encoding, unavailable=unavailable, name=file.name) for file in lines
        ]
        require_unchanged(file.stamp for file in lines)
        return pa.concat_tables(read, promote_options="permissive")

    def frame() -> "DataFrame":
        _, made = stage_rows(store, ProducedRows(LINES, _line_batches(lines, encoding)), folder, resources)
        require_unchanged(file.stamp for file in lines)
        return made()

    return Messages(table, frame)


def unwrap_feed(
    store: IcebergStore, messages: Messages, request: ApplyRequest, key: Sequence[str]
) -> AbstractContextManager[FeedRows]:
    """The rows of messages, and the request that reads them.

    The driver unwraps the messages if it can. Otherwise Spark's tasks unwrap them.
    """

    def here(resources: ExitStack) -> FeedRows:
        lease = resources.enter_context(store.memory.lease())
        return unwrap_here(store, messages.table(lease), request, key)

    def tasks(_resources: ExitStack) -> FeedRows:
        with translate_faults(request.into):  # this reads the types of all messages, in tasks
            return unwrap_in_tasks(messages.frame(), request, key)

    return plan_here_or_in_tasks(store, request.into, here, tasks)


def _line_batches(files: Sequence[SourceFile], encoding: str) -> Iterator[pa.RecordBatch]:
    for file in files:
        lines: list[str | None] = []
        for _, line in utf8_lines(file.path, file.name, encoding):
            lines.append(line if line.strip() else None)
            if len(lines) == LINES_AT_ONCE:
                yield pa.record_batch([pa.array(lines, pa.string())], schema=LINES)
                lines = []
        yield pa.record_batch([pa.array(lines, pa.string())], schema=LINES)
