"""A table at a recorded time, read by Spark. Each question is a query that Spark answers with a frame."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backstory.errors import UsageError
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.table import Shape, TableName
from backstory.model.types import Kind
from backstory.reading import lifetimes, questions
from backstory.reading.lifetimes import ANSWER, CHANGED, ENDED, SPARK, STARTED, RecordedRows
from backstory.reading.options import Comparison, shown_key_of
from backstory.reading.questions import HISTORIES, SIDE_COLUMNS, TIMES, KnownTable, Query
from backstory.reading.timelines import VersionRow
from backstory.spark.connect import arrow_parts, is_connect
from backstory.spark.versions import arrow_of, with_offsets
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, literal, quote, text_literal
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.iceberg.workers import error_text
from backstory.stores.metadata.values import rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_CHANGE, _OTHERWISE, _ROW, _WAS, _IS, _AWAY = map(lifetimes.internal_name, ANSWER)


@dataclass(frozen=True, slots=True)
class KnownFrames(KnownTable["DataFrame", "DataFrame"]):
    """A table at a recorded time in a session. `source` is Spark SQL for its rows."""

    stored: IcebergTable
    store: IcebergStore
    source: str

    def at(self, known_at: datetime | None) -> "KnownFrames":
        now = table_in_session(self.store, self.stored)
        if known_at is None:
            return now
        state, source = questions.state_at(self.stored, known_at), now.source
        if state.snapshot is None:
            source = f"(SELECT * FROM {source} LIMIT 0)"
        elif state.until is None:
            source = f"{source} VERSION AS OF {state.snapshot['snapshot-id']}"
        return replace(now, shape=state.shape, until=state.until, source=source)

    def unite(self, before: "DataFrame", after: "DataFrame") -> "DataFrame":
        from pyspark.sql.functions import lit

        one, other = (
            rows.withColumns({each: lit(each == side) for each in SIDE_COLUMNS})
            for rows, side in zip((before, after), SIDE_COLUMNS, strict=True)
        )
        return one.unionByName(other, allowMissingColumns=True)

    def differences(self, rows: "DataFrame", comparison: Comparison) -> "DataFrame":
        """The records whose rows differ in two states (native.md V96).

        `key` is a struct of the key's columns, or of all columns if readers show no key. `change` is added,
        changed or removed. `before` and `after` are structs of the user's columns, NULL if the record did not
        exist. `changed` contains the names of the columns that differ in a changed record. NULL equals NULL,
        and NaN equals NaN. `comparison.through` adds the column `away`, and records that are equal at both
        times. Their `change` is returned, reverted or passed.
        """
        from pyspark.sql.functions import array, array_compact, coalesce, lit, size, struct, when

        from backstory.strategies.frames import comparable

        key, types = questions.shown_key(self.shape), {each.name: each.dataType for each in rows.schema}
        hidden = {VALID_FROM, VALID_TO, STARTED, ENDED, *SIDE_COLUMNS}
        names = comparison.names(self.shape.table, key, [name for name in types if name not in hidden])
        timed = bool(self.system.get("events"))
        row = struct(*(_shown_value(name, types[name], unsigned=not key) for name in names))
        rows = rows.withColumn(_ROW, row).withColumnsRenamed({name: time for time, name in TIMES.items()})
        if comparison.through or not key:
            values = struct(*(comparable(column(name), types[name]).alias(name) for name in names))
            rows = rows.withColumn(lifetimes.internal_name("values"), values)
        records = query_frame(
            rows, lifetimes.differences_query(SPARK, key, through=comparison.through, timed=timed)
        )
        before, after = column(_WAS), column(_IS)

        def differs(name: str) -> "Column":
            one, other = (comparable(side[name], types[name]) for side in (before, after))
            return ~one.eqNullSafe(other)

        differing = (when(differs(name), lit(name)) for name in names if name not in key)
        changed = when(column(_CHANGE) == CHANGED, array_compact(array(*differing))).otherwise(array())
        same = (column(_CHANGE) == CHANGED) & (size(changed) == 0)
        whole = coalesce(before, after)
        change = when(same, column(_OTHERWISE)).otherwise(coalesce(column(_CHANGE), column(_OTHERWISE)))
        differences = records.select(
            (struct(*map(column, key)) if key else whole).alias("key"),
            change.alias("change"),
            before.alias("before"),
            after.alias("after"),
            changed.cast("array<string>").alias("changed"),
            *([column(_AWAY).alias("away")] if comparison.through else []),
        )
        kind = column("change")
        return differences.where(kind.isNotNull() if comparison.change is None else kind == comparison.change)

    def in_order(self, rows: "DataFrame") -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        first = questions.order_columns(self.stored.shape, rows.columns)
        with translate_faults(self.stored.shape.table):
            schema = arrow_of(rows.limit(0)).schema
        return schema, self._batches(rows.orderBy(*map(column, first)) if first else rows, schema)

    def _batches(self, rows: "DataFrame", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with at most one of Spark's partitions in memory at a time."""
        with translate_faults(self.stored.shape.table):
            if is_connect(rows.sparkSession):
                yield from (batch for part in arrow_parts(rows) for batch in part.cast(schema).to_batches())
                return
            parts = rows._jdf.toArrowBatchRdd().toJavaRDD().toLocalIterator()  # noqa: SLF001 - Python has no name for it
            while parts.hasNext():
                yield with_offsets(pa.ipc.read_record_batch(pa.py_buffer(bytes(parts.next())), schema))

    def values(self, rows: "DataFrame") -> Sequence[VersionRow]:
        with translate_faults(self.stored.shape.table):
            return rows_of(arrow_of(rows))

    def ask(self, query: Query, *more: str) -> "DataFrame":
        text = self.shown_sql(query, *more)
        with translate_faults(self.stored.shape.table):
            return self._only_record(self.store.spark.sql(text))

    def shown_sql(self, query: Query, *more: str) -> str:
        """A query in Spark SQL for the columns that readers see, and `more`."""
        listed = ", ".join(
            f"{quote(name)} AS {quote(shown)}" for shown, name in self.shown_names(*more).items()
        )
        return f"SELECT {listed} FROM ({query(self.spark_rows)}) AS versions"

    @property
    def spark_rows(self) -> RecordedRows:
        """The rows for queries in Spark SQL."""
        syntax, span = replace(SPARK, rows=self.source), self.shape.layout.span
        if span is not None:
            error = text_literal(error_text(questions.no_end_error(self.shape, span)))
            syntax = replace(syntax, endless=f"CAST(raise_error({error}) AS TIMESTAMP_LTZ)")
        # The key columns keep their names, so that Spark pushes a filter on them below the window functions.
        return self.recorded_rows(syntax)

    def _only_record(self, rows: "DataFrame") -> "DataFrame":
        """The rows of the selected record. Spark reads only files that may contain it."""
        if self.selection.key is None:
            return rows
        values = shown_key_of(self.shape, self.selection.key)
        return rows.where(_equal(values, {name: rows.schema[name].dataType for name in values}))


def _shown_value(name: str, type_: "DataType", *, unsigned: bool) -> "Column":
    """The value shown to readers.

    `unsigned` replaces -0.0 with 0.0, because one row then represents all its copies.
    """
    from pyspark.sql.functions import lit
    from pyspark.sql.types import DoubleType, FloatType

    value = column(name)
    signed = unsigned and isinstance(type_, DoubleType | FloatType)
    return (value + lit(0.0).cast(type_) if signed else value).alias(name)


def table_in_session(store: IcebergStore, table: TableName | IcebergTable) -> KnownFrames:
    """A table in its current state. Raises UsageError if it does not exist."""
    stored = existing(store, table) if isinstance(table, TableName) else table
    return KnownFrames(stored, stored.shape, None, store, store.sql_name(stored.shape.table))


def versions_sql(store: IcebergStore, stored: IcebergTable) -> str:
    """The query in Spark SQL for every version of a table.

    Raises UsageError for a table without a history, and for an event log.
    """
    known = table_in_session(store, stored)
    known.require_history()
    if stored.shape.layout is Layout.ODF:
        raise UsageError(
            "no-view",
            f"{stored.shape.table} is a log of events; its versions are computed, so it has no views.",
            "Read it with `current` and `as-of`.",
        )
    return known.shown_sql(RecordedRows.versions, *TIMES)


def query_frame(rows: "DataFrame", query: str) -> "DataFrame":
    """Spark's answer to a query on the relation `recorded`, which is `rows`."""
    return query_frames(query, **{SPARK.rows: rows})


def query_frames(query: str, **frames: Any) -> "DataFrame":
    """Spark's answer to a query on these frames."""
    text = query.replace("{", "{{").replace("}", "}}")
    for name in frames:
        text = re.sub(rf"\b(FROM|JOIN) {name}\b", rf"\1 {{{name}}} AS {name}", text)
    session: SparkSession = next(iter(frames.values())).sparkSession
    return session.sql(text, **frames)


def frame_instant(rows: "DataFrame", name: str) -> str:
    """Spark SQL for the instant in a column of the relation `frame`, which has dates or timestamps."""
    from pyspark.sql.types import DateType

    is_date = isinstance(rows.schema[name].dataType, DateType)
    return SPARK.read_instant(quote("frame", name), Kind.NAIVE_DATE if is_date else None)


def is_record(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """Whether a row belongs to the record with this key (from `key_of`). The result is never NULL."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(_equal(key, types), lit(False))


def _equal(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """The plain comparison with the key, by which Iceberg prunes files. It is NULL if the key has a NULL."""
    return reduce(and_, (column(name) == literal(value).cast(types[name]) for name, value in key.items()))


def sortable_columns(rows: "DataFrame", first: Sequence[str]) -> "list[Column]":
    """The columns to sort a frame by: `first`, then all others, except columns that contain maps."""
    names = [*first, *(name for name in rows.columns if name not in first)]
    return [column(name) for name in names if "map<" not in rows.schema[name].dataType.simpleString()]


def all_are_current(shape: Shape) -> bool:
    """Whether all rows of a table are true now."""
    marks = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    return not marks and shape.layout not in HISTORIES


def current_table_rows(store: IcebergStore, stored: IcebergTable) -> "DataFrame":
    """The rows of a table that are true now, with all columns."""
    columns = store.spark.table(store.sql_name(stored.shape.table)).columns
    rows = table_in_session(store, stored).spark_rows
    query = rows.true_versions(None) if stored.shape.layout in HISTORIES else rows.live_rows()
    return store.spark.sql(query).select(*map(column, columns))
