"""Readers that turn Debezium's JSON messages, with or without schemas, into columns of their envelopes.

Payloads with the same schema are read together, by Arrow's JSON reader if it is strict enough.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from backstory.errors import Refused
from backstory.formats.encoded import utf8_lines
from backstory.formats.envelopes.connect_types import UnreadableSchema, decode_logical, envelope_type
from backstory.formats.envelopes.events import (
    FEED,
    UNAVAILABLE,
    fields_of,
    joint_column,
    struct_of,
    unavailable_cells,
    with_field,
)
from backstory.formats.json.rows import DEEPEST, TooDeep, ValueKinds, infer_schema
from backstory.formats.json.values import JsonColumn, NotJson, dumps, loads, place_of_value, typed_array
from backstory.formats.options import JsonOptions
from backstory.formats.produced import UNDECLARED, malformed_row, refuse_where
from backstory.formats.rows import leaf_values
from backstory.formats.values.cells import first_failing
from backstory.formats.values.exactly import as_type

OP, BEFORE, AFTER, KEY = "op", "before", "after", "key"
PAYLOAD: Final = "payload"
Cells: TypeAlias = pa.Array | pa.ChunkedArray
SCHEMA: Final = "schema"
NO_CHANGE: Final = f"it has no `{OP}`, so it is not the message of a change"
REMEDY: Final = "Nothing was written; fix the messages, or leave these out."
NULL: Final = "null"
_REMEMBERED = 8


def message(row: int) -> str:
    """The place of a message in error messages."""
    return f"message {row + 1}"


@dataclass(slots=True)
class Payloads:
    """JSON payloads of messages that have the same schema, or none.

    `rows` are the messages' numbers from 0.
    """

    schema: Any
    rows: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def place(self, row: int) -> str:
        """The place of a payload's message in error messages."""
        return message(self.rows[row])

    def values(self, name: str) -> list[Any]:
        """The payloads as Python values. Raises Refused if one is not JSON."""
        part = "" if self.schema is None else ", payload"
        return [_value(text, name, f"{self.place(row)}{part}") for row, text in enumerate(self.texts)]


def payloads(texts: Cells, name: str) -> list[Payloads]:
    """The payloads of the messages, grouped by schema, without NULL messages and NULL payloads.

    Schemas are much longer than payloads and nearly always the same. If a message begins like a recent one,
    it has the same schema, and only its payload is parsed.

    Raises Refused if a message is not JSON.
    """
    groups: dict[str, Payloads] = {}
    prefixes: dict[str, str] = {}
    for row, text in enumerate(_strings(texts, name)):
        if text is None:
            continue
        schema, payload = _by_prefix(text, prefixes) or _split(text, prefixes, name, message(row))
        if payload.strip() != NULL:
            group = groups.get(schema) or groups.setdefault(schema, Payloads(loads(schema)))
            group.rows.append(row)
            group.texts.append(payload)
    return list(groups.values())


def _by_prefix(text: str, prefixes: dict[str, str]) -> tuple[str, str] | None:
    """The schema and payload of a message, as strings, if it begins with a known prefix, or else None."""
    for prefix, schema in prefixes.items():
        if text.startswith(prefix) and text.endswith("}"):
            return schema, text[len(prefix) : -1]
    return None


def _split(text: str, prefixes: dict[str, str], name: str, place: str) -> tuple[str, str]:
    """The schema and payload of a message, as strings. Without a schema, a message is its own payload."""
    value = _value(text, name, place)
    if not isinstance(value, dict) or value.keys() != {SCHEMA, PAYLOAD}:
        return NULL, text
    schema = dumps(value[SCHEMA])
    if list(value) == [SCHEMA, PAYLOAD]:
        while len(prefixes) >= _REMEMBERED:
            del prefixes[next(iter(prefixes))]
        prefixes[text[: place_of_value(text, 0, PAYLOAD)]] = schema
    return schema, dumps(value[PAYLOAD])


def _value(text: str, name: str, place: str) -> Any:
    try:
        return loads(text)
    except NotJson as stop:
        where = f"{place}, character {stop.at + 1}" if stop.at >= 0 else place
        raise malformed_row(name, where, f"it is not JSON: {stop}", REMEDY) from None


def _strings(texts: Cells, name: str) -> Iterable[str | None]:
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    try:
        return whole.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        place = message(first_failing(whole, lambda part: part.cast(pa.string())))
        raise malformed_row(name, place, "its text is not UTF-8", REMEDY) from None


_BLOCK = 1 << 24  # the bytes of a block in Arrow's reader; no payload may be longer


def read_at_once(texts: Sequence[str], wire: pa.DataType) -> pa.Array | None:
    """The payloads as structs of the type, or None if the slow reader must read them.

    Like our reader, Arrow refuses repeated names, numbers with more digits than the type, and unknown fields.
    However, it accepts NaN and infinite floats, and reads two objects on a line as two rows.
    """
    if not all(map(_is_line, texts)):
        return None
    try:
        rows = pj.read_json(
            io.BytesIO("\n".join(texts).encode()),
            read_options=pj.ReadOptions(block_size=_BLOCK),
            parse_options=pj.ParseOptions(pa.schema(list(wire)), unexpected_field_behavior="error"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError):
        return None
    # No string is empty, so equal counts mean one object in each string.
    if rows.num_rows != len(texts) or rows.schema.names != wire.names:
        return None
    built = pa.concat_arrays(rows.to_struct_array().chunks)
    return built if built.type == wire and _is_finite(built) else None


def _is_line(text: str) -> bool:
    return text[:1] == "{" and text[-1:] == "}" and "\n" not in text and "\r" not in text


def _is_finite(values: pa.Array) -> bool:
    """Whether all floats are finite."""
    floats = (part for part in leaf_values(values) if pa.types.is_floating(part.type))
    return all(pc.all(pc.is_finite(part), min_count=0).as_py() for part in floats)


UNMODIFIED: Final = "unmodified"


def debezium_messages(
    keys: Cells | None, values: Cells, *, unavailable: str = UNAVAILABLE, name: str = FEED
) -> pa.Table:
    """The envelopes of the messages, one row each, with `key`, the fields of the envelope, and `unmodified`.

    A message without a value is a row of NULLs. If a message has a schema, logical types become dates, times
    without a zone, timestamps, decimals or bytes. Times of day and decimals without a fixed scale become
    strings; durations stay numbers. `unmodified` flags the columns of `after` that the message leaves
    unchanged, because their value is unavailable or the message lacks them.

    Raises Refused, with the number of the message, if a message is not JSON (`malformed-row`) or violates its
    schema (`unreadable-value`). Also raises Refused for conflicting types (`mixed-types`).
    """
    with _remedies():
        envelopes = _join_groups(payloads(values, name), len(values), unavailable, name)
        _refuse_others(envelopes, name)
        columns = fields_of(envelopes)
        if UNMODIFIED in columns and AFTER in columns:
            columns[UNMODIFIED] = _of_all(columns[UNMODIFIED], columns[AFTER])
        if keys is not None:
            name = f"{name}, keys"
            columns = {KEY: _join_groups(payloads(keys, name), len(keys), None, name), **columns}
    return pa.table(columns) if columns else pa.table({KEY: pa.nulls(len(values))})


def debezium_lines(
    path: Path, encoding: str = "utf-8", *, unavailable: str = UNAVAILABLE, name: str = ""
) -> pa.Table:
    """The envelopes of a file with one message per line, as `debezium_messages` returns them."""
    name = name or path.name
    lines = [line if line.strip() else None for _, line in utf8_lines(path, name, encoding)]
    return debezium_messages(None, pa.array(lines, pa.string()), unavailable=unavailable, name=name)


def _join_groups(groups: Sequence[Payloads], count: int, unavailable: str | None, name: str) -> pa.Array:
    """The payloads of all messages as structs of one type, or NULL if a message has no payload."""
    parts = [_decode_group(group, unavailable, name) for group in groups]
    type_ = joint_column(PAYLOAD, [part.type for part in parts], name)
    values = pa.concat_arrays([pa.nulls(0, type_), *(as_type(part, type_) for part in parts)])
    places = np.full(count, -1)
    places[[row for group in groups for row in group.rows]] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


def _decode_group(group: Payloads, unavailable: str | None, name: str) -> pa.Array:
    """The payloads of one schema as structs, with the field `unmodified` unless the payloads are keys."""
    if group.schema is None:
        values = group.values(name)
        built = typed_array(values, _infer_type(group, values, name), _column(group, name))
        return built if unavailable is None else with_field(built, UNMODIFIED, _lacking(values, built))
    try:
        built = _build_column(group, name)
        if unavailable is None:
            return decode_logical(built, group.schema, PAYLOAD, name, group.place)
        after = fields_of(built).get(AFTER, pa.nulls(len(built)))
        flags = {column: unavailable_cells(part, unavailable) for column, part in fields_of(after).items()}
        for column, flag in flags.items():
            if flag.true_count:
                after = with_field(after, column, pc.if_else(flag, None, fields_of(after)[column]))
        known = with_field(built, AFTER, after) if flags else built
        known = decode_logical(known, group.schema, PAYLOAD, name, group.place)
        return with_field(known, UNMODIFIED, struct_of(flags)) if flags else known
    except UnreadableSchema as stop:
        raise malformed_row(name, group.place(0), f"its schema cannot be read: {stop}", REMEDY) from None


def _build_column(group: Payloads, name: str) -> pa.Array:
    """Payloads with a schema as structs, in the wire types of the schema."""
    built = read_at_once(group.texts, envelope_type(group.schema))
    if built is not None:
        return built
    values = group.values(name)
    return typed_array(values, pa.field(PAYLOAD, envelope_type(group.schema, values)), _column(group, name))


def _column(group: Payloads, name: str) -> JsonColumn:
    return JsonColumn(name, group.place, JsonOptions(strict=True))


def _refuse_others(envelopes: pa.Array, name: str) -> None:
    """Raise Refused if a message has no `op`, because it would count as a tombstone."""
    operations = fields_of(envelopes).get(OP, pa.nulls(len(envelopes)))
    lacking = pc.and_(envelopes.is_valid(), operations.is_null())
    refuse_where(lacking, name, message, NO_CHANGE, REMEDY)


def _infer_type(group: Payloads, values: Sequence[Any], name: str) -> pa.Field:
    """The type of payloads without a schema, inferred from all their values."""
    columns: dict[str, ValueKinds] = {}
    for row, value in enumerate(values):
        if not isinstance(value, dict):
            raise malformed_row(name, group.place(row), "it is not an object", REMEDY)
        try:
            for key, item in value.items():
                columns.setdefault(key, ValueKinds()).look(item)
        except TooDeep:
            why = f"its values are nested more than {DEEPEST} deep"
            raise malformed_row(name, group.place(row), why, REMEDY) from None
    return pa.field(PAYLOAD, pa.struct(list(infer_schema(columns, name, UNDECLARED, sort=False))))


def _lacking(values: Sequence[Any], built: pa.Array) -> pa.Array:
    """For each column of `after`, whether each message lacks it."""
    after = [value.get(AFTER) for value in values]
    rows = [image if isinstance(image, dict) else {} for image in after]
    type_ = built.type.field(AFTER).type if AFTER in built.type.names else pa.null()
    names = type_.names if pa.types.is_struct(type_) else []
    flags = {column: pa.array([column not in row for row in rows], pa.bool_()) for column in names}
    return struct_of(flags) if flags else pa.nulls(len(built))


def _of_all(flags: pa.Array, after: pa.Array) -> pa.Array:
    """The flags of all messages. A message whose schema lacks a column leaves that column unmodified."""
    there = after.is_valid()
    columns = {column: pc.and_(pc.fill_null(flag, True), there) for column, flag in fields_of(flags).items()}
    some = {column: flag for column, flag in columns.items() if flag.true_count}
    return struct_of(some) if some else pa.nulls(len(flags))


@contextmanager
def _remedies() -> Iterator[None]:
    """Replace the JSON reader's remedies, because they mention a manifest, which messages do not have."""
    try:
        yield
    except Refused as refused:
        raise refused.reword(remedy=REMEDY) from None
