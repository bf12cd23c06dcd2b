"""The logical hash of rows: of what they say, whichever files hold them (section 6.5).

A row's text is its offset and its columns in the order of their names: `<bytes of the name>:<name>`, a letter
for the kind of value, `<bytes of the value>:<value>`. A NULL adds nothing, so that a column that a table gets
later changes no old hash. A row's hash is the SHA-256 of that text, as hexadecimal digits; a slice's has four
words of 64 bits, each the exclusive or of what XXH64 gives for its place and the hash of each row. Offsets
keep the order, so rows are added up wherever they lie, on their way into the table.

Rows never leave the place where Spark runs (`arrow_hash` is for those that the driver holds); nothing depends
on how they are partitioned, on the order of columns or on settings of the session.

The text of a row, of which its hash is made, as SQL (section 6.5); `row_hash` tells its form.

SQL, because a text goes to Java at once, where each call of a function on a column is an answer to wait for.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from backstory.stores.iceberg.literals import column, quote

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, MapType, StructType

NOTHING: Final = "'~'"  # a NULL where its place has a meaning: in a list, as the value of a key
Variables = Iterable[int]


def digest(columns: "StructType", offset: str, names: Mapping[str, str]) -> str:
    """Each row's hash, in hexadecimal digits; `names` are the columns' own where they were others once."""
    own = [(names.get(each.name, each.name), quote(each.name), each.dataType) for each in columns]
    number = f"coalesce(CAST(CAST({quote(offset)} AS BIGINT) AS STRING), {NOTHING})"
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
            parts = ((f.name, f"coalesce({value}).{quote(f.name)}", f.dataType) for f in type_)
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
    return quote(f"each value {next(iter(variables))}")


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


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

ROWS_IN_BUCKET: Final = 10_000

# Names of columns that are made here; the user's own are gone by then.
OFFSET, DIGEST, BUCKET = "offset", "digest", "bucket"
SEQUENCE, START, END, ROWS = "sequence", "start", "end", "rows"
# Four words of 64 bits make a hash; no column of a dataset is called so.
WORDS: Final = tuple(f"backstory word {place}" for place in range(4))


class Slice(NamedTuple):
    """Rows: how many, their hash, and from which offset to which."""

    rows: int = 0
    hash: str | None = None
    first: int | None = None
    last: int | None = None


def observe_hash(frame: "DataFrame", offset: str, seen: "Observation") -> "DataFrame":
    """The same rows, whose offsets the column `offset` holds; what `seen` counts is for `hash_of`."""
    from pyspark.sql.functions import col, count, lit

    words = _words(_digest(frame, offset, {}))
    # An observation interprets its aggregates: what it adds up is made before, by compiled code.
    built = frame.withColumns(dict(zip(WORDS, words, strict=True)))
    built = built.observe(seen, count(lit(1)).alias(ROWS), *(_total(col(word), word) for word in WORDS))
    return built.drop(*WORDS)


def hash_of(told: Mapping[str, Any]) -> str | None:
    """The hash of rows, from their number and the sums of their words; None if there are none."""
    return "".join(f"{told[word] % (1 << 64):016x}" for word in WORDS) if told[ROWS] else None


def slice_hashes(
    frame: "DataFrame",
    offset: str,
    slices: Sequence[tuple[int, int, int]],
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[int | None, Slice]:
    """The rows and hash of each slice (its number, first and last offset), in one pass.

    None stands for the rows that are in no slice; it is absent if there are none. `names` are those that
    columns had when the rows were written, where they have others now.
    """
    from pyspark.sql.functions import broadcast, col, count, explode, lit, sequence
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import min as least

    number = column(offset).cast("bigint")
    rows = frame.select(number.alias(OFFSET), _digest(frame, offset, names).alias(DIGEST))
    rows = rows.withColumn(BUCKET, _bucket(OFFSET))
    schema = pa.schema([(name, pa.int64()) for name in (SEQUENCE, START, END)])
    told = pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in slices], schema)
    buckets = explode(sequence(_bucket(START), _bucket(END)))
    parts = frame.sparkSession.createDataFrame(told).where(col(START) <= col(END))
    parts = parts.withColumn("slice bucket", buckets)
    mine = (col(BUCKET) == col("slice bucket")) & col(OFFSET).between(col(START), col(END))
    joined = rows.join(broadcast(parts), mine, "left")
    words = (_total(word, name) for name, word in zip(WORDS, _words(col(DIGEST)), strict=True))
    found = joined.groupBy(SEQUENCE).agg(
        count(lit(1)).alias(ROWS), *words, least(OFFSET).alias("first"), greatest(OFFSET).alias("last")
    )
    built = {
        row[SEQUENCE]: Slice(row[ROWS], hash_of(row.asDict()), row["first"], row["last"])
        for row in found.collect()
    }
    return {number: Slice() for number, _, _ in slices} | built


def _digest(frame: "DataFrame", offset: str, names: Mapping[str, str]) -> "Column":
    """Each row's hash, in hexadecimal digits."""
    from pyspark.sql.functions import expr

    return expr(digest(frame.schema, offset, names))


def _words(digest: "Column") -> "list[Column]":
    """Numbers made of a hash; to cut its digits into numbers takes longer than to make it."""
    from pyspark.sql.functions import lit, xxhash64

    return [xxhash64(lit(place), digest) for place in range(len(WORDS))]


def _total(word: "Column", name: str) -> "Column":
    from pyspark.sql.functions import bit_xor

    return bit_xor(word).alias(name)


def _bucket(name: str) -> "Column":
    from pyspark.sql.functions import call_function, col, lit

    return call_function("div", col(name), lit(ROWS_IN_BUCKET))
