"""Both sides of a copy as Arrow tables: read from files of this machine, what is elsewhere by Spark."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.comparing import CopySides
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import CELL, UNPACKED, MemoryLease, TooLarge, unpacked_size
from backstory.model.layout import MEMORY, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import ROLE
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import collected
from backstory.stores.iceberg.jvm import scanned_bytes
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE, Chosen, LocalRows
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.sought import without
from backstory.stores.metadata.columns import widens
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies.plan import version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELIVERED, OPEN, CLOSED = "delivered", "open versions", "closed versions"
# A frame whose plan does not tell its size may have so many parts, each of which is asked for a few rows.
PARTS: Final = 64
UNTOLD: Final = 1 << 60
NARROWING: Final = frozenset(["Project", "Filter"])
PLACES: Final = (FILE, POSITION, ROW_ID)
# Of a copy's rows those of the table: open versions, `whole` and `closed`.
Stored: TypeAlias = tuple[pa.Table, Callable[[pa.Table], pa.Table], Callable[[], pa.Table]]


@dataclass(frozen=True, slots=True)
class CopyRows:
    """The copy's rows, of the open versions the same columns with places and ids, and what is read later.

    That are, of some open versions, all columns (`whole`), and the keys of closed versions; both may raise
    TooLarge and Unreadable. All are in the types that the table will have.
    """

    delivered: pa.Table
    open: pa.Table
    whole: Callable[[pa.Table], pa.Table]
    closed: Callable[[], pa.Table]


def copy_rows(sides: CopySides, lease: MemoryLease) -> CopyRows | None:
    """Both sides; None where the lease cannot hold them."""
    try:
        delivered = _delivered_here(sides, lease)
        stored = _stored_here(sides, lease)
        if delivered is not None and stored is not None:
            return CopyRows(delivered, *stored)
        return _by_spark(sides, lease, delivered, stored)
    except TooLarge:
        return None


def _delivered_here(sides: CopySides, lease: MemoryLease) -> pa.Table | None:
    """The copy's rows from files of this machine; None where Spark must read or convert them."""
    schema = _schemas(sides)[DELIVERED]
    rows = None if sides.source.rows is None else sides.source.rows(schema.names, lease)
    return None if rows is None or not _fit(rows.schema, schema) else rows.cast(schema)


def _stored_here(sides: CopySides, lease: MemoryLease) -> Stored | None:
    """The open versions and readers of what is asked later; None where Spark must read or convert them."""
    schemas, before = _schemas(sides), sides.evolved.stored
    if sides.table is None or before is None or not sides.table.rows:
        return schemas[OPEN].empty_table(), lambda rows: rows, schemas[CLOSED].empty_table
    was = arrow_schema({each.name: each.type for each in before.columns})
    now = arrow_schema({each.name: each.type for each in sides.evolved.shape.columns})
    if not _fit(was, pa.schema([now.field(name) for name in was.names])):
        return None
    here = LocalRows(sides.store, sides.table, lease)
    old = {new: name for name, new in sides.evolved.renamed.items()}

    def asked(names: Iterable[str]) -> dict[str, str]:
        return {name: old.get(name, name) for name in names if name in {*was.names, *PLACES}}

    def read(schema: pa.Schema, chosen: Chosen, where: Any = None) -> pa.Table:
        names = asked(schema.names)
        rows = here.read([*names.values()], [VALID_TO, (MEMORY, ROLE)], chosen, where=where)
        return _lengthened(rows.rename_columns([*names]), schema)

    def whole(rows: pa.Table) -> pa.Table:
        if not len(rows):
            return schemas[OPEN].empty_table()
        names = asked(name for name in schemas[OPEN].names if name not in rows.column_names)
        rest = here.at(rows, [*names.values()]).rename_columns([*names])
        return _lengthened(_beside(rows, rest), schemas[OPEN])

    wanted = {*sides.terms.delivered, *(old for old, _ in sides.terms.successions), *PLACES}
    compared = pa.schema(each for each in schemas[OPEN] if each.name in wanted)
    try:
        return read(compared, _open, without(VALID_TO)), whole, lambda: read(schemas[CLOSED], _closed)
    except Unreadable:
        return None


def _open(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(_version(rows), pc.is_null(rows[VALID_TO]))


def _closed(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(_version(rows), pc.is_valid(rows[VALID_TO]))


def _version(rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_null(pc.struct_field(rows[MEMORY], ROLE))


def _beside(rows: pa.Table, more: pa.Table) -> pa.Table:
    return pa.table([*rows.columns, *more.columns], names=[*rows.column_names, *more.column_names])


def _lengthened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in these columns; those that they lack are new, and NULL."""
    there = set(rows.column_names)
    values = [rows[each.name] if each.name in there else pa.nulls(len(rows), each.type) for each in schema]
    return pa.table(values, names=schema.names).cast(schema)


def _fit(came: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether all values of these columns are values of those."""
    pairs = zip(came, wanted, strict=True)
    return all(pa.types.is_null(one.type) or widens(one.type, other.type) for one, other in pairs)


def _by_spark(
    sides: CopySides,
    lease: MemoryLease,
    delivered: pa.Table | None,
    stored: Stored | None,
) -> CopyRows | None:
    """What could not be read here by Spark, in one query; None for more rows than are few."""
    frames: dict[str, DataFrame] = {}
    few = min(FEW, sides.store.memory.most // (CELL * max(1, len(sides.terms.delivered))))
    sure = False
    if delivered is None:
        sure = _held(sides, lease)
        frames[DELIVERED] = sides.delivered if sure else sides.delivered.limit(few + 1)
    if stored is None and sides.table is not None:
        table = sides.table
        lease.hold("table", unpacked_size(table.rows, len(table.shape.columns), table.bytes))
        is_open, versions = column(VALID_TO).isNull(), sides.stored.where(version())
        frames[OPEN] = versions.where(is_open)
        frames[CLOSED] = versions.where(~is_open).select(*map(quoted, sides.terms.key))
    with translate_faults(sides.evolved.shape.table):  # a result that is too large for the driver, too
        schemas, found = _schemas(sides), collected(frames)
    rows = {side: each.select(schemas[side].names).cast(schemas[side]) for side, each in found.items()}
    if delivered is None:
        delivered = rows[DELIVERED]
        if not sure and len(delivered) > few:
            return None
        lease.hold("copy", max(1, delivered.nbytes))
    if stored is None:
        stored = rows[OPEN], lambda these: these, lambda: rows[CLOSED]
    return CopyRows(delivered, *stored)


def _held(sides: CopySides, lease: MemoryLease) -> bool:
    """Hold what the copy may take; whether it cannot take more. Raises TooLarge."""
    if sides.source.size is not None:
        lease.hold("copy", sides.source.size)
        return True
    plan = sides.delivered._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - Python has no name for it
    planned, scanned = _planned_size(plan), _scanned_size(plan)
    if scanned is not None:
        with suppress(TooLarge):
            lease.hold("copy", max(planned, scanned))
            return True
    lease.hold("copy", planned)
    return False


def _scanned_size(plan: Any) -> int | None:
    """What the files may take of which a frame is rows, all or fewer, by its plan; None for other frames.

    Spark takes texts of a table for short ones, so that its plan alone could tell too few.
    """
    while plan.nodeName() in NARROWING:
        plan = plan.child()
    if plan.nodeName() == "LogicalRelation":
        return int(plan.stats().sizeInBytes()) * UNPACKED
    size = scanned_bytes(plan) if plan.nodeName() == "DataSourceV2ScanRelation" else None
    return None if size is None else size * UNPACKED


def _planned_size(plan: Any) -> int:
    """What the rows may take by Spark's own plan; little where it does not tell, but reads from few parts."""
    size, leaves = int(plan.stats().sizeInBytes()), plan.collectLeaves()
    if size < UNTOLD:
        return max(1, size * UNPACKED)
    parts = 0
    for place in range(int(leaves.size())):
        leaf = leaves.apply(place)
        if leaf.nodeName() != "LogicalRDD":
            return size
        parts += int(leaf.rdd().getNumPartitions())
    return 1 if parts <= PARTS else size


def _schemas(sides: CopySides) -> dict[str, pa.Schema]:
    """The columns of each side, in the types that the table will have."""
    columns = {each.name: each.type for each in sides.evolved.shape.columns}
    ids = [pa.field(ROW_ID, pa.int64())] if sides.ids else []
    return {
        DELIVERED: arrow_schema({name: columns[name] for name in sides.terms.delivered}),
        OPEN: pa.schema([*arrow_schema(columns), *PLACE_HERE, *ids]),
        CLOSED: arrow_schema({name: columns[name] for name in sides.terms.key}),
    }
