"""The table that a migration is about, and what its request says in text."""

from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from backstory.doors.fivetran.definitions import stored_as
from backstory.errors import Refused
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.model.change import Change
from backstory.model.layout import SYSTEM_COLUMNS, Layout
from backstory.model.schema import Column, Shape
from backstory.model.types import ColumnType, Kind
from backstory.stores.names import stored_names
from backstory.stores.port import Store, StoredTable
from backstory.strategies.shape_changes.operations import Given, Operation, TooEarly
from backstory.strategies.shape_changes.plan import change_of

NULL_TEXT = "NULL"
_TEXT = frozenset({Kind.STRING, Kind.JSON, Kind.XML})


@dataclass(frozen=True, slots=True)
class Subject:
    """A table as it stands."""

    store: Store
    table: StoredTable

    @property
    def shape(self) -> Shape:
        """The table's shape."""
        return self.table.shape

    def column(self, name: str) -> Column:
        """The column that the source calls so; Refused if there is none."""
        found = self.shape.called(name)
        if found is None:
            raise refused(f"{self.shape.table} has no column {name!r}.", "Name one of its columns.")
        return found

    def having(self, column: Column) -> Shape:
        """The table's shape with one more column."""
        return replace(self.shape, columns=(*self.shape.columns, column))

    def becoming(self, name: str, type_: ColumnType) -> Column:
        """The column that the source calls so, or would call so if it were added."""
        names = stored_names(self.store.reserves, [name], self.shape.columns)
        return self.shape.called(name) or stored_as(Column(name, type_), names)

    def change(self, operation: Operation) -> Change | None:
        """The change that an operation is; Refused for one that an open version is younger than."""
        try:
            return change_of(self.store, self.table, operation)
        except TooEarly:
            raise refused(
                f"{self.shape.table} has open versions that start after the operation's time.",
                "Send a later time.",
            ) from None

    def require_history(self) -> None:
        """Raises Refused if the table keeps no history."""
        if self.shape.layout is not Layout.FIVETRAN_HISTORY:
            raise refused(
                f"{self.shape.table} keeps no history.",
                "Migrate it to history mode first, or use AlterTable.",
            )

    def require_values(self, column: Column) -> None:
        """Raises Refused if the column's values are not a user's to set: keys and system columns."""
        if column.name in self.shape.key or column.name in SYSTEM_COLUMNS:
            raise refused(
                f"The values of {column.source} in {self.shape.table} cannot be set: "
                "it is a key or system column.",
                "Name another column.",
            )


def refused(why: str, remedy: str) -> Refused:
    """The error of a migration that the table does not allow."""
    return Refused("migration", why, f"Nothing was changed. {remedy}")


def user_column(name: str) -> str:
    """The name, if a migration may make a column of it; Refused for none and for a system column."""
    if not name or name in SYSTEM_COLUMNS:
        raise refused(f"A migration cannot create the column {name!r}.", "Choose another name.")
    return name


def value(text: str, column: Column) -> Given:
    """A value that the request gives as text.

    `NULL` is SQL NULL (F9), and so is an empty text for types that are not text (section 6.1).
    """
    if text == NULL_TEXT or (not text and column.type.kind not in _TEXT):
        return Given(None)
    return Given(_parsed(text, column)[0].as_py())


def time(text: str) -> datetime:
    """The request's `operation_timestamp`."""
    instant = Column("operation_timestamp", ColumnType(Kind.UTC_DATETIME))
    found: datetime = _parsed(text, instant)[0].as_py()
    return found


def _parsed(text: str, column: Column) -> pa.Array:
    try:
        return parse(pa.array([text], pa.string()), column.type)
    except UnreadableCell:
        raise refused(
            f"The value for {column.source} is not of type {column.type}.", "Send a value of that type."
        ) from None
