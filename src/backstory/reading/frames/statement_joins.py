"""Join rows of a frame with the statement that was true at one time of the row, and known at another.

Of a record with few statements each row is compared with each. Of one with many the valid axis is halved
again and again: a statement is cut into the largest halves that it fills, a row lies in one of each size, and
those told of one half do not overlap in time of knowing. So no record costs more than a few sorts, however
often it was told of.
"""

from dataclasses import replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.frames.event_logs import instant_in
from backstory.reading.frames.pairs import Joined, pairs
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.stores.iceberg.literals import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of so many statements all are looked at.
FEW: Final = 32
_NONE: Final = "CAST(array() AS array<struct<level: int, node: int>>)"
# The largest halves that `[first, last)` fills, from the smallest size on.
_CUT: Final = f"""aggregate(sequence(0, length(bin(most))), struct(first AS a, last AS b, {_NONE} AS found),
    (s, size) -> struct(
        shiftright(s.a + (s.a & 1), 1) AS a, shiftright(s.b - (s.b & 1), 1) AS b,
        concat(s.found,
            if(s.a < s.b AND (s.a & 1) = 1, array(struct(size AS level, s.a AS node)), {_NONE}),
            if(s.a < s.b AND (s.b & 1) = 1, array(struct(size AS level, s.b - 1 AS node)), {_NONE})
        ) AS found),
    s -> s.found)"""
# The half of each size in which a place lies.
_WITHIN: Final = """transform(sequence(0, length(bin(most))),
    size -> struct(size AS level, shiftright(place, size) AS node))"""


def join_statements(asked: Joined, few: int = FEW) -> "DataFrame":
    """Join each row of the frame with the statement that holds at both of the row's times.

    One Spark job counts first whether any record has more than `few` statements.
    """
    from pyspark.sql.functions import col, count, lit

    keys = asked.keys
    counted = asked.history.groupBy(*(column(name).alias(key) for key, name in keys.items()))
    many = counted.agg(count(lit(1)).alias("told")).where(col("told") > few).drop("told")
    if many.isEmpty():
        return pairs(asked)
    same = reduce(and_, (column(name) == column(key) for key, name in keys.items()))

    def part(how: str) -> Joined:
        sides = (asked.frame, asked.history)
        frame, history = (each.join(many, same, how) for each in sides)
        return replace(asked, frame=frame, history=history)

    return pairs(part("left_anti")).unionAll(_halves(part("left_semi")))


def _halves(asked: Joined) -> "DataFrame":
    """In each half the statement that was told last before the row's time of knowing, if it still was."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, first, last, when

    keys = [column(key) for key in asked.keys]
    borders = _borders(asked)
    order = Window.partitionBy(*keys, "level", "node").orderBy("known", col("row").isNotNull())
    newest = last("version", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, 0))
    beside = _cut(asked, borders).unionByName(_asking(asked, borders), allowMissingColumns=True)
    beside = beside.withColumn("newest", newest).where(col("row").isNotNull())
    lasts = col("newest.until").isNull() | (col("newest.until") > col("known"))
    found = (
        beside.withColumn("version", when(lasts, col("newest.told")))
        .groupBy("number")
        .agg(first("row").alias("row"), first("version", ignorenulls=True).alias("version"))
    )
    if asked.inner:
        found = found.where(col("version").isNotNull())
    of_row = [col("row")[name] for name in asked.frame.columns]
    return found.select(*asked.named([*of_row, *(col("version")[name] for name in asked.shown)]))


def _borders(asked: Joined) -> "DataFrame":
    """The instants at which anything was ever told to begin or end, numbered from 0 in each record."""
    from pyspark.sql import Window
    from pyspark.sql.functions import array, col, explode, row_number
    from pyspark.sql.functions import max as greatest

    named = (column(name).alias(key) for key, name in asked.keys.items())
    ends = array(column(VALID_FROM), column(VALID_TO))
    found = (
        asked.history.select(*named, explode(ends).alias("time")).where(col("time").isNotNull()).distinct()
    )
    record = Window.partitionBy(*map(column, asked.keys))
    found = found.withColumn("place", row_number().over(record.orderBy("time")) - 1)
    return found.withColumn("most", greatest("place").over(record))


def _cut(asked: Joined, borders: "DataFrame") -> "DataFrame":
    """The statements, one for each half that they fill: `level`, `node`, `known`, and themselves."""
    from pyspark.sql.functions import coalesce, col, explode, expr, struct

    keys = list(asked.keys)
    told = asked.history.select(
        *(column(name).alias(key) for key, name in asked.keys.items()),
        column(VALID_FROM).alias("starts"),
        column(VALID_TO).alias("ends"),
        column(TOLD_FROM).alias("known"),
        struct(column(TOLD_TO).alias("until"), struct(*map(column, asked.shown)).alias("told")).alias(
            "version"
        ),
    )
    begun = borders.withColumnsRenamed({"time": "starts", "place": "first"})
    ended = borders.withColumnsRenamed({"time": "ends", "place": "ended"}).drop("most")
    told = told.join(begun, [*keys, "starts"]).join(ended, [*keys, "ends"], "left")
    told = told.withColumn("last", coalesce(col("ended"), col("most") + 1))
    kept = [column(name) for name in (*keys, "known", "version")]
    return told.select(*kept, explode(expr(_CUT)).alias("half")).select(
        *kept, col("half.level"), col("half.node")
    )


def _asking(asked: Joined, borders: "DataFrame") -> "DataFrame":
    """The rows, one for each half in which their instant lies; one at least."""
    from pyspark.sql import Window
    from pyspark.sql.functions import (
        col,
        explode_outer,
        expr,
        last,
        monotonically_increasing_id,
        struct,
        when,
    )
    from pyspark.sql.functions import max as greatest

    frame, types = asked.frame, asked.history.schema
    rows = frame.select(
        *(column(name).cast(types[name].dataType).alias(key) for key, name in asked.keys.items()),
        instant_in(frame, asked.at).alias("time"),
        instant_in(frame, asked.known_at).alias("known"),
        monotonically_increasing_id().alias("number"),
        struct(*map(column, frame.columns)).alias("row"),
    )
    kept = [column(name) for name in (*asked.keys, "known", "number", "row")]
    record = Window.partitionBy(*map(column, asked.keys))
    order = record.orderBy("time", col("row").isNotNull()).rowsBetween(Window.unboundedPreceding, 0)
    placed = borders.unionByName(rows, allowMissingColumns=True).select(
        *kept,
        col("time"),
        last("place", ignorenulls=True).over(order).alias("place"),
        greatest("most").over(record).alias("most"),
    )
    lies = when(col("place").isNotNull() & col("time").isNotNull(), expr(_WITHIN))
    halves = placed.where(col("row").isNotNull()).select(*kept, explode_outer(lies).alias("half"))
    return halves.select(*kept, col("half.level"), col("half.node"))
