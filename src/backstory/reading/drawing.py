"""One record's life, drawn as text: a bar for each version, and what changed in it."""

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backstory.model.layout import VALID_FROM, VALID_TO

WIDTH, NARROW = 48, 20  # of the bars, and where a line has no room for both them and words
ROOMY = 110
DATE = 12
BAR, OPEN = "█", "▶"


def changing(versions: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Those of the columns that have more than one value in the life."""
    return [name for name in columns if any(each[name] != versions[0][name] for each in versions)]


def draw(
    versions: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    until: datetime,
    width: int | None = None,
) -> list[str]:
    """Lines for versions in the order of their starts: date, bar, and the changes of `columns`.

    The time axis reaches from the first start to `until`; the last bar of a record that is still
    there ends in an arrow. With a `width` the bars of a narrow one are short, and what was changed goes on
    in lines below.
    """
    if not versions:
        return []
    scale = WIDTH if width is None or width >= ROOMY else NARROW
    lines = _lines(versions, columns, until, scale)
    return lines if width is None else [part for line in lines for part in _wrapped(line, scale, width)]


def _wrapped(line: str, scale: int, width: int) -> list[str]:
    """The line, its words behind the bar below each other."""
    begun = DATE + scale + 3
    room = max(width - begun, NARROW)
    parts = textwrap.wrap(line[begun:], room, break_on_hyphens=False) or [""]
    return [(line[:begun] + parts[0]).rstrip(), *(" " * begun + part for part in parts[1:])]


def _lines(
    versions: Sequence[Mapping[str, Any]], columns: Sequence[str], until: datetime, scale: int
) -> list[str]:
    first = versions[0][VALID_FROM]
    lines = [_axis(first, until, scale)]

    def place(time: datetime) -> int:
        return _place(time, first, until, scale)

    before: Mapping[str, Any] | None = None
    for version in versions:
        start, end = version[VALID_FROM], version[VALID_TO]
        left = place(start)
        right = max(place(end or until), left + 1)
        bar = BAR * (right - left)
        if end is None:
            bar = bar[:-1] + OPEN
        told = _changes(before, version, columns)
        lines.append(f"{start:%Y-%m-%d}  {' ' * left}{bar:<{scale + 1 - left}}  {told}")
        if end is not None and not any(other[VALID_FROM] == end for other in versions):
            lines.append(f"{end:%Y-%m-%d}  {' ' * right}{'╳':<{scale + 1 - right}}  gone")
        before = version
    return lines


def _axis(first: datetime, until: datetime, scale: int) -> str:
    left, right = f"{first:%Y}", f"{until:%Y}"
    return f"{'':{DATE}}{left}{right:>{scale - len(left)}}"


def _place(time: datetime, first: datetime, until: datetime, scale: int) -> int:
    span = (until - first).total_seconds() or 1
    return min(max(round((time - first).total_seconds() / span * scale), 0), scale)


def _changes(before: Mapping[str, Any] | None, version: Mapping[str, Any], columns: Sequence[str]) -> str:
    if before is None:
        return ", ".join(f"{name}: {_shown(version[name])}" for name in columns)
    changed = [name for name in columns if before[name] != version[name]]
    other = sum(
        before[name] != version[name] for name in version if name not in (*columns, VALID_FROM, VALID_TO)
    )
    told = [f"{name}: {_shown(before[name])} → {_shown(version[name])}" for name in changed]
    if other:
        told.append(f"{other} other column{'s' if other > 1 else ''}")
    return ", ".join(told) or "the same again"


def _shown(value: object) -> str:
    return "–" if value is None else str(value)
