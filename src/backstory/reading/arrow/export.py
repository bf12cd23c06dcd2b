"""The whole history of a small table, written to a file."""

import pyarrow as pa

from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.point_in_time import live
from backstory.reading.arrow.versions import statements, versions
from backstory.reading.exports import Export, Place
from backstory.reading.frames.life import RECORDING
from backstory.reading.frames.versions import HISTORIES, ranking
from backstory.reading.lives import TOLD_FROM
from backstory.reading.rules.differences import rank
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import integers, values_of


def export(files: Files, place: Place) -> Export:
    """Write what `export` of frames writes; Unreadable, with nothing written, for what Spark alone reads."""
    now = table_at(files, None)
    shape = now.shape
    if place.axis == "both":
        held = statements(now) if shape.layout in RECORDING else versions(now)
        rows = held.chosen(held.found, known=True)
    elif shape.layout in HISTORIES:
        held = versions(now)
        rows = held.chosen(held.found)
    else:
        rows = live(now)
    rows = _in_order(rows, [*ranking(shape, rows.column_names), TOLD_FROM])
    return place.write(shape.table, rows.schema, rows.to_batches())


def _in_order(rows: pa.Table, first: list[str]) -> pa.Table:
    """The rows by these columns, where they have them."""
    ranks = [list(map(rank, values_of(rows[name]))) for name in first if name in rows.column_names]
    if not ranks:
        return rows
    keyed = list(zip(*ranks, strict=True))
    places = sorted(range(rows.num_rows), key=lambda place: keyed[place])
    return rows.take(integers(places))
