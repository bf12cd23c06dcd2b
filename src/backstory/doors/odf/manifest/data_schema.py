"""The base of all parts of a manifest (section 1.1), and the schemas of datasets and sources (section 1.9).

Field names are exact, and kinds have three spellings. The older form of a schema is a list of column
definitions, `name TYPE [NOT NULL]` (section 1.6).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, Union, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from backstory.documents import TAG, nearest_name
from backstory.errors import UsageError

# The metadata of a union's schema with the kinds that may be written as a plain string.
SHORT_KINDS: Final = "kinds-alone"


def _kind_is_required(schema: dict[str, Any]) -> None:
    """Make `kind` required in editors, although Python has a default for it."""
    if "kind" in schema.get("properties", {}):
        schema["required"] = sorted({"kind", *schema.get("required", ())})


class ManifestPart(BaseModel):
    """A part of the document. Parts are immutable, and unknown fields are errors.

    A class with a `kind` has it as its first field, in any of three spellings.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, json_schema_extra=_kind_is_required
    )

    def __init_subclass__(cls, *, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind:
            cls.__annotations__ = {
                "kind": Annotated[Literal[kind], any_case(kind)],
                **get_annotations(cls),
            }
            setattr(cls, "kind", kind)  # noqa: B010 - pydantic makes it a field

    if TYPE_CHECKING:

        @property
        def kind(self) -> str: ...

    @model_serializer(mode="wrap")
    def _with_kind(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The document, which has the kind even if default values are left out."""
        document = serialize(self)
        return {"kind": self.kind, **document} if "kind" in type(self).model_fields else document


def any_case(*names: str) -> BeforeValidator:
    """Accept three spellings of these names: `SetInfo`, `setInfo` and `setinfo` are the same."""
    known = {name.lower(): name for name in names}

    def canonical_name(value: Any) -> Any:
        return known.get(value.lower(), value) if isinstance(value, str) else value

    return BeforeValidator(canonical_name, json_schema_input_type=Literal[*spellings(names)])


def any_case_of(enum: type[StrEnum]) -> BeforeValidator:
    """Accept the three spellings of the words of an enumeration."""
    return any_case(*(word.value for word in enum))


def spellings(names: Sequence[str]) -> list[str]:
    """Each name in PascalCase, camelCase and lower case."""
    return list(
        dict.fromkeys(
            spelling for name in names for spelling in (name, name[:1].lower() + name[1:], name.lower())
        )
    )


@dataclass(frozen=True, slots=True)
class ByKind:
    """A marker for a union of parts that `kind` distinguishes.

    If `short` is true, a string is accepted as the kind. `noun` is the name of the union in errors. `refused`
    has the reason and the remedy for each refused kind, in lower case. The refused kinds are from other
    versions, or must not be in a manifest.
    """

    noun: str
    short: bool = False
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the kind, then validate the part of that kind."""
        models = _models(source)
        union = core_schema.tagged_union_schema(
            {TAG + kind.lower(): handler.generate_schema(model) for kind, model in models.items()},
            discriminator=_tag_of,
        )
        kinds = tuple(models)
        short_kinds = tuple(
            kind
            for kind, model in models.items()
            if self.short and not any(field.is_required() for field in model.model_fields.values())
        )
        return core_schema.no_info_before_validator_function(
            lambda value: self._check_kind(value, kinds), union, metadata={SHORT_KINDS: short_kinds}
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON Schema of the union, including the kinds that may be a plain string."""
        short_kinds = schema.get("metadata", {}).get(SHORT_KINDS, ())
        union = handler(schema)
        return (
            {"anyOf": [{"type": "string", "enum": spellings(short_kinds)}, union]} if short_kinds else union
        )

    def _check_kind(self, value: Any, kinds: tuple[str, ...]) -> Any:
        """The value, if its kind is in the union. Raises an error for any other value."""
        if isinstance(value, ManifestPart):
            return value
        is_text = self.short and isinstance(value, str)
        node = {"kind": value} if is_text else value
        if not isinstance(node, Mapping):
            raise wrong(f"this {self.noun} is not a mapping with a kind", f"Kinds are {', '.join(kinds)}.")
        if not isinstance(node.get("kind"), str):
            raise wrong(f"this {self.noun} has no kind", f"Kinds are {', '.join(kinds)}.")
        kind = node["kind"]
        path = () if is_text else ("kind",)
        if kind.lower() in self.refused:
            raise wrong(*self.refused[kind.lower()], *path)
        if kind.lower() not in {known.lower() for known in kinds}:
            raise wrong(f"{kind!r} is not a kind of {self.noun}", nearest_name(kind, kinds), *path)
        return node


def wrong(why: str, remedy: str, *path: str) -> PydanticCustomError:
    """The error that a validator raises, with a clause, a remedy, and the wrong key."""
    return PydanticCustomError("wrong_part", "{why}", {"why": why, "remedy": remedy, "at": path})


def _models(source: Any) -> dict[str, type[BaseModel]]:
    return {model.model_fields["kind"].default: model for model in get_args(source) or (source,)}


def _tag_of(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", "")
    return TAG + str(kind).lower()


class Unit(StrEnum):
    """The unit of a time."""

    SECOND = "Second"
    MILLISECOND = "Millisecond"
    MICROSECOND = "Microsecond"
    NANOSECOND = "Nanosecond"


TimeUnit = Annotated[Unit, any_case_of(Unit)]


# The types without parameters, with their descriptions.
MEANINGS: Final[Mapping[str, str]] = {
    "Bool": "True or false.",
    "Date": "A day.",
    "Float16": "A 16-bit floating-point number.",
    "Float32": "A 32-bit floating-point number.",
    "Float64": "A 64-bit floating-point number.",
    "Int8": "An 8-bit integer.",
    "Int16": "A 16-bit integer.",
    "Int32": "A 32-bit integer.",
    "Int64": "A 64-bit integer.",
    "UInt8": "An unsigned 8-bit integer.",
    "UInt16": "An unsigned 16-bit integer.",
    "UInt32": "An unsigned 32-bit integer.",
    "UInt64": "An unsigned 64-bit integer.",
    "Null": "Only NULL.",
    "String": "Text.",
}
SIMPLE: Final[Mapping[str, type[ManifestPart]]] = {
    name: type(ManifestPart)(name, (ManifestPart,), {"__doc__": text, "__module__": __name__}, kind=name)  # type: ignore[misc]
    for name, text in MEANINGS.items()
}


class Binary(ManifestPart, kind="Binary"):
    """Bytes."""

    fixed_length: Annotated[int, Field(ge=0)] | None = None


class Decimal(ManifestPart, kind="Decimal"):
    """An exact number."""

    precision: Annotated[int, Field(ge=1, le=38)]
    scale: Annotated[int, Field(ge=0, le=38)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scale > self.precision:
            raise wrong("the scale is larger than the precision", "Lower the scale.", "scale")
        return self


class Duration(ManifestPart, kind="Duration"):
    """A span of time."""

    unit: TimeUnit = Unit.MILLISECOND


class Time(ManifestPart, kind="Time"):
    """A time of day."""

    unit: TimeUnit = Unit.MILLISECOND


class Timestamp(ManifestPart, kind="Timestamp"):
    """An instant."""

    unit: TimeUnit = Unit.MILLISECOND
    timezone: str | None = "UTC"


class List(ManifestPart, kind="List"):
    """Values of one type."""

    item_type: "DataType"
    fixed_length: Annotated[int, Field(ge=0)] | None = None


class Map(ManifestPart, kind="Map"):
    """Values by key."""

    key_type: "DataType"
    value_type: "DataType"
    keys_sorted: bool | None = None


class Option(ManifestPart, kind="Option"):
    """A value that may be missing."""

    inner: "DataType"


class Struct(ManifestPart, kind="Struct"):
    """Fields in one value."""

    fields_: "tuple[DataField, ...]" = Field(alias="fields")


if TYPE_CHECKING:
    DataType = ManifestPart
else:
    _simple = list(SIMPLE.values())
    _second, _last = (Decimal, Duration), (Time, Timestamp, List, Map, Option, Struct)
    _types = (Binary, *_simple[:2], *_second, *_simple[2:], *_last)  # in the order of errors
    DataType = Annotated[Union[_types], ByKind("data type", short=True)]  # noqa: UP007


class DataField(ManifestPart):
    """A column. It is required unless its type is an Option."""

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

# The digits of a plain DECIMAL are Spark's defaults.
TYPES: Final[Mapping[str, DataType]] = {
    **dict.fromkeys(("STRING", "TEXT", "VARCHAR", "CHAR", "CHARACTER"), SIMPLE["String"]()),
    **dict.fromkeys(("INT", "INTEGER"), SIMPLE["Int32"]()),
    **dict.fromkeys(("BIGINT", "LONG"), SIMPLE["Int64"]()),
    **dict.fromkeys(("SMALLINT", "SHORT"), SIMPLE["Int16"]()),
    **dict.fromkeys(("TINYINT", "BYTE"), SIMPLE["Int8"]()),
    **dict.fromkeys(("FLOAT", "REAL"), SIMPLE["Float32"]()),
    **dict.fromkeys(("DOUBLE", "DOUBLE PRECISION"), SIMPLE["Float64"]()),
    **dict.fromkeys(("BOOLEAN", "BOOL"), SIMPLE["Bool"]()),
    "DATE": SIMPLE["Date"](),
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
