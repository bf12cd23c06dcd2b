"""The logical hash of rows: of what they say, whichever files hold them (section 6.5).

A row's text is its offset and its columns in the order of their names: `<bytes of the name>:<name>`, a letter
for the kind of value, `<bytes of the value>:<value>`. A NULL adds nothing, so that a column that a table gets
later changes no old hash. A row's hash is the SHA-256 of that text, as hexadecimal digits; a slice's has four
words of 64 bits, each the exclusive or of what XXH64 gives for its place and the hash of each row. Offsets
keep the order, so rows are added up wherever they lie, on their way into the table.

Rows never leave the place where Spark runs; nothing depends on how they are partitioned, on the order of
columns or on settings of the session.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from backstory.stores.iceberg.literals import column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType, MapType

ROWS_IN_BUCKET: Final = 10_000
NOTHING: Final = "~"  # a NULL where its place has a meaning: in a list, as the value of a key

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


def hashed(frame: "DataFrame", offset: str, seen: "Observation") -> "DataFrame":
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
    from pyspark.sql.functions import coalesce, concat, lit, sha2

    own = [(names.get(each.name, each.name), column(each.name), each.dataType) for each in frame.schema]
    number = coalesce(column(offset).cast("bigint").cast("string"), lit(NOTHING))
    return sha2(concat(number, lit(" "), _fields(own)), 256)


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


def _fields(fields: "Iterable[tuple[str, Column, DataType]]") -> "Column":
    """The text of named values, those that are not NULL, by their names."""
    from pyspark.sql.functions import coalesce, concat, lit

    parts = [lit("")]
    for name, value, type_ in sorted(fields, key=lambda each: each[0]):
        told = lit(f"{len(name.encode())}:{name}")
        parts.append(coalesce(concat(told, _value(value, type_)), lit("")))
    return concat(*parts)


def _value(value: "Column", type_: "DataType") -> "Column":
    """The text of a value, its kind before it; NULL for NULL.

    What has parts tells how many they are, or where they end: each part tells its own length.
    """
    from pyspark.sql import types as spark
    from pyspark.sql.functions import concat, lit, octet_length, size, transform, when

    match type_:
        case spark.ArrayType():
            texts = transform(value, lambda each: _place(each, type_.elementType))
            return concat(lit("l"), size(value).cast("string"), lit(":"), _joined(texts))
        case spark.MapType():
            return concat(lit("m"), size(value).cast("string"), lit(":"), _entries(value, type_))
        case spark.StructType():
            within = _fields((each.name, value.getField(each.name), each.dataType) for each in type_)
            return when(value.isNotNull(), concat(lit("{"), within, lit("}")))
    letter, text = _scalar(value, type_)
    return concat(lit(letter), octet_length(text).cast("string"), lit(":"), text)


def _place(value: "Column", type_: "DataType") -> "Column":
    from pyspark.sql.functions import coalesce, lit

    return coalesce(_value(value, type_), lit(NOTHING))


def _joined(texts: "Column") -> "Column":
    from pyspark.sql.functions import array_join

    return array_join(texts, "")


def _entries(value: "Column", type_: "MapType") -> "Column":
    """A map's entries; it has no order of its own, so they are sorted as they are written."""
    from pyspark.sql.functions import concat, map_entries, sort_array, transform

    def entry(each: "Column") -> "Column":
        return concat(_value(each["key"], type_.keyType), _place(each["value"], type_.valueType))

    return _joined(sort_array(transform(map_entries(value), entry)))


def _scalar(value: "Column", type_: "DataType") -> "tuple[str, Column]":  # noqa: PLR0911 - a branch a kind
    """The letter of a value's kind, and its text; integers of any width are of one kind, so are floats."""
    from pyspark.sql import types as spark
    from pyspark.sql.functions import format_string, hex, lit, unix_date, unix_micros, when  # noqa: A004

    match type_:
        case spark.ByteType() | spark.ShortType() | spark.IntegerType() | spark.LongType():
            return "i", value.cast("string")
        case spark.FloatType() | spark.DoubleType():
            # Digits would be those of a release of Java; -0.0 equals 0.0.
            wide = value.cast("double")
            unsigned = when(wide == lit(0.0), lit(0.0)).otherwise(wide)
            return "f", when(value.isNotNull(), format_string("%a", unsigned))
        case spark.DecimalType():
            # Java's own text tells unscaled digits and scale; a cast does where it needs no exponent.
            plain = type_.scale <= 6  # noqa: PLR2004 - Java writes 0.0000001 with an exponent
            return "n", value.cast("string") if plain else when(value.isNotNull(), format_string("%s", value))
        case spark.BooleanType():
            return "b", value.cast("string")
        case spark.DateType():
            return "d", unix_date(value).cast("string")
        case spark.TimestampType():
            return "t", unix_micros(value).cast("string")
        case spark.BinaryType():
            return "x", hex(value)
        case spark.TimestampNTZType():
            return "w", _wall(value)
    return "s", value.cast("string")


def _wall(value: "Column") -> "Column":
    """The microseconds from 1970-01-01 00:00:00 on the same clock, whatever the session's time zone."""
    from pyspark.sql.functions import expr

    span = value - expr("timestamp_ntz'1970-01-01 00:00:00'")
    return (
        (span.cast("interval second").cast("decimal(38,6)") * 1_000_000).cast("decimal(38,0)").cast("string")
    )
