"""The slice of a table that a delivery can touch: stored rows of its keys, or only the late versions.

It is read here, from few row groups of few files, if this process can open the files and hold the rows.
Otherwise Spark reads it.
"""

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import TooLarge
from backstory.model.instant import EPOCH, MILLISECOND
from backstory.model.layout import ACTIVE, END, FILE, POSITION, ROW_ID, START
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of, keeps_row_ids
from backstory.stores.iceberg.literals import column, instant, literals, quote
from backstory.stores.iceberg.local_rows import PLACE_SCHEMA, LocalRows
from backstory.stores.iceberg.search_bounds import any_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import Statistics

INT64: Final = "INT64"
FIRST: Final = datetime.min.replace(tzinfo=EPOCH.tzinfo)
# The columns that decide whether a version had ended.
ENDING_COLUMNS: Final = (ACTIVE, END, START)
_MICROSECOND: Final = timedelta(microseconds=1)


def slice_here(
    store: IcebergStore, table: IcebergTable, names: Sequence[str], keys: pa.Table, since: int | None
) -> pa.Table | None:
    """The slice for distinct keys with these columns, read by the driver, or None if Spark must read it."""
    # Spark decides which floats are equal.
    if any(pa.types.is_floating(values.type) for values in keys.columns):
        return None
    values = {name: keys[name].combine_chunks() for name in keys.column_names}
    conditions = [partial(_match_pairs, keys)] if len(values) > 1 else []
    needed = [*(values if conditions else ()), *(ENDING_COLUMNS if since is not None else ())]
    if since is not None:
        conditions.append(partial(_match_touched, since))

    def choose(rows: pa.Table) -> pa.ChunkedArray:
        return reduce(pc.and_, (condition(rows) for condition in conditions))

    with store.memory.lease() as lease:
        try:
            return LocalRows(store, table, lease).read(
                names,
                needed,
                choose if conditions else None,
                values=values,
                where=None if since is None else _files_condition(since),
                may_have=None if since is None else partial(_may_be_touched, since),
            )
        except (TooLarge, Unreadable):
            return None


def _match_pairs(keys: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
    """A mask of the rows that have the values of one key in all of its columns."""
    first, *others = keys.column_names
    places, key_places = _places_in(rows[first], keys[first])
    for name in others:
        pairs = zip((places, key_places), _places_in(rows[name], keys[name]), strict=True)
        places, key_places = _places_in(*(pc.add(pc.multiply(a, keys.num_rows), b) for a, b in pairs))
    return pc.is_valid(places)


def _places_in(values: pa.ChunkedArray, keys: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The indices of `values`, and of `keys` themselves, in the distinct keys. NULL counts as a value."""
    distinct = pc.unique(keys)
    return (pc.index_in(column, value_set=distinct).cast(pa.int64()) for column in (values, keys))


def _match_touched(since: int, rows: pa.Table) -> pa.ChunkedArray:
    """A mask of the versions that were not closed before an instant, in microseconds."""
    ends, starts = (rows[name].cast(pa.int64()) for name in (END, START))
    late = pc.or_kleene(pc.greater_equal(ends, since - MILLISECOND), pc.greater_equal(starts, since))
    return pc.fill_null(pc.or_kleene(rows[ACTIVE], late), False)


def _may_be_touched(since: int, statistics: Statistics) -> bool:
    """Whether a row group may have versions that were not closed before the instant."""
    active, *times = (statistics(name) for name in ENDING_COLUMNS)
    if active is None or active.max or any(time is None or time.physical_type != INT64 for time in times):
        return True
    end, start = (time.max_raw for time in times)
    return bool(end >= since - MILLISECOND or start >= since)


def _files_condition(since: int) -> Any:
    """The condition for files that may have versions that were not closed before an instant.

    It is in Iceberg's JSON form.
    """
    return any_of(
        {"type": "eq", "term": ACTIVE, "value": True},
        {
            "type": "gt-eq",
            "term": END,
            "value": _instant(max((FIRST - EPOCH) // _MICROSECOND, since - MILLISECOND)),
        },
        {"type": "gt-eq", "term": START, "value": _instant(since)},
    )


def _instant(micros: int) -> str:
    return (EPOCH + timedelta(microseconds=micros)).isoformat()


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Iceberg skips files and row groups by lists of up to 200 values.
LISTED_KEYS = 200
BROADCAST = 64 << 20
# Types whose values are not searched by a range, which never contains NaN.
UNBOUNDED = (pa.types.is_binary, pa.types.is_boolean, pa.types.is_floating)
# Among many rows, only keys of these types are searched for.
SEARCHABLE = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)
PLACE = pa.schema([pa.field(FILE, pa.string()), pa.field(POSITION, pa.int64())])


def table_schema(table: IcebergTable) -> pa.Schema:
    """The Arrow schema of a table's columns."""
    return arrow_schema({column.name: column.type for column in table.shape.columns})


def read_slice(
    store: IcebergStore, table: IcebergTable, keys: pa.Table, since: int | None = None
) -> pa.Table:
    """The rows of these keys, with `_file` and `_pos`, and with `_row_id` if rows have ids.

    `keys` has the key's columns and may repeat keys. `since`, in microseconds, excludes versions that were
    closed before it: inactive versions that end more than a millisecond before it and start before it.
    """
    ids = [pa.field(ROW_ID, pa.int64())] if keeps_row_ids(table) else []
    schema = pa.schema([*table_schema(table), *PLACE_SCHEMA, *ids])
    if not table.rows or not keys.num_rows:
        return schema.empty_table()
    distinct = keys.group_by(keys.column_names).aggregate([])
    with translate_faults(table.shape.table):
        here = slice_here(store, table, schema.names, distinct, since)
        if here is not None:
            return here.cast(schema)
        frame = _with_keys(store, store.spark.table(store.sql_name(table.shape.table)), distinct, since)
        names = [quote(name) for name in schema.names]
        return arrow_of(frame.select(*names)).cast(schema)


def may_be_touched(since: int) -> "Column":
    """The condition for versions that were not closed before an instant, in microseconds."""
    return column(ACTIVE) | (column(END) >= instant(since - MILLISECOND)) | (column(START) >= instant(since))


def searchable_columns(keys: pa.Table) -> pa.Table:
    """The columns of keys whose types can be searched for. NaN, for example, is in no range."""
    return keys.select([field.name for field in keys.schema if any(is_(field.type) for is_ in SEARCHABLE)])


def rows_of_keys(store: IcebergStore, frame: "DataFrame", keys: pa.Table) -> "DataFrame":
    """The rows of a frame that have one of the keys, in the columns with the same names."""
    return _with_keys(store, frame, keys.group_by(keys.column_names).aggregate([]), None)


def _with_keys(store: IcebergStore, frame: "DataFrame", distinct: pa.Table, since: int | None) -> "DataFrame":
    """The rows with one of these keys, found by a list, so that Iceberg skips files, or by range and join."""
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
    return frame if listed else _join_keys(store, frame, distinct)


def _join_keys(store: IcebergStore, frame: "DataFrame", distinct: pa.Table) -> "DataFrame":
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
