"""A table's name, layout and shape."""

from dataclasses import dataclass
from enum import StrEnum

from backstory.model.column import Column


class Layout(StrEnum):
    """What the rows of a table mean; stands in the table property `backstory.layout`."""

    FIVETRAN_LIVE = "fivetran-live"
    FIVETRAN_HISTORY = "fivetran-history"
    HIST = "hist"
    ODF = "odf"
    VERSIONS = "versions"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`<schema>.<table>`, both exactly as the source spells them."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns, key and layout; the key never holds `_fivetran_start` (F15)."""

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
