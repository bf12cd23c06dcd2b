"""The feed of changes in plain Python, and a mirror that applies it (native.md, V101 to V107).

A state is a bag of rows. `identity` gives the value that distinguishes a row from others. The changes of a
commit are the difference of the states before and after it, so rewritten files change nothing. The changes
of a range are the fold of the changes of its commits.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from backstory.model.change import ChangeType

Row = Mapping[str, Any]
Identity = Callable[[Row], Hashable]
_REMOVED: Final = frozenset({ChangeType.DELETE, ChangeType.BEFORE})

# The worked example E16: version, kind, key, value, start and end of each change. Commit 3 is a compaction.
E16_CHANGES: Final = [
    "1 insert k a 10 -",
    "1 insert m a 10 -",
    "2 update_preimage k a 10 -",
    "2 update_postimage k a 10 20",
    "2 insert k b 20 -",
    "4 update_preimage k a 10 20",
    "4 update_postimage k a 10 15",
    "4 insert k c 15 20",
    "4 update_preimage m a 10 -",
    "4 update_postimage m a 10 30",
]
# The net changes after commit 1.
E16_NET: Final = [
    "4 update_preimage k a 10 -",
    "4 update_postimage k a 10 15",
    "4 insert k c 15 20",
    "2 insert k b 20 -",
    "4 update_preimage m a 10 -",
    "4 update_postimage m a 10 30",
]
# The changes of the current rows: key and value.
E16_OF_CURRENT_ROWS: Final = [
    "1 insert k a",
    "1 insert m a",
    "2 update_preimage k a",
    "2 update_postimage k b",
    "4 delete m a",
]


@dataclass(frozen=True, slots=True)
class Changed:
    """A row of the feed; `version` is the version of its commit."""

    type: ChangeType
    version: int
    row: Row

    @property
    def sign(self) -> int:
        """1 for an added row, -1 for a removed row."""
        return -1 if self.type in _REMOVED else 1


def changes_between(
    before: Iterable[Row], after: Iterable[Row], version: int, identity: Identity
) -> list[Changed]:
    """The changes from one state to another, by identity, removed rows before added rows (V105).

    Equal rows cancel as bags. One removed and one added row with the same identity are an update; more rows
    are deletes and inserts.
    """
    old, new = _bag(before), _bag(after)
    return _pair_rows([*(old - new).elements()], [*(new - old).elements()], version, identity)


def net(changes: Iterable[Changed], identity: Identity) -> list[Changed]:
    """The fold of the changes of several commits: the difference between the first and the last state.

    Each row has the version of the last commit that touched its identity, even if that commit restored a
    former row (V106).
    """
    signs: Counter[_Content] = Counter()
    touched: dict[Hashable, int] = {}
    for one in changes:
        signs[_Content(one.row)] += one.sign
        touched[identity(one.row)] = max(one.version, touched.get(identity(one.row), one.version))
    removed = [row for row, count in signs.items() for _ in range(-count)]
    added = [row for row, count in signs.items() for _ in range(count)]
    pairs = _pair_rows(removed, added, 0, identity)
    return [replace(one, version=touched[identity(one.row)]) for one in pairs]


class _Content:
    """A row that compares by its values: NaN equals NaN, and maps have no order (V16)."""

    __slots__ = ("row", "values")

    def __init__(self, row: Row) -> None:
        self.row, self.values = row, _comparable(row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


def _comparable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return frozenset((key, _comparable(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return "NaN" if value != value else (type(value).__name__ == "bool", value)  # noqa: PLR0124 - it is NaN


def _bag(rows: Iterable[Row]) -> "Counter[_Content]":
    return Counter(map(_Content, rows))


def _pair_rows(
    removed: Sequence[_Content], added: Sequence[_Content], version: int, identity: Identity
) -> list[Changed]:
    """The changes of one commit: one removed and one added row with the same identity are an update."""
    sides: dict[Hashable, tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((removed, added)):
        for content in rows:
            sides.setdefault(identity(content.row), ([], []))[side].append(content.row)
    changes = []
    for name in sorted(sides, key=repr):
        before, after = sides[name]
        paired = len(before) == len(after) == 1
        first, second = (
            (ChangeType.BEFORE, ChangeType.AFTER) if paired else (ChangeType.DELETE, ChangeType.INSERT)
        )
        changes += [Changed(first, version, row) for row in before]
        changes += [Changed(second, version, row) for row in after]
    return changes


def changes_of_commits(states: Sequence[Iterable[Row]], identity: Identity, first: int = 1) -> list[Changed]:
    """The changes of each commit, in order. The first state is the state before commit `first`."""
    pairs = enumerate(pairwise(states), first)
    return [each for version, (old, new) in pairs for each in changes_between(old, new, version, identity)]


def apply_changes(state: Iterable[Row], changes: Iterable[Changed]) -> list[Row]:
    """The state of a mirror after it applies the changes in their order."""
    mirror = list(state)
    for change in changes:
        if change.sign > 0:
            mirror.append(change.row)
        else:
            mirror.remove(next(row for row in mirror if _are_equal(row, change.row)))
    return mirror


def _are_equal(one: Row, other: Row) -> bool:
    return not changes_between([one], [other], 0, lambda _: ())
