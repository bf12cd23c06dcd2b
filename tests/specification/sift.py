"""The result of a sift in plain Python. Each record of either side has one outcome, or a side is refused."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from backstory.model.values import comparison_key
from specification.values import equal_in

Row = Mapping[str, Any]
APPEARED, CHANGED, VANISHED, KEPT, SAME = "appeared", "changed", "vanished", "kept", "same"


def sift(
    delivered: Sequence[Row],
    stored: Sequence[Row],
    key: Sequence[str],
    compared: Sequence[str],
    scope: Sequence[bool | None],
) -> dict[tuple[Any, ...], str] | None:
    """The outcome of each record by its key.

    The result is None if a delivered row has no key, or if two rows of a side share a key. `scope` has for
    each stored row whether it counts if the delivery lacks it.
    """
    sides = [{_key(row, key): row for row in rows} for rows in (delivered, stored)]
    whole = all(row[name] is not None for row in delivered for name in key)
    if not whole or any(repeated(rows, key) for rows in (delivered, stored)):
        return None
    counts = dict(zip(sides[1], scope, strict=True))
    outcomes = {}
    for each in sides[0].keys() | sides[1].keys():
        new, old = (side.get(each) for side in sides)
        if old is None:
            outcomes[each] = APPEARED
        elif new is None:
            outcomes[each] = VANISHED if counts[each] else KEPT
        else:
            outcomes[each] = SAME if equal_in(compared, new, old) else CHANGED
    return outcomes


def repeated(rows: Sequence[Row], key: Sequence[str]) -> list[tuple[Any, ...]]:
    """The keys that occur in more than one row."""
    return [each for each, count in Counter(_key(row, key) for row in rows).items() if count > 1]


def _key(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(comparison_key(row[name]) for name in key)
