"""Join each row of a frame with the version of its record that was true at the row's own time.

Short histories (`has_short_histories`) are compared version by version, after one shuffle by key. For long
histories, one sort by time finds the last version before each row. A join by both valid and recorded time
uses a segment tree: the valid axis is halved repeatedly, and each statement is assigned to the largest
segments that it fills. Statements in the same segment do not overlap in recorded time, so a long history
costs only a few sorts.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Final, Literal

from backstory.errors import UsageError, bad_option
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape
from backstory.reading.frames import KnownFrames, frame_instant, query_frames
from backstory.reading.history_queries import distinct
from backstory.reading.lifetimes import STATED_FROM, STATED_TO, TRUE_AT
from backstory.reading.questions import shown_key
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# One row in `_STEP` is sampled. A record with more than `_MANY` sampled rows has a long history.
_STEP: Final = 32
_MANY: Final = 8
# Smaller tables have no long histories.
_SMALL: Final = _STEP * _MANY


@dataclass(frozen=True, slots=True)
class Join:
    """A frame, and a history to join with it by the columns `on`.

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

    def ask(self, query: str, of_frame: Sequence[str], of_history: Sequence[str]) -> "DataFrame":
        """The answer to a query: these columns of the frame and of the history, renamed to `names`."""
        pairs = zip([*of_frame, *of_history], self.names, strict=True)
        listed = ", ".join(f"{sql} AS {quote(name)}" for sql, name in pairs)
        return query_frames(f"SELECT {listed} {query}", frame=self.frame, history=self.history)

    def ask_in_order(self, text: str) -> "DataFrame":
        """The answer to a query for `row` and its `version`, which is NULL for a row without a version."""
        keys = {f"`backstory: key {number}`": name for number, name in enumerate(self.on)}
        types, row = self.history.schema, partial(quote, "frame")
        casts = (
            f"CAST({row(name)} AS {types[name].dataType.simpleString()}) AS {key}"
            for key, name in keys.items()
        )

        def struct(names: Sequence[str]) -> str:
            return f"struct({', '.join(map(quote, names))})"

        filled = text.format(
            keys=", ".join(keys),
            frame_keys=", ".join(casts),
            history_keys=", ".join(f"{quote(name)} AS {key}" for key, name in keys.items()),
            missing=" OR ".join(f"{row(name)} IS NULL" for name in (*self.on, self.at)),
            at=frame_instant(self.frame, self.at),
            known_at=frame_instant(self.frame, self.known_at) if self.known_at else "",
            row=struct(self.frame.columns),
            shown=struct(self.shown),
            **{name: quote(each) for name, each in _ENDS.items()},
        )
        condition = " WHERE version IS NOT NULL" if self.inner else ""
        of_row, of_version = (partial(quote, side) for side in ("row", "version"))
        columns = [*map(of_row, self.frame.columns)], [*map(of_version, self.shown)]
        return self.ask(f"FROM ({filled}) AS joined{condition}", *columns)


_ENDS: Final = {"start": VALID_FROM, "end": VALID_TO, "stated": STATED_FROM, "until": STATED_TO}


def join_pairs(join: Join) -> "DataFrame":
    """Join by comparing each row of the frame with every version or statement of its record.

    A row appears once if at most one version is true at any time.
    """
    row, version = partial(quote, "frame"), partial(quote, "history")
    matches = [f"{row(name)} = {version(name)}" for name in join.on]
    for name, start, end in ((join.known_at, STATED_FROM, STATED_TO), (join.at, VALID_FROM, VALID_TO)):
        if name:
            at = frame_instant(join.frame, name)
            matches.append(TRUE_AT.format(started=version(start), ended=version(end), at=at))
    how = "INNER" if join.inner else "LEFT"
    query = f"FROM frame {how} JOIN history ON {' AND '.join(matches)}"
    return join.ask(query, [*map(row, join.frame.columns)], [*map(version, join.shown)])


def has_short_histories(store: IcebergStore, table: IcebergTable) -> bool:
    """Whether no record of a table has many rows, judged by a sample of one row in `_STEP`.

    The answer only affects speed. 100 rows of a record count as few, and 500 as many.
    """
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as greatest

    if table.rows <= _SMALL:
        return True
    rows = store.spark.table(store.sql_name(table.shape.table)).sample(1 / _STEP, seed=0)
    counted = rows.groupBy(*map(column, table.shape.key)).agg(count(lit(1)).alias("rows"))
    (row,) = counted.agg(greatest("rows").alias("most")).collect()
    return (row["most"] or 0) <= _MANY


# The last version before each row, if it is still true at the row's time. A version that begins at the time
# of a row sorts before it.
_LAST: Final = """
SELECT number, row, CASE WHEN newest.until IS NULL OR newest.until > instant THEN newest.shown END AS version
FROM (
  SELECT *, LAST(version, TRUE) OVER (
    PARTITION BY {keys}, part ORDER BY instant, row IS NOT NULL ROWS UNBOUNDED PRECEDING
  ) AS newest FROM both_sides
) AS ordered WHERE row IS NOT NULL
"""
# Sorts rows and versions together by time, and takes the last version before each row. One sort serves any
# number of rows and versions of a key. If versions overlap, the one that began last is used. Rows that match
# nothing are spread over some partitions.
IN_ORDER: Final = f"""
WITH both_sides AS (
  SELECT {{history_keys}}, NULL AS part, {{start}} AS instant, NULL AS number, NULL AS row,
    struct({{end}} AS until, {{shown}} AS shown) AS version FROM history
  UNION ALL
  SELECT {{frame_keys}}, CASE WHEN {{missing}} THEN monotonically_increasing_id() % 64 END, {{at}}, NULL,
    {{row}}, NULL FROM frame
) {_LAST}
"""
_NONE: Final = "CAST(array() AS array<struct<level: int, node: int>>)"
# The largest segments that `[first, last)` fills, from the smallest size on.
_CUT: Final = f"""aggregate(sequence(0, length(bin(most))), struct(first AS a, last AS b, {_NONE} AS halves),
    (s, size) -> struct(
        shiftright(s.a + (s.a & 1), 1) AS a, shiftright(s.b - (s.b & 1), 1) AS b,
        concat(s.halves,
            if(s.a < s.b AND (s.a & 1) = 1, array(struct(size AS level, s.a AS node)), {_NONE}),
            if(s.a < s.b AND (s.b & 1) = 1, array(struct(size AS level, s.b - 1 AS node)), {_NONE})
        ) AS halves),
    s -> s.halves)"""
# The segment of each size that contains a place.
_WITHIN: Final = """transform(sequence(0, length(bin(most))),
    size -> struct(size AS level, shiftright(place, size) AS node))"""
# Borders are the instants at which any statement of a record begins or ends, numbered from 0. In each
# segment, the last statement recorded at or before the recorded time of a row counts.
_HALVES: Final = f"""
WITH stated AS (
  SELECT {{history_keys}}, {{start}} AS starts, {{end}} AS ends, {{stated}} AS instant,
    struct({{until}} AS until, {{shown}} AS shown) AS version FROM history
), borders AS (
  SELECT *, MAX(place) OVER (PARTITION BY {{keys}}) AS most FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY {{keys}} ORDER BY border) - 1 AS place FROM (
      SELECT DISTINCT * FROM (SELECT {{keys}}, explode(array(starts, ends)) AS border FROM stated)
      WHERE border IS NOT NULL
    )
  )
), placed AS (
  SELECT {{keys}}, instant, version, most, first, COALESCE(following, most + 1) AS last FROM stated
  JOIN (SELECT {{keys}}, border AS starts, place AS first, most FROM borders) USING ({{keys}}, starts)
  LEFT JOIN (SELECT {{keys}}, border AS ends, place AS following FROM borders) USING ({{keys}}, ends)
), located AS (
  SELECT {{keys}}, border, instant, number, row, MAX(most) OVER (PARTITION BY {{keys}}) AS most,
    LAST(place, TRUE) OVER (
      PARTITION BY {{keys}} ORDER BY border, row IS NOT NULL ROWS UNBOUNDED PRECEDING
    ) AS place
  FROM (
    SELECT {{keys}}, border, NULL AS instant, NULL AS number, NULL AS row, most, place FROM borders
    UNION ALL
    SELECT {{frame_keys}}, {{at}}, {{known_at}}, monotonically_increasing_id(), {{row}}, NULL, NULL FROM frame
  )
), both_sides AS (
  SELECT {{keys}}, part, instant, NULL AS number, NULL AS row, version
  FROM (SELECT *, explode({_CUT}) AS part FROM placed)
  UNION ALL
  SELECT {{keys}}, part, instant, number, row, NULL FROM (
    SELECT *, explode_outer(CASE WHEN place IS NOT NULL AND border IS NOT NULL THEN {_WITHIN} END) AS part
    FROM located WHERE row IS NOT NULL
  )
) SELECT FIRST(row) AS row, FIRST(version, TRUE) AS version FROM ({_LAST}) AS candidates GROUP BY number
"""
# The most statements of a record that are compared one by one.
FEW: Final = 32


def join_statements(join: Join, few: int = FEW) -> "DataFrame":
    """Join each row of the frame with the statement that holds at both times of the row.

    A Spark job first finds the records with more than `few` statements.
    """
    keys = ", ".join(f"{quote(name)} AS `backstory: key {number}`" for number, name in enumerate(join.on))
    groups = ", ".join(map(quote, join.on))
    many = query_frames(
        f"SELECT {keys} FROM history GROUP BY {groups} HAVING COUNT(*) > {few}", history=join.history
    )
    if many.isEmpty():
        return join_pairs(join)
    same = reduce(
        and_, (column(name) == column(key) for name, key in zip(join.on, many.columns, strict=True))
    )

    def part(how: str) -> Join:
        return replace(
            join, frame=join.frame.join(many, same, how), history=join.history.join(many, same, how)
        )

    return join_pairs(part("left_anti")).unionAll(part("left_semi").ask_in_order(_HALVES))


How = Literal["left", "inner"]
# Layouts whose doors write at most one true version at a time. In event logs all events may stay true.
_ORDERED: Final = frozenset({Layout.VERSIONS, Layout.HIST, Layout.FIVETRAN_HISTORY})


def join_as_of(
    source: KnownFrames,
    frame: "DataFrame",
    on: Sequence[str],
    at: str,
    known_at: str | datetime | None = None,
    how: How = "left",
) -> "DataFrame":
    """Join the frame's rows with the version that was true at each row's time (native.md V98).

    `at` is the column with the time of a row, and `known_at` is the recorded time, or the column with it.
    `on` names the columns of the key, which both sides have. The answer has the frame's columns, then the
    table's other columns, `valid_from` and `valid_to`. A name that is taken gets a number. A row without a
    version gets NULLs, or is dropped with `how="inner"`. A NULL in the key or in a time matches nothing. In
    an event log whose events stay true, the newest event is used. Raises UsageError for another key, for
    missing columns and for columns without times. Also raises the errors of `KnownTable.versions`.
    """
    if how not in {"left", "inner"}:
        raise bad_option(f"how must be left or inner, not {how!r}.", "Use how='left' or how='inner'.")
    store, stored = source.store, source.stored
    known = known_at if isinstance(known_at, str) else ""
    _require(stored.shape, frame, on, [at, *filter(None, [known])])

    def join_to(history: "DataFrame") -> Join:
        _require_alike(frame, history, on)
        shown = [name for name in history.columns if name not in {*on, STATED_FROM, STATED_TO}]
        names = distinct([*frame.columns, *shown], sys.maxsize)
        return Join(frame, history, on, at, shown, names, how == "inner", known)

    if isinstance(known_at, str):
        if stored.shape.layout is not Layout.VERSIONS:
            raise UsageError(
                "no-recorded-axis",
                f"{stored.shape.table} does not store when each row was recorded.",
                "Give one time as known_at; only native tables take a column of known times.",
            )
        join = join_to(source.statements())
        return join_pairs(join) if has_short_histories(store, stored) else join_statements(join)
    one_at_a_time = stored.shape.layout in _ORDERED and not stored.disorderly
    short = one_at_a_time and has_short_histories(store, stored)
    join = join_to(source.at(known_at).versions())
    return join_pairs(join) if short else join.ask_in_order(IN_ORDER)


def _require(shape: Shape, frame: "DataFrame", on: Sequence[str], times: Sequence[str]) -> None:
    from pyspark.sql.types import DateType, TimestampType

    key = shown_key(shape)
    if not key or sorted(on) != sorted(key):
        problem = f"is ({', '.join(key)})" if key else "is not among the columns that readers show"
        raise UsageError("other-key", f"The key of {shape.table} {problem}.", "Name each key column in `on`.")
    for name in dict.fromkeys([*on, *times, *frame.columns]):
        if frame.columns.count(name) != 1:
            raise UsageError(
                "unknown-column",
                f"The frame must have exactly one column {name!r}.",
                f"It has {', '.join(frame.columns)}.",
            )
    for name in times:
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
