"""What a snapshot commits: rows that end, rows that begin, the mark of the copy, columns and properties."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from backstory.doors.native.comparing import Sides
from backstory.doors.native.tally import Tally
from backstory.model.change import Change
from backstory.model.instant import iso
from backstory.model.places import ROW_ID
from backstory.model.remembered import MEMORY_SINCE, SETTLED
from backstory.stores.iceberg.literals import instant, quoted
from backstory.stores.iceberg.positions import FEW, positions_of
from backstory.stores.iceberg.schema import fields_of
from backstory.strategies.copies.moves import mark, row_of
from backstory.strategies.copies.plan import rows_that_come, rows_that_go, written
from backstory.strategies.scd2.plan import Outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def change_of(sides: Sides, found: Outcomes, met: Tally) -> Change | None:
    """What is to commit; None where nothing changes."""
    evolved, place = sides.evolved, sides.place
    marked = place.remembers and not place.marked
    come = _rows(sides, found, met, marked=marked)
    if sides.table is None:
        told = {**sides.settings.properties(), **_memory(sides)}
        return Change(met.counts, come=come, into=evolved.shape, properties=told)
    if come is None and not evolved.changed:
        return None
    kept = sides.settings.properties() if evolved.renamed else {}
    gone = rows_that_go(found, written(sides.terms)) if met.rewritten else None
    return Change(
        met.counts,
        None if gone is None else positions_of(gone, met.rewritten),
        come,
        evolved.shape if evolved.changed else None,
        evolved.renamed,
        {**kept, **_memory(sides)},
        expected=None if come is None else met.written + marked,
    )


def _memory(sides: Sides) -> Mapping[str, str]:
    """The properties with which a memory begins (V28)."""
    place = sides.place
    if not place.begins:
        return {}
    return {SETTLED: place.settled_text(), MEMORY_SINCE: iso(place.recorded)}


def _rows(sides: Sides, found: Outcomes, met: Tally, *, marked: bool) -> "DataFrame | None":
    """The rows that come, sorted by key; None where there are none."""
    parts = [rows_that_come(found, written(sides.terms), ids=sides.ids)] if met.written else []
    if marked:
        parts.append(_mark(sides))
    if not parts:
        return None
    rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    if met.written <= FEW:
        rows = rows.coalesce(1)  # few files (V12)
    return rows.sortWithinPartitions(*map(quoted, sides.terms.key))


def _mark(sides: Sides) -> "DataFrame":
    """The row that remembers the copy (V31)."""
    from pyspark.sql.functions import lit

    terms = sides.terms
    own = mark(instant(terms.at), instant(terms.recorded), terms.memory, _field_ids(sides))
    ids = [lit(None).cast("bigint").alias(ROW_ID)] if sides.ids else []
    return sides.store.spark.range(1).select(*row_of(terms.columns, own, {}), *ids)


def _field_ids(sides: Sides) -> list[int] | None:
    """The field ids of the delivered columns; None where they are all (V2)."""
    delivered = {each.name for each in sides.evolved.delivered}
    if sides.table is None or all(each.name in delivered for each in sides.evolved.shape.user_columns):
        return None
    fields = fields_of(sides.store.jvm, sides.table.iceberg.schema())
    names = {sides.evolved.renamed.get(field["name"], field["name"]): field["id"] for field in fields}
    return sorted(names[name] for name in delivered if name in names)
