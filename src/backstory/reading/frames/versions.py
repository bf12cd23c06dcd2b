"""Versions, statements, rows at a time, lives and differences of a table as Spark frames."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import UsageError
from backstory.model.history import History
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName
from backstory.model.types import Kind
from backstory.reading.differences import (
    ANSWER,
    CHANGED,
    SIDES,
    differences_query,
    moves_query,
    revisions_query,
)
from backstory.reading.histories import (
    HISTORIES,
    RECORDING,
    commits_by_recorded_time,
    history_of,
    identity_names,
    log_kind,
    no_end_error,
    require_knowledge,
    shown_key,
    state_at,
    system_columns,
    warn_of_disorder,
)
from backstory.reading.lifetimes import (
    ENDED,
    NO_FACT,
    SPARK,
    STARTED,
    STATED_FROM,
    STATED_TO,
    internal_name,
    recorded_columns,
    statements_query,
    true_query,
    versions_query,
)
from backstory.reading.lives import shown_name
from backstory.reading.selection import ENDS, EVERYTHING, Comparison, Selection, shown_key_of
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, literal, micros_of, quote, text_literal
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.iceberg.workers import error_text
from backstory.stores.metadata.catalogs import metadata_of
from backstory.stores.metadata.values import rows_of
from backstory.strategies.frames import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

# Columns of `native_rows`: when a row was recorded, when its end was last moved, and the end before that.
NATIVE: Final = tuple(map(internal_name, ("recorded", "moved", "end_before")))


def source_at(store: IcebergStore, table: IcebergTable, known_at: datetime | None) -> tuple[str, Shape]:
    """The rows to read for a recorded time, in Spark SQL, and their shape, by `state_at`."""
    name = store.sql_name(table.shape.table)
    if known_at is None:
        return name, table.shape
    state = state_at(metadata_of(store, table), known_at)
    if state.until is not None:
        return name, table.shape
    if state.snapshot is None:
        return f"(SELECT * FROM {name} LIMIT 0)", table.shape  # noqa: S608 - a name in quotes
    return f"{name} VERSION AS OF {state.snapshot['snapshot-id']}", state.shape


def versions(store: IcebergStore, table: TableName, known_at: datetime | None = None) -> "DataFrame":
    """Every version: the user's columns, `valid_from`, and `valid_to`, which is NULL while it is true.

    `known_at` gives the versions as they were known then (native.md V93 and V94). Raises UsageError if the
    table keeps no history, and the errors of `source_at`.
    """
    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    history = history_of(stored, shape)
    warn_of_disorder(table, disorderly=stored.disorderly)
    return store.spark.sql(shown_sql(history, lifetimes_sql(stored, history, source, known_at)))


def statements(store: IcebergStore, table: TableName) -> "DataFrame":
    """The statements of all records: the user's columns, `valid_from`, `valid_to` and two more.

    `STATED_FROM` and `STATED_TO` are the recorded times of a statement (native.md V97; NULL: still stated).
    Layout `versions` stores them in its rows (V6), an event log in its system time. For other layouts they
    are NULL, and the versions are those known now.
    """
    from pyspark.sql.functions import lit

    stored = existing(store, table)
    if stored.shape.layout in RECORDING:
        history = history_of(stored)
        query = lifetimes_sql(stored, history, store.sql_name(table), stated=True)
        return store.spark.sql(shown_sql(history, query, STATED_FROM, STATED_TO))
    unknown = lit(None).cast("timestamp")
    return versions(store, table).withColumns({STATED_FROM: unknown, STATED_TO: unknown})


def versions_sql(store: IcebergStore, stored: IcebergTable) -> str:
    """Every version as a query of Spark SQL; UsageError for a table without a history, or an event log."""
    history = history_of(stored)
    if stored.shape.layout is Layout.ODF:
        raise UsageError(
            "no-view",
            f"{stored.shape.table} is a log of events; its versions are computed, so it has no views.",
            "Read it with `current` and `as-of`.",
        )
    return shown_sql(history, lifetimes_sql(stored, history, store.sql_name(stored.shape.table)))


def lifetimes_sql(
    stored: IcebergTable,
    history: History,
    source: str,
    known_at: datetime | None = None,
    *,
    stated: bool = False,
) -> str:
    """The Spark SQL query for the versions in the rows of `source`; with `stated`, for the statements."""
    shape, span = history.shape, history.shape.layout.span
    log = log_kind(system_columns(stored), shape) if shape.layout is Layout.ODF else None
    # The key columns keep their names, so that Spark pushes a filter on them below the window functions.
    key = shape.key if log is None else identity_names(system_columns(stored), shape)
    syntax = replace(SPARK, rows=recorded_rows(stored, shape, source))
    if span is not None:
        error = text_literal(error_text(no_end_error(shape, span)))
        syntax = replace(syntax, endless=f"CAST(raise_error({error}) AS TIMESTAMP_LTZ)")
    if stated:
        return statements_query(syntax, key, log)
    until = None if known_at is None else micros_of(known_at)
    return versions_query(syntax, shape.layout, key, log, until)


def recorded_rows(stored: IcebergTable, shape: Shape, source: str) -> str:
    """The rows of `source` with the columns of `recorded_columns`, as a relation in Spark SQL."""
    names = system_columns(stored) if shape.layout is Layout.ODF else {}
    columns = recorded_columns(SPARK, shape, quote, names)
    return f"(SELECT *, {columns} FROM {source}) AS recorded"  # noqa: S608 - quoted names


def query_frame(rows: "DataFrame", query: str) -> "DataFrame":
    """Spark's answer to a query of the relation `recorded`, which is `rows`."""
    return query_frames(query, **{SPARK.rows: rows})


def query_frames(query: str, **frames: Any) -> "DataFrame":
    """Spark's answer to a query of these frames."""
    text = query.replace("{", "{{").replace("}", "}}")
    for name in frames:
        text = re.sub(rf"\b(FROM|JOIN) {name}\b", rf"\1 {{{name}}} AS {name}", text)
    session: SparkSession = next(iter(frames.values())).sparkSession
    return session.sql(text, **frames)


def shown_sql(history: History, query: str, *more: str, timed: bool = True) -> str:
    """The query for the columns that readers show: the user's, the times if `timed`, and `more`."""
    names = {shown_name(each.source): each.name for each in history.user_columns}
    names |= ({VALID_FROM: STARTED, VALID_TO: ENDED} if timed else {}) | dict(zip(more, more, strict=True))
    listed = ", ".join(f"{quote(name)} AS {quote(shown)}" for shown, name in names.items())
    return f"SELECT {listed} FROM ({query}) AS versions"  # noqa: S608 - quoted names


def native_rows(store: IcebergStore, table: IcebergTable) -> "DataFrame":
    """The rows of layout `versions` without facts, with the times of `NATIVE`: two ends each (V6)."""
    rows = recorded_rows(table, table.shape, store.sql_name(table.shape.table))
    text = f"SELECT *, {{start}} AS {{started}}, {{end}} AS {{ended}} FROM {{rows}} WHERE {NO_FACT}"  # noqa: S608
    query = replace(SPARK, rows=rows).fill(text)
    return store.spark.sql(shown_sql(history_of(table), query, *NATIVE))


def frame_instant(rows: "DataFrame", name: str) -> str:
    """The instant in a column of the frame `frame`, which is a date or a timestamp, in Spark SQL."""
    from pyspark.sql.types import DateType

    is_date = isinstance(rows.schema[name].dataType, DateType)
    return SPARK.read_instant(quote("frame", name), Kind.NAIVE_DATE if is_date else None)


def record_rows(rows: "DataFrame", shape: Shape, key: object) -> "DataFrame":
    """Filter rows, in the columns that readers show, by a key; UsageError if it is not a key of the table."""
    values = shown_key_of(shape, key)
    return rows.where(_equal(values, {name: rows.schema[name].dataType for name in values}))


def is_record(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """Whether a row belongs to the record with this key, in the values that `key_of` gives; never NULL."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(_equal(key, types), lit(False))


def _equal(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """The plain comparison, NULL for a NULL in the key: Iceberg prunes files by it."""
    return reduce(and_, (column(name) == literal(value).cast(types[name]) for name, value in key.items()))


def sortable_columns(rows: "DataFrame", first: Sequence[str]) -> "list[Column]":
    """The columns to sort a frame by: `first`, then all others; without columns that contain maps."""
    names = [*first, *(name for name in rows.columns if name not in first)]
    return [column(name) for name in names if "map<" not in rows.schema[name].dataType.simpleString()]


def rows_at(
    store: IcebergStore,
    table: TableName,
    time: datetime | None = None,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
) -> "DataFrame":
    """The rows that are true at an instant, by default now: the user's columns, and the times of a history.

    `known_at` gives the rows as they were known then. Intervals are half-open (V99). Raises UsageError for an
    instant if the table keeps no history, and the errors of `source_at`.
    """
    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    if time is not None or shape.layout in HISTORIES:
        history, instant = history_of(stored, shape), None if time is None else micros_of(time)
        warn_of_disorder(table, disorderly=stored.disorderly)
        query = true_query(SPARK, lifetimes_sql(stored, history, source, known_at), instant)
        rows = store.spark.sql(shown_sql(history, query))
    else:
        users = (column(each.name).alias(each.source) for each in shape.user_columns)
        live = store.spark.sql(f"SELECT * FROM {source}")  # noqa: S608 - a table's name in quotes
        rows = _not_deleted(live, shape).select(*users)
    if selection.key is not None:  # Spark reads only files that may contain the record
        rows = record_rows(rows, shape, selection.key)
    return rows.select(*map(column, selection.select(table, shown_key(shape), rows.columns)))


def all_are_current(shape: Shape) -> bool:
    """Whether all rows of a table are true now."""
    marks = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    return not marks and shape.layout not in HISTORIES


def current_table_rows(store: IcebergStore, stored: IcebergTable) -> "DataFrame":
    """The rows of a table that are true now, with all columns."""
    source = store.sql_name(stored.shape.table)
    rows = store.spark.table(source)
    if stored.shape.layout not in HISTORIES:
        return _not_deleted(rows, stored.shape)
    query = true_query(SPARK, lifetimes_sql(stored, history_of(stored), source), None)
    return store.spark.sql(query).select(*map(column, rows.columns))


def _not_deleted(rows: "DataFrame", shape: Shape) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    if shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED):
        return rows.where(~col(DELETED).eqNullSafe(lit(True)))
    return rows


def life(
    store: IcebergStore,
    table: TableName,
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's life as known now or at `known_at`; on `axis` both, all statements ever made.

    With `columns` it has only these and the key. Raises UsageError for another key and for a table that keeps
    no history, and the errors of `source_at`.
    """
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout in RECORDING:
        if known_at is not None:
            require_knowledge(stored, known_at)
        rows = statements(store, table)
    else:
        rows, shape = versions(store, table, known_at), source_at(store, stored, known_at)[1]
    rows, shown_key = record_rows(rows, shape, key), shown_key_of(shape, key)
    names = Selection(columns=columns).select(table, list(shown_key), rows.columns)
    with translate_faults(table):
        life_rows = rows_of(arrow_of(rows.select(*map(column, names))))
    commits = commits_by_recorded_time(metadata_of(store, stored))
    return timeline_of(table, shown_key, life_rows, commits, axis, known_at)


_TIMES: Final = {VALID_FROM: STARTED, VALID_TO: ENDED}
_SIDES: Final = tuple(map(internal_name, SIDES))
_CHANGE, _OTHERWISE, _ROW, _WAS, _IS, _AWAY = map(internal_name, ANSWER)


def diff(
    store: IcebergStore,
    table: TableName,
    first: datetime,
    second: datetime,
    known_at: datetime | None = None,
    comparison: Comparison = ENDS,
) -> "DataFrame":
    """The records that differ between two instants, as known now or at `known_at` (native.md V96).

    `key` is a struct of the key's columns, or of all columns if readers show no key. `change` is added,
    changed or removed. `before` and `after` are structs of the user's columns, NULL if the record did not
    exist. `changed` has the names of the columns that differ in a changed record, with NULL and NaN equal to
    themselves. With `comparison.through` there are also records that are equal at both times, whose `change`
    is returned, reverted or passed, and the column `away`. Raises the errors of `versions`.
    """
    stored = existing(store, table)
    source, shape = source_at(store, stored, known_at)
    history = history_of(stored, shape)
    between = micros_of(first), micros_of(second)
    moves = moves_query(
        SPARK, lifetimes_sql(stored, history, source, known_at), between, through=comparison.through
    )
    return _differences(store.spark.sql(shown_sql(history, moves, *_SIDES)), stored, comparison)


def diff_knowledge(
    store: IcebergStore,
    table: TableName,
    first: datetime,
    second: datetime,
    time: datetime,
    comparison: Comparison = ENDS,
) -> "DataFrame":
    """The records whose state at one instant differs between two known times (V96), in the columns of `diff`.

    A table without a history is compared as it was at both times.
    """
    stored = existing(store, table)
    if stored.shape.layout is Layout.VERSIONS:
        for known_at in (first, second):
            require_knowledge(stored, known_at)
        syntax = replace(SPARK, rows=recorded_rows(stored, stored.shape, store.sql_name(table)))
        rows = revisions_query(syntax, micros_of(time), (micros_of(first), micros_of(second)))
        shown = shown_sql(history_of(stored), rows, *_SIDES, timed=False)
        return _differences(store.spark.sql(shown), stored, comparison)
    from pyspark.sql.functions import lit

    pair = []
    for known_at, side in ((first, "before"), (second, "after")):
        lasting = source_at(store, stored, known_at)[1].layout in HISTORIES
        state = rows_at(store, table, time if lasting else None, known_at)
        pair.append(state.withColumns({internal_name(each): lit(each == side) for each in SIDES}))
    return _differences(pair[0].unionByName(pair[1], allowMissingColumns=True), stored, comparison)


def _differences(sides: "DataFrame", stored: IcebergTable, comparison: Comparison) -> "DataFrame":
    """The records whose rows before and after differ, by `differences_query`."""
    from pyspark.sql.functions import array, array_compact, coalesce, lit, size, struct, when

    key, types = shown_key(stored.shape), {each.name: each.dataType for each in sides.schema}
    hidden = {VALID_FROM, VALID_TO, STARTED, ENDED, *_SIDES}
    names = comparison.names(stored.shape.table, key, [name for name in types if name not in hidden])
    timed = stored.shape.layout is Layout.ODF and bool(system_columns(stored)["events"])
    row = struct(*(_shown_value(name, types[name], unsigned=not key) for name in names))
    rows = sides.withColumn(_ROW, row).withColumnsRenamed(_TIMES)
    if comparison.through or not key:
        values = struct(*(comparable(column(name), types[name]).alias(name) for name in names))
        rows = rows.withColumn(internal_name("values"), values)
    records = query_frame(rows, differences_query(SPARK, key, through=comparison.through, timed=timed))
    before, after = column(_WAS), column(_IS)
    differing = (when(_values_differ(name, types[name]), lit(name)) for name in names if name not in key)
    changed = when(column(_CHANGE) == CHANGED, array_compact(array(*differing))).otherwise(array())
    same = (column(_CHANGE) == CHANGED) & (size(changed) == 0)
    whole = coalesce(before, after)
    differences = records.select(
        (struct(*map(column, key)) if key else whole).alias("key"),
        when(same, column(_OTHERWISE))
        .otherwise(coalesce(column(_CHANGE), column(_OTHERWISE)))
        .alias("change"),
        before.alias("before"),
        after.alias("after"),
        changed.cast("array<string>").alias("changed"),
        *([column(_AWAY).alias("away")] if comparison.through else []),
    )
    return comparison.filter_kind(differences.where(column("change").isNotNull()))


def _shown_value(name: str, type_: "DataType", *, unsigned: bool) -> "Column":
    """A value as it is shown; `unsigned` replaces -0.0, where one row represents its copies."""
    from pyspark.sql.functions import lit
    from pyspark.sql.types import DoubleType, FloatType

    value = column(name)
    signed = unsigned and isinstance(type_, DoubleType | FloatType)
    return (value + lit(0.0).cast(type_) if signed else value).alias(name)


def _values_differ(name: str, type_: "DataType") -> "Column":
    before, after = (comparable(column(side)[name], type_) for side in (_WAS, _IS))
    return ~before.eqNullSafe(after)
