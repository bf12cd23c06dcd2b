"""Columns and their types, in the words of the Fivetran contract (section 3.3)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

MAX_PRECISION = 38
DEFAULT_DECIMAL = (38, 10)

SYNCED = "_fivetran_synced"
DELETED = "_fivetran_deleted"
ROW_ID = "_fivetran_id"
START = "_fivetran_start"
END = "_fivetran_end"
ACTIVE = "_fivetran_active"

HISTORY_COLUMNS = (START, END, ACTIVE)
SYSTEM_COLUMNS = (SYNCED, DELETED, ROW_ID, "_fivetran_index", *HISTORY_COLUMNS)


class Kind(StrEnum):
    """The kinds of value that a source can send."""

    BOOLEAN = "BOOLEAN"
    SHORT = "SHORT"
    INT = "INT"
    LONG = "LONG"
    DECIMAL = "DECIMAL"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    NAIVE_DATE = "NAIVE_DATE"
    NAIVE_DATETIME = "NAIVE_DATETIME"
    UTC_DATETIME = "UTC_DATETIME"
    BINARY = "BINARY"
    XML = "XML"
    STRING = "STRING"
    JSON = "JSON"
    NAIVE_TIME = "NAIVE_TIME"


TEXT_KINDS = frozenset({Kind.STRING, Kind.JSON, Kind.XML, Kind.NAIVE_TIME})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A kind and, for DECIMAL only, its precision and scale (0 and 0 elsewhere).

    `foreign` names the type of a column that another tool made and no kind stands for, else it is empty.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    foreign: str = ""

    @classmethod
    def decimal(cls, precision: int = 0, scale: int = 0) -> Self:
        """A DECIMAL within what tables can hold: precision at most 38, scale kept (F11, F18)."""
        if precision == 0 and scale == 0:
            precision, scale = DEFAULT_DECIMAL
        scale = min(scale, MAX_PRECISION - 1)
        return cls(Kind.DECIMAL, min(max(precision, scale, 1), MAX_PRECISION), scale)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The type that `str()` wrote, such as `LONG` or `DECIMAL(12,2)`; ValueError if it is none."""
        name, _, rest = text.partition("(")
        if not rest:
            return cls(Kind(name))
        precision, scale = rest.rstrip(")").split(",")
        return cls(Kind(name), int(precision), int(scale))

    def __str__(self) -> str:
        if self.foreign:
            return self.foreign
        if self.kind is Kind.DECIMAL:
            return f"{self.kind}({self.precision},{self.scale})"
        return str(self.kind)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table or of a delivery.

    `called` is the source's name for it where the table has another one (F21), else empty.
    """

    name: str
    type: ColumnType
    called: str = ""

    @property
    def source(self) -> str:
        """The source's name for it: what requests, replies, messages and readers use."""
        return self.called or self.name
