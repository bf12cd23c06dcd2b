"""Small tables as text, for tests. A test shows what the table contains.

A header, then one row per line, with cells separated by blanks. `T3` is a fixed day plus 3 seconds, `T3-1`
one millisecond less, `T3+0.25` a quarter of a millisecond more, and `TMAX` is the open end. `-` is NULL, and
`.` is unmodified. `true`, `false` and whole numbers have their usual meaning. `"in quotes"` is a
string, as is any other word. `start`, `end`, `active`, `synced` are the `_fivetran_` columns.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from backstory.model.values import UNMODIFIED

DAY = datetime(2024, 2, 29, tzinfo=UTC)
WORDS = {
    "-": None,
    ".": UNMODIFIED,
    "true": True,
    "false": False,
    "TMAX": datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
}
SYSTEM = ("start", "end", "active", "synced")
INSTANT = re.compile(r"T(\d+)([+-][\d.]+)?")


def table(text: str) -> list[dict[str, object]]:
    """The rows of a text table, each a dict."""
    header, *lines = [re.findall(r'"[^"]*"|\S+', line) for line in text.strip().splitlines()]
    columns = [f"_fivetran_{name}" if name in SYSTEM else name for name in header]
    return [dict(zip(columns, map(cell, cells), strict=True)) for cells in lines]


def cell(word: str) -> object:
    """The value of a word of a text table."""
    if word in WORDS:
        return WORDS[word]
    if INSTANT.fullmatch(word):
        return instant(word)
    return int(word) if re.fullmatch(r"-?\d+", word) else word.strip('"')


def instant(word: str) -> datetime:
    """The moment of a word such as `T3` or `T3-1`."""
    seconds, milliseconds = INSTANT.fullmatch(word).groups()
    return DAY + timedelta(seconds=int(seconds), milliseconds=float(milliseconds or 0))


def in_order(rows: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The same rows in a fixed order, so that two tables are compared as sets of rows."""
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
