"""What every store of tables answers, wherever the tables stand.

The names that columns can have in a table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from backstory.errors import Refused
from backstory.formats.memory import Memory
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape

# The property of a table to which a sender once brought versions that do not stand one after the other.
DISORDER: Final = "backstory.disorder"
# The property of a history whose base is ahead of it, because a load stands between its two commits.
LOADING: Final = "backstory.loading"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a table after a commit, by their number, and what that commit said of itself."""

    id: int
    properties: Mapping[str, str]


class Store(Protocol):
    """A place of tables."""

    @property
    def catalog(self) -> str:
        """Its name, by which the locks of its tables are known."""

    @property
    def memory(self) -> Memory:
        """What deliveries may hold of this process."""

    @property
    def searched(self) -> str:
        """What it is and who named it, for people who may have meant another one."""

    def reserves(self, name: str) -> bool:
        """Whether it keeps this name of a column for itself."""


class TableLike(Protocol):
    """A table as far as it tells what its rows mean, whoever reads it."""

    @property
    def shape(self) -> Shape:
        """Its columns, key and layout."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""

    @property
    def rows(self) -> int:
        """The number of rows that data files hold, deleted ones included; 0 when there are none."""

    @property
    def foreign_writes(self) -> Sequence[str]:
        """What other programs did to it since its door last wrote, in words."""


class StoredTable(Protocol):
    """A table as it was when it was loaded."""

    @property
    def shape(self) -> Shape:
        """Its columns, key and layout."""

    @property
    def schema_id(self) -> int:
        """The number of its columns' state: another one after every change of them."""

    @property
    def rows(self) -> int:
        """At least the number of its rows; 0 when there are surely none."""

    @property
    def disorderly(self) -> bool:
        """Whether a sender once brought versions of a key that do not stand one after the other."""

    @property
    def newest_token(self) -> str | None:
        """The token of the newest commit of rows, if backstory made it."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What commits have set of its own properties."""

    @property
    def tags(self) -> Mapping[str, int]:
        """Names for snapshots, by which these are kept."""

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """Every commit of rows, oldest first."""

    @property
    def foreign_writes(self) -> Sequence[str]:
        """What other programs did to it since its door last wrote, in words."""


Found = TypeVar("Found", bound=StoredTable)
Told = TypeVar("Told", bound=TableLike)


def require_columns(table: Told, *own: str) -> Told:
    """The table, if it has its key and its layout's own columns; Refused where another tool took one.

    `own` are further columns that a door needs. Without them a row means something else: nothing is read or
    written then. Only `check` goes on.
    """
    shape = table.shape
    if shape.layout is Layout.FOREIGN or (shape.layout is Layout.ODF and not table.rows):
        return table  # a dataset has its columns from its first delivery on
    needed = dict.fromkeys((*shape.key, *shape.layout.required_columns, *own))
    lacking = [each for each in needed if not shape.column(each)]
    if lacking:
        one = len(lacking) == 1
        raise Refused(
            "column-gone",
            f"{shape.table} no longer has the column{'' if one else 's'} {', '.join(lacking)}, "
            f"which {'is' if one else 'are'} part of its key or of its layout {shape.layout}.",
            f"Nothing was written; give {'it its' if one else 'them their'} former name again with "
            "ALTER TABLE, or register the table's metadata file from before the change.",
            lacking,
        )
    return table


def require_layout(found: Found, *layouts: Layout) -> Found:
    """The table, for a door that writes tables of these layouts; Refused for any other table."""
    shape = found.shape
    if shape.layout is Layout.FOREIGN:
        raise Refused(
            "other-layout",
            f"backstory did not create {shape.table} and does not write to it.",
            "Nothing was written; use another name. To read a history of another tool, run "
            "`backstory adopt`.",
        )
    if shape.layout not in layouts:
        raise Refused(
            "other-layout",
            f"{shape.table} has the layout {shape.layout}, which only the {shape.layout.door} door writes.",
            f"Nothing was written; use another name, or a table of layout {' or '.join(layouts)}.",
        )
    return require_columns(found)


# Whether a store keeps a name for itself.
Reserves = Callable[[str], bool]


def stored_names(reserves: Reserves, sources: Iterable[str], known: Iterable[Column] = ()) -> dict[str, str]:
    """The names that a table has for a source's columns, those of the `known` columns included (F21).

    A name that the store keeps for itself gets an underscore behind, one more while that is taken; any
    other is stored as it is unless such a one took it.
    """
    names = {column.source: column.name for column in known}
    kept = {source: reserves(source) for source in sources if source not in names}
    for source in sorted(kept, key=kept.__getitem__):
        name = f"{source}_" if kept[source] else source
        while name in names.values():
            name += "_"
        names[source] = name
    return names


def refuse_names(reserves: Reserves, names: Sequence[str]) -> None:
    """Raises Refused for column names that no table can have."""
    for name in names:
        if not name or reserves(name):
            raise Refused(
                "reserved-column",
                f"A column cannot be named {name!r}: Iceberg keeps the name for itself.",
                "Rename the column at its source or leave it out.",
            )
    if len(set(names)) < len(names):
        raise Refused("repeated-column", "Two columns have one name.", "Name each column once.")
