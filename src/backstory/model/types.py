"""The types of columns: one lattice, whoever asks; named as the Fivetran contract names them (section 3.3).

Each neighbour has its own small mapping onto them: Arrow, Iceberg, Spark, SQL, Open Data Fabric, the wire.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

MAX_PRECISION = 38
DEFAULT_DECIMAL = (38, 10)


class Kind(StrEnum):
    """The kinds of value that a source can send, and those that hold others."""

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
    LIST = "LIST"
    MAP = "MAP"
    STRUCT = "STRUCT"


TEXT_KINDS = frozenset({Kind.STRING, Kind.JSON, Kind.XML, Kind.NAIVE_TIME})
NESTED_KINDS = frozenset({Kind.LIST, Kind.MAP, Kind.STRUCT})
_INTEGERS = (Kind.SHORT, Kind.INT, Kind.LONG)
_NUMBERS = frozenset({*_INTEGERS, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE})
# The most digits that an integer has.
_DIGITS = {Kind.SHORT: 5, Kind.INT: 10, Kind.LONG: 19}
_TIMES = frozenset({Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A kind; for DECIMAL its precision and scale (0 and 0 elsewhere), for a nested one its parts.

    A LIST has the part `element`, a MAP `key` and `value`, a STRUCT its fields. `foreign` names the type of
    a column that another tool made and no kind stands for, else it is empty.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    foreign: str = ""
    parts: tuple[tuple[str, "ColumnType"], ...] = ()

    @classmethod
    def decimal(cls, precision: int = 0, scale: int = 0) -> Self:
        """A DECIMAL within what tables can hold: precision at most 38, scale kept (F11, F18)."""
        if precision == 0 and scale == 0:
            precision, scale = DEFAULT_DECIMAL
        scale = min(scale, MAX_PRECISION - 1)
        return cls(Kind.DECIMAL, min(max(precision, scale, 1), MAX_PRECISION), scale)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The flat type that `str()` wrote, such as `LONG` or `DECIMAL(12,2)`; ValueError if it is none."""
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
        if self.kind is Kind.STRUCT:
            return f"{self.kind}({', '.join(f'{name} {part}' for name, part in self.parts)})"
        if self.parts:
            return f"{self.kind}({', '.join(str(part) for _, part in self.parts)})"
        return str(self.kind)

    @property
    def name(self) -> str:
        """The type without its parts, a foreign one by its own name, such as `list` or `uuid`."""
        return str(self) if self.foreign or self.kind not in NESTED_KINDS else self.kind.lower()

    @property
    def flat(self) -> bool:
        """Whether a source's row can carry a value of it: neither nested nor of another tool's type."""
        return not self.foreign and self.kind not in NESTED_KINDS


# What people call the types of tables, in Spark's words or in these.
_WORDS = {
    "BOOL": Kind.BOOLEAN,
    "INTEGER": Kind.INT,
    "BIGINT": Kind.LONG,
    "REAL": Kind.FLOAT,
    "TEXT": Kind.STRING,
    "DATE": Kind.NAIVE_DATE,
    "TIMESTAMP": Kind.UTC_DATETIME,
    "TIMESTAMP_NTZ": Kind.NAIVE_DATETIME,
}
# Tables keep these as a wider type, or as text.
_UNKEPT = frozenset({Kind.SHORT, Kind.XML, Kind.JSON, Kind.NAIVE_TIME}) | NESTED_KINDS


def type_named(word: str) -> ColumnType:
    """The flat type of a table's column that a person names, in any case: `bigint`, `DECIMAL(18,2)`.

    Raises ValueError for a word that names none.
    """
    name = word.strip().upper()
    if name == Kind.DECIMAL:
        return ColumnType.decimal()
    type_ = ColumnType(_WORDS[name]) if name in _WORDS else ColumnType.parse(name)
    if type_.kind in _UNKEPT or (type_.kind is not Kind.DECIMAL and type_.precision):
        raise ValueError(word)
    if type_.kind is Kind.DECIMAL and not 0 <= type_.scale <= type_.precision <= MAX_PRECISION:
        raise ValueError(word)
    return type_


def common_type(one: ColumnType, other: ColumnType) -> ColumnType | None:
    """The narrowest type that values of both may be of, the text of a value where nothing else is.

    None for what is nested. Whether all values are exactly of it only they can tell.
    """
    if not (one.flat and other.flat):
        return None
    for type_, narrower in ((one, other), (other, one)):
        if fits(narrower, type_):
            return type_
    kinds = {one.kind, other.kind}
    if kinds <= _TIMES:
        return ColumnType(Kind.UTC_DATETIME if Kind.UTC_DATETIME in kinds else Kind.NAIVE_DATETIME)
    if kinds <= _NUMBERS and kinds & {Kind.FLOAT, Kind.DOUBLE}:
        return ColumnType(Kind.DOUBLE)
    if kinds <= _NUMBERS:
        scale = max(one.scale, other.scale)
        whole = max(_DIGITS.get(each.kind, each.precision - each.scale) for each in (one, other))
        if whole + scale <= MAX_PRECISION:
            return ColumnType(Kind.DECIMAL, whole + scale, scale)
    return ColumnType(Kind.STRING)


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type is one of the new, stored as it is.

    A FLOAT is no DOUBLE as it is stored: where 32 bits show 72.1, 64 bits show 72.0999984741211.
    """
    if old.kind in _INTEGERS and new.kind in _INTEGERS:
        return _INTEGERS.index(old.kind) <= _INTEGERS.index(new.kind)
    if old.kind is new.kind is Kind.DECIMAL:
        return old.scale == new.scale and old.precision <= new.precision
    return old == new or (
        old.kind in TEXT_KINDS and new.kind in TEXT_KINDS and new.kind is not Kind.NAIVE_TIME
    )


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field that a struct has beyond another one; `within` leads from the column to that struct."""

    within: tuple[str, ...]
    name: str
    type: ColumnType


def added_fields(old: ColumnType, new: ColumnType) -> tuple[AddedField, ...] | None:
    """The fields that structs of a type have beyond those of another one, at any depth.

    None where the types differ in anything else: no other field, order or type of an element.
    """
    return None if old == new else _growth(old, new, ())


def _growth(old: ColumnType, new: ColumnType, within: tuple[str, ...]) -> tuple[AddedField, ...] | None:
    if old == new:
        return ()
    known, coming = dict(old.parts), dict(new.parts)
    standing = [name for name in coming if name in known]
    if old.kind is not new.kind or not known or standing != list(known):
        return None
    if old.kind is Kind.MAP and known["key"] != coming["key"]:
        return None  # the key of an entry never changes
    deeper = [_growth(known[name], coming[name], (*within, name)) for name in standing]
    if None in deeper:
        return None
    added = (AddedField(within, name, type_) for name, type_ in coming.items() if name not in known)
    return (*added, *(part for parts in deeper if parts for part in parts))


def fits(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type is one of the new, stored as it is or anew."""
    if old.kind is new.kind is Kind.DECIMAL:
        whole, wider = old.precision - old.scale, new.precision - new.scale
        return old.scale <= new.scale and whole <= wider
    return widens(old, new) or (old.kind, new.kind) == (Kind.FLOAT, Kind.DOUBLE)


def are_related(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of the types can stand for one another: numbers, times, and text for anything."""
    kinds = {old.kind, new.kind}
    return bool(kinds & TEXT_KINDS) or kinds <= _NUMBERS or kinds <= _TIMES or len(kinds) == 1
