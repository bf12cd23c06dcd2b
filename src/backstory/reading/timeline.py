"""One record's life, drawn as text: a bar for each version, and what changed in it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backstory.reading.lives import VALID_FROM, VALID_TO

WIDTH = 48
BAR, OPEN = "█", "▶"


def draw(versions: Sequence[Mapping[str, Any]], columns: Sequence[str], until: datetime) -> list[str]:
    """Lines for versions in the order of their starts: date, bar, and the changes of `columns`.

    The time axis reaches from the first start to `until`; the last bar of a record that is still
    there ends in an arrow.
    """
    if not versions:
        return []
    first = versions[0][VALID_FROM]
    lines = [_axis(first, until)]
    before: Mapping[str, Any] | None = None
    for version in versions:
        start, end = version[VALID_FROM], version[VALID_TO]
        left = _place(start, first, until)
        right = max(_place(end or until, first, until), left + 1)
        bar = BAR * (right - left)
        if end is None:
            bar = bar[:-1] + OPEN
        told = _changes(before, version, columns)
        lines.append(f"{start:%Y-%m-%d}  {' ' * left}{bar:<{WIDTH + 1 - left}}  {told}")
        if end is not None and not any(other[VALID_FROM] == end for other in versions):
            lines.append(f"{end:%Y-%m-%d}  {' ' * right}{'╳':<{WIDTH + 1 - right}}  gone")
        before = version
    return lines


def _axis(first: datetime, until: datetime) -> str:
    left, right = f"{first:%Y}", f"{until:%Y}"
    return f"{'':12}{left}{right:>{WIDTH - len(left)}}"


def _place(time: datetime, first: datetime, until: datetime) -> int:
    span = (until - first).total_seconds() or 1
    return min(max(round((time - first).total_seconds() / span * WIDTH), 0), WIDTH)


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
