"""The change that one commit makes to one table, writes by other programs, and the feed of changes.

The columns of the feed are named as in Spark (native.md, V101), and a consumer has a cursor (V108).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, Literal

from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import Shape

# The schema id after the door's last write; an ALTER TABLE by another tool creates a new one.
COLUMNS_STATE: Final = "backstory.columns-state"
# The operation of commits that move rows between files and change none, as Iceberg's procedures do.
REPLACE: Final = "replace"
# The beginning of each sentence. The engine logs the sentences with the commit.
BY_OTHERS: Final = "another program"
# Any program may write a base, and other tools keep their own histories.
_OWN_LAYOUTS: Final = frozenset(
    {Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY, Layout.HIST, Layout.ODF, Layout.VERSIONS}
)


def foreign_writes(
    layout: Layout,
    commits: Iterable[tuple[int, str, str | None]],
    then: Mapping[int, str] | None,
    now: Mapping[int, str],
) -> list[str]:
    """Sentences about the commits and the column changes of other programs, at most one for each.

    `commits` are the table's commits, newest first, each with id, operation and door. `then` and `now` are
    column names by id, as the door left them and as they are now. If they were not recorded, `then` is None.
    """
    if layout not in _OWN_LAYOUTS:
        return []
    foreign = []
    for number, operation, door in commits:
        if door is not None:
            break
        if operation != REPLACE:
            foreign.append(f"{number} ({operation})")
    sentences = []
    if foreign:
        sentences.append(
            f"{BY_OTHERS} wrote to the table since the last delivery, in "
            f"{len(foreign)} commit{'s' if len(foreign) > 1 else ''}: {', '.join(foreign[:10])}"
        )
    changes = [] if then is None else [*_column_changes(then, now)]
    if changes:
        sentences.append(f"{BY_OTHERS} altered the columns since the last delivery: {', '.join(changes)}")
    return sentences


def _column_changes(then: Mapping[int, str], now: Mapping[int, str]) -> Iterable[str]:
    for place, name in then.items():
        if place not in now:
            yield f"{name} was dropped"
        elif now[place] != name:
            yield f"{name} was renamed {now[place]}"
    yield from (f"{name} was added" for place, name in now.items() if place not in then)


def exceeds(part: int, ratio: float, whole: int) -> bool:
    """Whether `part` is more than this share of `whole`, computed with the ratio as a decimal.

    With floats, 0.29 of 100 would be less than 29, and a permitted load would be refused.
    """
    return part > Fraction(str(ratio)) * whole


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
DOOR: Final = "backstory.door"
TOKEN: Final = "backstory.token"  # noqa: S105 - no secret
COUNTS: Final = "backstory.counts"


def no_properties(_pending: Any) -> Mapping[str, str]:
    """No properties that depend on written rows."""
    return NOTHING


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a snapshot. A tag expires at an age of `max_age` milliseconds. A branch has no `max_age`."""

    snapshot: int
    max_age: int | None = None


@dataclass(frozen=True, slots=True)
class RowBatches:
    """Rows as a sequence of Arrow tables, because they do not fit into memory together."""

    tables: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """The change that one commit makes to one table. Nothing is written yet, and the change can be printed.

    `removed` are the places of stored rows that end: an Arrow table or frame with `_file` and `_pos`, or a
    bitmap of positions by file. `added` are the new rows: an Arrow table, `RowBatches`, or a frame with the
    columns of `into` or of the table's shape. A changed row is in both.

    `into` is the table's new shape, and `renamed` has new column names by old name. A shape with another
    table name only renames the table. A property of None is removed. If `whole` is true, the added rows
    replace all rows. `recreate` creates the table again, and `dropped` drops it with its files. `back_to`
    restores an earlier snapshot.

    A change without rows makes no snapshot, unless `snapshot` is true. `tags` name snapshots. A tag or branch
    of None is removed. Catalogs detect conflicting changes of tags, so tags need no snapshot.

    `counts` are the numbers of rows by outcome. `count_as` is the outcome under which added rows are counted
    while they are written. If the number of added rows is not `expected`, nothing is committed.
    `late_properties` is called with the resulting table after the rows are written. It returns the commit's
    properties that depend on that table.
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
        """The change in words, one line for each part. `shape` is the table's shape before the change."""
        counted_rows = (
            (count, "row" if count == 1 else "rows", outcome) for outcome, count in self.counts.items()
        )
        rows = [" ".join(map(str, line)) for line in counted_rows if line[0]]
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
        known = {self.renamed.get(column.name, column.name): column.type for column in shape.columns}
        new = {column.name: column.type for column in self.into.columns}
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
    """The snapshot properties of a commit. `more` are the door's own properties."""

    door: str
    token: str
    more: Mapping[str, str] = field(default_factory=dict)

    def properties(self, counts: Mapping[str, int]) -> dict[str, str]:
        """The four properties of every commit, and the door's own properties."""
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
    """A commit: its snapshot, or None if no rows changed, and its rows by outcome."""

    snapshot_id: int | None
    counts: Mapping[str, int]


class ChangeType(StrEnum):
    """The kind of a row's change, named as in Spark."""

    INSERT = "insert"
    DELETE = "delete"
    BEFORE = "update_preimage"
    AFTER = "update_postimage"


CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
CHANGE_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
# Columns of moved rows in addition to the table's own, with names that no table uses: -1 or 1, and the
# commit.
SIGN, NUMBER, VERSION, TIME = (f"moved: {name}" for name in ("sign", "number", "version", "time"))
# A commit's version or snapshot id, or a time, which selects the newest commit at or before it.
CommitName = int | str | date
# The position at which a new cursor begins: before the first commit, or at the newest one.
Start = Literal["first", "now"]
# The tag that keeps the cursor's snapshot, and the table property that stores the cursor without it.
CURSOR_TAG: Final = "backstory-cursor-"
CURSOR_MARK: Final = "backstory.cursor."


@dataclass(frozen=True, slots=True, repr=False)
class Cursor(Receipt):
    """A consumer's cursor. `version` is the last commit that was read, or None if the cursor was dropped."""

    table: str
    cursor: str
    version: int | None
