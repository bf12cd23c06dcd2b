"""What a feed is planned by, and the columns in which it is delivered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backstory.model.layout import MEMORY
from backstory.model.table import Column
from backstory.model.types import ColumnType

# Of each delivered event: its instant, what it is (`Told`), its further sequence (a struct), the field ids of
# the columns that it asserts (NULL: all), and what the source says the record was before (a struct, or NULL).
AT: Final = "backstory: at"
KIND: Final = "backstory: kind"
FURTHER: Final = "backstory: sequence"
ASSERTED: Final = "backstory: columns"
BEFORE_IMAGE: Final = "backstory: before"
# Numbers for what has no instant before it.
FIRST: Final = -(1 << 63)

Scope = tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class FormerLogs:
    """What is known of the logs before one that began anew: its messages are settled (V136).

    Up to `until` there was no message of the new log yet, `latest` is the last time that the former ones are
    known of. `last` is their last position, as one of the new log; None where the source's name is another.
    """

    until: int
    latest: int
    last: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class FeedTerms:
    """What a feed, or a copy among events, is planned by; instants are microseconds.

    `columns` are the table's with the layout's own, `numbers` the field ids of the data's. Columns that are
    neither `tracked` nor `overwritten` have the values of the fact that began a version. `settled` are no or
    two instants, the first None where everything before the second is settled. With `drops` events of settled
    instants are left out. A `window` takes back what is known of it, of the delivered keys or of `all_keys`.
    `ids`: the table's rows have ids. `log`: events are messages of a log: `AT` is their own time, and their
    sequence their position, whose last part says whether it is a change; it is NULL for reads without one.
    `former`: what tells messages of former logs from those of a log that began anew.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    tracked: tuple[str, ...]
    recorded: int
    numbers: Mapping[str, int]
    overwritten: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    settled: tuple[int | None, int] | tuple[()] = ()
    drops: bool = False
    window: tuple[int, int] | None = None
    all_keys: bool = False
    ids: bool = False
    log: bool = False
    former: FormerLogs | None = None

    @property
    def memory(self) -> ColumnType:
        """The type of what rows remember."""
        return next(column.type for column in self.columns if column.name == MEMORY)

    @property
    def data(self) -> tuple[str, ...]:
        """The columns beside the key's."""
        return tuple(self.numbers)

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """The columns that make no version and are not kept current either."""
        return tuple(name for name in self.data if name not in {*self.tracked, *self.overwritten})
