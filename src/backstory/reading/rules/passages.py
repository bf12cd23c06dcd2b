"""What became of records between two times: not the two ends alone, but what happened in between."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from backstory.model.values import alike
from backstory.reading.rules.differences import Row, Side, differences

RETURNED, REVERTED, PASSED = "returned", "reverted", "passed"
BETWEEN = (RETURNED, REVERTED, PASSED)


class Lived(NamedTuple):
    """A version that begins or ends between the times: its row, its span, and when it was true."""

    row: Row
    start: Any
    end: Any
    before: bool
    after: bool
    apart: Hashable = None


def passages(versions: Iterable[Lived], key: Sequence[str]) -> list[dict[str, Any]]:
    """The records that differ at the ends, as `differences` has them, and those that only did in between.

    Of a record that is the same at both ends `change` is returned, if it was gone in between, or reverted, if
    it had other values; passed of one that was there in between alone. `away` says of each whether it was
    gone and came back.
    """
    lives: dict[Hashable, list[Lived]] = {}
    for each in versions:
        record = (tuple(alike(each.row[name]) for name in key), each.apart)
        lives.setdefault(record, []).append(each)
    found = []
    for life in lives.values():
        life.sort(key=lambda each: each.start)
        away = any(one.end is not None and one.end < other.start for one, other in pairwise(life))
        told = differences(_sides(life), key) or _between(life, key, away=away)
        found += [{**each, "away": away} for each in told]
    return found


def _sides(life: Iterable[Lived]) -> list[Side]:
    sides = [(each.row, each.before, each.after) for each in life]
    return [
        *(Side(row, is_after=False) for row, before, _ in sides if before),
        *(Side(row, is_after=True) for row, _, after in sides if after),
    ]


def _between(life: Sequence[Lived], key: Sequence[str], *, away: bool) -> list[dict[str, Any]]:
    """What happened to a record that is the same at both ends; nothing, if its values never changed."""
    before = next((each.row for each in life if each.before), None)
    after = next((each.row for each in life if each.after), None)
    if before is None:
        change = PASSED
    elif away:
        change = RETURNED
    elif any(alike(dict(each.row)) != alike(dict(before)) for each in life):
        change = REVERTED
    else:
        return []
    (shown,) = differences([Side(life[0].row, is_after=True)], key)
    return [{"key": shown["key"], "change": change, "before": before, "after": after, "changed": []}]
