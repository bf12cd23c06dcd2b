"""Debezium's envelopes become events (native.md, V61 to V64)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.formats.envelopes.changed_keys import end_changed_keys
from backstory.formats.envelopes.images import Images, before_images, record_rows, unmodified_cells
from backstory.formats.envelopes.log_positions import (
    connector_of,
    instants,
    log_positions,
    log_source,
    logs_whole_rows,
    refuse_several,
)
from backstory.formats.envelopes.messages import UNMODIFIED
from backstory.formats.envelopes.parsing import (
    AFTER,
    BEFORE,
    KEY,
    NO_CHANGE,
    OP,
    PAYLOAD,
    REMEDY,
    SCHEMA,
    message,
)
from backstory.formats.envelopes.structs import all_null, fields_of, struct_of, whole_columns
from backstory.formats.envelopes.unavailable import UNAVAILABLE
from backstory.formats.envelopes.unwrapped import DELETE, TRUNCATE, UPSERT, Unwrapped
from backstory.formats.produced import malformed, refuse_repeated, shortened

_KINDS: Final = {"c": UPSERT, "u": UPSERT, "r": UPSERT, "d": DELETE, "t": TRUNCATE}
_OPERATIONS: Final = [*_KINDS, "m"]  # m: a message of the log, which is of no row
Columns = Mapping[str, pa.Array]
Place = Callable[[int], str]


def unwrap_debezium(
    rows: pa.Table, key: Sequence[str] = (), *, unavailable: str = UNAVAILABLE, name: str = "The feed"
) -> Unwrapped:
    """The events of messages: columns `op`, `before`, `after`, `source`, `ts_ms`, or a `payload` of these.

    The key of a delete is that of the message where a struct `key` has it, else that of `before`; `key`
    names its columns, without it they are those of the message's key. Messages without a value, and those
    that are of no row, are left out. Cells equal to `unavailable` are unmodified, and those that
    `debezium_messages` says are. A before image counts where it is a whole row: not where its values are
    not available, and of a delete only where the connector logs whole rows. An update that changes the
    `key`, as its image before says, is two events: a delete of the old key comes before it.

    Raises Refused (`malformed-row`), with the number of the message, for another `op`, for an upsert without
    `after`, a delete without a key, for log positions and times that cannot be read; and for schemas, which
    only `debezium_messages` reads.
    """
    columns, places = _events(_envelopes(rows, name), rows.num_rows, name)
    columns, places = end_changed_keys(columns, places, key, name)

    def place(row: int) -> str:
        return message(int(places[row]))

    operations = columns[OP]
    kinds = pa.array([_KINDS[each] for each in operations.to_pylist()], pa.string())
    source = _fields(columns, "source", name, place)
    images = Images(
        pc.equal(kinds, UPSERT),
        pc.equal(kinds, DELETE),
        *(_fields(columns, each, name, place) for each in (BEFORE, AFTER, KEY)),
    )
    key = tuple(key) or tuple(images.key) or tuple(images.before)
    _refuse_missing(images, key, name, place)
    records = record_rows(images, key, name)
    stated = fields_of(columns.get(UNMODIFIED, pa.nulls(len(kinds))))
    unmodified = unmodified_cells(images, stated, key, records.column_names, unavailable)
    connector = connector_of(source.get("connector", pa.nulls(len(kinds))), name, place)
    log = log_source(connector, source, len(kinds))
    refuse_several(log, name)
    imaged = pc.equal(operations, "u")
    if logs_whole_rows(connector):
        imaged = pc.or_(imaged, images.is_delete)
    before, has_before = before_images(images, imaged, records.schema, unavailable)
    reads, sent = pc.equal(operations, "r"), columns.get("ts_ms", pa.nulls(len(kinds)))
    sequence = log_positions(connector, source, reads, name, place)
    return Unwrapped(
        rows=_without(records, unmodified),
        kinds=kinds,
        instants=instants(source, sent, reads, name, place),
        sequence=sequence,
        unmodified=unmodified,
        before=before,
        has_before=has_before,
        places=pa.array(places),
        source=log,
        unordered="" if sequence.column_names or not len(kinds) else connector or "unknown",
    )


def _envelopes(rows: pa.Table, name: str) -> dict[str, pa.Array]:
    """The columns of envelopes, those of `payload` where the messages have one."""
    columns = whole_columns(rows, name)
    key = columns.pop(KEY, None)
    if OP not in columns and PAYLOAD in columns:
        columns = _payload(columns, name)
    if key is not None and pa.types.is_struct(key.type):
        inner = fields_of(key)
        if inner.keys() == {SCHEMA, PAYLOAD}:
            inner = _payload(inner, name)
        if inner:
            columns[KEY] = struct_of(inner, all_null(inner, len(key)))
    return columns


def _payload(columns: Columns, name: str) -> dict[str, pa.Array]:
    schema = columns.get(SCHEMA)
    if schema is not None and schema.null_count < len(schema):
        raise Refused(
            "malformed-row",
            f"{name} has messages with schemas, which are exact only as the texts that they were sent as.",
            "Nothing was written; give the messages as text.",
        )
    payload = columns[PAYLOAD]
    return fields_of(payload)


def _events(columns: Columns, count: int, name: str) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The messages that are events, and which of all they are; Refused for another operation."""
    operations = columns.get(OP, pa.nulls(count))
    if not pa.types.is_string(operations.type):
        if operations.null_count < count:
            raise malformed(name, message(0), f"`{OP}` is not a text", REMEDY)
        operations = pa.nulls(count, pa.string())
    values = {each: part for each, part in columns.items() if each not in {OP, KEY, UNMODIFIED}}
    lacking = pc.and_(operations.is_null(), pc.invert(all_null(values, count)))
    if lacking.true_count:
        place = message(pc.index(lacking, True).as_py())
        raise malformed(name, place, NO_CHANGE, REMEDY)
    known = pc.or_(operations.is_null(), pc.is_in(operations, pa.array(_OPERATIONS)))
    if known.false_count:
        row = pc.index(known, False).as_py()
        why = f"`{OP}` is `{shortened(operations[row])}`, which is not one of {', '.join(_OPERATIONS)}"
        raise malformed(name, message(row), why, REMEDY)
    places = np.flatnonzero(pc.is_in(operations, pa.array(list(_KINDS))).to_numpy(zero_copy_only=False))
    every = {**columns, OP: operations}
    return {each: part.take(pa.array(places)) for each, part in every.items()}, places


def _fields(columns: Columns, column: str, name: str, place: Place) -> dict[str, pa.Array]:
    """The fields of a column of structs; Refused for one that is not of structs."""
    values = columns.get(column, pa.array([], pa.null()))
    if values.null_count == len(values):
        return fields_of(values)
    if not pa.types.is_struct(values.type):
        row = pc.index(values.is_valid(), True).as_py()
        raise malformed(name, place(row), f"`{column}` is not an object", REMEDY)
    refuse_repeated(f"{name}: `{column}`", values.type.names)
    return fields_of(values)


def _refuse_missing(images: Images, key: Sequence[str], name: str, place: Place) -> None:
    """Raise Refused for an upsert without values, and for a delete without a key."""
    lacking = pc.and_(images.is_upsert, all_null(images.after, len(images)))
    if lacking.true_count:
        row = pc.index(lacking, True).as_py()
        raise malformed(name, place(row), f"it has no `{AFTER}`", REMEDY)
    own = {f"{KEY}.{each}": images.key[each] for each in key if each in images.key}
    old = {f"{BEFORE}.{each}": images.before[each] for each in key if each in images.before}
    lacking = pc.and_(images.is_delete, all_null(own | old, len(images)))
    if lacking.true_count:
        row = pc.index(lacking, True).as_py()
        why = f"it is a delete, and neither its key nor `{BEFORE}` has {', '.join(key) or 'a column'}"
        raise malformed(name, place(row), why, REMEDY)


def _without(rows: pa.Table, unmodified: pa.Table) -> pa.Table:
    """The rows with NULL where they say nothing."""
    for column in unmodified.column_names:
        place = rows.column_names.index(column)
        rows = rows.set_column(place, column, pc.if_else(unmodified[column], None, rows[column]))
    return rows
