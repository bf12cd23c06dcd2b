"""The schema of a dataset or source and its types (section 1.9), and its older form.

The older form is a list of column definitions, `name TYPE [NOT NULL]` (section 1.6).
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from backstory.doors.odf.manifest.part import ByKind, ManifestPart, any_case, any_case_of, wrong
from backstory.errors import UsageError


class Unit(StrEnum):
    """The unit of a time."""

    SECOND = "Second"
    MILLISECOND = "Millisecond"
    MICROSECOND = "Microsecond"
    NANOSECOND = "Nanosecond"


TimeUnit = Annotated[Unit, any_case_of(Unit)]


class Binary(ManifestPart):
    """Bytes."""

    kind: Annotated[Literal["Binary"], any_case("Binary")] = "Binary"
    fixed_length: Annotated[int, Field(ge=0)] | None = None


class Bool(ManifestPart):
    """True or false."""

    kind: Annotated[Literal["Bool"], any_case("Bool")] = "Bool"


class Date(ManifestPart):
    """A day."""

    kind: Annotated[Literal["Date"], any_case("Date")] = "Date"


class Decimal(ManifestPart):
    """An exact number."""

    kind: Annotated[Literal["Decimal"], any_case("Decimal")] = "Decimal"
    precision: Annotated[int, Field(ge=1, le=38)]
    scale: Annotated[int, Field(ge=0, le=38)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scale > self.precision:
            raise wrong("the scale is larger than the precision", "Lower the scale.", "scale")
        return self


class Duration(ManifestPart):
    """A span of time."""

    kind: Annotated[Literal["Duration"], any_case("Duration")] = "Duration"
    unit: TimeUnit = Unit.MILLISECOND


class Float16(ManifestPart):
    """A 16-bit floating-point number."""

    kind: Annotated[Literal["Float16"], any_case("Float16")] = "Float16"


class Float32(ManifestPart):
    """A 32-bit floating-point number."""

    kind: Annotated[Literal["Float32"], any_case("Float32")] = "Float32"


class Float64(ManifestPart):
    """A 64-bit floating-point number."""

    kind: Annotated[Literal["Float64"], any_case("Float64")] = "Float64"


class Int8(ManifestPart):
    """An 8-bit integer."""

    kind: Annotated[Literal["Int8"], any_case("Int8")] = "Int8"


class Int16(ManifestPart):
    """A 16-bit integer."""

    kind: Annotated[Literal["Int16"], any_case("Int16")] = "Int16"


class Int32(ManifestPart):
    """A 32-bit integer."""

    kind: Annotated[Literal["Int32"], any_case("Int32")] = "Int32"


class Int64(ManifestPart):
    """A 64-bit integer."""

    kind: Annotated[Literal["Int64"], any_case("Int64")] = "Int64"


class UInt8(ManifestPart):
    """An unsigned 8-bit integer."""

    kind: Annotated[Literal["UInt8"], any_case("UInt8")] = "UInt8"


class UInt16(ManifestPart):
    """An unsigned 16-bit integer."""

    kind: Annotated[Literal["UInt16"], any_case("UInt16")] = "UInt16"


class UInt32(ManifestPart):
    """An unsigned 32-bit integer."""

    kind: Annotated[Literal["UInt32"], any_case("UInt32")] = "UInt32"


class UInt64(ManifestPart):
    """An unsigned 64-bit integer."""

    kind: Annotated[Literal["UInt64"], any_case("UInt64")] = "UInt64"


class Null(ManifestPart):
    """Only NULL."""

    kind: Annotated[Literal["Null"], any_case("Null")] = "Null"


class String(ManifestPart):
    """Text."""

    kind: Annotated[Literal["String"], any_case("String")] = "String"


class Time(ManifestPart):
    """A time of day."""

    kind: Annotated[Literal["Time"], any_case("Time")] = "Time"
    unit: TimeUnit = Unit.MILLISECOND


class Timestamp(ManifestPart):
    """An instant."""

    kind: Annotated[Literal["Timestamp"], any_case("Timestamp")] = "Timestamp"
    unit: TimeUnit = Unit.MILLISECOND
    timezone: str | None = "UTC"


class List(ManifestPart):
    """Values of one type."""

    kind: Annotated[Literal["List"], any_case("List")] = "List"
    item_type: "DataType"
    fixed_length: Annotated[int, Field(ge=0)] | None = None


class Map(ManifestPart):
    """Values by key."""

    kind: Annotated[Literal["Map"], any_case("Map")] = "Map"
    key_type: "DataType"
    value_type: "DataType"
    keys_sorted: bool | None = None


class Option(ManifestPart):
    """A value that may be missing."""

    kind: Annotated[Literal["Option"], any_case("Option")] = "Option"
    inner: "DataType"


class Struct(ManifestPart):
    """Fields in one value."""

    kind: Annotated[Literal["Struct"], any_case("Struct")] = "Struct"
    fields_: "tuple[DataField, ...]" = Field(alias="fields")


DataType = Annotated[
    Binary
    | Bool
    | Date
    | Decimal
    | Duration
    | Float16
    | Float32
    | Float64
    | Int8
    | Int16
    | Int32
    | Int64
    | UInt8
    | UInt16
    | UInt32
    | UInt64
    | Null
    | String
    | Time
    | Timestamp
    | List
    | Map
    | Option
    | Struct,
    ByKind("data type", short=True),
]


class DataField(ManifestPart):
    """A column; required unless its type is an Option."""

    name: Annotated[str, Field(min_length=1)]
    type: DataType
    extra: dict[str, Any] | None = None


class DataSchema(ManifestPart):
    """Columns in their order."""

    fields_: tuple[DataField, ...] = Field(alias="fields")
    extra: dict[str, Any] | None = None


for _model in (List, Map, Option, Struct):
    _model.model_rebuild()


COLUMN: Final = re.compile(
    r"""\s*(?: `(?P<backticks>(?:[^`]|``)+)` | "(?P<quotes>(?:[^"]|"")+)" | (?P<bare>[^\s`"(),]+) )
        \s+(?P<type>[A-Za-z_]+(?:\s+PRECISION)?)
        \s*(?:\(\s*(?P<numbers>\d+(?:\s*,\s*\d+)?)\s*\))?
        (?P<null>\s+(?:NOT\s+)?NULL)?\s*""",
    re.VERBOSE | re.IGNORECASE,
)

# The digits of a plain DECIMAL are Spark's default.
TYPES: Final[Mapping[str, DataType]] = {
    **dict.fromkeys(("STRING", "TEXT", "VARCHAR", "CHAR", "CHARACTER"), String()),
    **dict.fromkeys(("INT", "INTEGER"), Int32()),
    **dict.fromkeys(("BIGINT", "LONG"), Int64()),
    **dict.fromkeys(("SMALLINT", "SHORT"), Int16()),
    **dict.fromkeys(("TINYINT", "BYTE"), Int8()),
    **dict.fromkeys(("FLOAT", "REAL"), Float32()),
    **dict.fromkeys(("DOUBLE", "DOUBLE PRECISION"), Float64()),
    **dict.fromkeys(("BOOLEAN", "BOOL"), Bool()),
    "DATE": Date(),
    "TIMESTAMP": Timestamp(),
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC"), Decimal(precision=10, scale=0)),
    **dict.fromkeys(("BINARY", "BYTEA", "VARBINARY"), Binary()),
}
# The maximum number of numbers in parentheses.
NUMBERS: Final = {**dict.fromkeys(("VARCHAR", "CHAR", "CHARACTER"), 1), "DECIMAL": 2, "NUMERIC": 2, "DEC": 2}


def ddl_schema(columns: Sequence[str]) -> DataSchema:
    """The schema from column definitions. Raises UsageError for the first invalid definition."""
    return DataSchema(fields=tuple(ddl_field(column) for column in columns))


def ddl_field(column: str) -> DataField:
    """The column from one definition. It is optional unless the definition contains NOT NULL (D25)."""
    match = COLUMN.fullmatch(column)
    if match is None:
        raise _wrong(f"{column!r} is not a column definition", "Write name TYPE, or name TYPE NOT NULL.")
    word = " ".join(match["type"].upper().split())
    if word not in TYPES:
        known = ", ".join(TYPES)
        raise _wrong(f"{match['type']} is not a supported type", f"Supported types are {known}.")
    required = "NOT" in (match["null"] or "").upper()
    datatype = _with_digits(word, [int(number) for number in (match["numbers"] or "").split(",") if number])
    return DataField(name=_name(match), type=datatype if required else Option(inner=datatype))


def _name(match: re.Match[str]) -> str:
    if match["backticks"]:
        return match["backticks"].replace("``", "`")
    return match["quotes"].replace('""', '"') if match["quotes"] else match["bare"]


def _with_digits(word: str, numbers: list[int]) -> DataType:
    """The type with its digits. The length of a string type is ignored, as in Spark."""
    if len(numbers) > NUMBERS.get(word, 0):
        raise _wrong(f"{word} takes no {'numbers' if len(numbers) > 1 else 'number'} in parentheses", "")
    if not numbers or NUMBERS[word] == 1:
        return TYPES[word]
    precision, scale = (*numbers, 0)[:2]
    try:
        return Decimal(precision=precision, scale=scale)
    except ValidationError:
        raise _wrong(
            f"there is no {word}({precision}, {scale})", "Digits are 1 to 38, scale included."
        ) from None


def _wrong(why: str, remedy: str) -> UsageError:
    return UsageError("wrong-manifest", f"{why}.", remedy or "Fix the column.")
