"""Columns for a dialect: their logical types (section 1.2), and rules for wider types (section 4.3)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
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
    """The properties of a column that dialects use."""

    @property
    def name(self) -> str:
        """The name in the table."""

    @property
    def datatype(self) -> Datatype:
        """The logical type."""

    @property
    def max_length(self) -> int | None:
        """The maximum number of characters in a string, or None for any number."""

    @property
    def decimal_precision(self) -> int | None:
        """The number of digits of a DECIMAL."""

    @property
    def decimal_scale(self) -> int | None:
        """The number of digits in the fraction of a DECIMAL."""

    @property
    def nullable(self) -> bool:
        """Whether the column may be NULL."""

    @property
    def former_names(self) -> tuple[str, ...]:
        """The column's former names, the oldest first. The table may still use one of them."""

    @property
    def active(self) -> bool:
        """Whether rows still contain the column. Tables keep retired columns."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table without a model."""

    name: str
    datatype: Datatype
    max_length: int | None = None
    decimal_precision: int | None = None
    decimal_scale: int | None = None
    nullable: bool = True
    former_names: tuple[str, ...] = ()
    active: bool = True


def instant_text(instant: datetime) -> str:
    """The instant as `YYYY-MM-DD HH:MM:SS.ffffff` in UTC, always with six digits (section 2.4)."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")


_WHOLE = r"(0|-?[1-9]\d*)"
_DAY, _CLOCK = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d\.\d{6}"
# The forms of canonical texts (section 2.4), each with an example. Strings and JSON have no fixed form.
_TEXT_FORMS = {
    Datatype.INTEGER: (_WHOLE, "12"),
    Datatype.BIGINT: (_WHOLE, "12"),
    Datatype.BOOLEAN: ("true|false", "true"),
    Datatype.DATE: (f"{_DAY}|-?infinity", "2025-01-31"),
    Datatype.TIME: (_CLOCK, "09:30:00.000000"),
    Datatype.TIMESTAMP: (f"{_DAY} {_CLOCK}|-?infinity", "2025-01-31 09:30:00.000000"),
    Datatype.BINARY: ("([0-9a-f]{2})*", "0aff"),
    Datatype.UUID: ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
}


def other_form(text: str, datatype: Datatype, scale: int | None) -> str | None:
    """An example of a canonical text of the type if this text is not canonical, or else None."""
    form = _TEXT_FORMS.get(datatype)
    if datatype in {Datatype.DECIMAL, Datatype.FLOAT}:
        fraction = rf"\.\d{{{scale}}}" if scale else ""
        form = (rf"-?(0|[1-9]\d*){fraction}", f"{Decimal(12):.{scale or 0}f}")
    return None if form is None or re.fullmatch(form[0], text) else form[1]


EQUAL, WIDENING, OTHER = "equal", "widening", "other"


def drift(old: SqlColumn, new: SqlColumn) -> str:
    """How the new type relates to the old type: equal, widening (all old values fit), or other.

    DECIMAL(p1,s1) widens to DECIMAL(p2,s2) if neither the fraction nor the integer part has fewer digits.
    DECIMAL never becomes FLOAT in a history.
    """
    same, widening = old.datatype is new.datatype, False
    if not same:
        wider = {(Datatype.INTEGER, Datatype.BIGINT), (Datatype.DATE, Datatype.TIMESTAMP)}
        widening = (old.datatype, new.datatype) in wider
    elif old.datatype is Datatype.DECIMAL:
        old_type, new_type = (
            ColumnType(Kind.DECIMAL, column.decimal_precision or 38, column.decimal_scale or 0)
            for column in (old, new)
        )
        same, widening = old_type == new_type, fits(old_type, new_type)
    elif old.datatype is Datatype.STRING:
        before, after = old.max_length, new.max_length
        same, widening = before == after, after is None or (before is not None and before < after)
    return EQUAL if same else WIDENING if widening else OTHER
