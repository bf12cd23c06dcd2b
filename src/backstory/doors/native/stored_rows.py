"""The stored rows that a copy or a feed can touch, read from files by the driver, or else by Spark (V78).

Live rows are versions, and facts that were not withdrawn. A delivery can touch live rows that are open, or
that end at or after its first instant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, lit, struct

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
from backstory.stores.iceberg.slice import PLACE_SCHEMA, LocalRows, rows_of_keys
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.parquet_files import ChooseRows
from backstory.stores.metadata.searches import AnyOf, Between, IsNull, OneOf, Searches
from backstory.stores.metadata.table_metadata import Unreadable, add_positions, positions_by_file
from backstory.strategies.copies.plan import CopyTerms
from backstory.strategies.copies.version_rows import OPEN, are_live, memory_field, micros
from backstory.strategies.keys import find_places, key_numbers

# Types whose file bounds cover all values; bounds of floating-point columns ignore NaN.
BOUNDED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_temporal)
OF_TOUCHED: Final = (VALID_TO, (MEMORY, ROLE, ENDED_AT))
OF_LOG: Final = (VALID_TO, (MEMORY, ROLE, ENDED_AT, SEQUENCE))
OF_MARKS: Final = ((MEMORY, ROLE, ENDED_AT, KIND),)
# The kinds of marks: remembered copies and truncates.
MARKS: Final = (FactKind.COPY.value, FactKind.TRUNCATE.value)
# The first instant, in the year 1.
BEGINNING: Final = -62_135_596_800_000_000


@dataclass(frozen=True, slots=True)
class KeysSince:
    """Keys of records, perhaps repeated, and the instant (microseconds) from which each record may change."""

    keys: pa.Table
    since: np.ndarray


def stored_slice(
    store: IcebergStore,
    table: IcebergTable | None,
    columns: Iterable[Column],
    keys: KeysSince | None,
    since: int,
    lease: MemoryLease,
    *,
    low: Position | None = None,
) -> pa.Table:
    """The live rows of these keys that are open or end at or after `since` (microseconds), and later marks.

    The result has the given columns, places and row ids. Columns that the table lacks are NULL, and narrower
    types are widened. It may have rows that no key needs. Without `keys`, it has the rows of all records. If
    `low` is set, rows whose log position is at or after `low` are included, at any instant (V134). Raises
    TooLarge if the lease cannot hold the rows.
    """
    schema = slice_schema(table, columns)
    if table is None or not table.rows:
        return schema.empty_table()
    names = [name for name in schema.names if name in {*table.shape.names, FILE, POSITION, ROW_ID}]
    of: tuple[str | tuple[str, ...], ...] = OF_TOUCHED if low is None else OF_LOG
    choose: ChooseRows = partial(are_touched, since, low=low)
    wanted = {}
    if keys is not None:
        key, of_records = table.shape.key, choose_touched_of_keys(keys, table.shape.key, low)
        of = (*of, *key)

        def choose(rows: pa.Table) -> pa.ChunkedArray:
            marks = pc.and_(pc.is_null(rows[key[0]]), are_touched(since, rows, low=low))
            return pc.or_(marks, of_records(rows))

        for name in key:
            if is_bounded((values := keys.keys[name]).type):  # marks have NULL keys
                wanted[name] = OneOf(pa.concat_arrays([pc.unique(values), pa.nulls(1, values.type)]))
    ends = {VALID_TO: _ends_since(since)}
    where: Searches = ends
    if low is not None:  # bounds of files cover positions in the log, too
        # The first part of a position that differs within one log.
        part = schema.field(MEMORY).type.field(SEQUENCE).type.field(1).name
        where = AnyOf({**ends, f"{MEMORY}.{SEQUENCE}.{part}": Between(low[1])})
    try:
        rows = LocalRows(store, table, lease).read(names, of, choose, [wanted, where])
    except Unreadable:
        frame = live_frame(store, table, since, low)
        if keys is not None:
            marks = frame.where(column(table.shape.key[0]).isNull())
            frame = rows_of_keys(store, frame, keys.keys).unionByName(marks)
        rows = arrow_of(frame)
    return in_schema(rows, schema)


def first_moving_instant(rows: pa.Table, since: int, low: Position | None) -> int:
    """The first instant that can change: the earliest of `since` and of the rows after `low` (V134).

    A message that was raised to a later instant can fall back to its own time, so both times are considered.
    """
    if low is None:
        return since
    behind = rows.filter(_is_behind(low, rows))
    times = [micros(behind[VALID_FROM]), micros(memory_field(behind, OWN_TIME))]
    return min(since, *(int(instants.min(initial=since)) for instants in times))


def stored_truncates(store: IcebergStore, table: IcebergTable, columns: Iterable[Column]) -> pa.Table:
    """All remembered truncates of a log. Their instants differ between records (V133)."""
    marks = stored_marks(store, table, columns, BEGINNING)
    truncate = pc.equal(memory_field(marks, KIND), FactKind.TRUNCATE.value)
    return marks.filter(pc.and_(truncate, memory_field(marks, OWN_TIME).is_valid()))


def stored_marks(store: IcebergStore, table: IcebergTable, columns: Iterable[Column], since: int) -> pa.Table:
    """The live marks at or after an instant (microseconds), in these columns."""
    schema = slice_schema(table, columns)
    if not table.rows:
        return schema.empty_table()
    own = {own_column.name for own_column in OWN_COLUMNS} | {FILE, POSITION, ROW_ID}
    names = [name for name in schema.names if name in own]
    # Marks have no key, and they end when they begin.
    where: Searches = {
        VALID_FROM: Between(EPOCH + timedelta(microseconds=since)),
        table.shape.key[0]: IsNull(),
    }
    with store.memory.lease() as lease:
        try:
            rows = LocalRows(store, table, lease).read(names, OF_MARKS, _are_marks, [where])
        except (TooLarge, Unreadable):
            frame = live_frame(store, table, since).where(mark_condition())
            rows = arrow_of(frame.select(*map(quote, names)))
    return in_schema(rows, schema)


def _are_marks(rows: pa.Table) -> pa.ChunkedArray:
    """A mask of live marks of copies and truncates."""
    is_mark = pc.is_in(pc.struct_field(rows[MEMORY], KIND), pa.array(MARKS))
    return pc.and_(is_mark, are_live(rows))


def place_names(table: IcebergTable | None) -> list[str]:
    """The columns of a row's place, and of its id, if the table has row ids."""
    return [FILE, POSITION, *([ROW_ID] if table is not None and keeps_row_ids(table) else [])]


def slice_schema(table: IcebergTable | None, columns: Iterable[Column]) -> pa.Schema:
    """The schema of a slice: the table's columns, the places, and the row ids, if the table has row ids."""
    ids = [pa.field(ROW_ID, pa.int64())] if ROW_ID in place_names(table) else []
    return pa.schema([*arrow_schema({col.name: col.type for col in columns}), *PLACE_SCHEMA, *ids])


def is_bounded(type_: pa.DataType) -> bool:
    """Whether the bounds in files cover every value of this type."""
    return any(is_(type_) for is_ in BOUNDED)


def are_touched(since: int, rows: pa.Table, *, low: Position | None = None) -> pa.ChunkedArray:
    """A mask of live rows that are open, end at or after `since`, or are at or after `low` in their log."""
    touched = micros(rows[VALID_TO]) >= since
    if low is not None:
        touched |= np.asarray(_is_behind(low, rows))
    return pc.and_(are_live(rows), pa.chunked_array([touched]))


def _is_behind(low: Position, rows: pa.Table) -> pa.Array:
    """A mask of the messages at or after a position in their log, including truncates."""
    place = pc.struct_field(rows[MEMORY].combine_chunks(), SEQUENCE)
    behind, tie = pa.repeat(False, len(rows)), pa.repeat(True, len(rows))
    for name, value in zip(place.type.names, low, strict=True):
        part = pc.struct_field(place, name)
        wanted = pa.scalar(value, part.type)
        behind = pc.or_(behind, pc.and_(tie, pc.fill_null(pc.greater(part, wanted), False)))
        tie = pc.and_(tie, pc.fill_null(pc.equal(part, wanted), False))
    return pc.or_(behind, tie)


def choose_touched_of_keys(keys: KeysSince, key: tuple[str, ...], low: Position | None = None) -> ChooseRows:
    """A function that masks the live rows of these keys that are open, or end at or after the key's instant.

    Keys are compared by numbers, which are computed once for all batches. If two keys share a number, which
    is very rare, the mask includes rows of both.
    """
    numbers, of = np.unique(key_numbers(keys.keys, key), return_inverse=True)
    since = np.full(len(numbers), OPEN)
    np.minimum.at(since, of, keys.since)

    def choose(rows: pa.Table) -> pa.ChunkedArray:
        place = find_places(numbers, key_numbers(rows.select(key).cast(keys.keys.schema), key))
        there = np.flatnonzero(place >= 0)
        flags = np.zeros(len(rows), bool)
        flags[there] = micros(rows[VALID_TO])[there] >= since[place[there]]
        if low is not None:
            flags[there] |= np.asarray(_is_behind(low, rows))[there]
        return pc.and_(are_live(rows), pa.chunked_array([flags]))

    return choose


def _ends_since(since: int) -> Between:
    """A search for ends at or after an instant in microseconds, and for NULL."""
    return Between(EPOCH + timedelta(microseconds=since), null=True)


def version_condition() -> SparkColumn:
    """A Spark condition for stored rows that are versions."""
    return column(MEMORY).getField(ROLE).isNull()


def fact_condition() -> SparkColumn:
    """A Spark condition for stored rows that are facts and are not withdrawn."""
    memory = column(MEMORY)
    return (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()


def mark_condition() -> SparkColumn:
    """A Spark condition for stored rows that are marks of copies or truncates, and are not withdrawn."""
    return column(MEMORY).getField(KIND).isin(*MARKS) & fact_condition()


def touched_rows(rows: DataFrame, terms: CopyTerms) -> DataFrame:
    """The rows that a copy can touch.

    A copy in order can touch only open versions. Any other copy can touch live rows of records that reach its
    instant and begin by the following one.
    """
    if terms.in_order:
        return rows.where(version_condition() & column(VALID_TO).isNull())
    slice_ = live_rows_of(rows, terms.at).where(column(terms.key[0]).isNotNull())
    return slice_ if terms.following is None else slice_.where(column(VALID_FROM) <= instant(terms.following))


def live_frame(
    store: IcebergStore, table: IcebergTable, since: int, low: Position | None = None
) -> DataFrame:
    """The live rows that are open or end at or after `since`, and the marks, with places and row ids.

    If `low` is set, rows whose log position is at or after `low` are included (V134).
    """
    rows = with_row_ids(table, store.spark.table(store.sql_name(table.shape.table)))
    return live_rows_of(rows, since, low).select(*map(quote, [*table.shape.names, *place_names(table)]))


def live_rows_of(rows: DataFrame, since: int, low: Position | None = None) -> DataFrame:
    """The live rows of a frame that are open, end at or after `since`, or are at or after `low`."""
    end = column(VALID_TO)
    touched = end.isNull() | (end >= instant(since))
    if low is not None:
        touched |= coalesce(behind_place(rows, low), lit(False))
    return rows.where((version_condition() | fact_condition()) & touched)


def behind_place(rows: DataFrame, low: Position) -> SparkColumn:
    """A condition for messages at or after a position. It is NULL for rows without a position."""
    place = column(MEMORY).getField(SEQUENCE)
    fields = rows.schema[MEMORY].dataType[SEQUENCE].dataType.fields  # type: ignore[index]
    parts = [lit(value).cast(field.dataType) for field, value in zip(fields, low, strict=True)]
    wanted = struct(*(part.alias(field.name) for field, part in zip(fields, parts, strict=True)))
    return column(MEMORY).getField(OWN_TIME).isNotNull() & (place >= wanted)


def join_places(places: Any, more: Any) -> Any:
    """The union of two sets of places, which are tables or positions by file, or None if both are empty."""
    parts = [part for part in (places, more) if part is not None and len(part)]
    if len(parts) == 1:
        return parts[0]
    if parts and all(isinstance(part, pa.Table) for part in parts):
        return pa.concat_tables([places, more.cast(places.schema)])
    joined = dict[str, BitMap64]()
    for part in parts:
        add_positions(joined, positions_by_file(part) if isinstance(part, pa.Table) else part)
    return joined or None
