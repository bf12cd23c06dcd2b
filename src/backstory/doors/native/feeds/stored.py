"""The stored rows that a feed can touch: of its keys, open or ended at or after its first instant (V78)."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import arrow_schema, in_schema
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.instant import EPOCH
from backstory.model.layout import MEMORY, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import ENDED_AT, OWN_COLUMNS, ROLE, Role
from backstory.model.schema import Column
from backstory.stores.iceberg.lineage import keeps_row_ids, with_row_ids
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE, LocalRows
from backstory.stores.iceberg.search_bounds import both, either
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies.rows import micros
from backstory.strategies.keys import flagged, key_codes, keys_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Bounds of floating numbers pass over NaN.
BOUNDED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_temporal)
OF_TOUCHED: Final = (VALID_TO, MEMORY)


def stored_slice(
    store: Store,
    table: StoredTable | None,
    columns: Iterable[Column],
    keys: pa.Table | None,
    since: int,
    lease: MemoryLease,
) -> pa.Table:
    """The live rows of these keys (of all, with None) and the marks, open or ended at or after `since`.

    They have these columns, which the table may lack or have in narrower types, and their places and ids.
    `since` is in microseconds. Raises TooLarge for more than the lease can hold.
    """
    schema = slice_schema(table, columns)
    if table is None or not table.rows:
        return schema.empty_table()
    try:
        rows = _read_here(store, table, schema, keys, since, lease)
    except Unreadable:
        rows = _read_by_spark(store, table, schema, keys, since)
    return rows


def stored_marks(store: Store, table: StoredTable, columns: Iterable[Column], since: int) -> pa.Table:
    """The live marks at or after an instant, in these columns."""
    schema, key = slice_schema(table, columns), table.shape.key[0]
    if not table.rows:
        return schema.empty_table()
    own = {each.name for each in OWN_COLUMNS} | {FILE, POSITION, ROW_ID}
    with store.memory.lease() as lease:
        try:
            rows = LocalRows(store, table, lease).read(
                [name for name in schema.names if name in own],
                [*OF_TOUCHED, key],
                lambda rows: pc.and_(may_be_touched(since, rows), pc.is_null(rows[key])),
                where=both(_files(since), {"type": "is-null", "term": key}),
            )
        except (TooLarge, Unreadable):
            frame = live_frame(store, table, since).where(column(key).isNull())
            rows = frame.select(*[quoted(name) for name in frame.columns if name in own]).toArrow()
    return in_schema(rows, schema)


def slice_schema(table: StoredTable | None, columns: Iterable[Column]) -> pa.Schema:
    """The columns of such rows."""
    ids = [pa.field(ROW_ID, pa.int64())] if table is not None and keeps_row_ids(table) else []
    return pa.schema([*arrow_schema({each.name: each.type for each in columns}), *PLACE_HERE, *ids])


def _read_here(
    store: Store,
    table: StoredTable,
    schema: pa.Schema,
    keys: pa.Table | None,
    since: int,
    lease: MemoryLease,
) -> pa.Table:
    there = [name for name in schema.names if name in {*table.shape.names, FILE, POSITION, ROW_ID}]
    here, key = LocalRows(store, table, lease), table.shape.key
    chosen = partial(may_be_touched, since)
    files = _files(since)
    if keys is None:
        return in_schema(here.read(there, OF_TOUCHED, chosen, where=files), schema)
    exact = {name: keys[name] for name in key if any(is_(keys[name].type) for is_ in BOUNDED)}
    of_records = here.read(
        there,
        [*OF_TOUCHED, *key],
        lambda rows: pc.and_(chosen(rows), are_of_keys(keys, rows, key)),
        among={name: pc.unique(values) for name, values in exact.items()},
        where=files,
    )
    marks = here.read(
        there,
        [*OF_TOUCHED, *key],
        lambda rows: pc.and_(chosen(rows), pc.is_null(rows[key[0]])),
        where=both(files, {"type": "is-null", "term": key[0]}),
    )
    return in_schema(pa.concat_tables([of_records, marks]).unify_dictionaries(), schema)


def may_be_touched(since: int, rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are live, and open or ended at or after an instant."""
    role, ended = (pc.struct_field(rows[MEMORY], name) for name in (ROLE, ENDED_AT))
    fact = pc.and_(pc.fill_null(pc.equal(role, Role.FACT.value), False), pc.is_null(ended))
    live = pc.or_(pc.is_null(role), fact)
    return pc.and_(live, pa.chunked_array([micros(rows[VALID_TO]) >= since]))


def are_of_keys(keys: pa.Table, rows: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    """Which rows have one of these keys; both have the key's columns."""
    sides = [keys_by_value(each, key) for each in (keys, rows.select(key).cast(keys.schema))]
    (wanted, there), count = key_codes(sides, key)
    return pa.chunked_array([flagged(wanted, count)[there]])


def _files(since: int) -> Any:
    """Where such rows are, as Iceberg's JSON has it."""
    ends = {"type": "gt-eq", "term": VALID_TO, "value": (EPOCH + timedelta(microseconds=since)).isoformat()}
    return either({"type": "is-null", "term": VALID_TO}, ends)


def live_frame(store: Store, table: StoredTable, since: int) -> "DataFrame":
    """The live rows that are open or end at or after `since`, and the marks, with their places and ids."""
    rows = with_row_ids(table, store.spark.table(store.sql_name(table.shape.table)))
    ids = [ROW_ID] if keeps_row_ids(table) else []
    return live_rows_of(rows, since).select(*map(quoted, [*table.shape.names, FILE, POSITION, *ids]))


def live_rows_of(rows: "DataFrame", since: int) -> "DataFrame":
    """Those of a table's rows that are live, and open or ended at or after an instant."""
    memory, end = column(MEMORY), column(VALID_TO)
    fact = (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()
    return rows.where((memory.getField(ROLE).isNull() | fact) & (end.isNull() | (end >= instant(since))))


def _read_by_spark(
    store: Store, table: StoredTable, schema: pa.Schema, keys: pa.Table | None, since: int
) -> pa.Table:
    rows = live_frame(store, table, since)
    if keys is not None:
        marks = rows.where(column(table.shape.key[0]).isNull())
        rows = of_keys(store, rows, keys).unionByName(marks)
    return in_schema(rows.toArrow(), schema)
