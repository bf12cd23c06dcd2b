"""The stored rows that a feed can touch: of its keys, open or ended at or after its first instant (V78)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
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
from backstory.stores.metadata.row_groups import Statistics
from backstory.stores.metadata.row_selection import Chosen
from backstory.strategies.copies.rows import OPEN, micros
from backstory.strategies.keys import key_numbers, places_among

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Bounds of floating numbers pass over NaN.
BOUNDED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_temporal)
OF_TOUCHED: Final = (VALID_TO, (MEMORY, ROLE, ENDED_AT))


@dataclass(frozen=True, slots=True)
class KeysSince:
    """Keys of records, which may repeat, and for each from when on it may move, in microseconds."""

    keys: pa.Table
    since: np.ndarray


def stored_slice(
    store: Store,
    table: StoredTable | None,
    columns: Iterable[Column],
    keys: KeysSince | None,
    since: int,
    lease: MemoryLease,
) -> pa.Table:
    """The live rows of these keys (of all, with None) and the marks, open or ended at or after `since`.

    Of keys those alone that each of them needs, at least. They have these columns, which the table may lack
    or have in narrower types, and their places and ids. `since` is in microseconds. Raises TooLarge for more
    than the lease can hold.
    """
    schema = slice_schema(table, columns)
    if table is None or not table.rows:
        return schema.empty_table()
    try:
        rows = _read_here(store, table, schema, keys, since, lease)
    except Unreadable:
        rows = _read_by_spark(store, table, schema, None if keys is None else keys.keys, since)
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
    keys: KeysSince | None,
    since: int,
    lease: MemoryLease,
) -> pa.Table:
    names = [name for name in schema.names if name in {*table.shape.names, FILE, POSITION, ROW_ID}]
    of: tuple[str | tuple[str, ...], ...] = OF_TOUCHED
    chosen, among = partial(may_be_touched, since), {}
    if keys is not None:
        key = table.shape.key
        of, chosen = (
            (*of, *key),
            partial(_are_of_records_or_marks, since, may_be_touched_of_keys(keys, key), key),
        )
        columns = {name: keys.keys[name] for name in key}
        # Marks have no key.
        among = {name: _with_null(values) for name, values in columns.items() if is_bounded(values.type)}
    here = LocalRows(store, table, lease)
    found = here.read(
        names, of, chosen, among=among, where=_files(since), may_have=partial(_may_have_touched, since)
    )
    return in_schema(found, schema)


def is_bounded(type_: pa.DataType) -> bool:
    """Whether bounds of such values pass over no row that has one of them."""
    return any(is_(type_) for is_ in BOUNDED)


def _with_null(values: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pc.unique(values), pa.nulls(1, values.type)])


def may_be_touched(since: int, rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are live, and open or ended at or after an instant."""
    return pc.and_(_live(rows), pa.chunked_array([micros(rows[VALID_TO]) >= since]))


def may_be_touched_of_keys(keys: KeysSince, key: tuple[str, ...]) -> Chosen:
    """Tells which rows are live, of one of these keys, and open or ended at or after the key's instant.

    Keys are compared by their numbers, which are made once for all parts of the rows: of keys that have the
    number of another one, hardly ever, rows are among them too.
    """
    numbers, of = np.unique(key_numbers(keys.keys, key), return_inverse=True)
    since = np.full(len(numbers), OPEN)
    np.minimum.at(since, of, keys.since)

    def touched(rows: pa.Table) -> pa.ChunkedArray:
        place = places_among(numbers, key_numbers(rows.select(key).cast(keys.keys.schema), key))
        there = np.flatnonzero(place >= 0)
        flags = np.zeros(len(rows), bool)
        flags[there] = micros(rows[VALID_TO])[there] >= since[place[there]]
        return pc.and_(_live(rows), pa.chunked_array([flags]))

    return touched


def _are_of_records_or_marks(
    since: int, of_records: Chosen, key: tuple[str, ...], rows: pa.Table
) -> pa.ChunkedArray:
    marks = pc.and_(pc.is_null(rows[key[0]]), may_be_touched(since, rows))
    return pc.or_(marks, of_records(rows))


def _live(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows tell what the table knows: versions and facts that are not ended."""
    role, ended = (pc.struct_field(rows[MEMORY], name) for name in (ROLE, ENDED_AT))
    fact = pc.and_(pc.fill_null(pc.equal(role, Role.FACT.value), False), pc.is_null(ended))
    return pc.or_(pc.is_null(role), fact)


def _may_have_touched(since: int, statistics: Statistics) -> bool:
    """Whether a row group may have rows that are open or ended at or after an instant."""
    ends = statistics(VALID_TO)
    if ends is None or ends.physical_type != "INT64" or ends.null_count != 0:
        return True
    return bool(ends.max_raw >= since)


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
