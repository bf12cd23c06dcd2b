"""A table's name, layout and shape."""

from dataclasses import dataclass
from enum import StrEnum

from backstory.model.column import Column


class Layout(StrEnum):
    """What the rows of a table mean; stands in the table property `backstory.layout`."""

    FIVETRAN_LIVE = "fivetran-live"
    FIVETRAN_HISTORY = "fivetran-history"
    BASE = "base"
    HIST = "hist"
    RUN_LOG = "run-log"
    ODF = "odf"
    ODF_LOG = "odf-log"
    VERSIONS = "versions"

    @property
    def door(self) -> str:
        """The door that alone writes tables of this layout."""
        return _DOORS[self]


_DOORS = {
    Layout.FIVETRAN_LIVE: "fivetran",
    Layout.FIVETRAN_HISTORY: "fivetran",
    Layout.BASE: "historize",
    Layout.HIST: "historize",
    Layout.RUN_LOG: "historize",
    Layout.ODF: "odf",
    Layout.ODF_LOG: "odf",
    Layout.VERSIONS: "native",
}


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

    def called(self, source: str) -> Column | None:
        """The column that the source calls exactly so, or None."""
        return next((column for column in self.columns if column.source == source), None)

    @property
    def source_key(self) -> tuple[str, ...]:
        """The key in the source's names."""
        sources = {column.name: column.source for column in self.columns}
        return tuple(sources.get(name, name) for name in self.key)
