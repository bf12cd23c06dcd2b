"""Values as JSON has them, and as the cells of a table."""

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal


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
