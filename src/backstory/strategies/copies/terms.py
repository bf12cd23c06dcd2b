"""What a full copy is compared by."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstory.model.layout import MEMORY
from backstory.model.table import Column
from backstory.model.types import ColumnType

if TYPE_CHECKING:
    from backstory.strategies.feeds.copy_plan import FeedCopyTerms


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """What the copy is compared by; instants are microseconds.

    `columns` are the table's, `delivered` the copy's, the key's among them; those `compared` open a version
    where they differ, those `renewed` are written into the open version instead, `tracked` are all that the
    table tracks, `overwritten` all that it keeps without history.
    `following` is the next instant of which something is known. `in_order`: nothing is known from `at` on.
    `restated`: the copy replaces a stored one, which then said nothing of columns that it lacks.
    `closes`: a record that the copy lacks is gone. `ids`: the table's rows have ids.
    `successions` are columns that the copy lacks, each with one of its type that comes: it may be the same.
    `scope` are values of columns that records of the copy have; `beside` are scopes of other copies of its
    instant. `among` is what the copy meets in a table of events.
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

    @property
    def memory(self) -> ColumnType:
        """The type of what rows remember."""
        return next(column.type for column in self.columns if column.name == MEMORY)

    @property
    def absent(self) -> tuple[str, ...]:
        """The tracked columns that the copy lacks."""
        return tuple(name for name in self.tracked if name not in self.delivered)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The columns by which a record may be another one than at the copy's instant."""
        return (*self.compared, *(self.renewed if self.following is None else ()))
