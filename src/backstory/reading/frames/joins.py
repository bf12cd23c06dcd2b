"""Rows of a frame, each beside the version of its record that was true at the row's own time.

Rows of a frame and what a history tells of their records, laid side by side: the plan of an equi-join.

Both sides are shuffled by key and sorted once, and each row is compared with all that is told of its record.
Nothing beats that where records have few versions; `has_short_histories` tells beforehand whether they do.

Join rows of a frame with the statement that was true at one time of the row, and known at another.

Of a record with few statements each row is compared with each. Of one with many the valid axis is halved
again and again: a statement is cut into the largest halves that it fills, a row lies in one of each size, and
those told of one half do not overlap in time of knowing. So no record costs more than a few sorts, however
often it was told of.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
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
    BEFORE,
    MOVED,
    end_at,
    native_rows,
    shown_key,
    statements,
    versions,
)
from backstory.reading.histories import instant_in
from backstory.reading.lives import STATED_FROM, STATED_TO
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Every so many rows one is looked at; a record of which more than so many are found has many versions.
_STEP: Final = 32
_MANY: Final = 8
# A table of so few rows has no record with many.
_SMALL: Final = _STEP * _MANY


@dataclass(frozen=True, slots=True)
class Join:
    """A frame and a history that are to be joined by the columns `on`.

    `at` and `known_at` are the frame's columns of the instant and of the time of knowing; `shown` are the
    history's columns of the answer, and `names` those of all its columns.
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
        """The names of the key's columns in plans, with those that they have on both sides."""
        return {f"backstory: key {number}": name for number, name in enumerate(self.on)}

    def named(self, told: "Iterable[Column]") -> "list[Column]":
        """The columns of the answer under its names."""
        return [each.alias(name) for each, name in zip(told, self.names, strict=True)]


def join_pairs(asked: Join) -> "DataFrame":
    """The frame's rows beside what was true, and where asked known, at their own times.

    A row stands once where at any time one thing alone is told of its record.
    """
    history, told = _rename_columns(asked.history)
    meets = _within(asked, asked.at, told[VALID_FROM], told[VALID_TO])
    if asked.known_at:
        meets &= _within(asked, asked.known_at, told[STATED_FROM], told[STATED_TO])
    return _join_sides(asked, history, told, meets)


def join_native_rows(asked: Join) -> "DataFrame":
    """The same of a history as `versions.recorded` gives it, whose rows tell two ends each (V6)."""
    history, told = _rename_columns(asked.history)
    known = instant_in(asked.frame, asked.known_at)
    told[VALID_TO] = end_at(known, told[VALID_TO], told[MOVED], told[BEFORE])
    meets = (told[STATED_FROM] <= known) & _within(asked, asked.at, told[VALID_FROM], told[VALID_TO])
    return _join_sides(asked, history, told, meets)


def _rename_columns(history: "DataFrame") -> "tuple[DataFrame, dict[str, Column]]":
    """A history under names that no frame has, and its columns by their own."""
    renamed = {name: f"backstory: told {number}" for number, name in enumerate(history.columns)}
    named = (column(name).alias(alias) for name, alias in renamed.items())
    return history.select(*named), {name: column(alias) for name, alias in renamed.items()}


def _within(asked: Join, time: str, start: "Column", end: "Column") -> "Column":
    instant = instant_in(asked.frame, time)
    return (start <= instant) & (end.isNull() | (instant < end))


def _join_sides(
    asked: Join, history: "DataFrame", told: "Mapping[str, Column]", meets: "Column"
) -> "DataFrame":
    same = reduce(and_, (column(name) == told[name] for name in asked.on))
    found = asked.frame.join(history, same & meets, "inner" if asked.inner else "left")
    return found.select(
        *asked.named([*map(column, asked.frame.columns), *(told[name] for name in asked.shown)])
    )


def has_short_histories(store: Store, table: StoredTable) -> bool:
    """Whether no record of a table has many rows, as far as one row in `_STEP` tells.

    Speed alone hangs on the answer: a record of 100 rows is taken for one of few, one of 500 for one of many.
    """
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as greatest

    if table.rows <= _SMALL:
        return True
    rows = store.spark.table(store.sql_name(table.shape.table)).sample(1 / _STEP, seed=0)
    counted = rows.groupBy(*map(column, table.shape.key)).agg(count(lit(1)).alias("rows"))
    (found,) = counted.agg(greatest("rows").alias("most")).collect()
    return (found["most"] or 0) <= _MANY


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


def join_statements(asked: Join, few: int = FEW) -> "DataFrame":
    """Join each row of the frame with the statement that holds at both of the row's times.

    One Spark job counts first whether any record has more than `few` statements.
    """
    from pyspark.sql.functions import col, count, lit

    keys = asked.keys
    counted = asked.history.groupBy(*(column(name).alias(key) for key, name in keys.items()))
    many = counted.agg(count(lit(1)).alias("told")).where(col("told") > few).drop("told")
    if many.isEmpty():
        return join_pairs(asked)
    same = reduce(and_, (column(name) == column(key) for key, name in keys.items()))

    def part(how: str) -> Join:
        sides = (asked.frame, asked.history)
        frame, history = (each.join(many, same, how) for each in sides)
        return replace(asked, frame=frame, history=history)

    return join_pairs(part("left_anti")).unionAll(_join_halves(part("left_semi")))


def _join_halves(asked: Join) -> "DataFrame":
    """In each half the statement that was told last before the row's time of knowing, if it still was."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, first, last, when

    keys = [column(key) for key in asked.keys]
    borders = _borders(asked)
    order = Window.partitionBy(*keys, "level", "node").orderBy("known", col("row").isNotNull())
    newest = last("version", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, 0))
    beside = _cut_statements(asked, borders).unionByName(
        _place_rows(asked, borders), allowMissingColumns=True
    )
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


def _borders(asked: Join) -> "DataFrame":
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


def _cut_statements(asked: Join, borders: "DataFrame") -> "DataFrame":
    """The statements, one for each half that they fill: `level`, `node`, `known`, and themselves."""
    from pyspark.sql.functions import coalesce, col, explode, expr, struct

    keys = list(asked.keys)
    told = asked.history.select(
        *(column(name).alias(key) for key, name in asked.keys.items()),
        column(VALID_FROM).alias("starts"),
        column(VALID_TO).alias("ends"),
        column(STATED_FROM).alias("known"),
        struct(column(STATED_TO).alias("until"), struct(*map(column, asked.shown)).alias("told")).alias(
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


def _place_rows(asked: Join, borders: "DataFrame") -> "DataFrame":
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


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How = Literal["left", "inner"]
# What backstory's own doors write, of an event log apart, whose events may all be true for ever.
_ORDERED: Final = frozenset({Layout.VERSIONS, Layout.HIST, Layout.FIVETRAN_HISTORY})
# Where rows that can match nothing are put, so that they are not all in one place.
_PLACES: Final = 64


@dataclass(frozen=True)
class JoinTimes:
    """The column with the instant that a row asks about; the time of knowing, or a column with it."""

    at: str
    known_at: str | datetime | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of the frame that have times."""
        return [self.at, *([self.known_at] if isinstance(self.known_at, str) else [])]


def join_as_of(
    store: Store,
    table: TableName,
    frame: "DataFrame",
    on: Sequence[str],
    times: JoinTimes,
    how: How = "left",
) -> "DataFrame":
    """The frame's rows with the columns of the version that was true at each row's time (native.md V98).

    After the frame's columns stand the table's other ones, `valid_from` and `valid_to`; a name that is taken
    gets a number. `on` names the key's columns, in the frame as in the table. No version then: NULLs, or with
    `how="inner"` no row; a NULL in the key or in a time matches nothing. Of an event log whose events are
    all true for ever the newest counts. Raises UsageError for another key, for columns that are not there or
    no times, and what `versions` raises.
    """
    if how not in {"left", "inner"}:
        raise UsageError(
            "bad-option", f"how must be left or inner, not {how!r}.", "Use how='left' or how='inner'."
        )
    stored = existing(store, table)
    _require(stored.shape, frame, on, times)

    def join_to(history: "DataFrame") -> Join:
        _require_alike(frame, history, on)
        shown = _version_columns(history, on)
        known = times.known_at if isinstance(times.known_at, str) else ""
        return Join(frame, history, on, times.at, shown, _names(frame, shown), how == "inner", known)

    if isinstance(times.known_at, str):
        if stored.shape.layout is not Layout.VERSIONS:
            raise UsageError(
                "no-recorded-axis",
                f"{table} does not store when it learned each row.",
                "Give one time as known_at; only native tables take a column of known times.",
            )
        near = join_to(native_rows(store, stored))
        return (
            join_native_rows(near)
            if has_short_histories(store, stored)
            else join_statements(join_to(statements(store, table)))
        )
    near = join_to(versions(store, table, times.known_at))
    return (
        join_pairs(near)
        if _one_at_a_time(stored) and has_short_histories(store, stored)
        else join_in_order(near)
    )


def _one_at_a_time(table: StoredTable) -> bool:
    """Whether of all versions of a record at most one is true at any instant."""
    return table.shape.layout in _ORDERED and not table.disorderly


def join_in_order(asked: Join) -> "DataFrame":
    """Rows and versions of a record in one order of time: the last version before a row is its own.

    One sort of both sides together, whatever the number of rows or versions of a key: no pair of them is
    looked at. Of versions that overlap the one that began last counts.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import col, last, monotonically_increasing_id, struct, when

    frame, history, keys = asked.frame, asked.history, asked.keys
    row, version = struct(*map(column, frame.columns)), struct(*map(column, asked.shown))
    asks = reduce(and_, (column(name).isNotNull() for name in (*asked.on, asked.at)))
    rows = frame.select(
        *(column(name).cast(history.schema[name].dataType).alias(key) for key, name in keys.items()),
        when(~asks, monotonically_increasing_id() % _PLACES).alias("place"),
        instant_in(frame, asked.at).alias("time"),
        row.alias("row"),
    )
    starts = history.select(
        *(column(name).alias(key) for key, name in keys.items()),
        column(VALID_FROM).alias("time"),
        version.alias("version"),
    )
    # A version that begins at the very time of a row is true then: it sorts before it.
    order = Window.partitionBy(*map(column, keys), "place").orderBy("time", col("row").isNotNull())
    newest = last("version", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, 0))
    found = starts.unionByName(rows, allowMissingColumns=True).withColumn("newest", newest)
    lasts = col("newest")[VALID_TO].isNull() | (col("newest")[VALID_TO] > col("time"))
    match = when(lasts & col("place").isNull(), col("newest"))
    found = found.where(col("row").isNotNull()).select("row", match.alias("version"))
    if asked.inner:
        found = found.where(col("version").isNotNull())
    of_row = [col("row")[name] for name in frame.columns]
    return found.select(*asked.named([*of_row, *(col("version")[name] for name in asked.shown)]))


def _version_columns(history: "DataFrame", on: Sequence[str]) -> list[str]:
    """The columns of a version that a row is joined with."""
    return [name for name in history.columns if name not in {*on, STATED_FROM, STATED_TO, MOVED, BEFORE}]


def _names(frame: "DataFrame", told: Sequence[str]) -> tuple[str, ...]:
    """The frame's names, and those of the table; one that is taken gets a number."""
    return distinct([*frame.columns, *told], sys.maxsize)


def _require(shape: Shape, frame: "DataFrame", on: Sequence[str], times: JoinTimes) -> None:
    from pyspark.sql.types import DateType, TimestampType

    key = shown_key(shape)
    if not key or sorted(on) != sorted(key):
        told = f"is ({', '.join(key)})" if key else "is not among the columns that readers show"
        raise UsageError("other-key", f"The key of {shape.table} {told}.", "Name each key column in `on`.")
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
        given, stored = frame.schema[name].dataType, history.schema[name].dataType
        if given != stored and not (isinstance(given, IntegralType) and isinstance(stored, IntegralType)):
            raise UsageError(
                "other-type",
                f"{name} is of type {given.simpleString()} in the frame, "
                f"and {stored.simpleString()} in the table.",
                "Cast it in the frame.",
            )
