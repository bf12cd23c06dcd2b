"""The logical hash of rows, computed by Spark.

The hash depends only on the values, not on the files (section 6.5). A row is hashed as a string: its offset,
then its columns in the order of their names. The string of a column is `<bytes of the name>:<name>`, a letter
for the kind of value, `<bytes of the value>:<value>`. A NULL adds nothing, so that a column that is added
later changes no old hash. The hash of a row is the SHA-256 of its string, in hexadecimal digits. The hash of
a slice has four 64-bit words. Each word is the exclusive or, over all rows, of the XXH64 of the word's index
and the row's hash. The string of a row contains its offset, so rows can be summed in any order, while they
are written to the table.

Rows are not moved to the driver (`arrow_hash` hashes rows that are already there). The hash does not depend
on partitions, on the order of columns or on settings of the session. The string is computed in SQL, because
each call of a function on a column would be a round trip to Java.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from backstory.journal.arrow_hash import Slice, Span
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.schema import names_by_id
from backstory.stores.iceberg.store import IcebergStore, IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType, MapType, StructType


NOTHING: Final = "'~'"  # a NULL whose position matters: in a list, or as a value in a map
Variables = Iterable[int]


def digest(columns: "StructType", offset: str, names: Mapping[str, str]) -> str:
    """The SQL for each row's hash in hexadecimal digits. `names` maps renamed columns to former names."""
    own = [(names.get(each.name, each.name), quote(each.name), each.dataType) for each in columns]
    number = f"coalesce(CAST(CAST({quote(offset)} AS BIGINT) AS STRING), {NOTHING})"
    return f"sha2(concat({number}, ' ', {_fields(own, count())}), 256)"


def _fields(fields: "Iterable[tuple[str, str, DataType]]", variables: Variables) -> str:
    """The SQL for the string of the values that are not NULL, sorted by their names."""
    parts = ["''"]
    for name, value, type_ in sorted(fields, key=lambda each: each[0]):
        label = _exactly(f"{len(name.encode())}:{name}")
        parts.append(f"coalesce(concat({label}, {_value(value, type_, variables)}), '')")
    return f"concat({', '.join(parts)})"


def _exactly(text: str) -> str:
    """The SQL for a string, written as bytes, because escaping depends on the session's settings."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _value(value: str, type_: "DataType", variables: Variables) -> str:
    """The SQL for the string of a value, after the letter of its kind, or NULL for NULL.

    Nested values contain the number of their parts or an end mark, and each part contains its length.
    """
    match type_:
        case spark.ArrayType():
            each = _variable(variables)
            texts = f"transform({value}, {each} -> {_place(each, type_.elementType, variables)})"
            return f"concat('l', CAST(size({value}) AS STRING), ':', array_join({texts}, ''))"
        case spark.MapType():
            return f"concat('m', CAST(size({value}) AS STRING), ':', {_entries(value, type_, variables)})"
        case spark.StructType():
            # Without `coalesce`, Spark would first interpret the name and its field as a table and a column.
            parts = ((f.name, f"coalesce({value}).{quote(f.name)}", f.dataType) for f in type_)
            return f"CASE WHEN {value} IS NOT NULL THEN concat('{{', {_fields(parts, variables)}, '}}') END"
    letter, text = _scalar(value, type_)
    return f"concat('{letter}', CAST(octet_length({text}) AS STRING), ':', {text})"


def _place(value: str, type_: "DataType", variables: Variables) -> str:
    return f"coalesce({_value(value, type_, variables)}, {NOTHING})"


def _entries(value: str, type_: "MapType", variables: Variables) -> str:
    """The SQL for the entries of a map, sorted by their strings, because a map has no order."""
    each = _variable(variables)
    key = _value(f"{each}.key", type_.keyType, variables)
    entry = f"concat({key}, {_place(f'{each}.value', type_.valueType, variables)})"
    return f"array_join(sort_array(transform(map_entries({value}), {each} -> {entry})), '')"


def _variable(variables: Variables) -> str:
    """A variable name that no other variable and no column has."""
    return quote(f"each value {next(iter(variables))}")


def _scalar(value: str, type_: "DataType") -> tuple[str, str]:  # noqa: PLR0911 - a branch a kind
    """The letter that stands for a value's kind, and the SQL for the value's string.

    The width of a number makes no difference.
    """
    text = f"CAST({value} AS STRING)"
    match type_:
        case spark.ByteType() | spark.ShortType() | spark.IntegerType() | spark.LongType():
            return "i", text
        case spark.FloatType() | spark.DoubleType():
            # The decimal digits of floats depend on the release of Java. -0.0 equals 0.0.
            wide = f"CAST({value} AS DOUBLE)"
            unsigned = f"CASE WHEN {wide} = 0D THEN 0D ELSE {wide} END"
            return "f", f"CASE WHEN {value} IS NOT NULL THEN format_string('%a', {unsigned}) END"
        case spark.DecimalType():
            # Java's string has the unscaled digits and the scale. A cast returns the same without an
            # exponent.
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
            # The SQL for local microseconds since 1970-01-01 00:00:00, in any time zone of the session.
            span = f"CAST({value} - timestamp_ntz'1970-01-01 00:00:00' AS INTERVAL SECOND)"
            return "w", f"CAST(CAST(CAST({span} AS DECIMAL(38,6)) * 1000000 AS DECIMAL(38,0)) AS STRING)"
    return "s", text


ROWS_IN_BUCKET: Final = 10_000

# Names of temporary columns, when the user's own columns are no longer in the frame.
OFFSET, DIGEST, BUCKET = "offset", "digest", "bucket"
SEQUENCE, START, END, ROWS = "sequence", "start", "end", "rows"
# The four 64-bit words of a hash. No column of a dataset has such a name.
WORDS: Final = tuple(f"backstory word {place}" for place in range(4))


def observe_hash(frame: "DataFrame", offset: str, seen: "Observation") -> "DataFrame":
    """The same rows. When they are read, `seen` gets the sums of their hashes for `hash_of`.

    `offset` is the name of a column.
    """
    words = _words(_digest(frame, offset, {}))
    # An observation interprets its aggregates, so the words are computed earlier, in compiled code.
    built = frame.withColumns(dict(zip(WORDS, words, strict=True)))
    built = built.observe(
        seen, sf.count(sf.lit(1)).alias(ROWS), *(_total(sf.col(word), word) for word in WORDS)
    )
    return built.drop(*WORDS)


def hash_of(sums: Mapping[str, Any]) -> str | None:
    """The hash of rows from their number and the sums of their words, or None if there are no rows."""
    return "".join(f"{sums[word] % (1 << 64):016x}" for word in WORDS) if sums[ROWS] else None


def slice_hashes(
    frame: "DataFrame", offset: str, slices: Sequence[Span], names: Mapping[str, str] = MappingProxyType({})
) -> dict[int | None, Slice]:
    """The rows and hash of each slice, in one pass.

    A slice is given as its number, first and last offset. Rows that are in no slice, if any, are under the
    key None. `names` maps renamed columns to their names when the rows were written.
    """
    number = column(offset).cast("bigint")
    rows = frame.select(number.alias(OFFSET), _digest(frame, offset, names).alias(DIGEST))
    rows = rows.withColumn(BUCKET, _bucket(OFFSET))
    schema = pa.schema([(name, pa.int64()) for name in (SEQUENCE, START, END)])
    borders = pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in slices], schema)
    buckets = sf.explode(sf.sequence(_bucket(START), _bucket(END)))
    parts = frame.sparkSession.createDataFrame(borders).where(sf.col(START) <= sf.col(END))
    parts = parts.withColumn("slice bucket", buckets)
    in_slice = (sf.col(BUCKET) == sf.col("slice bucket")) & sf.col(OFFSET).between(sf.col(START), sf.col(END))
    joined = rows.join(sf.broadcast(parts), in_slice, "left")
    words = (_total(word, name) for name, word in zip(WORDS, _words(sf.col(DIGEST)), strict=True))
    sums = joined.groupBy(SEQUENCE).agg(
        sf.count(sf.lit(1)).alias(ROWS), *words, sf.min(OFFSET).alias("first"), sf.max(OFFSET).alias("last")
    )
    built = {
        row[SEQUENCE]: Slice(row[ROWS], hash_of(row.asDict()), row["first"], row["last"])
        for row in sums.collect()
    }
    return {number: Slice() for number, _, _ in slices} | built


def _digest(frame: "DataFrame", offset: str, names: Mapping[str, str]) -> "Column":
    """Each row's hash, in hexadecimal digits."""
    return sf.expr(digest(frame.schema, offset, names))


def _words(digest: "Column") -> "list[Column]":
    """The words of a hash. Parsing its digits as numbers would take longer than the hash itself."""
    return [sf.xxhash64(sf.lit(place), digest) for place in range(len(WORDS))]


def _total(word: "Column", name: str) -> "Column":
    return sf.bit_xor(word).alias(name)


def _bucket(name: str) -> "Column":
    return sf.call_function("div", sf.col(name), sf.lit(ROWS_IN_BUCKET))


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows of a dataset, read by Spark."""

    store: IcebergStore
    table: IcebergTable

    def slices(self, spans: Sequence[Span], names: Mapping[str, str]) -> dict[int | None, Slice]:
        """The rows of each span and, under None, the rows in no span. `names` is for `slice_hashes`."""
        if self.table.newest is None:
            return {}
        with translate_faults(self.table.shape.table):
            rows = self._rows()
            # The offset is always the first column (decision O7).
            return slice_hashes(rows, rows.columns[0], spans, names)

    def count_repeated(self, start: int, end: int) -> int:
        """The number of rows in a span minus the number of their distinct offsets."""
        rows = self._rows()
        offset = rows[quote(rows.columns[0])]
        with translate_faults(self.table.shape.table):
            rows = rows.where(offset.between(start, end))
            (row,) = rows.agg((sf.count(offset) - sf.count_distinct(offset)).alias("rows")).collect()
        return int(row["rows"])

    def _rows(self) -> "DataFrame":
        """The rows of the snapshot from which the blocks were read, with the current names of columns."""
        table, newest = self.table, self.table.newest
        assert newest is not None
        rows = rows_at(self.store, table.shape.table, newest.id)
        now = names_by_id(table.fields)
        then = {each["name"]: each["id"] for each in table.fields_then(newest.schema_id)}
        return rows.toDF(*(now.get(then[name], name) for name in rows.columns))
