"""The types of columns: one lattice, with the kinds of the Fivetran contract (section 3.3).

People read and write SQL names. Tables store the names of the kinds. Arrow, Iceberg, Spark, SQL, Open Data
Fabric and the wire each have a small mapping to these types.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

MAX_PRECISION = 38
DEFAULT_DECIMAL = (38, 10)


class Kind(StrEnum):
    """The kinds of values that a source can send, and the nested kinds."""

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


# The SQL names that differ from the names of the kinds.
_SQL_NAMES = {
    Kind.SHORT: "SMALLINT",
    Kind.LONG: "BIGINT",
    Kind.NAIVE_DATE: "DATE",
    Kind.NAIVE_DATETIME: "TIMESTAMP_NTZ",
    Kind.UTC_DATETIME: "TIMESTAMP",
    Kind.NAIVE_TIME: "TIME",
    Kind.LIST: "ARRAY",
}
TEXT_KINDS = frozenset({Kind.STRING, Kind.JSON, Kind.XML, Kind.NAIVE_TIME})
NESTED_KINDS = frozenset({Kind.LIST, Kind.MAP, Kind.STRUCT})
_INTEGERS = (Kind.SHORT, Kind.INT, Kind.LONG)
_NUMBERS = frozenset({*_INTEGERS, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE})
# The maximum number of digits.
_DIGITS = {Kind.SHORT: 5, Kind.INT: 10, Kind.LONG: 19}
_TIMES = frozenset({Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A kind, with precision and scale for DECIMAL, and with parts for a nested kind.

    Other kinds have precision and scale 0. A LIST has the part `element`, a MAP has `key` and `value`, and a
    STRUCT has its fields. `foreign` is the type of another tool's column that no kind represents, or else
    empty.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    foreign: str = ""
    parts: tuple[tuple[str, "ColumnType"], ...] = ()

    @classmethod
    def decimal(cls, precision: int = 0, scale: int = 0) -> Self:
        """A DECIMAL within a table's limits: at most 38 digits, and the same scale (F11, F18)."""
        if precision == 0 and scale == 0:
            precision, scale = DEFAULT_DECIMAL
        scale = min(scale, MAX_PRECISION - 1)
        return cls(Kind.DECIMAL, min(max(precision, scale, 1), MAX_PRECISION), scale)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The flat type with this `stored_name`, such as `DECIMAL(12,2)`. Raises ValueError for any other."""
        name, _, rest = text.partition("(")
        if not rest:
            return cls(Kind(name))
        precision, scale = rest.rstrip(")").split(",")
        return cls(Kind(name), int(precision), int(scale))

    def __str__(self) -> str:
        """The name that people read, such as `BIGINT` or `ARRAY<DATE>`. `type_named` parses flat names."""
        name = _SQL_NAMES.get(self.kind, str(self.kind))
        if self.foreign or not self.parts:
            return self.foreign or f"{name}{self._digits}"
        labels = self.kind is Kind.STRUCT
        parts = (f"{label}: {part}" if labels else str(part) for label, part in self.parts)
        return f"{name}<{', '.join(parts)}>"

    @property
    def stored_name(self) -> str:
        """The name in comments and properties of tables. `parse` parses flat names."""
        if self.foreign or not self.parts:
            return self.foreign or f"{self.kind}{self._digits}"
        labels = self.kind is Kind.STRUCT
        parts = (f"{label} {part.stored_name}" if labels else part.stored_name for label, part in self.parts)
        return f"{self.kind}({', '.join(parts)})"

    @property
    def _digits(self) -> str:
        return f"({self.precision},{self.scale})" if self.kind is Kind.DECIMAL else ""

    @property
    def foreign_parts(self) -> Iterator[str]:
        """The types of another tool's columns in this type, including its parts."""
        yield from [self.foreign] if self.foreign else []
        for _, part in self.parts:
            yield from part.foreign_parts

    @property
    def flat(self) -> bool:
        """Whether the type is neither nested nor foreign, so that a source's row can contain its values."""
        return not self.foreign and self.kind not in NESTED_KINDS


# Names of types that people use, in addition to the kinds.
_WORDS = {
    **{name: kind for kind, name in _SQL_NAMES.items()},
    "BOOL": Kind.BOOLEAN,
    "INTEGER": Kind.INT,
    "REAL": Kind.FLOAT,
    "TEXT": Kind.STRING,
}
# Tables store these as a wider type, or as strings.
_STORED_OTHERWISE = frozenset({Kind.SHORT, Kind.XML, Kind.JSON, Kind.NAIVE_TIME}) | NESTED_KINDS


def type_named(word: str) -> ColumnType:
    """The flat type of a table's column by its name, ignoring case, such as `bigint` or `DECIMAL(18,2)`.

    Raises ValueError for any other name.
    """
    name = word.strip().upper()
    if name == Kind.DECIMAL:
        return ColumnType.decimal()
    type_ = ColumnType(_WORDS[name]) if name in _WORDS else ColumnType.parse(name)
    if type_.kind in _STORED_OTHERWISE or (type_.kind is not Kind.DECIMAL and type_.precision):
        raise ValueError(word)
    if type_.kind is Kind.DECIMAL and not 0 <= type_.scale <= type_.precision <= MAX_PRECISION:
        raise ValueError(word)
    return type_


def common_type(one: ColumnType, other: ColumnType) -> ColumnType | None:
    """The narrowest type for the values of both types, or None for nested or foreign types.

    The widest type is STRING. Whether a value fits exactly depends on the value.
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
        whole = max(_DIGITS.get(type_.kind, type_.precision - type_.scale) for type_ in (one, other))
        if whole + scale <= MAX_PRECISION:
            return ColumnType(Kind.DECIMAL, whole + scale, scale)
    return ColumnType(Kind.STRING)


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type is stored unchanged as a value of the new type.

    FLOAT does not widen to DOUBLE, because 72.1 in 32 bits is 72.0999984741211 in 64 bits.
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
    """A field that a newer struct has and an older struct lacks. `within` is the path to the struct."""

    within: tuple[str, ...]
    name: str
    type: ColumnType


def added_fields(old: ColumnType, new: ColumnType) -> tuple[AddedField, ...] | None:
    """The fields that the new type's structs have and the old type's structs lack, at any depth.

    None if the types differ in anything else: other fields, their order, or the type of an element.
    """
    return None if old == new else _growth(old, new, ())


def _growth(old: ColumnType, new: ColumnType, within: tuple[str, ...]) -> tuple[AddedField, ...] | None:
    if old == new:
        return ()
    old_parts, new_parts = dict(old.parts), dict(new.parts)
    common_names = [name for name in new_parts if name in old_parts]
    if old.kind is not new.kind or not old_parts or common_names != list(old_parts):
        return None
    if old.kind is Kind.MAP and old_parts["key"] != new_parts["key"]:
        return None  # the key of an entry never changes
    deeper = [_growth(old_parts[name], new_parts[name], (*within, name)) for name in common_names]
    if None in deeper:
        return None
    added = (AddedField(within, name, type_) for name, type_ in new_parts.items() if name not in old_parts)
    return (*added, *(part for parts in deeper if parts for part in parts))


def fits(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type can be a value of the new type, even if it must be rewritten."""
    if old.kind is new.kind is Kind.DECIMAL:
        whole, wider = old.precision - old.scale, new.precision - new.scale
        return old.scale <= new.scale and whole <= wider
    return widens(old, new) or (old.kind, new.kind) == (Kind.FLOAT, Kind.DOUBLE)


def are_related(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of one type can replace values of the other.

    Numbers replace numbers, times replace times, and text types replace any type.
    """
    kinds = {old.kind, new.kind}
    return bool(kinds & TEXT_KINDS) or kinds <= _NUMBERS or kinds <= _TIMES or len(kinds) == 1
