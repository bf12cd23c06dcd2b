"""When two values are one, in plain Python: what every oracle compares by (native.md V16).

Values as JSON has them, as YAML does on a line, and as the cells of a table.

Keys as people write them.

Lists as people write them in one text.
"""

import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final


def comparison_key(value: Any) -> Hashable:
    """What is equal for values that are one: NaN is NaN, 0.0 is -0.0, and maps have no order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Mapping):
        return frozenset((comparison_key(name), comparison_key(each)) for name, each in value.items())
    return tuple(map(comparison_key, value)) if isinstance(value, list) else value


# A text that YAML reads as the same text without quotes, also between brackets.
_BARE: Final = re.compile(r"[A-Za-z_][\w.]*")
_NOT_BARE: Final = {"true", "false", "yes", "no", "on", "off", "null"}


def as_json(value: object) -> str:
    """A value as one line of JSON; numbers that JSON has no word for are texts, as are the keys of maps."""
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_with_json_keys(value), default=plain, ensure_ascii=False)


def _with_json_keys(value: object) -> object:
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else cell_text(key, ""): _with_json_keys(each)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_json_keys(each) for each in value]
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


def key_text(names: Sequence[str], values: Sequence[object]) -> str:
    """A key as people write it: the value, or `a=1 b=2`; NULL is written NULL."""
    texts = ["NULL" if value is None else str(value) for value in values]
    if len(names) == 1:
        return texts[0]
    return " ".join(f"{name}={value}" for name, value in zip(names, texts, strict=True))


def key_of_words(names: Sequence[str], given: tuple[str, ...]) -> str | dict[str, str]:
    """The value of a key of one column, whatever is in it; else `name=value` for each column of `names`."""
    found = {}
    for word in given:
        known = max((name for name in names if word.startswith(f"{name}=")), key=len, default=None)
        name = word.partition("=")[0] if known is None else known
        if known is None and len(given) == 1 and (len(names) == 1 or name == word):
            return word
        found[name] = word[len(name) + 1 :]
    return found


_COMMA: Final = re.compile(r",(?![^()]*\))")


def split_list(text: str) -> list[str]:
    """The parts of a text between commas; one within parentheses parts nothing."""
    return [part.strip() for part in _COMMA.split(text) if part.strip()]
