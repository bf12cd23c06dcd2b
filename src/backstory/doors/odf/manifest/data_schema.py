"""The schema of a dataset or of a source, and its types (section 1.9)."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from backstory.doors.odf.manifest.part import ByKind, Part, cased, worded, wrong


class Unit(StrEnum):
    """The unit of a time."""

    SECOND = "Second"
    MILLISECOND = "Millisecond"
    MICROSECOND = "Microsecond"
    NANOSECOND = "Nanosecond"


TimeUnit = Annotated[Unit, worded(Unit)]


class Binary(Part):
    """Bytes."""

    kind: Annotated[Literal["Binary"], cased("Binary")] = "Binary"
    fixed_length: Annotated[int, Field(ge=0)] | None = None


class Bool(Part):
    """True or false."""

    kind: Annotated[Literal["Bool"], cased("Bool")] = "Bool"


class Date(Part):
    """A day."""

    kind: Annotated[Literal["Date"], cased("Date")] = "Date"


class Decimal(Part):
    """An exact number."""

    kind: Annotated[Literal["Decimal"], cased("Decimal")] = "Decimal"
    precision: Annotated[int, Field(ge=1, le=38)]
    scale: Annotated[int, Field(ge=0, le=38)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scale > self.precision:
            raise wrong("the scale is larger than the precision", "Lower the scale.", "scale")
        return self


class Duration(Part):
    """A span of time."""

    kind: Annotated[Literal["Duration"], cased("Duration")] = "Duration"
    unit: TimeUnit = Unit.MILLISECOND


class Float16(Part):
    """A number of 16 bits."""

    kind: Annotated[Literal["Float16"], cased("Float16")] = "Float16"


class Float32(Part):
    """A number of 32 bits."""

    kind: Annotated[Literal["Float32"], cased("Float32")] = "Float32"


class Float64(Part):
    """A number of 64 bits."""

    kind: Annotated[Literal["Float64"], cased("Float64")] = "Float64"


class Int8(Part):
    """An integer of 8 bits."""

    kind: Annotated[Literal["Int8"], cased("Int8")] = "Int8"


class Int16(Part):
    """An integer of 16 bits."""

    kind: Annotated[Literal["Int16"], cased("Int16")] = "Int16"


class Int32(Part):
    """An integer of 32 bits."""

    kind: Annotated[Literal["Int32"], cased("Int32")] = "Int32"


class Int64(Part):
    """An integer of 64 bits."""

    kind: Annotated[Literal["Int64"], cased("Int64")] = "Int64"


class UInt8(Part):
    """A natural number of 8 bits."""

    kind: Annotated[Literal["UInt8"], cased("UInt8")] = "UInt8"


class UInt16(Part):
    """A natural number of 16 bits."""

    kind: Annotated[Literal["UInt16"], cased("UInt16")] = "UInt16"


class UInt32(Part):
    """A natural number of 32 bits."""

    kind: Annotated[Literal["UInt32"], cased("UInt32")] = "UInt32"


class UInt64(Part):
    """A natural number of 64 bits."""

    kind: Annotated[Literal["UInt64"], cased("UInt64")] = "UInt64"


class Null(Part):
    """Nothing."""

    kind: Annotated[Literal["Null"], cased("Null")] = "Null"


class String(Part):
    """Text."""

    kind: Annotated[Literal["String"], cased("String")] = "String"


class Time(Part):
    """A time of day."""

    kind: Annotated[Literal["Time"], cased("Time")] = "Time"
    unit: TimeUnit = Unit.MILLISECOND


class Timestamp(Part):
    """An instant."""

    kind: Annotated[Literal["Timestamp"], cased("Timestamp")] = "Timestamp"
    unit: TimeUnit = Unit.MILLISECOND
    timezone: str | None = "UTC"


class List(Part):
    """Values of one type."""

    kind: Annotated[Literal["List"], cased("List")] = "List"
    item_type: "DataType"
    fixed_length: Annotated[int, Field(ge=0)] | None = None


class Map(Part):
    """Values by key."""

    kind: Annotated[Literal["Map"], cased("Map")] = "Map"
    key_type: "DataType"
    value_type: "DataType"
    keys_sorted: bool | None = None


class Option(Part):
    """A value that may be missing."""

    kind: Annotated[Literal["Option"], cased("Option")] = "Option"
    inner: "DataType"


class Struct(Part):
    """Fields in one value."""

    kind: Annotated[Literal["Struct"], cased("Struct")] = "Struct"
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


class DataField(Part):
    """A column; required unless its type is an Option."""

    name: Annotated[str, Field(min_length=1)]
    type: DataType
    extra: dict[str, Any] | None = None


class DataSchema(Part):
    """Columns in their order."""

    fields_: tuple[DataField, ...] = Field(alias="fields")
    extra: dict[str, Any] | None = None


for _model in (List, Map, Option, Struct):
    _model.model_rebuild()
