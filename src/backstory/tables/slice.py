"""Read the part of a table that a delivery can touch, and nothing else."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backstory.files.delivered import arrow_schema
from backstory.model.column import ACTIVE, END, START
from backstory.tables.faults import translated
from backstory.tables.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Iceberg prunes files and row groups by lists of up to 200 values.
LISTED_KEYS = 200
PLACE = pa.schema([pa.field("_file", pa.string()), pa.field("_pos", pa.int64())])


def table_schema(table: StoredTable) -> pa.Schema:
    """The Arrow schema of a table's columns."""
    return arrow_schema({column.name: column.type for column in table.shape.columns})


def read_slice(store: Store, table: StoredTable, keys: pa.Table, since: int | None = None) -> pa.Table:
    """The rows of these keys, with `_file` and `_pos`.

    `keys` has the key's columns and may repeat keys. With `since`, in microseconds, versions that
    were closed before it are left out: those that are inactive, end more than a millisecond before
    it and do not start at or after it.
    """
    schema = pa.schema([*table_schema(table), *PLACE])
    if not table.rows or not keys.num_rows:
        return schema.empty_table()
    with translated(table.shape.table):
        frame = store.spark.table(store.sql_name(table.shape.table))
        if since is not None:
            frame = frame.where(_may_be_touched(since))
        frame = _with_keys(store, frame, keys)
        names = [_quoted(name) for name in schema.names]
        return frame.select(*names).toArrow().cast(schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _may_be_touched(since: int) -> "Column":
    from pyspark.sql.functions import col, lit

    first = datetime(1970, 1, 1, tzinfo=UTC)
    instant = first + timedelta(microseconds=since)
    before = instant - timedelta(milliseconds=1) if instant > first.replace(year=2) else instant
    return col(ACTIVE) | (col(END) >= lit(before)) | (col(START) >= lit(instant))


def _with_keys(store: Store, frame: "DataFrame", keys: pa.Table) -> "DataFrame":
    """Rows whose key may be among these: a list that Iceberg prunes by, or a range and a join."""
    from pyspark.sql.functions import broadcast, col

    distinct = keys.group_by(keys.column_names).aggregate([])
    has_null = any(column.null_count for column in distinct.columns)
    if distinct.num_rows <= LISTED_KEYS and not has_null:
        for name in distinct.column_names:
            frame = frame.where(col(_quoted(name)).isin(pc.unique(distinct[name]).to_pylist()))
        return frame
    if not has_null:
        frame = _in_range(frame, distinct)
    wanted = store.spark.createDataFrame(distinct)
    wanted = wanted.toDF(*(f"_key_{place}" for place in range(distinct.num_columns)))
    match = None
    for place, name in enumerate(distinct.column_names):
        left, right = col(_quoted(name)), col(f"_key_{place}")
        equal = left.eqNullSafe(right) if distinct[name].null_count else left == right
        match = equal if match is None else match & equal
    if distinct.nbytes < BROADCAST:
        wanted = broadcast(wanted)
    return frame.join(wanted, match, "left_semi")


BROADCAST = 64 << 20


def _in_range(frame: "DataFrame", keys: pa.Table) -> "DataFrame":
    from pyspark.sql.functions import col

    for name in keys.column_names:
        if pa.types.is_binary(keys[name].type) or pa.types.is_boolean(keys[name].type):
            continue
        least_and_greatest = pc.min_max(keys[name]).as_py()
        frame = frame.where(col(_quoted(name)).between(least_and_greatest["min"], least_and_greatest["max"]))
    return frame
