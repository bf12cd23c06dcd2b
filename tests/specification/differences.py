"""The differences between two states of a table, and the changes in between (native.md V96).

It also sorts rows.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from backstory.model.values import comparison_key

Row = Mapping[str, Any]


class Side(NamedTuple):
    """A row of one of the two states. `apart` is a value that distinguishes it from other rows of its key."""

    row: Row
    is_after: bool
    apart: Hashable = None


def differences(sides: Iterable[Side], key: Sequence[str]) -> list[dict[str, Any]]:
    """The records whose rows differ: `key`, `change`, `before`, `after`, `changed` (V96).

    Without a key, rows are counted: the surplus of equal rows is added or removed.
    """
    if not key:
        return _counted(sides)
    pairs: dict[Hashable, dict[bool, Row]] = {}
    for each in sides:
        record = (tuple(comparison_key(each.row[name]) for name in key), each.apart)
        pairs.setdefault(record, {}).setdefault(each.is_after, each.row)
    records = (_compared(pair, key) for pair in pairs.values())
    return [each for each in records if each["change"] != "changed" or each["changed"]]


def _compared(pair: Mapping[bool, Row], key: Sequence[str]) -> dict[str, Any]:
    before, after = pair.get(False), pair.get(True)
    changed: list[str] = []
    if before is not None and after is not None:
        # Equal values are alike. This check is first because it is fast.
        unequal = [name for name in before if name not in key and before[name] != after[name]]
        changed = [name for name in unequal if comparison_key(before[name]) != comparison_key(after[name])]
    return difference(before, after, key, changed)


def difference(
    before: Row | None, after: Row | None, key: Sequence[str], changed: Sequence[str]
) -> dict[str, Any]:
    """The difference for a record, from its rows before and after. One of the two may be None."""
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
    """The value with 0.0 in place of -0.0, because a group of rows is shown by 0.0, whatever zeros it has."""
    return value + 0.0 if isinstance(value, float) else value


def in_order(rows: Iterable[Row], first: Sequence[str]) -> list[Row]:
    """Rows sorted by these columns and then by all others, as Spark sorts: NULL first and NaN last."""
    all_rows = list(rows)
    ranks = [tuple(rank(row[name]) for name in first) for row in all_rows]
    if len(set(ranks)) < len(all_rows):
        ranks = [tuple(map(rank, _first(row, first))) for row in all_rows]
    places = sorted(range(len(all_rows)), key=ranks.__getitem__)
    return [all_rows[place] for place in places]


def _first(row: Row, names: Sequence[str]) -> list[Any]:
    return [*(row[name] for name in names), *(row[name] for name in row if name not in names)]


def rank(value: Any) -> tuple[Any, ...]:
    """The sort key of a value within its column."""
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
    """A version that begins or ends between the two times.

    It has its row, its start and end, and whether it is true at each of the two times.
    """

    row: Row
    start: Any
    end: Any
    before: bool
    after: bool
    apart: Hashable = None


def passages(versions: Iterable[Lived], key: Sequence[str]) -> list[dict[str, Any]]:
    """The records that differ between the two times, and the records that changed only in between.

    The former are as in `differences`. If a record is the same at both times, `change` is `returned` if it
    was missing in between, or `reverted` if it had other values. It is `passed` for a record that existed
    only in between. `away` is true for a record that was missing in between and returned.
    """
    lives: dict[Hashable, list[Lived]] = {}
    for each in versions:
        record = (tuple(comparison_key(each.row[name]) for name in key), each.apart)
        lives.setdefault(record, []).append(each)
    records = []
    for life in lives.values():
        life.sort(key=lambda each: each.start)
        away = any(one.end is not None and one.end < other.start for one, other in pairwise(life))
        changes = differences(_sides(life), key) or _between(life, key, away=away)
        records += [{**each, "away": away} for each in changes]
    return records


def _sides(life: Iterable[Lived]) -> list[Side]:
    sides = [(each.row, each.before, each.after) for each in life]
    return [
        *(Side(row, is_after=False) for row, before, _ in sides if before),
        *(Side(row, is_after=True) for row, _, after in sides if after),
    ]


def _between(life: Sequence[Lived], key: Sequence[str], *, away: bool) -> list[dict[str, Any]]:
    """The changes in between of a record that is the same at both times.

    The list is empty if its values never changed.
    """
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
