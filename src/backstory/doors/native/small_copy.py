"""A copy that the driver can hold: its rows and the table's are read in one query and planned as Arrow.

What is too large, of an instant of which something is known already, or not to be told apart here is compared
by frames; both are held to one rule.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.comparing import CONTENT, CopySides, content_of
from backstory.doors.native.receipts import COUNTS
from backstory.doors.native.refusals import keys_of_rows
from backstory.doors.native.tally import ComparedCopy, SnapshotTally
from backstory.doors.native.writing import change_of, field_ids
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import CELL, UNPACKED, MemoryLease, TooLarge, unpacked_size
from backstory.model.change import Change
from backstory.model.layout import VALID_TO
from backstory.model.places import ROW_ID
from backstory.model.schema import Column
from backstory.stores.iceberg.frames import collected
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.copies.arrow import Copied, comparable, copied, rows_that_come, rows_that_go
from backstory.strategies.copies.plan import APPEARING, RENEWED, version
from backstory.strategies.scd2.plan import CHANGED, VANISHED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELIVERED, OPEN, CLOSED = "delivered", "open versions", "closed versions"
# A frame whose plan does not tell its size may have so many parts, each of which is asked for a few rows.
PARTS: Final = 64
UNTOLD: Final = 1 << 60


def compared_here(sides: CopySides, lease: MemoryLease) -> ComparedCopy | None:
    """The copy compared by the driver; None where frames must: the lease cannot hold it, or see above."""
    terms = sides.terms
    if not (terms.in_order and comparable(terms)) or not _held(sides, lease):
        return None
    most = min(FEW, sides.store.memory.most // (CELL * max(1, len(terms.delivered))))
    rows = _read(sides, None if sides.size else most + 1)
    if sides.size is None and len(rows[DELIVERED]) > most:
        return None
    delivered, hashes = rows[DELIVERED].drop_columns(CONTENT), rows[DELIVERED][CONTENT]
    copy = copied(terms, delivered, rows[OPEN], rows[CLOSED], closes=sides.asked.deletes == "close")
    if copy is None:
        return None
    met, content = _tally(sides, copy), int(np.bitwise_xor.reduce(hashes.to_numpy()))
    return ComparedCopy(
        met,
        len(delivered),
        content,
        lambda *kinds: _keys(sides, _kinds(copy), kinds),
        lambda: _change(sides, copy, met),
    )


def _held(sides: CopySides, lease: MemoryLease) -> bool:
    """Whether the lease can hold the rows of both."""
    size = sides.size or _planned_size(sides.delivered)
    try:
        lease.hold("copy", size)
        if sides.table is not None:
            table = sides.table
            lease.hold("table", unpacked_size(table.rows, len(table.shape.columns), table.bytes))
    except TooLarge:
        return False
    return True


def _planned_size(frame: "DataFrame") -> int:
    """What the rows may take by Spark's own plan; little where it does not tell, but reads from few parts."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - Python has no name for it
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


def _read(sides: CopySides, most: int | None) -> dict[str, pa.Table]:
    """The copy's rows, open versions and keys of closed ones, in the types that the table will have."""
    terms, shape, ids = sides.terms, sides.evolved.shape, sides.ids
    key = [each for each in shape.columns if each.name in terms.key]
    stored = [*_fields(shape.columns), *PLACE, *([pa.field(ROW_ID, pa.int64())] if ids else [])]
    fields = {
        DELIVERED: [*_fields(sides.evolved.delivered), pa.field(CONTENT, pa.int64())],
        OPEN: stored,
        CLOSED: _fields(key),
    }
    delivered = sides.delivered if most is None else sides.delivered.limit(most)
    frames = {DELIVERED: delivered.select("*", content_of(terms).alias(CONTENT))}
    if sides.table is not None and sides.table.rows:
        is_open, versions = column(VALID_TO).isNull(), sides.stored.where(version())
        frames[OPEN] = versions.where(is_open)
        frames[CLOSED] = versions.where(~is_open).select(*(quoted(each.name) for each in key))
    found = collected(frames)
    return {
        side: found[side].select([each.name for each in schema]).cast(schema)
        if side in found
        else schema.empty_table()
        for side, schema in ((side, pa.schema(each)) for side, each in fields.items())
    }


def _fields(columns: Iterable[Column]) -> list[pa.Field]:
    return list(arrow_schema({each.name: each.type for each in columns}))


def _tally(sides: CopySides, copy: Copied) -> SnapshotTally:
    found, dry_run = copy.found, sides.asked.dry_run
    reopened, changed = pc.sum(copy.back).as_py() or 0, len(found.changed[0])
    numbers = (len(found.appeared) - reopened, changed, len(found.vanished), reopened, len(found.same[0]))
    return SnapshotTally(
        dict(zip(COUNTS, numbers, strict=True)),
        len(found.same[0]) + changed + len(found.vanished),
        keys=_keys_of_outcomes(sides, copy) if dry_run and not found.nothing else {},
        columns=copy.driving if dry_run else {},
    )


def _kinds(copy: Copied) -> dict[str, pa.Table]:
    """The rows of the records that appear, change with a version, are renewed without one, or go."""
    found, delivered = copy.found, copy.delivered
    return {
        APPEARING: delivered.take(found.appeared),
        CHANGED: delivered.take(found.changed[0].filter(copy.anew)),
        RENEWED: delivered.take(found.changed[0].filter(pc.invert(copy.anew))),
        VANISHED: copy.open.take(found.vanished),
    }


def _keys(sides: CopySides, rows: Mapping[str, pa.Table], kinds: Iterable[str]) -> list[str]:
    """Up to ten keys of the rows of these kinds."""
    told = (keys_of_rows(sides.store, rows[kind], sides.terms.key) for kind in kinds)
    return [key for keys in told for key in keys][:MAX_KEYS]


def _keys_of_outcomes(sides: CopySides, copy: Copied) -> dict[str, list[str]]:
    rows = _kinds(copy)
    rows |= {
        "reopened": rows[APPEARING].filter(copy.back),
        "new": rows[APPEARING].filter(pc.invert(copy.back)),
    }
    told = {"new": ["new"], "changed": [CHANGED, RENEWED], "closed": [VANISHED], "reopened": ["reopened"]}
    return {outcome: _keys(sides, rows, kinds) for outcome, kinds in told.items()}


def _change(sides: CopySides, copy: Copied, met: SnapshotTally) -> Change | None:
    place = sides.place
    marks = place.remembers and place.mark is None
    come = rows_that_come(copy, field_ids(sides) if marks else None, marks=marks)
    gone = rows_that_go(copy)
    return change_of(sides, met.counts, come if len(come) else None, gone if len(gone) else None)
