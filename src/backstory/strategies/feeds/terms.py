"""The settings of a feed's plan, and the columns of its events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backstory.model.layout import MEMORY
from backstory.model.table import Column
from backstory.model.types import ColumnType

# Columns of each event: its instant, its kind (`FactKind`), its further sequence (a struct), the field ids of
# the columns that it sets (NULL: all), and the before-image of its record (a struct, or NULL).
AT: Final = "backstory: at"
KIND: Final = "backstory: kind"
FURTHER: Final = "backstory: sequence"
ASSERTED: Final = "backstory: columns"
BEFORE_IMAGE: Final = "backstory: before"
# A number that is less than all instants.
FIRST: Final = -(1 << 63)

Scope = tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class FormerLogs:
    """The logs that preceded a restarted log.

    Messages of these former logs are settled (V136). At or before `until`, no message of the new log was
    known. `latest` is the last known time of the former logs. `last` is their last position, with the number
    of the new log, or None if the source's name changed.
    """

    until: int
    latest: int
    last: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class FeedTerms:
    """The settings of a feed, or of a copy into a table of events. Instants are in microseconds.

    `columns` are the table's columns, including the layout's own. `numbers` are the field ids of the columns
    outside the key. Columns that are neither `tracked` nor `overwritten` keep the values of the fact that
    began the version. `settled` is empty or an interval; its start may be None. With `drops`, events of
    settled instants are left out. A `window` withdraws the known facts in it, for the delivered keys or, with
    `all_keys`, for all keys. `ids` is true if the table has row ids. `log` is true if events are messages of
    a log. Then `AT` is their own time, and their sequence is their position. The last part of a position is
    true for changes and false for reads; reads without a position have NULL. `former` describes the logs
    before one that started again. From `following` on, all versions stay as they are.
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
    following: int | None = None

    @property
    def memory(self) -> ColumnType:
        """The type of the column `_memory`."""
        return next(column.type for column in self.columns if column.name == MEMORY)

    @property
    def data(self) -> tuple[str, ...]:
        """The columns outside the key."""
        return tuple(self.numbers)

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """The columns outside the key that neither make versions nor are overwritten."""
        return tuple(name for name in self.data if name not in {*self.tracked, *self.overwritten})
