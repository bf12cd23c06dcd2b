"""The versions that a table keeps: the user's columns of each, and from when to when it was true.

The rows of one record.

Statements: each version as a table stated it, from one recorded time to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import structlog

from backstory.errors import Refused, UsageError
from backstory.model.history import History
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout, Span
from backstory.model.table import Shape, TableName
from backstory.model.versions_layout import END_BEFORE, ENDED_AT, RECORDED, ROLE, Role
from backstory.reading.histories import (
    identity_names,
    instant_sql,
    log_kind,
    op_sql,
    own_columns,
    source_at,
    system_columns,
)
from backstory.reading.lifetimes import (
    ENDED,
    KNOWN_FROM,
    KNOWN_TO,
    SPARK,
    STARTED,
    internal_name,
    statements_query,
    versions_query,
)
from backstory.reading.lives import STATED_FROM, STATED_TO, shown_name
from backstory.reading.selection import shown_key_of
from backstory.stores.iceberg.literals import column, literal, micros_of, quote, text_literal
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.iceberg.workers import error_text
from backstory.stores.port import TableLike

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def is_record(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """Whether a row is of the record with these values, as `key_of` reads them; never NULL."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(_equal(key, types), lit(False))


def _equal(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """The same, NULL where a row has no value: so Iceberg knows which files cannot hold the record."""
    return reduce(and_, (column(name) == literal(value).cast(types[name]) for name, value in key.items()))


def record_rows(rows: "DataFrame", shape: Shape, key: object) -> "DataFrame":
    """The rows, as readers show them, of one record; UsageError for what is no key of the table."""
    wanted = shown_key_of(shape, key)
    return rows.where(_equal(wanted, {name: rows.schema[name].dataType for name in wanted}))


def sortable_columns(rows: "DataFrame", first: Sequence[str]) -> "list[Column]":
    """These columns and then all others by which Spark can sort the rows of a frame."""
    names = [*first, *(name for name in rows.columns if name not in first)]
    return [column(name) for name in names if "map<" not in rows.schema[name].dataType.simpleString()]


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = structlog.get_logger()

MOVED: Final = "backstory: moved"
BEFORE: Final = "backstory: before"
# Where a commit says when it was recorded what it told.
RECORDING: Final = {Layout.VERSIONS: RECORDED, Layout.ODF: "backstory.odf.system-time"}
HISTORIES: Final = (Layout.ODF, *(each for each in Layout if each.span is not None))


def history_of(table: TableLike, shape: Shape | None = None) -> History:
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
    own = own_columns(table) if shape.layout is Layout.ODF else None
    return History(shape, own=own)


def versions(store: Store, table: TableName, known_at: datetime | None = None) -> "DataFrame":
    """Every version: the user's columns, `valid_from`, and `valid_to`, which is NULL while it is true.

    With `known_at` as they were known then (native.md V93 and V94). Raises UsageError for a table that keeps
    no history, and what `source_at` raises.
    """
    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    history = history_of(stored, shape)
    warn_of_disorder(table, disorderly=stored.disorderly)
    return store.spark.sql(_versions_sql(stored, history, source, known_at))


def open_rows(store: Store, stored: StoredTable) -> "DataFrame":
    """The rows of a history that are true now, with all columns of the table."""
    source = store.sql_name(stored.shape.table)
    query = lifetimes_sql(stored, history_of(stored), source)
    names = ", ".join(map(quote, store.spark.table(source).columns))
    return store.spark.sql(f"SELECT {names} FROM ({query}) AS lives WHERE {quote(ENDED)} IS NULL")  # noqa: S608


def lifetimes_sql(
    stored: StoredTable,
    history: History,
    source: str,
    known_at: datetime | None = None,
    *,
    stated: bool = False,
) -> str:
    """The query of Spark SQL for the versions among the rows of a source, or with `stated` for statements."""
    shape, span = history.shape, history.shape.layout.span
    log = log_kind(system_columns(stored), shape) if shape.layout is Layout.ODF else None
    # By its own name of a column Spark knows that a filter on it holds for all rows of a record.
    key = shape.key if log is None else identity_names(system_columns(stored), shape)
    words = replace(SPARK, rows=recorded_rows(stored, shape, source))
    if span is not None:
        error = text_literal(error_text(no_end_error(shape, span)))
        words = replace(words, endless=f"CAST(raise_error({error}) AS TIMESTAMP_LTZ)")
    if stated:
        return statements_query(words, key, log)
    until = None if known_at is None else micros_of(known_at)
    return versions_query(words, shape.layout, key, log, until)


def recorded_rows(stored: StoredTable, shape: Shape, source: str) -> str:
    """The relation of a source's rows with all that the layout records of each, in Spark SQL."""
    columns = ", ".join(f"{sql} AS {quote(name)}" for name, sql in recorded_columns(stored, shape).items())
    return f"(SELECT *, {columns} FROM {source}) AS recorded"  # noqa: S608 - quoted names


def recorded_columns(stored: StoredTable, shape: Shape) -> dict[str, str]:
    """What the layout records of each row: the SQL of columns by their names in `reading/lifetimes.py`."""
    span = shape.layout.span
    if shape.layout is Layout.ODF:
        names = system_columns(stored)
        return {
            internal_name("offset"): quote(names["offset"]),
            internal_name("op"): op_sql(names),
            internal_name("time"): instant_sql(shape, names["event_time"]),
            internal_name("recorded"): instant_sql(shape, names["system_time"]),
        }
    assert span is not None
    spans = {internal_name("start"): quote(span.start), internal_name("end"): quote(span.end)}
    if shape.layout is Layout.VERSIONS:
        memory = {"role": ROLE, "moved": ENDED_AT, "end_before": END_BEFORE}
        own = {internal_name(name): f"{quote(MEMORY)}.{quote(field)}" for name, field in memory.items()}
        return {**spans, internal_name("recorded"): quote(RECORDED_AT), **own}
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return {**spans, internal_name("flag"): quote(span.open)}
    if not shape.layout.is_adopted:
        return spans
    tombstone = shape.layout.tombstone
    gone = f"lower(coalesce(CAST({quote(tombstone)} AS STRING), 'false')) = 'true'"
    return {
        internal_name("start"): instant_sql(shape, span.start),
        internal_name("end"): instant_sql(shape, span.end),
        internal_name("gone"): gone if tombstone in shape.names else "FALSE",
    }


def _versions_sql(
    stored: StoredTable, history: History, source: str, known_at: datetime | None = None
) -> str:
    query = lifetimes_sql(stored, history, source, known_at)
    times = {VALID_FROM: STARTED, VALID_TO: ENDED}
    return f"SELECT {shown_sql(history, times)} FROM ({query}) AS versions"  # noqa: S608 - quoted names


def shown_sql(history: History, times: Mapping[str, str]) -> str:
    """The user's columns under the source's names, and times of a query of lifetimes by readers' names."""
    names = {shown_name(each.source): each.name for each in history.user_columns}
    return ", ".join(f"{quote(name)} AS {quote(shown)}" for shown, name in [*names.items(), *times.items()])


def warn_of_disorder(table: TableName, *, disorderly: bool) -> None:
    """Tell whoever reads a history that a sender spoilt."""
    if disorderly:
        log.warning(f"{table} has versions that overlap; at any time the one that began last is read")


def end_at(known: "Column", end: "Column", moved: "Column", before: "Column") -> "Column":
    """The end of a native row as it was known: the one before it was last moved, or the one since (V6)."""
    from pyspark.sql.functions import when

    return when(moved > known, before).otherwise(end)


def native_rows(store: Store, table: StoredTable) -> "DataFrame":
    """The rows of a native table that tell of versions: user's columns, `valid_from`, `valid_to`, three more.

    `TOLD_FROM` is when a row was told, `MOVED` when its end was last moved, `BEFORE` the end before that.
    """
    from pyspark.sql.functions import col

    rows = store.spark.table(store.sql_name(table.shape.table)).where(_no_fact())
    own = {
        VALID_FROM: column(VALID_FROM),
        VALID_TO: column(VALID_TO),
        STATED_FROM: column(RECORDED_AT),
        MOVED: col(f"{MEMORY}.{ENDED_AT}"),
        BEFORE: col(f"{MEMORY}.{END_BEFORE}"),
    }
    return rows.select(*user_columns(history_of(table)), *(told.alias(name) for name, told in own.items()))


def _no_fact() -> "Column":
    from pyspark.sql.functions import col, lit

    return ~col(f"{MEMORY}.{ROLE}").eqNullSafe(lit(str(Role.FACT)))


def user_columns(history: History) -> "list[Column]":
    """The user's columns under the source's names."""
    return [column(each.name).alias(shown_name(each.source)) for each in history.user_columns]


def shown_key(shape: Shape) -> list[str]:
    """The key's columns as readers show them; none where one of them is not the user's."""
    users = {each.name: each for each in shape.user_columns}
    columns = [users.get(name) for name in shape.key]
    return [shown_name(each.source) for each in columns if each] if all(columns) else []


def order_columns(shape: Shape, shown: Sequence[str]) -> list[str]:
    """The columns by which rows are told in order: the key's and the start, where they are shown."""
    return [name for name in dict.fromkeys([*shown_key(shape), VALID_FROM]) if name in shown]


def versions_sql(store: Store, stored: StoredTable) -> str:
    """Every version as a query of Spark SQL; UsageError for a table that keeps no history, or as events."""
    history = history_of(stored)
    if stored.shape.layout is Layout.ODF:
        raise UsageError(
            "no-view",
            f"{stored.shape.table} is a log of events; its versions are computed, so it has no views.",
            "Read it with `current` and `as-of`.",
        )
    return _versions_sql(stored, history, store.sql_name(stored.shape.table))


def no_end_error(shape: Shape, span: Span) -> Refused:
    """The refusal of a history with a row that has no end and is not open."""
    return Refused(
        "no-end",
        f"A version in {shape.table} has no {span.end} and no {span.open}: so its end is unknown.",
        "Give such rows an end, or delete them, in the program that wrote them.",
    )


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def statements(store: Store, table: TableName, key: object = None) -> "DataFrame":
    """The statements of a record, or of every one: user's columns, `valid_from`, `valid_to` and two more.

    `TOLD_FROM` and `TOLD_TO` are the recorded times of a statement (native.md V97; NULL: still). Layout
    `versions` has them in its rows (V6), an event log in its system time. Other layouts give the versions as
    they are known now, and NULL. Raises UsageError for a key that the table does not have.
    """
    from pyspark.sql.functions import lit

    stored = existing(store, table)
    if stored.shape.layout in RECORDING:
        history = history_of(stored)
        query = lifetimes_sql(stored, history, store.sql_name(table), stated=True)
        times = {VALID_FROM: STARTED, VALID_TO: ENDED, STATED_FROM: KNOWN_FROM, STATED_TO: KNOWN_TO}
        rows = store.spark.sql(f"SELECT {shown_sql(history, times)} FROM ({query}) AS stated")  # noqa: S608
    else:
        unknown = lit(None).cast("timestamp")
        rows = versions(store, table).withColumns({STATED_FROM: unknown, STATED_TO: unknown})
    return rows if key is None else record_rows(rows, stored.shape, key)
