"""The older form of a schema: a list of `name TYPE [NOT NULL]` (section 1.6)."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from backstory.doors.odf.manifest.data_schema import (
    Binary,
    Bool,
    DataField,
    DataSchema,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Option,
    String,
    Timestamp,
)
from backstory.errors import UsageError

COLUMN: Final = re.compile(
    r"""\s*(?: `(?P<backticks>(?:[^`]|``)+)` | "(?P<quotes>(?:[^"]|"")+)" | (?P<bare>[^\s`"(),]+) )
        \s+(?P<type>[A-Za-z_]+(?:\s+PRECISION)?)
        \s*(?:\(\s*(?P<numbers>\d+(?:\s*,\s*\d+)?)\s*\))?
        (?P<null>\s+(?:NOT\s+)?NULL)?\s*""",
    re.VERBOSE | re.IGNORECASE,
)

# A DECIMAL without digits is Spark's.
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
# How many numbers in parentheses a type may have.
NUMBERS: Final = {**dict.fromkeys(("VARCHAR", "CHAR", "CHARACTER"), 1), "DECIMAL": 2, "NUMERIC": 2, "DEC": 2}


def ddl_schema(columns: Sequence[str]) -> DataSchema:
    """The schema that the columns say; UsageError for the first one that says none."""
    return DataSchema(fields=tuple(ddl_field(column) for column in columns))


def ddl_field(column: str) -> DataField:
    """The column of one text, optional unless it says NOT NULL (D25)."""
    found = COLUMN.fullmatch(column)
    if found is None:
        raise _wrong(f"{column!r} is not a column definition", "Write name TYPE, or name TYPE NOT NULL.")
    word = " ".join(found["type"].upper().split())
    if word not in TYPES:
        known = ", ".join(TYPES)
        raise _wrong(f"{found['type']} is not a supported type", f"Supported types are {known}.")
    required = "NOT" in (found["null"] or "").upper()
    datatype = _sized(word, [int(each) for each in (found["numbers"] or "").split(",") if each])
    return DataField(name=_name(found), type=datatype if required else Option(inner=datatype))


def _name(found: re.Match[str]) -> str:
    if found["backticks"]:
        return found["backticks"].replace("``", "`")
    return found["quotes"].replace('""', '"') if found["quotes"] else found["bare"]


def _sized(word: str, numbers: list[int]) -> DataType:
    """The type with its digits; the length of a text is not looked at, as in Spark."""
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
