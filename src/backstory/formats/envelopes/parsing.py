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
_REMEMBERED = 8


def message(row: int) -> str:
    """Where a message is, as errors say it."""
    return f"message {row + 1}"


@dataclass(slots=True)
class Payloads:
    """The payloads of messages that have one schema, or none; `rows` counts messages from 0."""

    schema: Any
    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def place(self, row: int) -> str:
        """Where the message of a payload is."""
        return message(self.rows[row])


def payloads(texts: Cells, name: str) -> list[Payloads]:
    """The payloads of the messages by their schemas; NULL, and a payload of NULL, is left out.

    Raises Refused for a text that is not JSON.
    """
    groups: dict[str, Payloads] = {}
    prefixes: dict[str, str] = {}
    for row, text in enumerate(_strings(texts, name)):
        if text is None:
            continue
        try:
            schema, value = _split(text, prefixes)
            if value is not None:
                group = groups.get(schema) or groups.setdefault(schema, Payloads(loads(schema)))
                group.rows.append(row)
                group.values.append(value)
        except NotJson as stop:
            place = f"{message(row)}, character {stop.at + 1}" if stop.at >= 0 else message(row)
            raise malformed(name, place, f"it is not JSON: {stop}", REMEDY) from None
    return list(groups.values())


def _split(text: str, prefixes: dict[str, str]) -> tuple[str, Any]:
    """A message's schema as JSON, `null` without one, and its payload.

    Schemas are many times as long as payloads, and nearly always the same: `prefixes` are the texts up to
    the payload that were read lately, so that they are read once.
    """
    for prefix, schema in prefixes.items():
        if text.startswith(prefix) and text.endswith("}"):
            try:
                return schema, loads(text[len(prefix) : -1])
            except NotJson:
                break  # the whole text tells what is wrong, or has more keys
    value = loads(text)
    if not isinstance(value, dict) or value.keys() != {SCHEMA, PAYLOAD}:
        return "null", value
    schema = dumps(value[SCHEMA])
    if list(value) == [SCHEMA, PAYLOAD]:
        while len(prefixes) >= _REMEMBERED:
            del prefixes[next(iter(prefixes))]
        prefixes[text[: place_of_value(text, 0, PAYLOAD)]] = schema
    return schema, value[PAYLOAD]


def _strings(texts: Cells, name: str) -> Iterable[str | None]:
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    try:
        return whole.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        place = message(first_failing(whole, lambda part: part.cast(pa.string())))
        raise malformed(name, place, "its text is not UTF-8", REMEDY) from None
