"""What one commit makes of one table, and what it says of itself.

What other programs wrote to a table since its door last did: no delivery, and no state of a source.

How much of what is stored may go at once (sections 2.4 and 3.6 of the specifications).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from backstory.model.layout import Layout
from backstory.model.table import Shape

# The number of the columns' state that the door left behind; another tool's ALTER TABLE makes another one.
COLUMNS_STATE: Final = "backstory.columns-state"
# What moves rows between files and changes none, as Iceberg's procedures do.
REPLACE: Final = "replace"
# How each sentence begins; the engine logs them with the commit.
BY_OTHERS: Final = "another program"
# A base may be written by whoever loads it, and other tools keep their own histories.
_OWN_LAYOUTS: Final = frozenset(
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
    if layout not in _OWN_LAYOUTS:
        return []
    foreign = []
    for number, operation, door in commits:
        if door is not None:
            break
        if operation != REPLACE:
            foreign.append(f"{number} ({operation})")
    told = []
    if foreign:
        told.append(
            f"{BY_OTHERS} wrote to the table since the last delivery, in "
            f"{len(foreign)} commit{'s' if len(foreign) > 1 else ''}: {', '.join(foreign[:10])}"
        )
    changes = [] if then is None else [*_column_changes(then, now)]
    if changes:
        told.append(f"{BY_OTHERS} altered the columns since the last delivery: {', '.join(changes)}")
    return told


def _column_changes(then: Mapping[int, str], now: Mapping[int, str]) -> Iterable[str]:
    for place, name in then.items():
        if place not in now:
            yield f"{name} was dropped"
        elif now[place] != name:
            yield f"{name} was renamed {now[place]}"
    yield from (f"{name} was added" for place, name in now.items() if place not in then)


def exceeds(part: int, ratio: float, whole: int) -> bool:
    """Whether `part` is more than this share of `whole`, the ratio taken as the decimal that is written.

    In floats 0.29 of 100 is less than 29, and a load that does what it may would be refused.
    """
    return part > Fraction(str(ratio)) * whole


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
DOOR: Final = "backstory.door"
TOKEN: Final = "backstory.token"  # noqa: S105 - no secret
COUNTS: Final = "backstory.counts"


def no_properties(_pending: Any) -> Mapping[str, str]:
    """What a commit tells that only writing its rows shows: nothing."""
    return NOTHING


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a snapshot, which does not expire for so many milliseconds of its age."""

    snapshot: int
    max_age: int


@dataclass(frozen=True, slots=True)
class RowBatches:
    """Rows that come some at a time, as Arrow tables: more than are in memory together."""

    tables: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit makes of one table; nothing is written yet, and it can be printed.

    `gone` are the places of stored rows that end: an Arrow table or a frame with `_file` and `_pos`, or a
    bitmap of positions for each file. `come` are the rows that begin, an Arrow table, `RowBatches` or a frame
    with the columns of `into`, or of the table's own shape. A row that changes is in both.

    `into` is the table's new shape, `renamed` new names of columns, `properties` the table's own, of which
    None takes one away. With `whole` the rows that come take the place of all; with `anew` the table is made,
    in place of one that is there; with `dropped` it goes, files and all; `back_to` is an earlier snapshot.
    A shape that names another table renames it, and does nothing else. Without rows there is no snapshot,
    unless one is asked for by `snapshot`. `tags` are names for snapshots, of which None takes one away; a
    catalog compares them by itself, so that they need no snapshot either.

    `counts` are rows by outcome, `counted` the outcome under which the rows that come are counted when they
    are written. With `expected` exactly so many rows come, or nothing is committed. `told` is asked once the
    rows are written, with the table as it will be, for properties of the commit that only then are known.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    removed: Any = None
    added: Any = None
    into: Shape | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str | None] = field(default_factory=dict)
    tags: Mapping[str, Tag | None] = field(default_factory=dict)
    whole: bool = False
    recreate: bool = False
    dropped: bool = False
    back_to: int | None = None
    snapshot: bool = False
    count_as: str = ""
    expected: int | None = None
    late_properties: Callable[[Any], Mapping[str, str]] = no_properties

    def lines(self, shape: Shape | None = None) -> list[str]:
        """The change in words, a line for each part of it; `shape` is the table's before it."""
        told = ((count, "row" if count == 1 else "rows", outcome) for outcome, count in self.counts.items())
        rows = [" ".join(map(str, each)) for each in told if each[0]]
        rows += ["all rows are rewritten"] if self.whole else []
        names = [f"column {old} renamed to {new}" for old, new in self.renamed.items() if old != new]
        back = [] if self.back_to is None else [f"table restored to snapshot {self.back_to}"]
        tags = [f"tag {name} {'removed' if tag is None else 'moved'}" for name, tag in self.tags.items()]
        return [*self._shape_lines(shape), *names, *rows, *back, *tags]

    def _shape_lines(self, shape: Shape | None) -> list[str]:
        if self.into is None:
            return []
        if shape is None or self.recreate:
            return ["table created"]
        known = {self.renamed.get(each.name, each.name): each.type for each in shape.columns}
        new = {each.name: each.type for each in self.into.columns}
        name = self.into.table
        return [
            *([f"table renamed to {name}"] if name != shape.table else []),
            *(f"new column {name} ({type_})" for name, type_ in new.items() if name not in known),
            *(f"column {name} dropped" for name in known if name not in new),
            *(
                f"column {name}: type is now {new[name]}"
                for name in known
                if new.get(name, known[name]) != known[name]
            ),
            *([f"layout is now {self.into.layout}"] if self.into.layout is not shape.layout else []),
        ]


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says of itself in the snapshot's properties; `more` are a door's own."""

    door: str
    token: str
    more: Mapping[str, str] = field(default_factory=dict)

    def properties(self, counts: Mapping[str, int]) -> dict[str, str]:
        """The four properties that every commit carries, and the door's own."""
        from importlib.metadata import version

        return {
            **self.more,
            DOOR: self.door,
            TOKEN: self.token,
            COUNTS: json.dumps(dict(counts)),
            "backstory.version": version("backstory"),
        }


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its snapshot, None where no rows changed, and its rows by outcome."""

    snapshot_id: int | None
    counts: Mapping[str, int]
