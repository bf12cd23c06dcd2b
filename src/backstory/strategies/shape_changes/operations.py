"""Requested changes to a table's shape, mode and old rows, as data.

Columns have their names in the table. The door has already refused invalid requests, such as an unknown
column.
"""

from dataclasses import dataclass
from datetime import datetime

from backstory.model.layout import START, Layout
from backstory.model.table import Column, Shape
from backstory.model.types import widens


class TooEarly(ValueError):
    """A change to a history table's columns is older than one of the table's open versions."""


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """A constant value in the request."""

    value: object


@dataclass(frozen=True, slots=True)
class ValuesOf:
    """The values of another column in the same row."""

    column: str


Value = ConstantValue | ValuesOf


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column, the last column of `into`, with a value in every row (6.2, 6.6)."""

    into: Shape
    column: Column
    value: Value


@dataclass(frozen=True, slots=True)
class SetValue:
    """Set the value in every row, including all versions (6.2, 6.5, 6.6)."""

    column: Column
    value: Value


@dataclass(frozen=True, slots=True)
class AddInHistory:
    """Give each open version a successor at `time` with the value (6.3). `into` may have a new column."""

    column: Column
    value: ConstantValue
    time: datetime
    into: Shape | None = None


@dataclass(frozen=True, slots=True)
class DropInHistory:
    """Give each open version with a value in the column a successor at `time` without the value (6.4)."""

    column: Column
    time: datetime


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """Delete rows whose `synced` time is before an instant (2.7)."""

    synced: str
    before: datetime


@dataclass(frozen=True, slots=True)
class FlagBefore:
    """Flag rows as deleted if their `synced` time is before an instant (2.7)."""

    synced: str
    before: datetime
    flag: str


@dataclass(frozen=True, slots=True)
class EndBefore:
    """End open versions at the instant if their `synced` time is before it (2.7)."""

    synced: str
    before: datetime


@dataclass(frozen=True, slots=True)
class FillFlag:
    """Set the flag to FALSE where it is NULL (6.9, type 4)."""

    flag: str


@dataclass(frozen=True, slots=True)
class ToHistory:
    """Turn a live or soft-delete table into a history table. Versions that never synced start `now` (6.8)."""

    into: Shape
    flag: str
    now: datetime


@dataclass(frozen=True, slots=True)
class ToSoftDelete:
    """Keep the newest version of each key of a history table, flagged if it is closed (6.8, type 2)."""

    into: Shape
    flag: str


@dataclass(frozen=True, slots=True)
class SoftDeleteToLive:
    """Delete flagged rows (6.9, type 0)."""

    into: Shape
    flag: str


@dataclass(frozen=True, slots=True)
class HistoryToLive:
    """Keep the newest version of each key, if it is open or `keep_deleted` is set (6.9, type 3)."""

    into: Shape
    keep_deleted: bool


@dataclass(frozen=True, slots=True)
class LiveToHistory:
    """Make every row an open version that starts now (6.9, type 5)."""

    into: Shape
    now: datetime


@dataclass(frozen=True, slots=True)
class Reshape:
    """Change columns, types or key (2.6). The change is refused if a value cannot be cast exactly."""

    before: Shape
    into: Shape

    @property
    def retyped_columns(self) -> list[Column]:
        """The columns whose stored values must be rewritten."""
        stored = {column.name: column.type for column in self.before.columns}
        return [c for c in self.into.columns if c.name in stored and not widens(stored[c.name], c.type)]

    @property
    def unique_by(self) -> list[str] | None:
        """The columns that must be unique in the data, or None if the new key is certainly unique.

        A key that only gains columns stays unique; any other key must be checked.
        """
        new_types = self.retyped_columns
        only_grows = set(self.before.key) <= set(self.into.key)
        if only_grows and not {column.name for column in new_types} & set(self.into.key):
            return None
        start = [START] if self.of_history else []
        return [*(name for name in self.into.key if new_types or self.before.column(name)), *start]

    @property
    def of_history(self) -> bool:
        """Whether rows are versions. They may then overlap, because the new key can join several records."""
        return self.before.layout is Layout.FIVETRAN_HISTORY


Rewriting = Add | ToHistory | ToSoftDelete | SoftDeleteToLive | HistoryToLive | LiveToHistory
Touching = SetValue | AddInHistory | DropInHistory | DeleteBefore | FlagBefore | EndBefore | FillFlag
Operation = Rewriting | Touching | Reshape
