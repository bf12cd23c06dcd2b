"""Values as JSON has them, as YAML does on a line, and as the cells of a table."""

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Final

# A text that YAML reads as the same text without quotes, also between brackets.
_BARE: Final = re.compile(r"[A-Za-z_][\w.]*")
_NOT_BARE: Final = {"true", "false", "yes", "no", "on", "off", "null"}


def as_json(value: object) -> str:
    """A value as one line of JSON; numbers that JSON has no word for are texts, as are the keys of maps."""
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_spelled(value), default=plain, ensure_ascii=False)


def _spelled(value: object) -> object:
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else cell_text(key, ""): _spelled(each) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    endless = isinstance(value, float) and not math.isfinite(value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)] if endless else value


def plain(value: object) -> object:
    """A value as JSON has it: instants in UTC with a Z, decimals and bytes as text."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    return str(value) if isinstance(value, Decimal) else repr(value)


def cell_text(value: object, null: str) -> str:
    """A value as text; what is nested, or true or false, as JSON has it."""
    if value is None:
        return null
    if isinstance(value, bool | Mapping | list | tuple):
        return as_json(value)
    return str(plain(value)) if isinstance(value, datetime | bytes | bytearray) else str(value)


def as_yaml(value: object) -> str:
    """A text, a list of such, or another value of JSON as YAML has it on a line, also between brackets."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_yaml(key)}: {as_yaml(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    bare = isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _NOT_BARE
    return str(value) if bare else json.dumps(value, ensure_ascii=False)
