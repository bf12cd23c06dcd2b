"""One record's life in a small table, by its key as people write it."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from backstory.model.values import alike
from backstory.reading.arrow.known import known
from backstory.reading.arrow.versions import statements, versions
from backstory.reading.frames.knowledge import require_known
from backstory.reading.frames.life import RECORDING, commits_of
from backstory.reading.frames.statements import require_key
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import rows_of

_INTEGER: Final = re.compile(r"-?\d{1,18}")
_DECIMAL: Final = re.compile(r"-?\d+(\.\d+)?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?")


def life(
    files: Files,
    key: Mapping[str, str],
    axis: Axis = "valid",
    known_at: datetime | None = None,
) -> Timeline:
    """One record's life, as `life` of frames tells it; Unreadable for what Spark alone reads."""
    shape = files.table.shape
    told = shape.layout in RECORDING
    if told and known_at is not None:
        require_known(files.table, known_at)
    found = statements(known(files, None)) if told else versions(known(files, known_at))
    require_key(shape, key)
    is_record = _matching(found.users, key)
    chosen = [each for each in found.found if is_record(each.place)]
    rows = rows_of(found.chosen(chosen, known=told))
    return timeline_of(shape.table, key, rows, commits_of(files.table), axis, known_at)


def _matching(users: pa.Table, key: Mapping[str, str]) -> Callable[[int], bool]:
    """Whether the row at a place is of the record."""
    pairs = []
    for name, text in key.items():
        if name not in users.column_names:
            raise Unreadable("a key that is not shown")
        wanted = alike(_value(text, users.schema.field(name).type))
        pairs.append(([alike(each) for each in users[name].to_pylist()], wanted))
    return lambda place: all(values[place] == wanted for values, wanted in pairs)


def _value(text: str, type_: pa.DataType) -> Any:
    """The value that a text surely is, in the plain spelling of its type; Spark judges all others."""
    t = pa.types
    if t.is_string(type_):
        return text
    if t.is_integer(type_) and _INTEGER.fullmatch(text) and abs(int(text)) < 1 << (type_.bit_width - 1):
        return int(text)
    if t.is_decimal(type_) and _DECIMAL.fullmatch(text) and _fits(Decimal(text), type_):
        return Decimal(text)
    if t.is_boolean(type_) and text in {"true", "false"}:
        return text == "true"
    try:
        return _time(text, type_)
    except ValueError:
        raise Unreadable("a key in another spelling") from None


def _fits(value: Decimal, type_: pa.DataType) -> bool:
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    return scale <= type_.scale and len(digits) - scale <= type_.precision - type_.scale


def _time(text: str, type_: pa.DataType) -> date:
    t = pa.types
    if t.is_date(type_) and _DAY.fullmatch(text):
        return date.fromisoformat(text)
    if t.is_timestamp(type_) and type_.tz is None and _TIME.fullmatch(text):
        return datetime.fromisoformat(text)
    plain = text.removesuffix("Z")
    if t.is_timestamp(type_) and type_.tz is not None and _TIME.fullmatch(plain):
        return datetime.fromisoformat(plain).replace(tzinfo=UTC)
    raise ValueError
