"""Names, values and exact casts in Spark expressions and frames.

Spark converts Python's dates and times with Java's old calendar and the host's time zone. Neither affects day
numbers and microsecond counts. A cast of stored values to another type is exact or refused.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.values.casts import DoesNotFit, cast, exact_cast
from backstory.model.instant import EPOCH
from backstory.model.layout import ROW_ID
from backstory.model.table import Column as SourceColumn
from backstory.model.types import ColumnType
from backstory.spark.versions import try_cast
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carry_errors, map_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


# With this many digits, every 32-bit float has its own string.
_DIGITS: Final = 9
_PATTERN: Final = re.compile(r"[\\\[\]{}*?]")


def quote(*path: str) -> str:
    """The name of a column, or of a field of a struct, in backticks for Spark SQL."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def text_literal(text: str) -> str:
    """A string as a literal in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def property_list(properties: Mapping[str, str]) -> str:
    """Properties of a table or view, as Spark SQL lists them in TBLPROPERTIES."""
    return ", ".join(f"{text_literal(name)} = {text_literal(value)}" for name, value in properties.items())


def path_literal(path: str) -> str:
    """A path for Spark's file readers, which would treat some characters as patterns."""
    return _PATTERN.sub(r"\\\g<0>", path)


def column(name: str) -> "Column":
    """The column with exactly this name."""
    from pyspark.sql.functions import col

    return col(quote(name))


def instant(micros: int) -> "Column":
    """An instant, given in microseconds from 1970-01-01T00:00:00Z."""
    from pyspark.sql.functions import lit, timestamp_micros

    return timestamp_micros(lit(micros))


def literal(value: object) -> "Column":
    """A value as a literal, exact for times and days of any year."""
    from pyspark.sql.functions import date_from_unix_date, expr, lit

    if isinstance(value, datetime) and value.tzinfo is None:
        # A cast from an instant would use the session's zone.
        return expr(f"timestamp_ntz'{value.isoformat(' ')}'")
    if isinstance(value, datetime):
        return instant(micros_of(value))
    if isinstance(value, date):
        return date_from_unix_date(lit((value - EPOCH.date()).days))
    return lit(value)


def micros_of(time: datetime) -> int:
    """The microseconds from 1970-01-01T00:00:00Z to an aware time."""
    span = time - EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def null_columns(columns: Iterable[SourceColumn], present: Container[str]) -> "dict[str, Column]":
    """A NULL of the right type for each column that is not present, by name."""
    from pyspark.sql.functions import lit

    return {c.name: lit(None).cast(spark_type(c.type)) for c in columns if c.name not in present}


def literals(values: pa.Array) -> "list[Column]":
    """The values, which must not be NULL, as literals of their own types."""
    from pyspark.sql.functions import date_from_unix_date, lit

    if pa.types.is_date32(values.type):
        return [date_from_unix_date(lit(day)) for day in values.cast(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        return [instant(number) for number in values.cast(pa.int64()).to_pylist()]
    return [literal(value) for value in values.to_pylist()]


def cast_as_shown(value: "Column", type_: "DataType", wanted: "DataType | str") -> "Column":
    """A value of `type_` cast to the wanted type. A float becomes the number that its shortest string shows.

    So a 32-bit 72.1 becomes 72.1 in 64 bits, as on the driver, and not 72.0999984741211.
    """
    from pyspark.sql.types import DoubleType, FloatType

    if not (isinstance(type_, FloatType) and wanted in {DoubleType(), "double"}):
        return value.cast(wanted)
    return _shortest(value)


def _shortest(single: "Column") -> "Column":
    """The number with the fewest digits that is this float. Java's own strings depend on its release."""
    from pyspark.sql.functions import format_string, when

    wide = single.cast("double")
    digits = reversed(range(_DIGITS))
    # The string of NULL is not a number.
    numbers = [try_cast(format_string(f"%.{count}e", wide), "double") for count in digits]
    return reduce(
        lambda longer, number: when(number.cast("float") == single, number).otherwise(longer), numbers, wide
    )


# Columns in their new types, with their old types.
Changes = Sequence[tuple[SourceColumn, ColumnType]]


def cast_batch(changes: Changes, batch: pa.RecordBatch, *, exactly: bool = False) -> pa.RecordBatch:
    """The rows with these columns cast.

    Raises Refused, naming the column, if a value does not fit. With `exactly`, no value may change either.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for column, old in changes:
        try:
            as_new = exact_cast if exactly else cast
            columns[column.name] = as_new(columns[column.name], old, column.type)
        except DoesNotFit:
            raise _does_not_fit(column, old, exactly=exactly) from None
    return pa.record_batch(columns)


def _does_not_fit(column: SourceColumn, old: ColumnType, *, exactly: bool) -> Refused:
    if exactly:
        return Refused(
            "type-changed",
            f"Column {column.name} has a {old} value that does not fit {column.type} exactly.",
            "Nothing was written; use a type that holds all of its values.",
            [column.name],
        )
    return Refused(
        "type-change",
        f"The column {column.source} cannot change from {old} to {column.type}: a stored value does not fit.",
        "The table is unchanged; add a column of the new type instead.",
    )


def retype_rows(
    rows: "DataFrame",
    columns: Sequence[SourceColumn],
    stored: Mapping[str, ColumnType],
    *,
    exactly: bool = False,
) -> "DataFrame":
    """The rows with these columns, cast from their stored types, and with ids. Missing columns are NULL.

    The job fails with the errors of `cast_batch`.
    """
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    names = [*(column.name for column in columns), *ids]
    rows = rows.withColumns(null_columns(columns, stored)).select(*map(quote, names))
    changed = [
        (column, stored[column.name])
        for column in columns
        if stored.get(column.name, column.type) != column.type
    ]
    types = [spark_type(column.type) for column in columns] + ["bigint" for _ in ids]
    schema = ", ".join(f"{quote(name)} {type_}" for name, type_ in zip(names, types, strict=True))
    return map_batches(rows, partial(_cast_batches, changed, exactly=exactly), schema)


def _cast_batches(
    changes: Changes, batches: Iterable[pa.RecordBatch], *, exactly: bool
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carry_errors():
            yield cast_batch(changes, batch, exactly=exactly)
