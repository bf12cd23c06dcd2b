"""The stored rows that a feed can touch: of its keys, open or ended at or after its first instant (V78)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.logs import Position
from backstory.formats.delivered import arrow_schema, in_schema
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.instant import EPOCH
from backstory.model.layout import FILE, MEMORY, POSITION, ROW_ID, VALID_FROM, VALID_TO
from backstory.model.table import Column
from backstory.model.versions_layout import (
    ENDED_AT,
    KIND,
    OWN_COLUMNS,
    OWN_TIME,
    ROLE,
    SEQUENCE,
    FactKind,
    Role,
)
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.frames import keeps_row_ids, with_row_ids
from backstory.stores.iceberg.literals import column, instant, quote
from backstory.stores.iceberg.local_rows import PLACE_SCHEMA, LocalRows
from backstory.stores.iceberg.search_bounds import all_of, any_of
from backstory.stores.iceberg.slice import rows_of_keys
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import MayHave, Statistics
from backstory.stores.metadata.row_selection import ChooseRows
from backstory.strategies.copies.version_rows import OPEN, memory_field, micros
from backstory.strategies.keys import find_places, key_numbers

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

# Bounds of floating numbers pass over NaN.
BOUNDED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_temporal)
OF_TOUCHED: Final = (VALID_TO, (MEMORY, ROLE, ENDED_AT))
OF_LOG: Final = (VALID_TO, (MEMORY, ROLE, ENDED_AT, SEQUENCE))
# No instant is before it: the year 1.
BEGINNING: Final = -62_135_596_800_000_000


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
    *,
    low: Position | None = None,
) -> pa.Table:
    """The live rows of these keys (of all, with None) and the marks, open or ended at or after `since`.

    Of keys those alone that each of them needs, at least. They have these columns, which the table may lack
    or have in narrower types, and their places and ids. `since` is in microseconds. With a `low` place in
    their log those at or behind it are among them, whenever they were (V134). Raises TooLarge for more than
    the lease can hold.
    """
    schema = slice_schema(table, columns)
    if table is None or not table.rows:
        return schema.empty_table()
    try:
        rows = _read_here(store, table, schema, keys, since, lease, low=low)
    except Unreadable:
        rows = _read_by_spark(store, table, schema, None if keys is None else keys.keys, since, low)
    return rows


def first_moving_instant(rows: pa.Table, since: int, low: Position | None) -> int:
    """From when on the log moves what is stored: when the first of what is behind `low` was (V134).

    What was raised may fall to its own time.
    """
    if low is None:
        return since
    behind = rows.filter(_is_behind(low, rows))
    times = [micros(behind[VALID_FROM]), micros(memory_field(behind, OWN_TIME))]
    return min(since, *(int(instants.min(initial=since)) for instants in times))


def stored_truncates(store: Store, table: StoredTable, columns: Iterable[Column]) -> pa.Table:
    """All truncates of a log that are remembered: each record has its own instant of them (V133)."""
    marks = stored_marks(store, table, columns, BEGINNING)
    truncate = pc.equal(memory_field(marks, KIND), FactKind.TRUNCATE.value)
    return marks.filter(pc.and_(truncate, memory_field(marks, OWN_TIME).is_valid()))


def stored_marks(store: Store, table: StoredTable, columns: Iterable[Column], since: int) -> pa.Table:
    """The live marks at or after an instant, in these columns."""
    schema, key = slice_schema(table, columns), table.shape.key[0]
    if not table.rows:
        return schema.empty_table()
    own = {own_column.name for own_column in OWN_COLUMNS} | {FILE, POSITION, ROW_ID}
    with store.memory.lease() as lease:
        try:
            rows = LocalRows(store, table, lease).read(
                [name for name in schema.names if name in own],
                [*OF_TOUCHED, key],
                lambda rows: pc.and_(touched_rows(since, rows), pc.is_null(rows[key])),
                where=all_of(_files(since), {"type": "is-null", "term": key}),
            )
        except (TooLarge, Unreadable):
            frame = live_frame(store, table, since).where(column(key).isNull())
            rows = arrow_of(frame.select(*[quote(name) for name in frame.columns if name in own]))
    return in_schema(rows, schema)


def slice_schema(table: StoredTable | None, columns: Iterable[Column]) -> pa.Schema:
    """The columns of such rows."""
    ids = [pa.field(ROW_ID, pa.int64())] if table is not None and keeps_row_ids(table) else []
    return pa.schema([*arrow_schema({col.name: col.type for col in columns}), *PLACE_SCHEMA, *ids])


def _read_here(
    store: Store,
    table: StoredTable,
    schema: pa.Schema,
    keys: KeysSince | None,
    since: int,
    lease: MemoryLease,
    *,
    low: Position | None,
) -> pa.Table:
    names = [name for name in schema.names if name in {*table.shape.names, FILE, POSITION, ROW_ID}]
    of: tuple[str | tuple[str, ...], ...] = OF_TOUCHED if low is None else OF_LOG
    chosen, among = partial(touched_rows, since, low=low), {}
    if keys is not None:
        key = table.shape.key
        of, chosen = (
            (*of, *key),
            partial(_touched_records_and_marks, since, choose_touched_of_keys(keys, key, low), key, low),
        )
        columns = {name: keys.keys[name] for name in key}
        # Marks have no key.
        among = {name: _with_null(values) for name, values in columns.items() if is_bounded(values.type)}
    here = LocalRows(store, table, lease)
    where = _files(since)
    may_have: MayHave | None = partial(_may_have_touched_rows, since)
    if low is not None:  # their logs' places are in the bounds of files, too
        behind = {"type": "gt-eq", "term": ".".join(_leading_part(schema)), "value": low[1]}
        where, may_have = any_of(where, behind), None
    rows = here.read(names, of, chosen, among=among, where=where, may_have=may_have)
    return in_schema(rows, schema)


def is_bounded(type_: pa.DataType) -> bool:
    """Whether bounds of such values pass over no row that has one of them."""
    return any(is_(type_) for is_ in BOUNDED)


def _with_null(values: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pc.unique(values), pa.nulls(1, values.type)])


def touched_rows(since: int, rows: pa.Table, *, low: Position | None = None) -> pa.ChunkedArray:
    """Which rows are live, and open or ended at or after an instant, or at or behind a place in their log."""
    touched = micros(rows[VALID_TO]) >= since
    if low is not None:
        touched |= np.asarray(_is_behind(low, rows))
    return pc.and_(live_rows(rows), pa.chunked_array([touched]))


def _is_behind(low: Position, rows: pa.Table) -> pa.Array:
    """Which rows are of messages at or behind a place in their log, and truncates of it among them."""
    place = pc.struct_field(rows[MEMORY].combine_chunks(), SEQUENCE)
    behind, tie = pa.repeat(False, len(rows)), pa.repeat(True, len(rows))
    for name, value in zip(place.type.names, low, strict=True):
        part = pc.struct_field(place, name)
        wanted = pa.scalar(value, part.type)
        behind = pc.or_(behind, pc.and_(tie, pc.fill_null(pc.greater(part, wanted), False)))
        tie = pc.and_(tie, pc.fill_null(pc.equal(part, wanted), False))
    return pc.or_(behind, tie)


def _leading_part(schema: pa.Schema) -> tuple[str, ...]:
    """The part of a place in a log that leads among those of one log."""
    place = schema.field(MEMORY).type.field(SEQUENCE).type
    return (MEMORY, SEQUENCE, place.field(1).name)


def choose_touched_of_keys(keys: KeysSince, key: tuple[str, ...], low: Position | None = None) -> ChooseRows:
    """Tells which rows are live, of one of these keys, and open or ended at or after the key's instant.

    Keys are compared by their numbers, which are made once for all parts of the rows: of keys that have the
    number of another one, hardly ever, rows are among them too.
    """
    numbers, of = np.unique(key_numbers(keys.keys, key), return_inverse=True)
    since = np.full(len(numbers), OPEN)
    np.minimum.at(since, of, keys.since)

    def touched(rows: pa.Table) -> pa.ChunkedArray:
        place = find_places(numbers, key_numbers(rows.select(key).cast(keys.keys.schema), key))
        there = np.flatnonzero(place >= 0)
        flags = np.zeros(len(rows), bool)
        flags[there] = micros(rows[VALID_TO])[there] >= since[place[there]]
        if low is not None:
            flags[there] |= np.asarray(_is_behind(low, rows))[there]
        return pc.and_(live_rows(rows), pa.chunked_array([flags]))

    return touched


def _touched_records_and_marks(
    since: int, of_records: ChooseRows, key: tuple[str, ...], low: Position | None, rows: pa.Table
) -> pa.ChunkedArray:
    marks = pc.and_(pc.is_null(rows[key[0]]), touched_rows(since, rows, low=low))
    return pc.or_(marks, of_records(rows))


def live_rows(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows tell what the table knows: versions and facts that are not ended."""
    role, ended = (pc.struct_field(rows[MEMORY], name) for name in (ROLE, ENDED_AT))
    fact = pc.and_(pc.fill_null(pc.equal(role, Role.FACT.value), False), pc.is_null(ended))
    return pc.or_(pc.is_null(role), fact)


def _may_have_touched_rows(since: int, statistics: Statistics) -> bool:
    """Whether a row group may have rows that are open or ended at or after an instant."""
    ends = statistics(VALID_TO)
    if ends is None or ends.physical_type != "INT64" or ends.null_count != 0:
        return True
    return bool(ends.max_raw >= since)


def _files(since: int) -> Any:
    """Where such rows are, as Iceberg's JSON has it."""
    ends = {"type": "gt-eq", "term": VALID_TO, "value": (EPOCH + timedelta(microseconds=since)).isoformat()}
    return any_of({"type": "is-null", "term": VALID_TO}, ends)


def live_frame(store: Store, table: StoredTable, since: int, low: Position | None = None) -> "DataFrame":
    """The live rows that are open or end at or after `since`, and the marks, with their places and ids.

    Those at or behind a `low` place in their log are among them (V134).
    """
    rows = with_row_ids(table, store.spark.table(store.sql_name(table.shape.table)))
    ids = [ROW_ID] if keeps_row_ids(table) else []
    return live_rows_of(rows, since, low).select(*map(quote, [*table.shape.names, FILE, POSITION, *ids]))


def live_rows_of(rows: "DataFrame", since: int, low: Position | None = None) -> "DataFrame":
    """Those of a table's rows that are live, and open or ended at or after an instant, or behind a place."""
    from pyspark.sql.functions import coalesce, lit

    memory, end = column(MEMORY), column(VALID_TO)
    fact = (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()
    touched = end.isNull() | (end >= instant(since))
    if low is not None:
        touched |= coalesce(behind_place(rows, low), lit(False))
    return rows.where((memory.getField(ROLE).isNull() | fact) & touched)


def behind_place(rows: "DataFrame", low: Position) -> "SparkColumn":
    """Whether rows are of messages at or behind a place in their log; NULL for those of none."""
    from pyspark.sql.functions import lit, struct

    place = column(MEMORY).getField(SEQUENCE)
    fields = rows.schema[MEMORY].dataType[SEQUENCE].dataType.fields  # type: ignore[index]
    parts = [lit(value).cast(field.dataType) for field, value in zip(fields, low, strict=True)]
    wanted = struct(*(part.alias(field.name) for field, part in zip(fields, parts, strict=True)))
    return column(MEMORY).getField(OWN_TIME).isNotNull() & (place >= wanted)


def _read_by_spark(
    store: Store,
    table: StoredTable,
    schema: pa.Schema,
    keys: pa.Table | None,
    since: int,
    low: Position | None,
) -> pa.Table:
    rows = live_frame(store, table, since, low)
    if keys is not None:
        marks = rows.where(column(table.shape.key[0]).isNull())
        rows = rows_of_keys(store, rows, keys).unionByName(marks)
    return in_schema(arrow_of(rows), schema)
