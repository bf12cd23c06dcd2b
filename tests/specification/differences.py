"""What two states of a table differ in, and what happened in between (native.md V96); the order of rows."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from backstory.model.values import comparison_key

Row = Mapping[str, Any]


class Side(NamedTuple):
    """A row of one state or the other; `apart` is what else than the key tells it from others."""

    row: Row
    is_after: bool
    apart: Hashable = None


def differences(sides: Iterable[Side], key: Sequence[str]) -> list[dict[str, Any]]:
    """The records whose rows differ: `key`, `change`, `before`, `after`, `changed` (V96).

    Without a key rows come and go as often as they are.
    """
    if not key:
        return _counted(sides)
    pairs: dict[Hashable, dict[bool, Row]] = {}
    for each in sides:
        record = (tuple(comparison_key(each.row[name]) for name in key), each.apart)
        pairs.setdefault(record, {}).setdefault(each.is_after, each.row)
    found = (_compared(pair, key) for pair in pairs.values())
    return [each for each in found if each["change"] != "changed" or each["changed"]]


def _compared(pair: Mapping[bool, Row], key: Sequence[str]) -> dict[str, Any]:
    before, after = pair.get(False), pair.get(True)
    changed: list[str] = []
    if before is not None and after is not None:
        # What is equal is alike; asking that first is fast.
        unequal = [name for name in before if name not in key and before[name] != after[name]]
        changed = [name for name in unequal if comparison_key(before[name]) != comparison_key(after[name])]
    return difference(before, after, key, changed)


def difference(
    before: Row | None, after: Row | None, key: Sequence[str], changed: Sequence[str]
) -> dict[str, Any]:
    """A record as differences tell it, of its row before and after, one of which may be None."""
    row = after if before is None else before
    assert row is not None
    return {
        "key": {name: _unsigned(row[name]) for name in key},
        "change": "added" if before is None else "removed" if after is None else "changed",
        "before": before,
        "after": after,
        "changed": list(changed),
    }


def _counted(sides: Iterable[Side]) -> list[dict[str, Any]]:
    more: Counter[Hashable] = Counter()
    rows: dict[Hashable, Row] = {}
    for each in sides:
        whole = tuple(map(comparison_key, each.row.values()))
        rows.setdefault(whole, {name: _unsigned(value) for name, value in each.row.items()})
        more[whole] += 1 if each.is_after else -1
    return [
        {
            "key": rows[whole],
            "change": "added" if count > 0 else "removed",
            "before": rows[whole] if count < 0 else None,
            "after": rows[whole] if count > 0 else None,
            "changed": [],
        }
        for whole, count in more.items()
        for _ in range(abs(count))
    ]


def _unsigned(value: Any) -> Any:
    """A group of rows is shown by 0.0, whichever zeros it has."""
    return value + 0.0 if isinstance(value, float) else value


def in_order(rows: Iterable[Row], first: Sequence[str]) -> list[Row]:
    """Rows by these columns and then by all others, as Spark sorts: NULL first and NaN last."""
    found = list(rows)
    ranks = [tuple(rank(row[name]) for name in first) for row in found]
    if len(set(ranks)) < len(found):
        ranks = [tuple(map(rank, _first(row, first))) for row in found]
    places = sorted(range(len(found)), key=ranks.__getitem__)
    return [found[place] for place in places]


def _first(row: Row, names: Sequence[str]) -> list[Any]:
    return [*(row[name] for name in names), *(row[name] for name in row if name not in names)]


def rank(value: Any) -> tuple[Any, ...]:
    """What sorts a value among others of its column."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    if isinstance(value, Mapping):
        return (1, *map(rank, value.values()))
    if isinstance(value, list):
        return (1, *map(rank, value))
    return (1, value)


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
        record = (tuple(comparison_key(each.row[name]) for name in key), each.apart)
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
    elif any(comparison_key(dict(each.row)) != comparison_key(dict(before)) for each in life):
        change = REVERTED
    else:
        return []
    (shown,) = differences([Side(life[0].row, is_after=True)], key)
    return [{"key": shown["key"], "change": change, "before": before, "after": after, "changed": []}]
