"""The messages of an envelope as rows of a feed, unwrapped by the driver or in Spark's tasks (V61 to V65)."""

import pickle
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

from backstory.doors.native.options import ApplyRequest, EnvelopeName
from backstory.doors.native.sources import SourceRows, rows_of_arrow
from backstory.engine.runner import plan_here_or_in_tasks
from backstory.engine.staging import local_fields, stage_rows, storable_schema, with_void_columns
from backstory.engine.tasks import buckets_of, by_bucket
from backstory.errors import bad_option
from backstory.formats.batch_file import require_unchanged
from backstory.formats.encoded import utf8_lines
from backstory.formats.envelopes.change_feed import unwrap_changes
from backstory.formats.envelopes.debezium import refuse_several, unwrap_debezium
from backstory.formats.envelopes.events import FEED, UNAVAILABLE, LogSource, Unwrapped, joint_column
from backstory.formats.envelopes.messages import debezium_lines, debezium_messages
from backstory.formats.memory import UNPACKED, MemoryLease
from backstory.formats.produced import ProducedRows
from backstory.formats.rows import KEEPS
from backstory.formats.source_files import SourceFile, unpack
from backstory.formats.values.exactly import as_type
from backstory.model.change import COMMIT_VERSION
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import bucket_of, buckets_for, bytes_of
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.iceberg.workers import carry_errors, map_batches
from backstory.strategies.feeds.terms import BEFORE_IMAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Extra columns of unwrapped rows; no source has such names.
TIME, OPERATION, ORDERED = "{}: time", "{}: operation", "{}: {}"
# The columns of Kafka's messages.
KEY: Final = "key"
VALUE: Final = "value"
LINES: Final = pa.schema([(VALUE, pa.string())])
LINES_AT_ONCE: Final = 1 << 14
# The rows of a feed and the request that reads them, or an empty tuple if no message is a change.
FeedRows = tuple[SourceRows, ApplyRequest] | tuple[()]
# The first function reads all messages or raises TooLarge. The second one reads them with Spark.
Messages = tuple[Callable[[MemoryLease], pa.Table], Callable[[], "DataFrame"]]
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class MessageRows:
    """The rows of messages: the record's `own` columns, and extra columns with their meaning.

    `order` has the columns that order the rows: positions in the `log`, or requested paths. `images` are the
    own columns with before-images. An instance without rows describes the columns and types of a whole feed.
    """

    rows: pa.Table
    own: tuple[str, ...]
    order: tuple[str, ...]
    images: frozenset[str]
    log: LogSource | None = None


Unwrap = Callable[[pa.Table], MessageRows]


def unwrap_messages(request: ApplyRequest, key: Sequence[str], messages: pa.Table) -> MessageRows:
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
        raise bad_option(
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


def _request_of_rows(request: ApplyRequest, rows: MessageRows) -> ApplyRequest:
    """The request with options that read the meaning of rows from their extra columns."""
    operation = OPERATION.format(request.envelope)
    own = {*rows.order, operation, BEFORE_IMAGE}
    return evolve(
        request,
        sequence_by=tuple(f"`{name}`" for name in rows.order),
        apply_as_deletes=f"`{operation}` = 'delete'",
        apply_as_truncates=f"`{operation}` = 'truncate'",
        drop=[*(request.drop or ()), *(own & set(rows.rows.column_names))],
        is_unwrapped=True,
        log=rows.log,
    )


def _at_path(messages: pa.Table, path: str) -> pa.Array:
    """The values in the messages at a path such as `source.lsn`."""
    first, *rest = path.split(".")
    if first not in messages.column_names:
        raise bad_option(f"The messages have no {first}.", f"They have {', '.join(messages.column_names)}.")
    values = messages[first].combine_chunks()
    for name in rest:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            raise bad_option(f"The messages have no {path}.", "Name a path that they have.")
        values = pc.struct_field(values, name)
    return values


def unwrap_in_tasks(messages: "DataFrame", request: ApplyRequest, key: Sequence[str]) -> FeedRows:
    """The rows of messages unwrapped in Spark's tasks, and a request that reads them.

    The result is empty if no message is a change. A first pass determines the types of all messages. Raises
    the errors of `unwrap_messages`. The message numbers in these errors count within a part of the feed.
    """
    assert request.envelope is not None
    order = None if request.sequence_by is None else tuple(map(str, request.sequence_by))
    # The parts of the request that unwrapping needs. Workers cannot unpickle all of it.
    own = ApplyRequest(
        into=str(request.into), envelope=request.envelope, unmodified=request.unmodified, sequence_by=order
    )
    unwrap = partial(unwrap_messages, own, tuple(key))
    unwrapped = ENVELOPES[request.envelope].unwrap_in_tasks(messages, unwrap, key)
    if unwrapped is None:
        return ()
    types, rows = unwrapped
    rows = with_void_columns(rows, types.rows.schema)
    return SourceRows(rows.schema, lambda: rows, images=types.images), _request_of_rows(request, types)


def _unwrap_debezium_in_tasks(
    messages: "DataFrame", unwrap: Unwrap, _key: Sequence[str]
) -> "tuple[MessageRows, DataFrame] | None":
    if are_texts(messages.columns):
        texts = [name for name in (KEY, VALUE) if name in messages.columns]
        messages = messages.select(*map(quote, texts))
    described = map_batches(messages, partial(_describe_batches, unwrap), "part binary").collect()
    # Our own tasks wrote these bytes.
    parts: list[MessageRows] = [pickle.loads(row["part"]) for row in described]  # noqa: S301
    if not parts:
        return None
    types = _joint_types(parts)
    return types, map_batches(
        messages, partial(_unwrap_batches, unwrap, types), local_fields(types.rows.schema)
    )


def _describe_batches(unwrap: Unwrap, batches: Batches) -> Batches:
    """The columns and types of each part that has changes, without its rows."""
    for batch in batches:
        with carry_errors():
            part = unwrap(pa.Table.from_batches([batch]))
        if len(part.rows):
            empty = replace(part, rows=part.rows.schema.empty_table())
            yield pa.record_batch([pa.array([pickle.dumps(empty)])], names=["part"])


def _joint_types(parts: Sequence[MessageRows]) -> MessageRows:
    logs = [part.log for part in parts if part.log is not None]
    log = reduce(LogSource.join, logs) if logs else None
    if log is not None:
        refuse_several(log)
    types: dict[str, list[pa.DataType]] = {}
    for field in (field for part in parts for field in part.rows.schema):
        types.setdefault(field.name, []).append(field.type)
    own = tuple(dict.fromkeys(name for part in parts for name in part.own))
    joint = {name: joint_column(name, of_parts, FEED) for name, of_parts in types.items()}
    # A column that a part lacks is unmodified in its rows.
    joint |= {KEEPS.format(name): pa.bool_() for name in own if len(types[name]) < len(parts)}
    images = frozenset(name for part in parts for name in part.images)
    return MessageRows(pa.schema(list(joint.items())).empty_table(), own, parts[0].order, images, log)


def _unwrap_batches(unwrap: Unwrap, types: MessageRows, batches: Batches) -> Batches:
    yield from _unwrap_parts(unwrap, types, (pa.Table.from_batches([batch]) for batch in batches))


def _unwrap_buckets(unwrap: Unwrap, types: MessageRows, names: Sequence[str], batches: Batches) -> Batches:
    yield from _unwrap_parts(unwrap, types, (messages.select(names) for messages in buckets_of(batches)))


def _unwrap_parts(unwrap: Unwrap, types: MessageRows, parts: Iterator[pa.Table]) -> Batches:
    """The rows of each part of the messages, with the columns of all parts."""
    schema = storable_schema(types.rows.schema)
    for messages in parts:
        with carry_errors():
            part = unwrap(messages)
            rows, columns = part.rows, []
            lacking = {KEEPS.format(name): name not in part.own for name in types.own}
            for field in schema:
                if field.name in rows.column_names:
                    columns.append(as_type(rows[field.name].combine_chunks(), field.type))
                else:
                    columns.append(pa.repeat(pa.scalar(lacking.get(field.name), field.type), len(rows)))
        yield from pa.table(columns, schema=schema).to_batches()


def _unwrap_change_feed(
    messages: "DataFrame", unwrap: Unwrap, key: Sequence[str]
) -> "tuple[MessageRows, DataFrame]":
    """The rows of a feed of changes. Rows of a record in one commit are unwrapped together."""
    part = unwrap(arrow_of(messages.limit(0)))
    images = pa.struct([(name, part.rows[name].type) for name in part.own])
    schema = pa.schema([*part.rows.schema, (BEFORE_IMAGE, images)])
    types = replace(part, rows=schema.empty_table(), images=frozenset(part.own))
    by = [column(name) for name in (*key, COMMIT_VERSION)]
    buckets = buckets_for(messages.count(), bytes_of(messages))
    numbered = messages.select(bucket_of(by, buckets), *map(quote, messages.columns))
    unwrap_buckets = partial(_unwrap_buckets, unwrap, types, messages.columns)
    return types, map_batches(by_bucket(numbered, buckets), unwrap_buckets, local_fields(schema))


class Envelope(NamedTuple):
    """The functions that unwrap messages in an envelope, on the driver and in Spark's tasks."""

    unwrap: Callable[[pa.Table, ApplyRequest, Sequence[str]], MessageRows]
    unwrap_in_tasks: Callable[["DataFrame", Unwrap, Sequence[str]], "tuple[MessageRows, DataFrame] | None"]


ENVELOPES: Final[Mapping[EnvelopeName, Envelope]] = {
    "debezium": Envelope(_unwrap_debezium, _unwrap_debezium_in_tasks),
    "changes": Envelope(_unwrap_change_rows, _unwrap_change_feed),
}
assert ENVELOPES.keys() == {*get_args(EnvelopeName)}


def messages_of_lines(
    store: IcebergStore, files: Sequence[SourceFile], request: ApplyRequest, resources: ExitStack
) -> Messages:
    """The lines of files as Debezium messages. Temporary files are removed with `resources`."""
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

    return table, frame


def unwrap_feed(
    store: IcebergStore, messages: Messages, request: ApplyRequest, key: Sequence[str]
) -> AbstractContextManager[FeedRows]:
    """The rows of messages, and the request that reads them, or an empty tuple if no message is a change.

    In that case, the columns of the order are unknown. The driver unwraps the messages if it can. Otherwise
    Spark's tasks unwrap them. Raises the errors of `unwrap_messages`.
    """
    table, frame = messages

    def here(resources: ExitStack) -> FeedRows:
        lease = resources.enter_context(store.memory.lease())
        unwrapped = unwrap_messages(request, key, table(lease))
        if not len(unwrapped.rows):
            return ()
        source = replace(rows_of_arrow(store, unwrapped.rows), images=unwrapped.images)
        return source, _request_of_rows(request, unwrapped)

    def tasks(_resources: ExitStack) -> FeedRows:
        with translate_faults(request.into):  # this reads the types of all messages, in tasks
            return unwrap_in_tasks(frame(), request, key)

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
