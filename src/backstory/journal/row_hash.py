"""The logical hash of rows: of what they say, whichever files hold them (section 6.5).

A row's text is its offset and its columns in the order of their names: `<bytes of the name>:<name>`, a letter
for the kind of value, `<bytes of the value>:<value>`. A NULL adds nothing, so that a column that a table gets
later changes no old hash. A row's hash is the SHA-256 of that text, as hexadecimal digits; a slice's has four
words of 64 bits, each the exclusive or of what XXH64 gives for its place and the hash of each row. Offsets
keep the order, so rows are added up wherever they lie, on their way into the table.

Rows never leave the place where Spark runs (`arrow_hash` is for those that the driver holds); nothing depends
on how they are partitioned, on the order of columns or on settings of the session.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from backstory.journal.row_text import digest
from backstory.stores.iceberg.literals import column

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
