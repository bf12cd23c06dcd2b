"""Schemas as Kafka Connect's JSON converter writes them: the types on the wire, and what these mean."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from backstory.formats.envelopes.joint_types import with_items
from backstory.formats.envelopes.logical_values import DECIMAL, LOGICAL, bytes_of, decimal_type
from backstory.formats.json.inference import DEEPEST
from backstory.formats.json.text import Number
from backstory.formats.produced import repeated, shortened, typed_or_refused

Schema = Mapping[str, Any]
_WIRE: Final = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.string(),
}


class UnreadableSchema(ValueError):
    """What is wrong with a schema, in words."""


def envelope_type(schema: Any, values: Sequence[Any] = ()) -> pa.DataType:
    """The type of messages with a schema, as JSON writes them; UnreadableSchema if they are not structs.

    Decimals are base64, unless the values have numbers for them.
    """
    wire_type(schema)
    if schema["type"] != "struct":
        raise UnreadableSchema("it is not a struct")
    return wire_type(schema, numeric=_are_numbers(schema, values))


def wire_type(schema: Any, *, numeric: bool = False, depth: int = 0) -> pa.DataType:
    """The type of the values as JSON writes them, bytes as text; decimals are numbers if `numeric`.

    Raises UnreadableSchema.
    """
    wire = _wire_type(schema, numeric=numeric, depth=depth)
    name = schema.get("name")
    if not isinstance(name, str | None):
        raise UnreadableSchema(f"`{shortened(name)}` is not a name")
    if name in LOGICAL and wire != LOGICAL[name][0]:
        raise UnreadableSchema(f"`{name}` is not written as {schema['type']}")
    return _decimal_type(schema) if numeric and name == DECIMAL else wire


def _wire_type(schema: Any, *, numeric: bool, depth: int) -> pa.DataType:
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        raise UnreadableSchema("a schema is not an object" if depth <= DEEPEST else "it is nested too deeply")
    type_ = schema.get("type")
    if type_ == "struct":
        return pa.struct(
            [(name, wire_type(field, numeric=numeric, depth=depth + 1)) for name, field in _fields(schema)]
        )
    if type_ == "array":
        return pa.list_(wire_type(schema.get("items"), numeric=numeric, depth=depth + 1))
    if type_ == "map":
        keys = wire_type(schema.get("keys"), depth=depth + 1)
        items = wire_type(schema.get("values"), depth=depth + 1)
        if keys != pa.string() or schema["values"].get("name") or items == pa.binary():
            raise UnreadableSchema("a map is not from text to plain values")
        return pa.map_(keys, items)
    if not isinstance(type_, str) or type_ not in _WIRE:
        raise UnreadableSchema(f"`{shortened(type_)}` is not a type")
    return _WIRE[type_]


def _fields(schema: Schema) -> list[tuple[str, Schema]]:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(each, Mapping) for each in fields):
        raise UnreadableSchema("a struct has no fields")
    names = [each.get("field") for each in fields]
    if not all(isinstance(name, str) and type(name) is not Number for name in names):
        raise UnreadableSchema("a field has no name")
    if twice := repeated([str(name) for name in names]):
        raise UnreadableSchema(f"a struct has the field `{shortened(twice[0])}` twice")
    return list(zip(map(str, names), fields, strict=True))


def _decimal_type(schema: Schema) -> pa.DataType:
    try:
        return decimal_type(_parameters(schema))
    except (pa.ArrowInvalid, ValueError, TypeError) as stop:
        raise UnreadableSchema(f"a decimal has {shortened(stop)}") from None


def _parameters(schema: Schema) -> Mapping[str, Any]:
    parameters = schema.get("parameters")
    return parameters if isinstance(parameters, Mapping) else {}


def _are_numbers(schema: Schema, values: Sequence[Any]) -> bool:
    """Whether the decimals within are written as numbers, not as base64; UnreadableSchema where both are."""
    paths = list(_decimal_paths(schema))
    kinds = {type(cell) for value in values for path in paths for cell in _cells(value, path)}
    if {Number, str} <= kinds:
        raise UnreadableSchema("decimals are written in two ways, as numbers and as base64")
    return Number in kinds


def _decimal_paths(schema: Schema) -> Iterator[tuple[str | None, ...]]:
    """Where decimals are: names of fields, None for the items of a list."""
    if schema.get("name") == DECIMAL:
        yield ()
    elif schema.get("type") == "struct":
        for name, field in _fields(schema):
            yield from ((name, *path) for path in _decimal_paths(field))
    elif schema.get("type") == "array":
        yield from ((None, *path) for path in _decimal_paths(schema["items"]))


def _cells(value: Any, path: tuple[str | None, ...]) -> Iterator[Any]:
    if not path:
        yield value
    elif isinstance(value, dict):
        yield from _cells(value.get(path[0]), path[1:])
    elif isinstance(value, list):
        for item in value:
            yield from _cells(item, path[1:])


def decode_logical(
    values: pa.Array, schema: Schema, column: str, name: str, place: Callable[[int], str]
) -> pa.Array:
    """Values of the wire's type as what the schema means; Refused for a value that is not of its type."""
    if schema.get("type") == "struct" and schema.get("name") not in LOGICAL:
        fields = dict(_fields(schema))
        parts = [
            decode_logical(part, fields[each.name], f"{column}.{each.name}", name, place)
            for each, part in zip(values.type, values.flatten(), strict=True)
        ]
        if not parts:
            return values
        return pa.StructArray.from_arrays(parts, list(fields), mask=values.is_null())

    def convert(cells: pa.Array) -> pa.Array:
        return _converted(cells, schema)

    try:
        type_ = convert(values.slice(0, 0)).type
    except (ValueError, TypeError) as stop:
        raise UnreadableSchema(f"`{shortened(column)}`: {shortened(stop)}") from None
    return typed_or_refused(values, pa.field(column, type_), convert, name, place)


def _converted(values: pa.Array, schema: Schema) -> pa.Array:
    """The same for values none of whose parts has a place of its own; raises as `LOGICAL` does."""
    if schema.get("name") in LOGICAL:
        return LOGICAL[schema["name"]][1](values, _parameters(schema))
    if schema["type"] == "bytes":
        return bytes_of(values, {})
    if schema["type"] == "array":
        return with_items(values, _converted(values.flatten(), schema["items"]))
    if schema["type"] == "struct":
        fields = dict(_fields(schema))
        parts = [
            _converted(part, fields[each.name])
            for each, part in zip(values.type, values.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(parts, list(fields), mask=values.is_null()) if parts else values
    return values
