"""The whole history of a small table, written to a file."""

import pyarrow as pa
import pyarrow.compute as pc

from backstory.reading.arrow.differing import is_plain
from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.point_in_time import live
from backstory.reading.arrow.versions import statements, versions
from backstory.reading.exports import Export, Place
from backstory.reading.frames.versions import HISTORIES, RECORDING, ranking
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.reading.rules.differences import rank
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import integers, values_of


def export(files: Files, place: Place) -> Export:
    """Write what `export` of frames writes; Unreadable, with nothing written, for what Spark alone reads."""
    now = table_at(files, None)
    shape = now.shape
    if place.axis == "both":
        rows = statements(now).rows if shape.layout in RECORDING else _without_knowledge(versions(now).rows)
    elif shape.layout in HISTORIES:
        rows = versions(now).rows
    else:
        rows = live(now)
    rows = _in_order(rows, [*ranking(shape, rows.column_names), TOLD_FROM])
    return place.write(shape.table, rows.schema, rows.to_batches())


def _without_knowledge(rows: pa.Table) -> pa.Table:
    """The versions of a table that does not store while it told them."""
    unknown = pa.nulls(rows.num_rows, pa.timestamp("us", tz="UTC"))
    return rows.append_column(TOLD_FROM, unknown).append_column(TOLD_TO, unknown)


def _in_order(rows: pa.Table, first: list[str]) -> pa.Table:
    """The rows by these columns, where they have them: NULL first and NaN last."""
    names = [name for name in first if name in rows.column_names]
    if not names:
        return rows
    if all(is_plain(rows.schema.field(name).type) for name in names):
        keys = [each for name in names for each in (pc.is_valid(rows[name]), rows[name])]
        order = [(str(place), "ascending") for place in range(len(keys))]
        return rows.take(pc.sort_indices(pa.table(keys, [name for name, _ in order]), order))
    ranks = [list(map(rank, values_of(rows[name]))) for name in names]
    keyed = list(zip(*ranks, strict=True))
    places = sorted(range(rows.num_rows), key=lambda place: keyed[place])
    return rows.take(integers(places))
