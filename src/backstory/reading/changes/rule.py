"""What the feed of changes says (native.md, V101 to V107): the meaning, slow and obvious.

A state is a bag of rows. `identity` gives what tells a row from others, `content` what two equal rows share;
both are hashable. A commit's changes are the difference of the states before and after it, so files that
hold the same rows again give nothing; those of a range are the fold of its commits.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from backstory.model.change_feed import ChangeType

Row = Mapping[str, Any]
Identity = Callable[[Row], Hashable]
_GONE: Final = frozenset({ChangeType.DELETE, ChangeType.BEFORE})


@dataclass(frozen=True, slots=True)
class Changed:
    """A row of the feed; `version` is the number of its commit."""

    type: ChangeType
    version: int
    row: Row

    @property
    def sign(self) -> int:
        """1 for a row that is there after it, -1 for one that is not."""
        return -1 if self.type in _GONE else 1


def changes_between(
    before: Iterable[Row], after: Iterable[Row], version: int, identity: Identity
) -> list[Changed]:
    """What makes one state of the other, by identity; of each identity what goes before what comes (V105).

    Equal rows cancel as a bag. One row that goes and one that comes under an identity are a pair; more of
    either are deletes and inserts.
    """
    gone, come = _bag(before), _bag(after)
    return _pair_rows([*(gone - come).elements()], [*(come - gone).elements()], version, identity)


def changes_of_commits(states: Sequence[Iterable[Row]], identity: Identity, first: int = 1) -> list[Changed]:
    """The changes of each commit, in order; the first of the states stands before commit `first`."""
    pairs = enumerate(itertools.pairwise(states), first)
    return [
        one for version, (before, after) in pairs for one in changes_between(before, after, version, identity)
    ]


def net(changes: Iterable[Changed], identity: Identity) -> list[Changed]:
    """The fold of commits' changes: the difference of their ends.

    Each row has the version of the last commit that touched its identity, also where that left it as it was
    once before (V106).
    """
    signs: Counter[_Content] = Counter()
    touched: dict[Hashable, int] = {}
    for one in changes:
        signs[_Content(one.row)] += one.sign
        touched[identity(one.row)] = max(one.version, touched.get(identity(one.row), one.version))
    gone = [row for row, count in signs.items() for _ in range(-count)]
    come = [row for row, count in signs.items() for _ in range(count)]
    return [replace(one, version=touched[identity(one.row)]) for one in _pair_rows(gone, come, 0, identity)]


def apply_changes(state: Iterable[Row], changes: Iterable[Changed]) -> list[Row]:
    """The state of a mirror after the changes, which are taken in their order (V107)."""
    mirror = _bag(state)
    for one in changes:
        mirror[_Content(one.row)] += one.sign
    return [content.row for content in mirror.elements()]


class _Content:
    """A row that equals another one by its values: NaN equals NaN, maps have no order (V16)."""

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
    gone: Sequence[_Content], come: Sequence[_Content], version: int, identity: Identity
) -> list[Changed]:
    """The changes of one commit: one row gone and one come with the same identity are an update."""
    sides: dict[Hashable, tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((gone, come)):
        for content in rows:
            sides.setdefault(identity(content.row), ([], []))[side].append(content.row)
    changes = []
    for name in sorted(sides, key=repr):
        before, after = sides[name]
        paired = len(before) == len(after) == 1
        went, came = (
            (ChangeType.BEFORE, ChangeType.AFTER) if paired else (ChangeType.DELETE, ChangeType.INSERT)
        )
        changes += [Changed(went, version, row) for row in before]
        changes += [Changed(came, version, row) for row in after]
    return changes
