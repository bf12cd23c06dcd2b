"""Both sides of a copy as Arrow tables: read from files of this machine, what is elsewhere by Spark."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.stored import live_rows_of, may_be_touched
from backstory.doors.native.frame_size import few_rows, hold_frame
from backstory.doors.native.sides import CopySides
from backstory.engine.parts import Rows
from backstory.formats.delivered import arrow_schema, in_schema
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import ROLE
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import collected
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE, LocalRows
from backstory.stores.iceberg.search_bounds import without
from backstory.stores.metadata.columns import widens
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.row_selection import Chosen
from backstory.strategies.copies.frames import version, versions_touched
from backstory.strategies.copies.rows import micros
from backstory.strategies.copies.terms import CopyTerms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELIVERED, SLICE, ELSEWHERE = "delivered", "slice", "versions elsewhere"
PLACES: Final = (FILE, POSITION, ROW_ID)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The versions that a copy can touch, in the columns that decide, with places and ids.

    `whole` gives all columns of some of them, `elsewhere` the keys of the versions by which a record that
    appears was there before. All are in the types that the table will have; reading raises Unreadable.
    """

    slice: Rows
    whole: Callable[[pa.Table], pa.Table]
    elsewhere: Callable[[], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class CopyRows:
    """The copy's rows and the stored ones."""

    delivered: Rows
    stored: StoredRows


def copy_rows(sides: CopySides, lease: MemoryLease, *, here: bool = True) -> CopyRows | None:
    """Both sides, yet to be read, by Spark unless `here`; None for what may be too large for that."""
    delivered = delivered_rows(sides, sides.terms.delivered) if here else None
    stored = _stored_here(sides, lease) if here else None
    if delivered is not None and stored is not None:
        return CopyRows(delivered, stored)
    try:
        return _by_spark(sides, lease, delivered, stored)
    except TooLarge:
        return None


def delivered_rows(sides: CopySides, names: Sequence[str]) -> Rows | None:
    """These columns of the copy from files of this machine; None where Spark must read them."""
    schema = pa.schema(each for each in _schemas(sides)[DELIVERED] if each.name in names)
    batches = sides.source.batches
    if batches is None:
        return None

    def tables() -> Iterator[pa.Table]:
        for table in batches(schema.names):
            if not _fit(table.schema, schema):
                raise Unreadable("values that Spark converts")
            yield table.cast(schema)

    return Rows(schema, tables)


def _stored_here(sides: CopySides, lease: MemoryLease) -> StoredRows | None:
    """The stored versions and readers of what is asked later; None where Spark must read or convert them."""
    schemas, before, terms = _schemas(sides), sides.evolved.stored, sides.terms
    if sides.table is None or before is None or not sides.table.rows:
        nothing = schemas[SLICE].empty_table()
        return StoredRows(Rows(schemas[SLICE], lambda: ()), lambda _: nothing, lambda: ())
    was = arrow_schema({each.name: each.type for each in before.columns})
    now = arrow_schema({each.name: each.type for each in sides.evolved.shape.columns})
    if not _fit(was, pa.schema([now.field(name) for name in was.names])):
        return None
    here = LocalRows(sides.store, sides.table, lease)
    old = {new: name for name, new in sides.evolved.renamed.items()}
    key = old.get(terms.key[0], terms.key[0])

    def stored_names(names: Iterable[str]) -> dict[str, str]:
        return {name: old.get(name, name) for name in names if name in {*was.names, *PLACES}}

    def read(schema: pa.Schema, chosen: Chosen, where: Any = None) -> Iterator[pa.Table]:
        names = stored_names(schema.names)
        role: list[str | tuple[str, str]] = [(MEMORY, ROLE)] if terms.among is None else [MEMORY, key]
        of = [VALID_FROM, VALID_TO, *role]
        for rows in here.batches([*names.values()], of, chosen, where=where):
            yield in_schema(rows.rename_columns([*names]), schema)

    def whole(rows: pa.Table) -> pa.Table:
        if not len(rows):
            return schemas[SLICE].empty_table()
        names = stored_names(name for name in schemas[SLICE].names if name not in rows.column_names)
        rest = here.at(rows, [*names.values()]).rename_columns([*names])
        return in_schema(_beside(rows, rest), schemas[SLICE])

    times = () if terms.in_order else (VALID_FROM, VALID_TO)
    own = () if terms.among is None else (MEMORY, *(name for name, _ in terms.scope or ()))
    wanted = {
        *own,
        *terms.key,
        *terms.compared,
        *terms.renewed,
        *[old for old, _ in terms.successions],
        *PLACES,
        *times,
    }
    decisive = pa.schema(each for each in schemas[SLICE] if each.name in wanted)
    condition = without(VALID_TO) if terms.in_order else None
    return StoredRows(
        Rows(decisive, lambda: read(decisive, partial(_touched, terms, key), condition)),
        whole,
        lambda: read(schemas[ELSEWHERE], _closed if terms.in_order else _version),
    )


def _touched(terms: CopyTerms, key: str, rows: pa.Table) -> pa.Array:
    """Which rows are versions that the copy can touch, as `versions_touched` has it for Spark.

    Among events the facts of records count, too.
    """
    if terms.among is not None:
        return pc.and_(may_be_touched(terms.at, rows), pc.is_valid(rows[key]))
    if terms.in_order:
        return pc.and_(_version(rows), pc.is_null(rows[VALID_TO]))
    reached = micros(rows[VALID_TO]) >= terms.at
    if terms.following is not None:
        reached &= micros(rows[VALID_FROM]) <= terms.following
    return pc.and_(_version(rows).combine_chunks(), pa.array(reached))


def _closed(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(_version(rows), pc.is_valid(rows[VALID_TO]))


def _version(rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_null(pc.struct_field(rows[MEMORY], ROLE))


def _beside(rows: pa.Table, more: pa.Table) -> pa.Table:
    return pa.table([*rows.columns, *more.columns], names=[*rows.column_names, *more.column_names])


def _fit(came: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether all values of these columns are values of those."""
    pairs = zip(came, wanted, strict=True)
    return all(pa.types.is_null(one.type) or widens(one.type, other.type) for one, other in pairs)


def _by_spark(
    sides: CopySides, lease: MemoryLease, delivered: Rows | None, stored: StoredRows | None
) -> CopyRows | None:
    """What could not be read here by Spark, in one query; None for more rows than are few."""
    frames: dict[str, DataFrame] = {}
    few = few_rows(sides.store, len(sides.terms.delivered))
    sure = False
    if delivered is None:
        sure = hold_frame(sides.delivered, sides.source.size, "copy", lease)
        frames[DELIVERED] = sides.delivered if sure else sides.delivered.limit(few + 1)
    if stored is None and sides.table is not None:
        table = sides.table
        lease.hold("table", unpacked_size(table.rows, len(table.shape.columns), table.bytes))
        versions = sides.stored.where(version())
        if sides.terms.in_order:
            versions = versions.where(column(VALID_TO).isNotNull())
        frames[SLICE] = (
            versions_touched(sides.stored, sides.terms)
            if sides.terms.among is None
            else live_rows_of(sides.stored, sides.terms.at).where(column(sides.terms.key[0]).isNotNull())
        )
        frames[ELSEWHERE] = versions.select(*map(quoted, sides.terms.key))
    with translate_faults(sides.evolved.shape.table):  # a result that is too large for the driver, too
        schemas, rows = _schemas(sides), collected(frames)
    rows = {side: each.select(schemas[side].names).cast(schemas[side]) for side, each in rows.items()}
    for name in ("copy", "table"):
        lease.hold(name, 0)  # whoever takes the rows counts them
    if delivered is None:
        if not sure and len(rows[DELIVERED]) > few:
            return None
        delivered = _as_rows(rows[DELIVERED])
    if stored is None:
        stored = StoredRows(_as_rows(rows[SLICE]), lambda these: these, lambda: [rows[ELSEWHERE]])
    return CopyRows(delivered, stored)


def _as_rows(rows: pa.Table) -> Rows:
    return Rows(rows.schema, lambda: [rows])


def _schemas(sides: CopySides) -> dict[str, pa.Schema]:
    """The columns of each side, in the types that the table will have."""
    columns = {each.name: each.type for each in sides.evolved.shape.columns}
    ids = [pa.field(ROW_ID, pa.int64())] if sides.terms.ids else []
    return {
        DELIVERED: arrow_schema({name: columns[name] for name in sides.terms.delivered}),
        SLICE: pa.schema([*arrow_schema(columns), *PLACE_HERE, *ids]),
        ELSEWHERE: arrow_schema({name: columns[name] for name in sides.terms.key}),
    }
