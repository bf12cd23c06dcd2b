"""A table without a key, in plain Python: the whole row is the key, and equal rows are counted.

A row consists of its values that are not NULL. A missing column is therefore the same as a NULL column.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

from backstory.model.instant import EPOCH
from backstory.model.values import comparison_key

COPIES, ROW_KEY = "copies", "row_key"


def records(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The records of a copy: its distinct rows by their keys, each with the number of its copies."""
    rows = list(rows)
    copies = Counter(map(row_key, rows))
    return {row_key(row): {**row, COPIES: copies[row_key(row)]} for row in rows}


def row_key(row: Mapping[str, Any]) -> str:
    """The key as it is stored: 128 bits of the digest of a string, which differs if a value differs (E9)."""
    return sha256(_row_text(row)).hexdigest()[:32]


def are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows are copies of the same row (V16)."""
    return all(comparison_key(one.get(name)) == comparison_key(other.get(name)) for name in {*one, *other})


def _row_text(row: Mapping[str, Any]) -> bytes:
    """Each value that is not NULL, in the order of names: the name and the value, each after its length."""
    named = sorted((name.encode(), _text(value)) for name, value in row.items() if value is not None)
    return b"".join(_with_length(name) + _with_length(text) for name, text in named)


def _text(value: Any) -> bytes:  # noqa: PLR0911 - one for each kind of value
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        return _row_text(value)
    if isinstance(value, list) and any(isinstance(item, tuple) for item in value):  # the entries of a map
        return _text([{"key": key, "item": item} for key, item in sorted(value)])
    if isinstance(value, list):
        return b"".join(b"-" if item is None else _with_length(_text(item)) for item in value)
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, datetime):
        since = value.replace(tzinfo=value.tzinfo or EPOCH.tzinfo) - EPOCH
        return b"%d" % ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    if isinstance(value, date):
        return b"%d" % (value - EPOCH.date()).days
    if isinstance(value, float):
        return _shown(value).encode()
    return (f"{value:f}" if isinstance(value, Decimal) else str(value)).encode()


def _shown(value: float) -> str:
    """The shortest string of a float. NaN is NaN, and -0.0 is 0.0. Whole numbers have no point."""
    text = repr(value + 0.0)
    return text.removesuffix(".0")


def _with_length(text: bytes) -> bytes:
    return b"%d:%s" % (len(text), text)
