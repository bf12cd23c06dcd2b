"""Exact conversion of JSON values, including nested values, to declared column types."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from backstory.formats.expected import child_field, first_unfit_row, type_name
from backstory.formats.options import JsonOptions
from backstory.formats.produced import (
    malformed_row,
    refuse_nulls,
    typed_or_refused,
    unknown_columns,
    unreadable,
)
from backstory.formats.values.texts import parser

_ENCODED = json.JSONEncoder(ensure_ascii=False).encode
_BLANKS = re.compile(r"[ \t\r\n]*")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # a surrogate, with or without its pair
_TOO_DEEP = "its values are nested too deeply"


class Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


class NotJson(ValueError):
    """A string that is not JSON. `at` is the index of the error, or -1 if it is unknown."""

    def __init__(self, why: str, place: int = -1) -> None:
        super().__init__(why)
        self.at = place


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise NotJson(f"an object has the key `{twice[:40]}` twice")
    return built


def _unicode_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary for a JSON object. Raises NotJson for a key with an unpaired surrogate."""
    for key, _ in pairs:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise NotJson(
                f"an object has the key `{ascii(key)[1:-1][:40]}`, which is not valid Unicode"
            ) from None
    return _object(pairs)


def _constant(text: str) -> Any:
    raise NotJson(f"`{text}` is not a JSON number")


def _decoder(hook: Callable[[list[tuple[str, Any]]], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=hook, parse_float=Number, parse_int=Number, parse_constant=_constant
    )


_DECODER, _CAREFUL = _decoder(_object), _decoder(_unicode_object)


def loads(text: str) -> Any:
    """The value of a JSON string, with numbers as `Number`. Raises NotJson if it is not strict JSON."""
    try:
        careful = "\\u" in text and _HALF.search(text)
        return (_CAREFUL if careful else _DECODER).decode(text)
    except json.JSONDecodeError as stop:
        raise NotJson(stop.msg[:1].lower() + stop.msg[1:], stop.pos) from None
    except RecursionError:
        raise NotJson(_TOO_DEEP) from None


def dumps(value: Any) -> str:
    """The value as compact JSON, with its numbers as written. Raises NotJson if it is nested too deeply."""
    try:
        return _default(value)
    except RecursionError:
        raise NotJson(_TOO_DEEP) from None


def _default(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_default, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_ENCODED(key)}:{_default(item)}' for key, item in value.items())}}}"
    return _ENCODED(value)


def line_of_element(text: str, keys: list[str], element: int) -> int:
    """The line of an element of the array under the path `keys`, in a string that `loads` accepts."""
    place = _past_blanks(text, 0)
    for key in keys:
        place = place_of_value(text, place, key)
    place = _past_blanks(text, place + 1)
    for _ in range(element):
        _, place = _DECODER.raw_decode(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)
    return text.count("\n", 0, place) + 1


def place_of_value(text: str, place: int, key: str) -> int:
    """The index of a key's value in the object that begins at `place`, in a string that `loads` accepts."""
    place = _past_blanks(text, place + 1)
    while True:
        name, place = _DECODER.raw_decode(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)
        if name == key:
            return place
        _, place = _DECODER.raw_decode(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)


def _past_blanks(text: str, place: int) -> int:
    blanks = _BLANKS.match(text, place)
    return blanks.end() if blanks else place


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """The file and places of a column's values, for errors, and the options of their reader."""

    name: str
    place: Callable[[int], str]
    options: JsonOptions

    def of(self, rows: Sequence[int]) -> "JsonColumn":
        """The column for values that are nested in the values of the given rows."""
        return replace(self, place=lambda row: self.place(rows[row]))

    def refusal(self, row: int, field: pa.Field, value: Any) -> Exception:
        """The error for a value that does not match its type."""
        return unreadable(self.name, self.place(row), field.name, _text_of(value), type_name(field))


def typed_array(values: list[Any], field: pa.Field, column: JsonColumn) -> pa.Array:
    """The values as an array of the field's type. Raises Refused for a value that is not of the type."""
    type_ = field.type
    if pa.types.is_struct(type_):
        built = _structs(values, field, column)
    elif pa.types.is_list(type_):
        built = _lists(values, field, column)
    elif pa.types.is_map(type_):
        built = _maps(values, field, column)
    else:
        return _scalars(values, field, column)
    if not field.nullable:
        refuse_nulls(built, field.name, column.name, column.place)
    return built


def _scalars(values: list[Any], field: pa.Field, column: JsonColumn) -> pa.Array:
    """Convert values by their JSON text, so that one parser of numbers and times serves all formats."""
    kinds = set(map(type, values))
    if not kinds <= _AS_TEXT[_family(field.type)]:
        values = [
            None if value is None else _text(value, row, field, column) for row, value in enumerate(values)
        ]
    try:
        texts = pa.array(values, pa.string())
    except UnicodeEncodeError:
        row = next(row for row, value in enumerate(values) if value and not _is_unicode(value))
        raise column.refusal(row, field, ascii(values[row])) from None
    return typed_or_refused(texts, field, parser(field, column.options.forms), column.name, column.place)


_NONE = type(None)
# For each family of types, the Python types that need no conversion to strings.
_AS_TEXT: dict[str, set[type]] = {
    "text": {str, Number, _NONE},
    "number": {_NONE},
    "time": {str, _NONE},
    "bool": {str, _NONE},
}


def _family(type_: pa.DataType) -> str:
    if pa.types.is_string(type_):
        return "text"
    if pa.types.is_boolean(type_):
        return "bool"
    return "time" if pa.types.is_temporal(type_) else "number"


def _text(value: Any, row: int, field: pa.Field, column: JsonColumn) -> str:
    """The string of a value that is not NULL.

    Raises Refused if the type does not accept this kind of value.
    """
    family = _family(field.type)
    if type(value) is str:
        return value
    if type(value) is Number and family == "number":
        return whole_text(value) if pa.types.is_integer(field.type) else str(value)
    if family == "text" or (family == "bool" and isinstance(value, bool)):
        try:
            return dumps(value)
        except NotJson as stop:
            place = f"{column.place(row)}, column `{field.name}`"
            raise malformed_row(column.name, place, str(stop)) from None
    raise column.refusal(row, field, value)


def whole_text(number: Number) -> str:
    """The plain digits of an integer, even if JSON writes it as 1.0 or 1e3. Other numbers stay as written."""
    if number.lstrip("-").isdigit():
        return number
    try:
        exact = Decimal(number)
    except InvalidOperation:  # Python's exponents are limited
        return str(number)
    fits = abs(exact.adjusted()) < _MAX_DIGITS and exact == exact.to_integral_value()
    return str(int(exact)) if fits else str(number)


_MAX_DIGITS = 40


def _structs(values: list[Any], field: pa.Field, column: JsonColumn) -> pa.Array:
    _require(values, dict, field, column)
    rows = [row for row, value in enumerate(values) if value is not None]
    inner = column.of(rows)
    names = {child.name for child in field.type}
    for row, place in enumerate(rows):
        if column.options.strict and (extra := [key for key in values[place] if key not in names]):
            raise unknown_columns(column.name, [f"{field.name}.{key}" for key in extra], inner.place(row))
    built = [
        typed_array([values[row].get(child.name) for row in rows], child_field(field, child), inner)
        for child in field.type
    ]
    if not built:
        return pa.array([value and {} for value in values], field.type)
    # A NULL struct need not satisfy its required fields: build from the other rows, then add the NULL rows.
    order = iter(range(len(rows)))
    spread = pa.array([None if value is None else next(order) for value in values], pa.int64())
    return pa.StructArray.from_arrays(built, fields=list(field.type)).take(spread)


def _lists(values: list[Any], field: pa.Field, column: JsonColumn) -> pa.Array:
    _require(values, list, field, column)
    rows = [row for row, value in enumerate(values) for _ in value or ()]
    items = [item for value in values for item in value or ()]
    inner = typed_array(items, child_field(field, field.type.value_field, "itemType"), column.of(rows))
    built = pa.ListArray.from_arrays(_offsets(values), inner, type=field.type)
    row = first_unfit_row(built, field)
    if row is not None:
        raise column.refusal(row, field, values[row])
    return built


def _maps(values: list[Any], field: pa.Field, column: JsonColumn) -> pa.Array:
    _require(values, dict, field, column)
    rows = [row for row, value in enumerate(values) for _ in value or ()]
    keys = [key for value in values for key in value or ()]
    items = [item for value in values for item in (value or {}).values()]
    inner = column.of(rows)
    type_ = field.type
    return pa.MapArray.from_arrays(
        _offsets(values),
        typed_array(keys, child_field(field, type_.key_field, "keyType"), inner),
        typed_array(items, child_field(field, type_.item_field, "valueType"), inner),
        type=type_,
    )


def _offsets(values: list[Any]) -> pa.Array:
    """The offsets of the lists in an Arrow list array. The offset is NULL for a NULL list."""
    built: list[int | None] = []
    end = 0
    for value in values:
        built.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*built, end], pa.int32())


def _require(values: list[Any], kind: type, field: pa.Field, column: JsonColumn) -> None:
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, kind):
            raise column.refusal(row, field, value)


def _text_of(value: Any) -> str:
    try:
        return value if isinstance(value, str) else dumps(value)
    except NotJson as stop:
        return f"{type(value).__name__}: {stop}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
