"""The whole history of a small table, written to a file."""

import pyarrow as pa

from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.order import in_order
from backstory.reading.arrow.point_in_time import live
from backstory.reading.arrow.versions import statements, versions
from backstory.reading.exports import Export, Place
from backstory.reading.frames.versions import HISTORIES, RECORDING, ranking
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.stores.metadata.rows import Files


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
    rows = in_order(rows, [*ranking(shape, rows.column_names), TOLD_FROM])
    return place.write(shape.table, rows.schema, rows.to_batches())


def _without_knowledge(rows: pa.Table) -> pa.Table:
    """The versions of a table that does not store while it told them."""
    unknown = pa.nulls(rows.num_rows, pa.timestamp("us", tz="UTC"))
    return rows.append_column(TOLD_FROM, unknown).append_column(TOLD_TO, unknown)
