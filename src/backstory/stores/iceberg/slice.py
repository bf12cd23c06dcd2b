"""Read the part of a table that a delivery can touch, and nothing else.

The stored rows of some keys, read on this machine: of few files, of few of their row groups.
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
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import Statistics

INT64: Final = "INT64"
FIRST: Final = datetime.min.replace(tzinfo=EPOCH.tzinfo)
# The columns that tell whether a version had ended.
TELLING: Final = (ACTIVE, END, START)
_MICROSECOND: Final = timedelta(microseconds=1)


def slice_here(
    store: Store, table: StoredTable, names: Sequence[str], keys: pa.Table, since: int | None
) -> pa.Table | None:
    """These columns of the rows of distinct keys, as `read_slice` tells; None where Spark must read them."""
    # Of numbers that are not exact it is Spark's to say which are equal.
    if any(pa.types.is_floating(values.type) for values in keys.columns):
        return None
    among = {name: keys[name].combine_chunks() for name in keys.column_names}
    conditions = [partial(_match_pairs, keys)] if len(among) > 1 else []
    needed = [*(among if conditions else ()), *(TELLING if since is not None else ())]
    if since is not None:
        conditions.append(partial(_match_touched, since))

    def chosen(rows: pa.Table) -> pa.ChunkedArray:
        return reduce(pc.and_, (condition(rows) for condition in conditions))

    with store.memory.lease() as lease:
        try:
            return LocalRows(store, table, lease).read(
                names,
                needed,
                chosen if conditions else None,
                among=among,
                where=None if since is None else _files_condition(since),
                may_have=None if since is None else partial(_may_be_touched, since),
            )
        except (TooLarge, Unreadable):
            return None


def _match_pairs(keys: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
    """Which rows have all columns of one key."""
    first, *others = keys.column_names
    places, key_places = _places_among(rows[first], keys[first])
    for name in others:
        pairs = zip((places, key_places), _places_among(rows[name], keys[name]), strict=True)
        places, key_places = _places_among(*(pc.add(pc.multiply(a, keys.num_rows), b) for a, b in pairs))
    return pc.is_valid(places)


def _places_among(values: pa.ChunkedArray, among: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The places of `values`, and of `among` itself, in the distinct values of `among`; NULL is one too."""
    distinct = pc.unique(among)
    return (pc.index_in(each, value_set=distinct).cast(pa.int64()) for each in (values, among))


def _match_touched(since: int, rows: pa.Table) -> pa.ChunkedArray:
    """Which versions were not closed before an instant."""
    ends, starts = (rows[name].cast(pa.int64()) for name in (END, START))
    late = pc.or_kleene(pc.greater_equal(ends, since - MILLISECOND), pc.greater_equal(starts, since))
    return pc.fill_null(pc.or_kleene(rows[ACTIVE], late), False)


def _may_be_touched(since: int, statistics: Statistics) -> bool:
    """Whether a row group may have such versions."""
    active, *times = (statistics(name) for name in TELLING)
    if active is None or active.max or any(each is None or each.physical_type != INT64 for each in times):
        return True
    end, start = (each.max_raw for each in times)
    return bool(end >= since - MILLISECOND or start >= since)


def _files_condition(since: int) -> Any:
    """The same of files, as Iceberg's JSON has it."""
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

# Iceberg prunes files and row groups by lists of up to 200 values.
LISTED_KEYS = 200
BROADCAST = 64 << 20
# Types whose values are looked for within no bounds: NaN lies within none.
UNBOUNDED = (pa.types.is_binary, pa.types.is_boolean, pa.types.is_floating)
# Keys of other types are not asked for where there are many rows.
SEARCHABLE = (
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
    return column(ACTIVE) | (column(END) >= instant(since - MILLISECOND)) | (column(START) >= instant(since))


def searchable_columns(keys: pa.Table) -> pa.Table:
    """The columns of keys by whose values rows are looked for: NaN, for one, is in no range."""
    return keys.select([each.name for each in keys.schema if any(is_(each.type) for is_ in SEARCHABLE)])


def rows_of_keys(store: Store, frame: "DataFrame", keys: pa.Table) -> "DataFrame":
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
    return frame if listed else _join_keys(store, frame, distinct)


def _join_keys(store: Store, frame: "DataFrame", distinct: pa.Table) -> "DataFrame":
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
