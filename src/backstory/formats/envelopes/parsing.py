"""Messages as JSON text become schemas and payloads, exactly."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from backstory.formats.json.text import NotJson, dumps, loads, place_of_value
from backstory.formats.produced import malformed
from backstory.formats.values.cells import first_failing

OP, BEFORE, AFTER, KEY = "op", "before", "after", "key"
PAYLOAD: Final = "payload"
Cells: TypeAlias = pa.Array | pa.ChunkedArray
SCHEMA: Final = "schema"
NO_CHANGE: Final = f"it has no `{OP}`, so it is not the message of a change"
REMEDY: Final = "Nothing was written; fix the messages, or leave these out."
NULL: Final = "null"
_REMEMBERED = 8


def message(row: int) -> str:
    """Where a message is, as errors say it."""
    return f"message {row + 1}"


@dataclass(slots=True)
class Payloads:
    """The payloads of messages that have one schema, or none, as JSON; `rows` counts messages from 0."""

    schema: Any
    rows: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def place(self, row: int) -> str:
        """Where the message of a payload is."""
        return message(self.rows[row])

    def values(self, name: str) -> list[Any]:
        """The payloads as Python has them; Refused for one that is not JSON."""
        part = "" if self.schema is None else ", payload"
        return [_value(text, name, f"{self.place(row)}{part}") for row, text in enumerate(self.texts)]


def payloads(texts: Cells, name: str) -> list[Payloads]:
    """The payloads of the messages by their schemas; NULL, and a payload of NULL, is left out.

    Schemas are many times as long as payloads, and nearly always the same: what begins as a message that
    was read lately has its schema, and only its payload is kept, to be read once.

    Raises Refused for a text that is not JSON.
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
    """A message's schema and the text of its payload, if the text up to that is known."""
    for prefix, schema in prefixes.items():
        if text.startswith(prefix) and text.endswith("}"):
            return schema, text[len(prefix) : -1]
    return None


def _split(text: str, prefixes: dict[str, str], name: str, place: str) -> tuple[str, str]:
    """The same of any message; without a schema it is `null`, and the message its own payload."""
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
        raise malformed(name, where, f"it is not JSON: {stop}", REMEDY) from None


def _strings(texts: Cells, name: str) -> Iterable[str | None]:
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    try:
        return whole.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        place = message(first_failing(whole, lambda part: part.cast(pa.string())))
        raise malformed(name, place, "its text is not UTF-8", REMEDY) from None
