"""The settings for the comparison of a full copy with its table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstory.model.layout import MEMORY
from backstory.model.table import Column
from backstory.model.types import ColumnType

if TYPE_CHECKING:
    from backstory.strategies.feeds.copy_plan import FeedCopyTerms


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """The settings for the comparison of a copy. Instants are in microseconds.

    `columns` are the table's columns, and `delivered` the copy's columns, both including the key. A
    difference in `compared` columns opens a version; `renewed` columns are written into the open version.
    `tracked` are all tracked columns of the table, and `overwritten` are all columns without history.
    `following` is the next instant with a known fact. `in_order` is true if nothing is known from `at` on.
    `restated` is true if the copy replaces a stored one. If the new copy lacks columns, their values from the
    replaced copy are discarded. If `closes` is set, missing records are closed. `ids` is true if the table
    has row ids. `successions` are pairs of a missing and an added column of the same type, which may be one
    renamed column. `scope` contains the column values of the copy's records; `other_scopes` are the scopes of
    other copies at the same instant. `feed` are the settings for a table of events. `copies` is the column
    with the number of equal rows, if the key is the whole row.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    delivered: tuple[str, ...]
    compared: tuple[str, ...]
    renewed: tuple[str, ...]
    tracked: tuple[str, ...]
    overwritten: tuple[str, ...]
    at: int
    recorded: int
    following: int | None = None
    in_order: bool = True
    restated: bool = False
    closes: bool = True
    ids: bool = False
    successions: tuple[tuple[str, str], ...] = ()
    scope: tuple[tuple[str, object], ...] | None = None
    other_scopes: tuple[tuple[tuple[str, object], ...], ...] = ()
    feed: "FeedCopyTerms | None" = None
    copies: str | None = None

    @property
    def memory(self) -> ColumnType:
        """The type of the column `_memory`."""
        return next(column.type for column in self.columns if column.name == MEMORY)

    @property
    def absent(self) -> tuple[str, ...]:
        """The tracked columns that the copy lacks."""
        return tuple(name for name in self.tracked if name not in self.delivered)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The columns whose differences change a record at the copy's instant."""
        return (*self.compared, *(self.renewed if self.following is None else ()))
