"""Both sides of a copy as Arrow tables: read by the driver where their files open here, else by Spark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.doors.native.feeds.stored import live_rows_of
from backstory.doors.native.sides import CopySides
from backstory.doors.native.stored_side import (
    DELIVERED,
    ELSEWHERE,
    SLICE,
    StoredRows,
    fit,
    side_schemas,
    stored_here,
)
from backstory.engine.frame_size import few_rows, hold_frame
from backstory.engine.parts import Rows
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.model.layout import VALID_TO
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import collected, hold_collected
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies.frames import version, versions_touched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class CopyRows:
    """The copy's rows and the stored ones; `keys` are those of the copy, where they are read here."""

    delivered: Rows
    stored: StoredRows
    keys: Rows | None = None


def copy_rows(sides: CopySides, lease: MemoryLease, *, here: bool = True) -> CopyRows:
    """Both sides, yet to be read, by Spark unless `here`; TooLarge for what may be too much for that."""
    delivered = delivered_rows(sides, sides.terms.delivered) if here else None
    keys = delivered_rows(sides, sides.terms.key) if here else None
    stored = stored_here(sides, keys, lease) if here else None
    if delivered is not None and stored is not None:
        return CopyRows(delivered, stored, keys)
    return _by_spark(sides, lease, delivered, stored)


def delivered_rows(sides: CopySides, names: Sequence[str]) -> Rows | None:
    """These columns of the copy from files of this machine; None where Spark must read them."""
    schema = pa.schema(each for each in side_schemas(sides)[DELIVERED] if each.name in names)
    batches = sides.source.batches
    if batches is None:
        return None

    def tables() -> Iterator[pa.Table]:
        for table in batches(schema.names):
            if not fit(table.schema, schema):
                raise Unreadable("values that Spark converts")
            yield table.cast(schema)

    return Rows(schema, tables)


def _by_spark(
    sides: CopySides, lease: MemoryLease, delivered: Rows | None, stored: StoredRows | None
) -> CopyRows:
    """What could not be read here by Spark, in one query; TooLarge for more rows than are few."""
    frames: dict[str, DataFrame] = {}
    few = few_rows(sides.store, len(sides.terms.delivered))
    sure = False
    if delivered is None:
        sure = hold_frame(sides.store, sides.delivered, sides.source.size, "copy", lease)
        frames[DELIVERED] = sides.delivered if sure else sides.delivered.limit(few + 1)
    if stored is None and sides.table is not None:
        table = sides.table
        size = unpacked_size(table.rows, len(table.shape.columns), table.bytes)
        hold_collected(sides.store, lease, "table", size)
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
        schemas, rows = side_schemas(sides), collected(frames)
    rows = {side: each.select(schemas[side].names).cast(schemas[side]) for side, each in rows.items()}
    for name in ("copy", "table"):
        lease.hold(name, 0)  # whoever takes the rows counts them
    if delivered is None:
        if not sure and len(rows[DELIVERED]) > few:
            raise TooLarge
        delivered = _as_rows(rows[DELIVERED])
    if stored is None:
        stored = StoredRows(_as_rows(rows[SLICE]), lambda these: these, lambda _: [rows[ELSEWHERE]])
    return CopyRows(delivered, stored)


def _as_rows(rows: pa.Table) -> Rows:
    return Rows(rows.schema, lambda: [rows])
