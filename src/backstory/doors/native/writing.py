"""What a snapshot commits: rows that end, rows that begin, the mark of the copy, columns and properties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from backstory.doors.native.comparing import CopySides
from backstory.doors.native.field_ids import ids_of_columns
from backstory.doors.native.tally import SnapshotTally
from backstory.model.change import Change
from backstory.model.instant import iso
from backstory.model.layout import VALID_FROM
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import MEMORY_SINCE, SETTLED
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.stores.iceberg.positions import FEW, coded_file, positions_of, with_paths
from backstory.strategies.copies.moves import forgotten, mark, of, row_of
from backstory.strategies.copies.plan import marked
from backstory.strategies.copies.rows import Written, rows_that_come, rows_that_go
from backstory.strategies.scd2.plan import Outcomes

if TYPE_CHECKING:
    from pyroaring import BitMap64
    from pyspark.sql import DataFrame


def change_of_frames(
    sides: CopySides, found: Outcomes, met: SnapshotTally, kinds: Sequence[Written]
) -> Change | None:
    """What is to commit of a comparison by frames; None where nothing changes."""
    place = sides.place
    ids = field_ids(sides) if place.remembers else None
    restated = place.mark is not None and met.differing > 0 and place.mark.columns != ids
    parts = [rows_that_come(found, kinds, ids=sides.ids)] if met.written else []
    gone = [rows_that_go(found, kinds)] if met.rewritten else []
    if place.remembers and (place.mark is None or restated):
        parts.append(_mark(sides, ids))
    if restated:
        taken_back, place_of_it = _forgotten(sides)
        parts.append(taken_back)
        gone.append(place_of_it)
    beside = len(parts) - bool(met.written)
    if sides.evolved.retyped:
        return _anew(sides, met, parts, gone, beside - restated)
    come = _in_few_files(sides, parts, met.written) if parts else None
    places = _places(sides, gone, met.rewritten + restated)
    return change_of(sides, met.counts, come, places, met.written + beside)


def _anew(
    sides: CopySides, met: SnapshotTally, parts: "Sequence[DataFrame]", gone: "Sequence[DataFrame]", more: int
) -> Change | None:
    """All rows in the types that the table will have: those that stay, and `parts` in place of what goes."""
    assert sides.table is not None
    stored = sides.stored.withColumn(FILE, coded_file(sides.salt))
    there = sides.store.spark.table(sides.store.sql_name(sides.table.shape.table)).count()
    stay = stored.join(reduce(_with, gone), [FILE, POSITION], "left_anti") if gone else stored
    count = there + met.written - met.rewritten + more
    come = _in_few_files(sides, [stay.drop(FILE, POSITION), *parts], count)
    change = change_of(sides, met.counts, come, expected=count)
    return change and replace(change, whole=True)


def change_of(
    sides: CopySides, counts: Mapping[str, int], come: Any, gone: Any = None, expected: int | None = None
) -> Change | None:
    """The rows that come and go with the columns and properties that the copy brings; None for nothing."""
    evolved = sides.evolved
    if sides.table is None:
        told = {**sides.settings.properties(), **_memory(sides)}
        return Change(counts, come=come, into=evolved.shape, properties=told)
    if come is None and not evolved.changed:
        return None
    kept = sides.settings.properties() if evolved.renamed else {}
    return Change(
        counts,
        gone,
        come,
        evolved.shape if evolved.changed else None,
        evolved.renamed,
        {**kept, **_memory(sides)},
        expected=None if come is None else expected,
    )


def _places(sides: CopySides, gone: "Sequence[DataFrame]", count: int) -> "dict[str, BitMap64] | None":
    """The positions of the rows that go, of which there are so many."""
    if sides.table is None or not gone:
        return None
    return with_paths(sides.store, sides.table, positions_of(reduce(_with, gone), count), sides.salt)


def _memory(sides: CopySides) -> Mapping[str, str]:
    """The properties with which a memory begins (V28)."""
    place = sides.place
    if not place.begins:
        return {}
    return {SETTLED: place.settled_text(), MEMORY_SINCE: iso(place.recorded)}


def _in_few_files(sides: CopySides, parts: "Sequence[DataFrame]", count: int) -> "DataFrame":
    """The rows that come, sorted by key; few of them in one task, and so in few files (V12)."""
    rows = reduce(_with, parts)
    return (rows.coalesce(1) if count <= FEW else rows).sortWithinPartitions(*map(quoted, sides.terms.key))


def _with(one: "DataFrame", other: "DataFrame") -> "DataFrame":
    return one.unionByName(other)


def _mark(sides: CopySides, columns: "Sequence[int] | None") -> "DataFrame":
    """The row that remembers the copy (V31)."""
    from pyspark.sql.functions import lit

    terms = sides.terms
    own = mark(instant(terms.at), instant(terms.recorded), terms.memory, columns)
    ids = [lit(None).cast("bigint").alias(ROW_ID)] if sides.ids else []
    return sides.store.spark.range(1).select(*row_of(terms.columns, own, {}), *ids)


def _forgotten(sides: CopySides) -> "tuple[DataFrame, DataFrame]":
    """The stored mark of the copy's instant as one that was taken back (V8), and its place."""
    from pyspark.sql.functions import struct

    terms, whole = sides.terms, "backstory: mark"
    here = sides.stored.where(marked() & (column(VALID_FROM) == instant(terms.at)))
    told = here.select(struct("*").alias(whole))
    row = quoted(whole)
    own = forgotten(row, instant(terms.recorded), terms.memory)
    values = {each.name: of(row, each.name) for each in terms.columns}
    ids = [of(row, ROW_ID).alias(ROW_ID)] if sides.ids else []
    return told.select(*row_of(terms.columns, own, values), *ids), here.select(
        coded_file(sides.salt).alias(FILE), POSITION
    )


def field_ids(sides: CopySides) -> tuple[int, ...] | None:
    """The field ids of the delivered columns; None where they are all (V2)."""
    evolved, table = sides.evolved, sides.table
    delivered = {each.name for each in evolved.delivered}
    if table is None or all(each.name in delivered for each in evolved.shape.user_columns):
        return None
    ids = ids_of_columns(sides.store, table, evolved)
    return tuple(sorted(ids[name] for name in delivered))
