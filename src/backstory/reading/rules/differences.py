"""What two states of a table differ in, and in which order rows are told."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from backstory.model.values import alike

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
        record = (tuple(alike(each.row[name]) for name in key), each.apart)
        pairs.setdefault(record, {}).setdefault(each.is_after, each.row)
    found = (_compared(pair, key) for pair in pairs.values())
    return [each for each in found if each["change"] != "changed" or each["changed"]]


def _compared(pair: Mapping[bool, Row], key: Sequence[str]) -> dict[str, Any]:
    before, after = pair.get(False), pair.get(True)
    changed: list[str] = []
    if before is not None and after is not None:
        # What is equal is alike; asking that first is fast.
        unequal = [name for name in before if name not in key and before[name] != after[name]]
        changed = [name for name in unequal if alike(before[name]) != alike(after[name])]
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
        whole = tuple(map(alike, each.row.values()))
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
