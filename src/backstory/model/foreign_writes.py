"""What other programs wrote to a table since its door last did: no delivery, and no state of a source."""

from collections.abc import Iterable, Mapping
from typing import Final

from backstory.model.layout import Layout

# The number of the columns' state that the door left behind; another tool's ALTER TABLE makes another one.
COLUMNS_STATE: Final = "backstory.columns-state"
# What moves rows between files and changes none, as Iceberg's procedures do.
MOVES: Final = "replace"
# How each sentence begins; the engine logs them with the commit.
BY_OTHERS: Final = "another program"
# A base may be written by whoever loads it, and other tools keep their own histories.
_KEPT: Final = frozenset(
    {Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY, Layout.HIST, Layout.ODF, Layout.VERSIONS}
)


def foreign_writes(
    layout: Layout,
    commits: Iterable[tuple[int, str, str | None]],
    then: Mapping[int, str] | None,
    now: Mapping[int, str],
) -> list[str]:
    """A sentence for the commits and one for the columns of other programs; none where there are none.

    `commits` are those that made the table, newest first: their ids, operations and doors. Columns are named
    by their ids, as the door left them and as they are; None where nobody noted how they were left.
    """
    if layout not in _KEPT:
        return []
    foreign = []
    for number, operation, door in commits:
        if door is not None:
            break
        if operation != MOVES:
            foreign.append(f"{number} ({operation})")
    told = []
    if foreign:
        told.append(
            f"{BY_OTHERS} wrote to the table since the last delivery, in "
            f"{len(foreign)} commit{'s' if len(foreign) > 1 else ''}: {', '.join(foreign[:10])}"
        )
    changes = [] if then is None else [*_altered(then, now)]
    if changes:
        told.append(f"{BY_OTHERS} altered the columns since the last delivery: {', '.join(changes)}")
    return told


def _altered(then: Mapping[int, str], now: Mapping[int, str]) -> Iterable[str]:
    for place, name in then.items():
        if place not in now:
            yield f"{name} was dropped"
        elif now[place] != name:
            yield f"{name} was renamed {now[place]}"
    yield from (f"{name} was added" for place, name in now.items() if place not in then)
