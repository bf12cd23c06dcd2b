"""The feed of changes of several commits, and the state of a mirror that applies it (native.md, V105 and V107)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from backstory.reading.changes.rule import Changed, Identity, Row, changes_between


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
