"""The versions that a table keeps: the user's columns of each, and from when to when it was true."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import structlog

from backstory.errors import Refused, UsageError
from backstory.model.history import History
from backstory.model.instant import TMAX
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout, Span
from backstory.model.remembered import END_BEFORE, ENDED_AT, ROLE, Role
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.model.types import Kind
from backstory.reading.frames import event_logs
from backstory.reading.frames.knowledge import read_rows_at
from backstory.reading.lives import TOLD_FROM, shown_name
from backstory.stores.iceberg.literals import column, instant, micros_in, micros_of, quoted, text_literal
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.iceberg.workers import carry
from backstory.stores.port import ToldTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = structlog.get_logger()

# A version has length, and nothing else has (V3, V5); so `_memory` is not read where it is not asked.
_LASTING: Final = f"({VALID_TO} IS NULL OR {VALID_TO} > {VALID_FROM})"

_FOLLOWING: Final = "backstory: following"
_ENDED: Final = "backstory: ended"
MOVED: Final = "backstory: moved"
BEFORE: Final = "backstory: before"
HISTORIES: Final = (Layout.ODF, *(each for each in Layout if each.span is not None))


def history_of(table: ToldTable, shape: Shape | None = None) -> History:
    """The history that a table of a warehouse keeps; UsageError for a table that keeps none.

    `shape` is that of another time.
    """
    shape = shape or table.shape
    if shape.layout not in HISTORIES:
        raise UsageError(
            "no-history",
            f"{shape.table} keeps no history (its layout is {shape.layout}).",
            "Read its rows with `current`.",
        )
    own = event_logs.own_columns(table) if shape.layout is Layout.ODF else None
    return History(shape, own=own)


def versions(store: Store, table: TableName, known_at: datetime | None = None) -> "DataFrame":
    """Every version: the user's columns, `valid_from`, and `valid_to`, which is NULL while it is true.

    With `known_at` as they were known then (native.md V93 and V94). Raises UsageError for a table that keeps
    no history, and what `read_rows_at` raises.
    """
    stored = existing(store, table)
    rows, shape = read_rows_at(store, stored, known_at)
    history = history_of(stored, shape)
    warn_of_disorder(table, disorderly=stored.disorderly)
    rows, started, ended = _lives(stored, rows, history, known_at)
    return rows.select(*users_of(history), started.alias(VALID_FROM), ended.alias(VALID_TO))


def open_rows(store: Store, stored: StoredTable) -> "DataFrame":
    """The rows of a history that are true now, with all columns of the table."""
    rows = store.spark.table(store.sql_name(stored.shape.table))
    names = rows.columns
    rows, _, ended = _lives(stored, rows, history_of(stored), None)
    return rows.where(ended.isNull()).select(*map(column, names))


def _lives(
    stored: StoredTable, rows: "DataFrame", history: History, known_at: datetime | None
) -> "tuple[DataFrame, Column, Column]":
    """The rows that are versions, from when and to when each was true (NULL: still)."""
    shape = history.shape
    if shape.layout is Layout.ODF:
        return event_logs.versions(rows, event_logs.system_columns(stored), shape)
    if shape.layout is Layout.VERSIONS:
        rows, ended = _native_versions(rows, known_at)
        return rows, column(VALID_FROM), ended
    if shape.layout.adopted:
        return _adopted(rows, shape)
    return with_ends(rows, history, _ENDED), column(history.span.start), column(_ENDED)


def warn_of_disorder(table: TableName, *, disorderly: bool) -> None:
    """Tell whoever reads a history that a sender spoilt."""
    if disorderly:
        log.warning(f"{table} has versions that overlap; at any time the one that began last is read")


def _native_versions(rows: "DataFrame", known_at: datetime | None) -> "tuple[DataFrame, Column]":
    """The native rows that are versions, and their ends: now, or as they were known (V5, V6).

    A statement that was taken back since is one of what was known then; a memory row is no version ever.
    """
    from pyspark.sql.functions import col

    if known_at is None:
        return rows.where(_LASTING), column(VALID_TO)
    moved, before = col(f"{MEMORY}.{ENDED_AT}"), col(f"{MEMORY}.{END_BEFORE}")
    ended = end_at(instant(micros_of(known_at)), column(VALID_TO), moved, before)
    return rows.where(_no_fact() & (ended.isNull() | (ended > column(VALID_FROM)))), ended


def end_at(known: "Column", end: "Column", moved: "Column", before: "Column") -> "Column":
    """The end of a native row as it was known: the one before it was last moved, or the one since (V6)."""
    from pyspark.sql.functions import when

    return when(moved > known, before).otherwise(end)


def recorded(store: Store, table: StoredTable) -> "DataFrame":
    """The rows of a native table that tell of versions: user's columns, `valid_from`, `valid_to`, three more.

    `TOLD_FROM` is when a row was told, `MOVED` when its end was last moved, `BEFORE` the end before that.
    """
    from pyspark.sql.functions import col

    rows = store.spark.table(store.sql_name(table.shape.table)).where(_no_fact())
    own = {
        VALID_FROM: column(VALID_FROM),
        VALID_TO: column(VALID_TO),
        TOLD_FROM: column(RECORDED_AT),
        MOVED: col(f"{MEMORY}.{ENDED_AT}"),
        BEFORE: col(f"{MEMORY}.{END_BEFORE}"),
    }
    return rows.select(*users_of(history_of(table)), *(told.alias(name) for name, told in own.items()))


def _no_fact() -> "Column":
    from pyspark.sql.functions import col, lit

    return ~col(f"{MEMORY}.{ROLE}").eqNullSafe(lit(str(Role.FACT)))


def _adopted(rows: "DataFrame", shape: Shape) -> "tuple[DataFrame, Column, Column]":
    """The versions of a table that another tool writes, whatever types its times have, and from when to when.

    Those that stand for a record that was not there are none.
    """
    from pyspark.sql.functions import coalesce, lit, lower, timestamp_micros, when

    span, tombstone = shape.layout.span, shape.layout.tombstone
    assert span is not None
    if tombstone in shape.names:
        rows = rows.where(lower(coalesce(column(tombstone).cast("string"), lit("false"))) != "true")
    kinds = {each.name: each.type.kind for each in shape.columns}
    start, end = (
        column(name) if kinds[name] is Kind.UTC_DATETIME else timestamp_micros(micros_in(rows, name))
        for name in (span.start, span.end)
    )
    return rows, start, when(end < instant(span.far or 0), end)


def users_of(history: History) -> "list[Column]":
    """The user's columns under the source's names."""
    return [column(each.name).alias(shown_name(each.source)) for each in history.user_columns]


def shown_key(shape: Shape) -> list[str]:
    """The key's columns as readers show them; none where one of them is not the user's."""
    users = {each.name: each for each in shape.user_columns}
    columns = [users.get(name) for name in shape.key]
    return [shown_name(each.source) for each in columns if each] if all(columns) else []


def ranking(shape: Shape, shown: Sequence[str]) -> list[str]:
    """The columns by which rows are told in order: the key's and the start, where they are shown."""
    return [name for name in dict.fromkeys([*shown_key(shape), VALID_FROM]) if name in shown]


def with_ends(rows: "DataFrame", history: History, name: str) -> "DataFrame":
    """The rows with a column that says until when each version was true, by its row and the next one's."""
    from pyspark.sql.functions import expr

    if history.shape.layout is not Layout.FIVETRAN_HISTORY:
        return rows.withColumn(name, column(history.span.end))
    rows = rows.withColumn(_FOLLOWING, expr(following_sql(history)))
    return rows.withColumn(name, expr(ended_sql(history, quoted(_FOLLOWING)))).drop(_FOLLOWING)


def following_sql(history: History) -> str:
    """When the next version of a record began, in words of Spark SQL."""
    start, key = quoted(history.span.start), history.shape.key
    parted = f"PARTITION BY {', '.join(map(quoted, key))} " if key else ""
    return f"lead({start}) OVER ({parted}ORDER BY {start})"


def ended_sql(history: History, following: str) -> str:
    """Until when a version was true (NULL: still) in words of Spark SQL; `following` is when the next began.

    A version that Fivetran brought whose successor starts before its end, or within a millisecond of it,
    reaches up to that start: at any instant at most one is true, that which began last. A deleted one ends
    at its `_fivetran_end`. Where the flag is NULL the end tells; a row with neither fails the query, for
    nothing does.
    """
    span, shape = history.span, history.shape
    end, flag = quoted(span.end), quoted(span.open)
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return end
    still = f"coalesce({flag}, false) OR coalesce({end} >= timestamp_micros({micros_of(TMAX)}), false)"
    neither = f"CAST(raise_error({text_literal(carry(endless(shape, span)))}) AS TIMESTAMP)"
    ended = f"CASE WHEN {still} THEN NULL WHEN {end} IS NULL THEN {neither} ELSE {end} END"
    reach = f"coalesce({ended}, timestamp_micros({micros_of(TMAX)})) + INTERVAL 1 MILLISECOND"
    return f"CASE WHEN {following} <= {reach} THEN {following} ELSE {ended} END"


def versions_sql(store: Store, stored: StoredTable) -> str:
    """Every version as a query of Spark SQL; UsageError for a table that keeps no history, or as events."""
    history = history_of(stored)
    shape = history.shape
    if shape.layout is Layout.ODF:
        raise UsageError(
            "no-view",
            f"{shape.table} is a log of events; its versions are computed, so it has no views.",
            "Read it with `current` and `as-of`.",
        )
    shown = [f"{quoted(each.name)} AS {quoted(shown_name(each.source))}" for each in history.user_columns]
    ends = {VALID_FROM: quoted(history.span.start), VALID_TO: ended_sql(history, following_sql(history))}
    shown += [f"{sql} AS {name}" for name, sql in ends.items()]
    versions_only = f" WHERE {_LASTING}" if shape.layout is Layout.VERSIONS else ""
    return f"SELECT {', '.join(shown)} FROM {store.sql_name(shape.table)}{versions_only}"  # noqa: S608 - quoted names


def endless(shape: Shape, span: Span) -> Refused:
    """The refusal of a history with a row that has no end and is not open."""
    return Refused(
        "no-end",
        f"A version in {shape.table} has no {span.end} and no {span.open}: so its end is unknown.",
        "Give such rows an end, or delete them, in the program that wrote them.",
    )
