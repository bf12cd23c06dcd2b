"""Messages in an envelope as the rows of a feed, and the options that say what they do (V61 to V65)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.request import bad_option
from backstory.doors.native.source import Source, rows_of_arrow
from backstory.errors import UsageError
from backstory.formats.envelopes.change_feed import unwrap_changes
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.log_source import LogSource
from backstory.formats.envelopes.messages import debezium_messages
from backstory.formats.envelopes.unavailable import UNAVAILABLE
from backstory.formats.envelopes.unwrapped import Unwrapped
from backstory.formats.kept_cells import KEEPS
from backstory.stores.iceberg.store import Store
from backstory.strategies.feeds.terms import BEFORE

# Columns of unwrapped rows beside the record's own; no column of a source is called so.
TIME, OPERATION, ORDERED = "{}: time", "{}: operation", "{}: {}"
# The columns of a message as Kafka gives it.
KEY: Final = "key"
VALUE: Final = "value"
# The rows of a feed, and what is asked of them.
FeedRows = tuple[Source, FeedRequest] | tuple[()]


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows of a feed, and beside their `own` columns what their messages say of each.

    `order` are the columns that order them, those of their own `log` or paths that were asked for. `images`
    are their own ones of which images before are known.
    """

    rows: pa.Table
    own: tuple[str, ...]
    order: tuple[str, ...]
    images: frozenset[str]
    log: LogSource | None = None


def unwrap(store: Store, messages: pa.Table, request: FeedRequest, key: Sequence[str]) -> FeedRows:
    """The rows of a feed with what its messages say of each, and a request that reads it there.

    Nothing where no message is a change: nobody says then what orders them. Raises what `unwrap_messages`
    raises.
    """
    rows = unwrap_messages(messages, request, key)
    if not len(rows.rows):
        return ()
    source = replace(rows_of_arrow(store, rows.rows), images=rows.images)
    return source, read_beside(request, rows.order, rows.rows.column_names, rows.log)


def unwrap_messages(messages: pa.Table, request: FeedRequest, key: Sequence[str]) -> MessageRows:
    """The rows that messages become.

    They are structs of Debezium, its texts in a column `value`, perhaps with `key` beside, or rows of a feed
    of changes. Raises Refused for what is no message, UsageError where the order is not known.
    """
    if request.envelope == "changes":
        return _beside(unwrap_changes(messages, key), messages, request)
    unavailable = request.unmodified or UNAVAILABLE
    if are_texts(messages.column_names):
        keys = _texts(messages[KEY]) if KEY in messages.column_names else None
        messages = debezium_messages(keys, _texts(messages[VALUE]), unavailable=unavailable)
    return _beside(unwrap_debezium(messages, key, unavailable=unavailable), messages, request)


def are_texts(names: Collection[str]) -> bool:
    """Whether messages with these columns are texts, as Kafka gives them."""
    return VALUE in names and not {"op", "payload"} & set(names)


def _texts(values: pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks().cast(pa.string())


def _beside(events: Unwrapped, messages: pa.Table, request: FeedRequest) -> MessageRows:
    name = str(request.envelope)
    if events.unordered and request.sequence_by is None:
        raise UsageError(
            "bad-option",
            f"The order of changes of the connector {events.unordered} is unknown.",
            "Name it with `sequence_by=`: paths into the message, such as source.ts_us,source.pos.",
        )
    order = {TIME.format(name): events.instants}
    order |= {ORDERED.format(name, each): events.sequence[each] for each in events.sequence.column_names}
    own = request.sequence_by is None or _are_own(request.sequence_by, order)
    if request.sequence_by is not None and not own:
        order = {str(path): _at_path(messages, str(path)).take(events.places) for path in request.sequence_by}
    beside: dict[str, Any] = {**order, OPERATION.format(name): events.kinds}
    beside |= {KEEPS.format(each): events.unmodified[each] for each in events.unmodified.column_names}
    if events.before is not None and len(events.before):
        before = events.before.to_struct_array().combine_chunks()
        parts = [before.field(place) for place in range(before.type.num_fields)]
        mask = pc.invert(events.has_before)
        beside[BEFORE] = pa.StructArray.from_arrays(parts, fields=list(before.type), mask=mask)
    rows = pa.table({**{each: events.rows[each] for each in events.rows.column_names}, **beside})
    images = events.before.column_names if events.before is not None else ()
    log = events.source if own else None
    return MessageRows(rows, tuple(events.rows.column_names), tuple(order), frozenset(images), log)


def read_beside(
    request: FeedRequest, order: Sequence[str], names: Collection[str], log: LogSource | None
) -> FeedRequest:
    """The request that reads rows with these columns where their messages say what they mean."""
    operation = OPERATION.format(request.envelope)
    own = {*order, operation, BEFORE}
    return replace(
        request,
        sequence_by=tuple(f"`{each}`" for each in order),
        apply_as_deletes=f"`{operation}` = 'delete'",
        apply_as_truncates=f"`{operation}` = 'truncate'",
        drop=(request.drop or frozenset()) | (own & set(names)),
        is_unwrapped=True,
        log=log,
    )


def _are_own(expressions: Sequence[Any], order: dict[str, Any]) -> bool:
    """Whether what is given is what the envelope orders by itself, as the table keeps it."""
    return tuple(map(str, expressions)) == tuple(f"`{each}`" for each in order)


def _at_path(messages: pa.Table, path: str) -> pa.Array:
    """The values at a path into messages, such as `source.lsn`."""
    first, *rest = path.split(".")
    if first not in messages.column_names:
        raise bad_option(f"The messages have no {first}.", f"They have {', '.join(messages.column_names)}.")
    values = messages[first].combine_chunks()
    for name in rest:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            raise bad_option(f"The messages have no {path}.", "Name a path that they have.")
        values = pc.struct_field(values, name)
    return values
