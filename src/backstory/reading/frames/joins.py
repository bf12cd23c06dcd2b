"""Rows of a frame, each beside the version of its record that was true at the row's own time."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, Literal

from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.reading.frames.event_logs import instant_in
from backstory.reading.frames.pairs import Joined, few_each, pairs, recorded_pairs
from backstory.reading.frames.statement_joins import join_statements
from backstory.reading.frames.statements import statements
from backstory.reading.frames.versions import BEFORE, MOVED, recorded, shown_key, versions
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.reading.statements.stored_history import distinct
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How = Literal["left", "inner"]
# What backstory's own doors write, of an event log apart, whose events may all be true for ever.
_ORDERED: Final = frozenset({Layout.VERSIONS, Layout.HIST, Layout.FIVETRAN_HISTORY})
# Where rows that can match nothing are put, so that they are not all in one place.
_PLACES: Final = 64


@dataclass(frozen=True)
class Times:
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
    times: Times,
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

    def join_to(history: "DataFrame") -> Joined:
        _require_alike(frame, history, on)
        shown = _version_columns(history, on)
        known = times.known_at if isinstance(times.known_at, str) else ""
        return Joined(frame, history, on, times.at, shown, _names(frame, shown), how == "inner", known)

    if isinstance(times.known_at, str):
        if stored.shape.layout is not Layout.VERSIONS:
            raise UsageError(
                "no-recorded-axis",
                f"{table} does not store when it learned each row.",
                "Give one time as known_at; only native tables take a column of known times.",
            )
        near = join_to(recorded(store, stored))
        return (
            recorded_pairs(near)
            if few_each(store, stored)
            else join_statements(join_to(statements(store, table)))
        )
    near = join_to(versions(store, table, times.known_at))
    return pairs(near) if _one_at_a_time(stored) and few_each(store, stored) else beside(near)


def _one_at_a_time(table: StoredTable) -> bool:
    """Whether of all versions of a record at most one is true at any instant."""
    return table.shape.layout in _ORDERED and not table.disorderly


def beside(asked: Joined) -> "DataFrame":
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
    return [name for name in history.columns if name not in {*on, TOLD_FROM, TOLD_TO, MOVED, BEFORE}]


def _names(frame: "DataFrame", told: Sequence[str]) -> tuple[str, ...]:
    """The frame's names, and those of the table; one that is taken gets a number."""
    return distinct([*frame.columns, *told], sys.maxsize)


def _require(shape: Shape, frame: "DataFrame", on: Sequence[str], times: Times) -> None:
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
