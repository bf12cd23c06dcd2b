"""A table's columns, key and layout."""

from dataclasses import dataclass, field

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.model.types import ColumnType


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table or of a delivery.

    `called` is the source's name for it where the table has another one (F21), else empty; `comment` is
    what a new column's comment in the table says, where that is more than its type.
    """

    name: str
    type: ColumnType
    called: str = ""
    comment: str = field(default="", compare=False)

    @property
    def source(self) -> str:
        """The source's name for it: what requests, replies, messages and readers use."""
        return self.called or self.name

    @property
    def doc(self) -> str:
        """The comment of the column in its table: its type as `ColumnType.parse` reads it, if not more."""
        return self.comment or str(self.type)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns, key and layout; the key never holds the start of versions (F15)."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    layout: Layout

    @property
    def names(self) -> list[str]:
        """The names of the columns, in the table's order."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> Column | None:
        """The column of exactly this name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    def called(self, source: str) -> Column | None:
        """The column that the source calls exactly so, or None."""
        return next((column for column in self.columns if column.source == source), None)

    @property
    def source_key(self) -> tuple[str, ...]:
        """The key in the source's names."""
        sources = {column.name: column.source for column in self.columns}
        return tuple(sources.get(name, name) for name in self.key)

    @property
    def user_columns(self) -> list[Column]:
        """The columns that the source sent, without those of the layout."""
        return [each for each in self.columns if not self.layout.owns(each.name, self.table.name)]
