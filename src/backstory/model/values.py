"""Values: their equality, and the form of values, keys and lists as strings."""

import base64
import enum
import json
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from itertools import accumulate
from typing import Any, Final

from backstory.errors import UsageError


def comparison_key(value: Any) -> Hashable:
    """A key that is equal for equal values (native.md, V16).

    NaN equals NaN, 0.0 equals -0.0, and the order of a map's entries is ignored.
    """
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Mapping):
        return frozenset((comparison_key(name), comparison_key(part)) for name, part in value.items())
    return tuple(map(comparison_key, value)) if isinstance(value, list | tuple) else value


# A string that YAML reads as the same string without quotes, even between brackets.
_BARE: Final = re.compile(r"[A-Za-z_][\w.]*")
_NOT_BARE: Final = {"true", "false", "yes", "no", "on", "off", "null"}


def as_json(value: object, of_bytes: Callable[[bytes], str] = bytes.hex) -> str:
    """A value as one line of JSON. Numbers that JSON lacks, and the keys of maps, become strings."""
    form = partial(plain, of_bytes=of_bytes)
    try:
        return json.dumps(value, default=form, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_with_json_keys(value, form), default=form, ensure_ascii=False)


def base64_text(content: bytes) -> str:
    """Bytes as base64, the form of bytes in batch files and exports."""
    return base64.b64encode(content).decode()


def _with_json_keys(value: object, form: Callable[[object], object]) -> object:
    if isinstance(value, Mapping):
        return {_json_key(key, form): _with_json_keys(part, form) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_json_keys(part, form) for part in value]
    endless = isinstance(value, float) and not math.isfinite(value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)] if endless else value


def _json_key(key: object, form: Callable[[object], object]) -> str:
    if isinstance(key, str):
        return key
    return str(form(key)) if isinstance(key, bytes | bytearray) else cell_text(key, "")


def plain(value: object, of_bytes: Callable[[bytes], str] = bytes.hex) -> object:
    """A value in a form that JSON has: instants in UTC end with Z, and decimals and bytes are strings."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return of_bytes(bytes(value))
    return str(value) if isinstance(value, Decimal) else repr(value)


def cell_text(value: object, null: str) -> str:
    """A value as a string. Nested values and booleans are JSON."""
    if value is None:
        return null
    if isinstance(value, bool | Mapping | list | tuple):
        return as_json(value)
    return str(plain(value)) if isinstance(value, datetime | bytes | bytearray) else str(value)


def as_yaml(value: object) -> str:
    """A JSON value as YAML on one line, which is also valid between brackets."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_yaml(key)}: {as_yaml(part)}' for key, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    bare = isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _NOT_BARE
    if bare:
        return str(value)
    return "".join(map(_yaml_letter, json.dumps(value, ensure_ascii=False)))


def _yaml_letter(letter: str) -> str:
    """A letter of a quoted string of YAML, or its escape sequence if it is not printable."""
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04X}" if ord(letter) <= 0xFFFF else f"\\U{ord(letter):08X}"  # noqa: PLR2004


def key_text(names: Sequence[str], values: Sequence[object]) -> str:
    """A key as people write it: the value, or `a=1 b=2`. NULL is written as NULL."""
    texts = ["NULL" if value is None else str(value) for value in values]
    if len(names) == 1:
        return texts[0]
    return " ".join(f"{name}={value}" for name, value in zip(names, texts, strict=True))


def key_of_words(names: Sequence[str], words: tuple[str, ...]) -> str | dict[str, str]:
    """The key from a command's words: one value for a single column, or else `name=value` for each column.

    Raises UsageError (`other-key`) if a column has two values, because they would name two records.
    """
    values = dict[str, str]()
    for word in words:
        known = max((name for name in names if word.startswith(f"{name}=")), key=len, default=None)
        name = word.partition("=")[0] if known is None else known
        if known is None and len(words) == 1 and (len(names) == 1 or name == word):
            return word
        if name in values and name != word:
            raise UsageError("other-key", f"The key has two values for {name}.", "Name one record at a time.")
        values[name] = word[len(name) + 1 :]
    return values


# A quoted string or name, which may contain commas and parentheses, or else one character.
_PART: Final = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|.""", re.DOTALL)


def split_list(text: str) -> list[str]:
    """The parts of a string that is split at commas, except commas within parentheses or quotes.

    A parenthesis without its other half is an ordinary letter.
    """
    letters = _PART.findall(text)
    steps = ((letter == "(") - (letter == ")") for letter in letters)
    depths = list(accumulate(steps, lambda depth, step: max(depth + step, 0), initial=0))
    parts = [""]
    for place, letter in enumerate(letters):
        if letter == "," and not (depths[place] and min(depths[place:]) < depths[place]):
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


class Unmodified(enum.Enum):
    """The type of `UNMODIFIED`.

    It is an enum, so that `is UNMODIFIED` narrows types and works after pickling.
    """

    UNMODIFIED = "unmodified"


UNMODIFIED: Final = Unmodified.UNMODIFIED
