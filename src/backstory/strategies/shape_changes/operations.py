"""Changes of a table's shape, mode and old rows, as requested.

Columns are named as the table has them. What an operation may not be asked (an unknown column, a key to be
set) is the door's business; here it has been looked at.
"""

from dataclasses import dataclass
from datetime import datetime

from backstory.model.layout import START, Layout
from backstory.model.table import Column, Shape
from backstory.model.types import widens


class TooEarly(ValueError):
    """A change of the columns of a history table is older than one of its open versions."""


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """A value that the request gives."""

    value: object


@dataclass(frozen=True, slots=True)
class ValuesOf:
    """The values of another column."""

    column: str


Value = ConstantValue | ValuesOf


@dataclass(frozen=True, slots=True)
class Add:
    """A new column, the last of `into`, with a value in every row (6.2, 6.6)."""

    into: Shape
    column: Column
    value: Value


@dataclass(frozen=True, slots=True)
class SetValue:
    """Every row gets the value, all versions included (6.2, 6.5, 6.6)."""

    column: Column
    value: Value


@dataclass(frozen=True, slots=True)
class AddInHistory:
    """Each open version gets a successor at `time` with the value (6.3); `into` has a column that is new."""

    column: Column
    value: ConstantValue
    time: datetime
    into: Shape | None = None


@dataclass(frozen=True, slots=True)
class DropInHistory:
    """Each open version that has a value gets a successor at `time` without (6.4)."""

    column: Column
    time: datetime


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """Rows whose `synced` is before an instant go (2.7)."""

    synced: str
    before: datetime


@dataclass(frozen=True, slots=True)
class FlagBefore:
    """Such rows are flagged as deleted (2.7)."""

    synced: str
    before: datetime
    flag: str


@dataclass(frozen=True, slots=True)
class EndBefore:
    """Such versions, if they are open, end at the instant (2.7)."""

    synced: str
    before: datetime


@dataclass(frozen=True, slots=True)
class FillFlag:
    """The flag is FALSE where it was NULL (6.9, type 4)."""

    flag: str


@dataclass(frozen=True, slots=True)
class ToHistory:
    """A live or soft-delete table becomes a history table; `now` starts versions that never synced (6.8)."""

    into: Shape
    flag: str
    now: datetime


@dataclass(frozen=True, slots=True)
class ToSoftDelete:
    """A history table keeps the newest version of each key, flagged if it is closed (6.8, type 2)."""

    into: Shape
    flag: str


@dataclass(frozen=True, slots=True)
class SoftDeleteToLive:
    """Rows that are flagged go (6.9, type 0)."""

    into: Shape
    flag: str


@dataclass(frozen=True, slots=True)
class HistoryToLive:
    """The newest version of each key stays, if it is open or deleted rows are kept (6.9, type 3)."""

    into: Shape
    keep_deleted: bool


@dataclass(frozen=True, slots=True)
class LiveToHistory:
    """Every row is an open version that starts now (6.9, type 5)."""

    into: Shape
    now: datetime


@dataclass(frozen=True, slots=True)
class Reshape:
    """The table gets other columns, types or another key (2.6); values are cast exactly, or it is refused."""

    before: Shape
    into: Shape

    @property
    def retyped_columns(self) -> list[Column]:
        """The columns whose stored values have to be written anew."""
        stored = {each.name: each.type for each in self.before.columns}
        return [c for c in self.into.columns if c.name in stored and not widens(stored[c.name], c.type)]

    @property
    def unique_by(self) -> list[str] | None:
        """The columns by which rows have to be told apart; None where the new key surely does.

        A key that only gains columns stays unique; any other is looked at in the data.
        """
        new_types = self.retyped_columns
        kept = set(self.before.key) <= set(self.into.key)
        if kept and not {column.name for column in new_types} & set(self.into.key):
            return None
        start = [START] if self.of_history else []
        return [*(name for name in self.into.key if new_types or self.before.column(name)), *start]

    @property
    def of_history(self) -> bool:
        """Whether rows are versions: those of several records may become those of one, and then overlap."""
        return self.before.layout is Layout.FIVETRAN_HISTORY


Rewriting = Add | ToHistory | ToSoftDelete | SoftDeleteToLive | HistoryToLive | LiveToHistory
Touching = SetValue | AddInHistory | DropInHistory | DeleteBefore | FlagBefore | EndBefore | FillFlag
Operation = Rewriting | Touching | Reshape
