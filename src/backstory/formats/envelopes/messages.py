"""Debezium's messages as JSON text, with or without schemas, as the columns of their envelopes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.formats.encoded import utf8_lines
from backstory.formats.envelopes.connect_schemas import UnreadableSchema, decode_logical, envelope_type
from backstory.formats.envelopes.fast_reading import read_at_once
from backstory.formats.envelopes.joint_types import as_type, joint_column
from backstory.formats.envelopes.parsing import (
    AFTER,
    KEY,
    NO_CHANGE,
    OP,
    PAYLOAD,
    REMEDY,
    Cells,
    Payloads,
    message,
    payloads,
)
from backstory.formats.envelopes.structs import fields_of, struct_of, with_field
from backstory.formats.envelopes.unavailable import UNAVAILABLE, unavailable_cells
from backstory.formats.json.inference import DEEPEST, Seen, TooDeep, inferred
from backstory.formats.json.values import JsonColumn, typed
from backstory.formats.produced import malformed
from backstory.formats.values.texts import TextForms

UNMODIFIED: Final = "unmodified"


def debezium_messages(
    keys: Cells | None, values: Cells, *, unavailable: str = UNAVAILABLE, name: str = "The feed"
) -> pa.Table:
    """The messages' envelopes, a row each: `key`, the fields of the envelope, and `unmodified`.

    A message without a value is a row of NULLs. With a schema, logical types become what they mean: dates,
    times without a zone, instants, decimals, bytes; times of day and decimals without a fixed scale are
    texts, durations stay numbers. `unmodified` says which columns of `after` the message leaves as they
    were: their value is not available, or it does not have them.

    Raises Refused, with the number of the message, for what is not JSON (`malformed-row`) or not of its
    schema (`unreadable-value`), and for types that contradict each other (`mixed-types`).
    """
    with _remedies():
        envelopes = _joined(payloads(values, name), len(values), unavailable, name)
        _refuse_others(envelopes, name)
        columns = fields_of(envelopes)
        if UNMODIFIED in columns and AFTER in columns:
            columns[UNMODIFIED] = _of_all(columns[UNMODIFIED], columns[AFTER])
        if keys is not None:
            name = f"{name}, keys"
            columns = {KEY: _joined(payloads(keys, name), len(keys), None, name), **columns}
    return pa.table(columns) if columns else pa.table({KEY: pa.nulls(len(values))})


def debezium_lines(
    path: Path, encoding: str = "utf-8", *, unavailable: str = UNAVAILABLE, name: str = ""
) -> pa.Table:
    """The envelopes of a file with the value of a message on each line, as `debezium_messages` gives them."""
    name = name or path.name
    lines = [line if line.strip() else None for _, line in utf8_lines(path, name, encoding)]
    return debezium_messages(None, pa.array(lines, pa.string()), unavailable=unavailable, name=name)


def _joined(groups: Sequence[Payloads], count: int, unavailable: str | None, name: str) -> pa.Array:
    """The payloads of all messages as structs of one type, NULL for those without one."""
    parts = [_decoded(group, unavailable, name) for group in groups]
    type_ = joint_column(PAYLOAD, [part.type for part in parts], name)
    values = pa.concat_arrays([pa.nulls(0, type_), *(as_type(part, type_) for part in parts)])
    places = np.full(count, -1)
    places[[row for group in groups for row in group.rows]] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


def _decoded(group: Payloads, unavailable: str | None, name: str) -> pa.Array:
    """The payloads of one schema as structs; with the field `unmodified` unless they are keys."""
    if group.schema is None:
        values = group.values(name)
        built = typed(values, _inferred(group, values, name), _column(group, name))
        return built if unavailable is None else with_field(built, UNMODIFIED, _lacking(values, built))
    try:
        built = _built(group, name)
        if unavailable is None:
            return decode_logical(built, group.schema, PAYLOAD, name, group.place)
        after = fields_of(built).get(AFTER, pa.nulls(len(built)))
        flags = {each: unavailable_cells(part, unavailable) for each, part in fields_of(after).items()}
        for each, flag in flags.items():
            if flag.true_count:
                after = with_field(after, each, pc.if_else(flag, None, fields_of(after)[each]))
        known = with_field(built, AFTER, after) if flags else built
        known = decode_logical(known, group.schema, PAYLOAD, name, group.place)
        return with_field(known, UNMODIFIED, struct_of(flags)) if flags else known
    except UnreadableSchema as stop:
        raise malformed(name, group.place(0), f"its schema cannot be read: {stop}", REMEDY) from None


def _built(group: Payloads, name: str) -> pa.Array:
    """Payloads with a schema in the types that they are written in."""
    built = read_at_once(group.texts, envelope_type(group.schema))
    if built is not None:
        return built
    values = group.values(name)
    return typed(values, pa.field(PAYLOAD, envelope_type(group.schema, values)), _column(group, name))


def _column(group: Payloads, name: str) -> JsonColumn:
    return JsonColumn(name, group.place, TextForms(), strict=True)


def _refuse_others(envelopes: pa.Array, name: str) -> None:
    """Raise Refused for a message that is not of a change: without an `op`, it would pass for a tombstone."""
    operations = fields_of(envelopes).get(OP, pa.nulls(len(envelopes)))
    lacking = pc.and_(envelopes.is_valid(), operations.is_null())
    if lacking.true_count:
        raise malformed(name, message(pc.index(lacking, True).as_py()), NO_CHANGE, REMEDY)


def _inferred(group: Payloads, values: Sequence[Any], name: str) -> pa.Field:
    """The type of payloads without a schema: JSON's own, from the values of all."""
    columns: dict[str, Seen] = {}
    for row, value in enumerate(values):
        if not isinstance(value, dict):
            raise malformed(name, group.place(row), "it is not an object", REMEDY)
        try:
            for key, item in value.items():
                columns.setdefault(key, Seen()).look(item)
        except TooDeep:
            why = f"its values are nested more than {DEEPEST} deep"
            raise malformed(name, group.place(row), why, REMEDY) from None
    return pa.field(PAYLOAD, pa.struct(list(inferred(columns, name, sort=False))))


def _lacking(values: Sequence[Any], built: pa.Array) -> pa.Array:
    """For each column of `after`, which messages do not have it."""
    after = [value.get(AFTER) for value in values]
    rows = [each if isinstance(each, dict) else {} for each in after]
    type_ = built.type.field(AFTER).type if AFTER in built.type.names else pa.null()
    names = type_.names if pa.types.is_struct(type_) else []
    flags = {each: pa.array([each not in row for row in rows], pa.bool_()) for each in names}
    return struct_of(flags) if flags else pa.nulls(len(built))


def _of_all(flags: pa.Array, after: pa.Array) -> pa.Array:
    """The flags of all messages: one whose schema lacks a column of the others leaves it unmodified."""
    there = after.is_valid()
    columns = {each: pc.and_(pc.fill_null(part, True), there) for each, part in fields_of(flags).items()}
    some = {each: part for each, part in columns.items() if part.true_count}
    return struct_of(some) if some else pa.nulls(len(flags))


@contextmanager
def _remedies() -> Iterator[None]:
    """Refusals of the JSON reader advise what a manifest could say; here is none."""
    try:
        yield
    except Refused as refused:
        raise Refused(refused.code, refused.message, REMEDY, refused.keys) from None
