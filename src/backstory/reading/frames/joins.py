"""Join each row of a frame with the version of its record that was true at the row's own time.

Short histories are compared version by version, after one shuffle by key; `has_short_histories` decides. For
long histories one sort by time finds the last version before each row. A join by valid and by recorded time
halves the valid axis instead. A statement is cut into the largest halves that it fills, and the statements in
one half do not overlap in recorded time. So a long history costs a few sorts.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, Literal

from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName
from backstory.reading.databases.stored_history import distinct
from backstory.reading.frames.versions import (
    NATIVE,
    frame_instant,
    frame_instant_sql,
    native_rows,
    statements,
    versions,
)
from backstory.reading.histories import shown_key
from backstory.reading.lifetimes import END_THEN, STATED_FROM, STATED_TO
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# One row in `_STEP` is sampled; a record with more than `_MANY` sampled rows has a long history.
_STEP: Final = 32
_MANY: Final = 8
# Smaller tables have no long histories.
_SMALL: Final = _STEP * _MANY


@dataclass(frozen=True, slots=True)
class Join:
    """A frame and a history to join by the columns `on`.

    `at` and `known_at` are the frame's columns with the valid and the recorded time. `shown` are the columns
    of the history in the answer, and `names` are the names of all columns of the answer.
    """

    frame: "DataFrame"
    history: "DataFrame"
    on: Sequence[str]
    at: str
    shown: Sequence[str]
    names: Sequence[str]
    inner: bool = False
    known_at: str = ""

    @property
    def keys(self) -> dict[str, str]:
        """The columns of the key: their names in both sides, by the names that the plans use."""
        return {f"backstory: key {number}": name for number, name in enumerate(self.on)}

    def name_columns(self, columns: "Iterable[Column]") -> "list[Column]":
        """Give the columns of the answer their names."""
        return [each.alias(name) for each, name in zip(columns, self.names, strict=True)]

    def name_versions(self, joined: "DataFrame") -> "DataFrame":
        """The answer from the columns `row` and `version`, which is NULL for a row without a version."""
        from pyspark.sql.functions import col

        if self.inner:
            joined = joined.where(col("version").isNotNull())
        of_row = [col("row")[name] for name in self.frame.columns]
        return joined.select(*self.name_columns([*of_row, *(col("version")[name] for name in self.shown)]))


def join_pairs(join: Join) -> "DataFrame":
    """Compare each row with every version, statement or native row of its record.

    A row appears once if at most one version is true at any time.
    """
    from pyspark.sql.functions import expr

    aliases = {name: f"backstory: column {number}" for number, name in enumerate(join.history.columns)}
    history = join.history.select(*(column(name).alias(alias) for name, alias in aliases.items()))
    columns = {name: column(alias) for name, alias in aliases.items()}

    def within(time: str, start: str, end: str) -> "Column":
        instant = frame_instant(join.frame, time)
        return (columns[start] <= instant) & (columns[end].isNull() | (instant < columns[end]))

    matches = reduce(and_, (column(name) == columns[name] for name in join.on))
    if join.known_at and STATED_FROM not in columns:
        recorded, moved, before = NATIVE
        names = {"moved": moved, "end_before": before, "end": VALID_TO}
        until = frame_instant_sql(join.frame, join.known_at)
        end = END_THEN.format(until=until, **{part: quote(aliases[name]) for part, name in names.items()})
        matches &= columns[recorded] <= expr(until)
        columns[VALID_TO] = expr(end)
    elif join.known_at:
        matches &= within(join.known_at, STATED_FROM, STATED_TO)
    matches &= within(join.at, VALID_FROM, VALID_TO)
    joined = join.frame.join(history, matches, "inner" if join.inner else "left")
    of_history = (columns[name] for name in join.shown)
    return joined.select(*join.name_columns([*map(column, join.frame.columns), *of_history]))


def has_short_histories(store: IcebergStore, table: IcebergTable) -> bool:
    """Whether no record of a table has many rows, judged by a sample of one row in `_STEP`.

    The answer decides only the speed: 100 rows of a record count as few, 500 as many.
    """
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as greatest

    if table.rows <= _SMALL:
        return True
    rows = store.spark.table(store.sql_name(table.shape.table)).sample(1 / _STEP, seed=0)
    counted = rows.groupBy(*map(column, table.shape.key)).agg(count(lit(1)).alias("rows"))
    (row,) = counted.agg(greatest("rows").alias("most")).collect()
    return (row["most"] or 0) <= _MANY


# The most statements of a record that are compared one by one.
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
# The half of each size that contains a place.
_WITHIN: Final = """transform(sequence(0, length(bin(most))),
    size -> struct(size AS level, shiftright(place, size) AS node))"""


def join_statements(join: Join, few: int = FEW) -> "DataFrame":
    """Join each row of the frame with the statement that holds at both times of the row.

    A Spark job first finds the records with more than `few` statements.
    """
    from pyspark.sql.functions import col, count, lit

    keys = join.keys
    counted = join.history.groupBy(*(column(name).alias(key) for key, name in keys.items()))
    many = counted.agg(count(lit(1)).alias("statements")).where(col("statements") > few).drop("statements")
    if many.isEmpty():
        return join_pairs(join)
    same = reduce(and_, (column(name) == column(key) for key, name in keys.items()))

    def part(how: str) -> Join:
        sides = (join.frame, join.history)
        frame, history = (each.join(many, same, how) for each in sides)
        return replace(join, frame=frame, history=history)

    return join_pairs(part("left_anti")).unionAll(_join_halves(part("left_semi")))


def _join_halves(join: Join) -> "DataFrame":
    """Find, in each half, the last statement recorded by the row's recorded time, if it still held."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, first, last, when

    keys = [column(key) for key in join.keys]
    borders = _borders(join)
    order = Window.partitionBy(*keys, "level", "node").orderBy("known", col("row").isNotNull())
    newest = last("version", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, 0))
    both = _cut_statements(join, borders).unionByName(_place_rows(join, borders), allowMissingColumns=True)
    rows = both.withColumn("newest", newest).where(col("row").isNotNull())
    lasts = col("newest.until").isNull() | (col("newest.until") > col("known"))
    joined = (
        rows.withColumn("version", when(lasts, col("newest.shown")))
        .groupBy("number")
        .agg(first("row").alias("row"), first("version", ignorenulls=True).alias("version"))
    )
    return join.name_versions(joined)


def _borders(join: Join) -> "DataFrame":
    """The instants at which any statement of a record begins or ends, numbered from 0 for each record."""
    from pyspark.sql import Window
    from pyspark.sql.functions import array, col, explode, row_number
    from pyspark.sql.functions import max as greatest

    keys = (column(name).alias(key) for key, name in join.keys.items())
    ends = array(column(VALID_FROM), column(VALID_TO))
    times = join.history.select(*keys, explode(ends).alias("time")).where(col("time").isNotNull()).distinct()
    record = Window.partitionBy(*map(column, join.keys))
    borders = times.withColumn("place", row_number().over(record.orderBy("time")) - 1)
    return borders.withColumn("most", greatest("place").over(record))


def _cut_statements(join: Join, borders: "DataFrame") -> "DataFrame":
    """A row for each half that a statement fills: `level`, `node`, `known`, and the statement."""
    from pyspark.sql.functions import coalesce, col, explode, expr, struct

    keys = list(join.keys)
    statements = join.history.select(
        *(column(name).alias(key) for key, name in join.keys.items()),
        column(VALID_FROM).alias("starts"),
        column(VALID_TO).alias("ends"),
        column(STATED_FROM).alias("known"),
        struct(column(STATED_TO).alias("until"), struct(*map(column, join.shown)).alias("shown")).alias(
            "version"
        ),
    )
    starts = borders.withColumnsRenamed({"time": "starts", "place": "first"})
    ends = borders.withColumnsRenamed({"time": "ends", "place": "end"}).drop("most")
    placed = statements.join(starts, [*keys, "starts"]).join(ends, [*keys, "ends"], "left")
    placed = placed.withColumn("last", coalesce(col("end"), col("most") + 1))
    columns = [column(name) for name in (*keys, "known", "version")]
    halves = placed.select(*columns, explode(expr(_CUT)).alias("half"))
    return halves.select(*columns, col("half.level"), col("half.node"))


def _place_rows(join: Join, borders: "DataFrame") -> "DataFrame":
    """A row for each half that contains the instant of a row of the frame; at least one."""
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

    frame, types = join.frame, join.history.schema
    rows = frame.select(
        *(column(name).cast(types[name].dataType).alias(key) for key, name in join.keys.items()),
        frame_instant(frame, join.at).alias("time"),
        frame_instant(frame, join.known_at).alias("known"),
        monotonically_increasing_id().alias("number"),
        struct(*map(column, frame.columns)).alias("row"),
    )
    columns = [column(name) for name in (*join.keys, "known", "number", "row")]
    record = Window.partitionBy(*map(column, join.keys))
    order = record.orderBy("time", col("row").isNotNull()).rowsBetween(Window.unboundedPreceding, 0)
    placed = borders.unionByName(rows, allowMissingColumns=True).select(
        *columns,
        col("time"),
        last("place", ignorenulls=True).over(order).alias("place"),
        greatest("most").over(record).alias("most"),
    )
    halves_of_row = when(col("place").isNotNull() & col("time").isNotNull(), expr(_WITHIN))
    rows = placed.where(col("row").isNotNull())
    halves = rows.select(*columns, explode_outer(halves_of_row).alias("half"))
    return halves.select(*columns, col("half.level"), col("half.node"))


How = Literal["left", "inner"]
# Layouts whose doors write at most one true version at a time. In event logs all events may stay true.
_ORDERED: Final = frozenset({Layout.VERSIONS, Layout.HIST, Layout.FIVETRAN_HISTORY})
# The number of partitions for rows that match nothing.
_PLACES: Final = 64


@dataclass(frozen=True)
class JoinTimes:
    """The column with the valid time of a row; the recorded time, or the column with it."""

    at: str
    known_at: str | datetime | None = None

    @property
    def columns(self) -> list[str]:
        """The frame's columns of times."""
        return [self.at, *([self.known_at] if isinstance(self.known_at, str) else [])]


def join_as_of(
    store: IcebergStore,
    table: TableName,
    frame: "DataFrame",
    on: Sequence[str],
    times: JoinTimes,
    how: How = "left",
) -> "DataFrame":
    """Join the frame's rows with the version that was true at each row's time (native.md V98).

    The answer has the frame's columns, then the table's other columns, `valid_from` and `valid_to`; a name
    that is taken gets a number. `on` names the columns of the key, which both sides have. A row without a
    version gets NULLs, or is dropped with `how="inner"`; a NULL in the key or in a time matches nothing. In
    an event log whose events stay true, the newest event counts. Raises UsageError for another key,
    for missing columns and for columns without times, and the errors of `versions`.
    """
    if how not in {"left", "inner"}:
        raise UsageError(
            "bad-option", f"how must be left or inner, not {how!r}.", "Use how='left' or how='inner'."
        )
    stored = existing(store, table)
    _require(stored.shape, frame, on, times)

    def join_to(history: "DataFrame") -> Join:
        _require_alike(frame, history, on)
        shown = [name for name in history.columns if name not in {*on, STATED_FROM, STATED_TO, *NATIVE}]
        names = distinct([*frame.columns, *shown], sys.maxsize)
        known = times.known_at if isinstance(times.known_at, str) else ""
        return Join(frame, history, on, times.at, shown, names, how == "inner", known)

    if isinstance(times.known_at, str):
        if stored.shape.layout is not Layout.VERSIONS:
            raise UsageError(
                "no-recorded-axis",
                f"{table} does not store when each row was recorded.",
                "Give one time as known_at; only native tables take a column of known times.",
            )
        if has_short_histories(store, stored):
            return join_pairs(join_to(native_rows(store, stored)))
        return join_statements(join_to(statements(store, table)))
    one_at_a_time = stored.shape.layout in _ORDERED and not stored.disorderly
    short = one_at_a_time and has_short_histories(store, stored)
    join = join_to(versions(store, table, times.known_at))
    return join_pairs(join) if short else join_in_order(join)


def join_in_order(join: Join) -> "DataFrame":
    """Sort rows and versions together by time, and take the last version before each row.

    One sort serves any number of rows or versions of a key. If versions overlap, the version that began last
    counts.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import col, last, monotonically_increasing_id, struct, when

    frame, history, keys = join.frame, join.history, join.keys
    row, version = struct(*map(column, frame.columns)), struct(*map(column, join.shown))
    can_match = reduce(and_, (column(name).isNotNull() for name in (*join.on, join.at)))
    rows = frame.select(
        *(column(name).cast(history.schema[name].dataType).alias(key) for key, name in keys.items()),
        when(~can_match, monotonically_increasing_id() % _PLACES).alias("place"),
        frame_instant(frame, join.at).alias("time"),
        row.alias("row"),
    )
    starts = history.select(
        *(column(name).alias(key) for key, name in keys.items()),
        column(VALID_FROM).alias("time"),
        version.alias("version"),
    )
    # A version that begins at the time of a row is true then, so it sorts before the row.
    order = Window.partitionBy(*map(column, keys), "place").orderBy("time", col("row").isNotNull())
    newest = last("version", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, 0))
    both = starts.unionByName(rows, allowMissingColumns=True).withColumn("newest", newest)
    lasts = col("newest")[VALID_TO].isNull() | (col("newest")[VALID_TO] > col("time"))
    match = when(lasts & col("place").isNull(), col("newest"))
    joined = both.where(col("row").isNotNull()).select("row", match.alias("version"))
    return join.name_versions(joined)


def _require(shape: Shape, frame: "DataFrame", on: Sequence[str], times: JoinTimes) -> None:
    from pyspark.sql.types import DateType, TimestampType

    key = shown_key(shape)
    if not key or sorted(on) != sorted(key):
        problem = f"is ({', '.join(key)})" if key else "is not among the columns that readers show"
        raise UsageError("other-key", f"The key of {shape.table} {problem}.", "Name each key column in `on`.")
    for name in (*on, *times.columns):
        if frame.columns.count(name) != 1:
            raise UsageError(
                "unknown-column",
                f"The frame must have exactly one column {name!r}.",
                f"It has {', '.join(frame.columns)}.",
            )
    for name in times.columns:
        if not isinstance(kind := frame.schema[name].dataType, DateType | TimestampType):
            raise UsageError(
                "naive-time",
                f"{name} is of type {kind.simpleString()}, which is not a time.",
                "Make it a timestamp: cast a text that has its offset, or make_timestamp_ltz(…, 'UTC').",
            )


def _require_alike(frame: "DataFrame", history: "DataFrame", on: Sequence[str]) -> None:
    from pyspark.sql.types import IntegralType

    for name in on:
        of_frame, stored = frame.schema[name].dataType, history.schema[name].dataType
        if of_frame != stored and not all(isinstance(each, IntegralType) for each in (of_frame, stored)):
            raise UsageError(
                "other-type",
                f"{name} is of type {of_frame.simpleString()} in the frame, "
                f"and {stored.simpleString()} in the table.",
                "Cast it in the frame.",
            )
