"""Read the part of a table that a delivery can touch, and nothing else."""

import uuid
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import arrow_schema
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, END, START
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.lineage import keeps_row_ids
from backstory.stores.iceberg.literals import column, instant, literals, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE
from backstory.stores.iceberg.local_slice import slice_here
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Iceberg prunes files and row groups by lists of up to 200 values.
LISTED_KEYS = 200
BROADCAST = 64 << 20
# Types whose values are looked for within no bounds: NaN lies within none.
UNBOUNDED = (pa.types.is_binary, pa.types.is_boolean, pa.types.is_floating)
# Keys of other types are not asked for where there are many rows.
SEARCHED = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)
PLACE = pa.schema([pa.field(FILE, pa.string()), pa.field(POSITION, pa.int64())])


def table_schema(table: StoredTable) -> pa.Schema:
    """The Arrow schema of a table's columns."""
    return arrow_schema({column.name: column.type for column in table.shape.columns})


def read_slice(store: Store, table: StoredTable, keys: pa.Table, since: int | None = None) -> pa.Table:
    """The rows of these keys, with `_file`, `_pos` and, where rows have ids, `_row_id`.

    Read here where the files lie on this machine and the driver can hold the rows, else by Spark.
    `keys` has the key's columns and may repeat keys. With `since`, in microseconds, versions that
    were closed before it are left out: those that are inactive, end more than a millisecond before
    it and do not start at or after it.
    """
    ids = [pa.field(ROW_ID, pa.int64())] if keeps_row_ids(table) else []
    schema = pa.schema([*table_schema(table), *PLACE_HERE, *ids])
    if not table.rows or not keys.num_rows:
        return schema.empty_table()
    distinct = keys.group_by(keys.column_names).aggregate([])
    with translate_faults(table.shape.table):
        here = slice_here(store, table, schema.names, distinct, since)
        if here is not None:
            return here.cast(schema)
        frame = _with_keys(store, store.spark.table(store.sql_name(table.shape.table)), distinct, since)
        names = [quoted(name) for name in schema.names]
        return arrow_of(frame.select(*names)).cast(schema)


def may_be_touched(since: int) -> "Column":
    return column(ACTIVE) | (column(END) >= instant(since - MILLISECOND)) | (column(START) >= instant(since))


def searched_columns(keys: pa.Table) -> pa.Table:
    """The columns of keys by whose values rows are looked for: NaN, for one, is in no range."""
    return keys.select([each.name for each in keys.schema if any(is_(each.type) for is_ in SEARCHED)])


def of_keys(store: Store, frame: "DataFrame", keys: pa.Table) -> "DataFrame":
    """The rows of the frame whose columns of these names have one of the keys."""
    return _with_keys(store, frame, keys.group_by(keys.column_names).aggregate([]), None)


def _with_keys(store: Store, frame: "DataFrame", distinct: pa.Table, since: int | None) -> "DataFrame":
    """Rows whose key may be among these: a list that Iceberg prunes by, or a range and a join."""
    conditions = [] if since is None else [may_be_touched(since)]
    has_null = any(values.null_count for values in distinct.columns)
    listed = distinct.num_rows <= LISTED_KEYS and not has_null
    if listed:
        conditions += [
            column(name).isin(literals(pc.unique(distinct[name]))) for name in distinct.column_names
        ]
    elif not has_null:
        conditions += _in_range(distinct)
    if conditions:
        frame = frame.where(reduce(and_, conditions))
    return frame if listed else _joined(store, frame, distinct)


def _joined(store: Store, frame: "DataFrame", distinct: pa.Table) -> "DataFrame":
    from pyspark.sql.functions import broadcast

    names = [f"key {place} {uuid.uuid4()}" for place in range(distinct.num_columns)]
    wanted = frame_of(store, distinct.rename_columns(names))
    if distinct.nbytes < BROADCAST:
        wanted = broadcast(wanted)
    matches = []
    for name, other in zip(distinct.column_names, names, strict=True):
        left, right = column(name), column(other)
        matches.append(left.eqNullSafe(right) if distinct[name].null_count else left == right)
    return frame.join(wanted, reduce(and_, matches), "left_semi")


def _in_range(keys: pa.Table) -> "list[Column]":
    conditions = []
    for name in keys.column_names:
        if any(test(keys[name].type) for test in UNBOUNDED):
            continue
        bounds = pc.min_max(keys[name])
        least, greatest = literals(pa.array([bounds["min"], bounds["max"]], keys[name].type))
        conditions.append(column(name).between(least, greatest))
    return conditions
