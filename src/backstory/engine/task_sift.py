"""The same sift by Spark: one query adds up the fingerprints of the rows of each key."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
import structlog

from backstory.engine.sift import ComparedSide, RowCounts, SiftTerms
from backstory.spark.on_disk import persist_on_disk
from backstory.strategies.frames import fingerprint, observed_counts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

LOG = structlog.get_logger()
# A number for a key, and quarters of fingerprints. Columns of sides have other names.
NUMBER: Final = "number"
QUARTERS: Final = ("q0", "q1", "q2", "q3")
CONTENT: Final = "content"
# Where more of the records differ, all rows are planned.
MOST_DIFFERING: Final = 0.3
# The numbers of so many keys are sent to all tasks.
MOST_SENT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FrameSift:
    """The frames of sides without the rows that are the same on all; about a `share` of all rows is left."""

    frames: "Mapping[str, DataFrame]"
    totals: Mapping[str, RowCounts]
    share: float


@dataclass(frozen=True, slots=True)
class _FrameOfSide:
    """A frame with columns that are numbered in the order of the schema."""

    frame: "DataFrame"
    schema: pa.Schema

    def column(self, name: str) -> "Column":
        from pyspark.sql.functions import col

        return col(self._numbered(name))

    def type(self, name: str) -> "DataType":
        return self.frame.schema[self._numbered(name)].dataType

    def _numbered(self, name: str) -> str:
        return f"c{self.schema.get_field_index(name)}"


def sift_frames(
    terms: SiftTerms,
    key: Sequence[str],
    frames: "Mapping[str, DataFrame]",
    schemas: Mapping[str, pa.Schema],
    kept: ExitStack,
) -> FrameSift:
    """The frames without the rows that are the same. What Spark keeps goes with `kept`."""
    from pyspark.sql.functions import broadcast, col
    from pyspark.sql.functions import sum as total

    sides = {name: _FrameOfSide(frame, schemas[name]) for name, frame in frames.items()}
    own = {name: f"n{place}" for place, name in enumerate(sides)}
    sums = [*QUARTERS, *own.values(), CONTENT]
    rows = reduce(
        lambda one, other: one.union(other),
        (_printed(terms, key, name, side, own) for name, side in sides.items()),
    )
    digests = rows.groupBy(NUMBER).agg(*(total(each).alias(each) for each in sums))
    all_rows = f"all rows {uuid4()}"  # one query may be in the plan of another
    digests = digests.observe(all_rows, *(total(each).alias(each) for each in (*own.values(), CONTENT)))
    other = reduce(or_, (col(each) != 0 for each in QUARTERS))
    differing = persist_on_disk(digests.where(other).select(NUMBER))
    kept.callback(differing.unpersist)
    many = differing.count()
    counts = observed_counts(differing)[all_rows]
    totals = {name: RowCounts(counts[own[name]], content=counts[CONTENT]) for name in frames}
    LOG.info("records sifted by fingerprints", differing=many)
    share = many / max(1, *(each.rows for each in totals.values()))
    if share > MOST_DIFFERING:
        return FrameSift(frames, totals, 1)
    numbers = broadcast(differing) if many <= MOST_SENT else differing
    numbered = {name: side.frame.withColumn(NUMBER, _number(key, side)) for name, side in sides.items()}
    left = {name: rows.join(numbers, NUMBER, "left_semi").drop(NUMBER) for name, rows in numbered.items()}
    return FrameSift(left, totals, share)


def count_values(
    totals: Mapping[str, RowCounts],
    frames: "Mapping[str, DataFrame]",
    schemas: Mapping[str, pa.Schema],
    columns: Mapping[str, Sequence[str]],
) -> dict[str, RowCounts]:
    """The counts of rows with those of the values of these columns, by side."""
    from pyspark.sql.functions import count

    counts = dict(totals)
    for name, names in columns.items():
        if names:
            side = _FrameOfSide(frames[name], schemas[name])
            row = side.frame.agg(*(count(side.column(each)) for each in names)).collect()[0]
            values = Counter(dict(zip(names, row, strict=True)))
            counts[name] = replace(totals[name], values=values)
    return counts


def _number(key: Sequence[str], side: _FrameOfSide) -> "Column":
    """A number of 64 bits for the key of a row."""
    from pyspark.sql.functions import xxhash64

    return xxhash64(*map(side.column, key))


def _printed(
    terms: SiftTerms, key: Sequence[str], name: str, side: _FrameOfSide, own: Mapping[str, str]
) -> "DataFrame":
    """For each row of a side, and each pair that it is in, the number of its key and its fingerprint.

    In the first of these pairs the row counts in the column of its side.
    """
    from pyspark.sql.functions import array, array_compact, col, explode, lit, struct, when

    number, rows = _number(key, side).alias(NUMBER), []
    for turn, (pair, place, compared) in enumerate(terms.of_side(name)):
        quarters = _quarters(pair, place, key, compared, side)
        counts = [
            lit(int(turn == 0 and each == name)).cast("bigint").alias(column) for each, column in own.items()
        ]
        content = quarters[0] if turn == 0 and name == next(iter(own)) else lit(0).cast("bigint")
        named = (value.alias(quarter) for value, quarter in zip(quarters, QUARTERS, strict=True))
        rows.append(([*named, *counts, content.alias(CONTENT)], compared.where))
    if len(rows) == 1 and rows[0][1] is None:
        return side.frame.select(number, *rows[0][0])
    structs = [
        struct(*values) if where is None else when(side.column(where), struct(*values))
        for values, where in rows
    ]
    exploded = side.frame.select(number, explode(array_compact(array(*structs))).alias("row"))
    return exploded.select(NUMBER, *(col(f"row.{each}") for each in (*QUARTERS, *own.values(), CONTENT)))


def _quarters(
    pair: int, place: int, key: Sequence[str], compared: ComparedSide, side: _FrameOfSide
) -> "list[Column]":
    """A fingerprint as four numbers of 32 bits, whose sums do not overflow; they are negative on one side."""
    from pyspark.sql.functions import coalesce, length, lit, shiftrightunsigned, when, xxhash64

    halves = fingerprint([(side.column(name), side.type(name)) for name in (*key, *compared.columns)], pair)
    lacking = [side.column(name).isNull() for name in dict.fromkeys([*key, *compared.required])]
    long = [coalesce(length(side.column(name)) > most, lit(False)) for name, most in compared.lengths.items()]
    planned = reduce(or_, [*lacking, *long])  # no row of the other side has such a fingerprint
    halves = [when(planned, xxhash64(half, lit(1 + place))).otherwise(half) for half in halves]
    sign = lit(-1 if place else 1)
    if compared.takes_back is not None:
        column, numbers = compared.takes_back
        sign = when(side.column(column).isin(*numbers), -sign).otherwise(sign)
    low = lit(0xFFFFFFFF)
    return [sign * part for half in halves for part in (half.bitwiseAND(low), shiftrightunsigned(half, 32))]
