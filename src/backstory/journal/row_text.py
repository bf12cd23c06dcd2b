"""The text of a row, of which its hash is made, as SQL (section 6.5); `row_hash` tells its form.

SQL, because a text goes to Java at once, where each call of a function on a column is an answer to wait for.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final

from backstory.stores.iceberg.literals import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, MapType, StructType

NOTHING: Final = "'~'"  # a NULL where its place has a meaning: in a list, as the value of a key
Variables = Iterable[int]


def digest(columns: "StructType", offset: str, names: Mapping[str, str]) -> str:
    """Each row's hash, in hexadecimal digits; `names` are the columns' own where they were others once."""
    own = [(names.get(each.name, each.name), quoted(each.name), each.dataType) for each in columns]
    number = f"coalesce(CAST(CAST({quoted(offset)} AS BIGINT) AS STRING), {NOTHING})"
    return f"sha2(concat({number}, ' ', {_fields(own, count())}), 256)"


def _fields(fields: "Iterable[tuple[str, str, DataType]]", variables: Variables) -> str:
    """The text of named values, those that are not NULL, by their names."""
    parts = ["''"]
    for name, value, type_ in sorted(fields, key=lambda each: each[0]):
        told = _exactly(f"{len(name.encode())}:{name}")
        parts.append(f"coalesce(concat({told}, {_value(value, type_, variables)}), '')")
    return f"concat({', '.join(parts)})"


def _exactly(text: str) -> str:
    """A text by its bytes: how quotes and backslashes are written is a setting of the session."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _value(value: str, type_: "DataType", variables: Variables) -> str:
    """The text of a value, its kind before it; NULL for NULL.

    What has parts tells how many they are, or where they end: each part tells its own length.
    """
    from pyspark.sql import types as spark

    match type_:
        case spark.ArrayType():
            each = _variable(variables)
            texts = f"transform({value}, {each} -> {_place(each, type_.elementType, variables)})"
            return f"concat('l', CAST(size({value}) AS STRING), ':', array_join({texts}, ''))"
        case spark.MapType():
            return f"concat('m', CAST(size({value}) AS STRING), ':', {_entries(value, type_, variables)})"
        case spark.StructType():
            # By itself a name with a field is a table's name with a column first of all.
            parts = ((f.name, f"coalesce({value}).{quoted(f.name)}", f.dataType) for f in type_)
            return f"CASE WHEN {value} IS NOT NULL THEN concat('{{', {_fields(parts, variables)}, '}}') END"
    letter, text = _scalar(value, type_)
    return f"concat('{letter}', CAST(octet_length({text}) AS STRING), ':', {text})"


def _place(value: str, type_: "DataType", variables: Variables) -> str:
    return f"coalesce({_value(value, type_, variables)}, {NOTHING})"


def _entries(value: str, type_: "MapType", variables: Variables) -> str:
    """A map's entries; it has no order of its own, so they are sorted as they are written."""
    each = _variable(variables)
    key = _value(f"{each}.key", type_.keyType, variables)
    entry = f"concat({key}, {_place(f'{each}.value', type_.valueType, variables)})"
    return f"array_join(sort_array(transform(map_entries({value}), {each} -> {entry})), '')"


def _variable(variables: Variables) -> str:
    """A name that no other variable of the text has, and no column."""
    return quoted(f"each value {next(iter(variables))}")


def _scalar(value: str, type_: "DataType") -> tuple[str, str]:  # noqa: PLR0911 - a branch a kind
    """The letter of a value's kind, and its text; integers of any width are of one kind, so are floats."""
    from pyspark.sql import types as spark

    text = f"CAST({value} AS STRING)"
    match type_:
        case spark.ByteType() | spark.ShortType() | spark.IntegerType() | spark.LongType():
            return "i", text
        case spark.FloatType() | spark.DoubleType():
            # Digits would be those of a release of Java; -0.0 equals 0.0.
            wide = f"CAST({value} AS DOUBLE)"
            unsigned = f"CASE WHEN {wide} = 0D THEN 0D ELSE {wide} END"
            return "f", f"CASE WHEN {value} IS NOT NULL THEN format_string('%a', {unsigned}) END"
        case spark.DecimalType():
            # Java's own text tells unscaled digits and scale; a cast does where it needs no exponent.
            if type_.scale <= 6:  # noqa: PLR2004 - Java writes 0.0000001 with an exponent
                return "n", text
            return "n", f"CASE WHEN {value} IS NOT NULL THEN format_string('%s', {value}) END"
        case spark.BooleanType():
            return "b", text
        case spark.DateType():
            return "d", f"CAST(unix_date({value}) AS STRING)"
        case spark.TimestampType():
            return "t", f"CAST(unix_micros({value}) AS STRING)"
        case spark.BinaryType():
            return "x", f"hex({value})"
        case spark.TimestampNTZType():
            return "w", _wall(value)
    return "s", text


def _wall(value: str) -> str:
    """The microseconds from 1970-01-01 00:00:00 on the same clock, whatever the session's time zone."""
    span = f"CAST({value} - timestamp_ntz'1970-01-01 00:00:00' AS INTERVAL SECOND)"
    return f"CAST(CAST(CAST({span} AS DECIMAL(38,6)) * 1000000 AS DECIMAL(38,0)) AS STRING)"
