"""Columns as a dialect writes them: their types by the words of a model (section 1.2).

How a column's type may change (section 4.3).
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from backstory.model.types import ColumnType, Kind, fits


class Datatype(StrEnum):
    """The logical types of columns."""

    STRING = "STRING"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    DECIMAL = "DECIMAL"
    FLOAT = "FLOAT"
    BOOLEAN = "BOOLEAN"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    BINARY = "BINARY"
    UUID = "UUID"
    JSON = "JSON"


class SqlColumn(Protocol):
    """What a dialect asks of a column; `former_names` are those that it may still stand under."""

    @property
    def name(self) -> str:
        """The name in the table."""

    @property
    def datatype(self) -> Datatype:
        """The logical type."""

    @property
    def max_length(self) -> int | None:
        """The letters that a text may have; None for any number."""

    @property
    def decimal_precision(self) -> int | None:
        """The digits of a DECIMAL."""

    @property
    def decimal_scale(self) -> int | None:
        """The digits of its fraction."""

    @property
    def nullable(self) -> bool:
        """Whether it may be NULL."""

    @property
    def former_names(self) -> tuple[str, ...]:
        """The names that it had, the oldest first."""

    @property
    def active(self) -> bool:
        """Whether rows still bring it; a retired column stays in tables that have it."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table that no model names."""

    name: str
    datatype: Datatype
    max_length: int | None = None
    decimal_precision: int | None = None
    decimal_scale: int | None = None
    nullable: bool = True
    former_names: tuple[str, ...] = ()
    active: bool = True


def instant_text(instant: datetime) -> str:
    """`YYYY-MM-DD HH:MM:SS.ffffff` in UTC, always six digits (section 2.4)."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")


EQUAL, WIDENING, OTHER = "equal", "widening", "other"


def drift(old: SqlColumn, new: SqlColumn) -> str:
    """Whether every value of the old type is one of the new: equal, widening, or other.

    DECIMAL(p1,s1) widens to DECIMAL(p2,s2) if neither its fraction nor its whole digits get fewer;
    DECIMAL never becomes FLOAT in a history.
    """
    if old.datatype is new.datatype:
        match old.datatype:
            case Datatype.DECIMAL:
                return _decimal(old, new)
            case Datatype.STRING:
                return _length(old.max_length, new.max_length)
        return EQUAL
    wider = {(Datatype.INTEGER, Datatype.BIGINT), (Datatype.DATE, Datatype.TIMESTAMP)}
    return WIDENING if (old.datatype, new.datatype) in wider else OTHER


def _length(old: int | None, new: int | None) -> str:
    if old == new:
        return EQUAL
    return WIDENING if new is None or (old is not None and old < new) else OTHER


def _decimal(old: SqlColumn, new: SqlColumn) -> str:
    old_type, new_type = (
        ColumnType(Kind.DECIMAL, each.decimal_precision or 38, each.decimal_scale or 0) for each in (old, new)
    )
    if old_type == new_type:
        return EQUAL
    return WIDENING if fits(old_type, new_type) else OTHER
