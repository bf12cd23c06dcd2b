"""How many rows a table has, read with pyiceberg: where its manifests alone do not tell."""

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import Layout
from backstory.stores.metadata.described import Counts, Described, deletes_by_value

if TYPE_CHECKING:
    from pyiceberg.table import Table


_INSTANT: Final = pa.timestamp("us")


def open_table(location: str) -> "Table":
    """The table whose metadata is at a location, opened with pyiceberg for reading."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(location)


def read_counts(table: Described, opened: "Table") -> Counts:
    """The rows, from the columns that tell which are open and which are no versions, batch by batch.

    Those of a table of which another writer deleted rows by value are None: pyiceberg does not read it.
    """
    newest, layout = table.newest, table.shape.layout
    if newest is not None and deletes_by_value(newest.properties.get):
        return Counts(None, None)
    span = layout.span
    if span is None:
        return Counts(opened.scan().count(), None)
    ends = span.open == f"{span.end} IS NULL" or layout.adopted
    asked = [span.start, span.end] if layout is Layout.VERSIONS else [span.end if ends else span.open]
    rows = open_ = memory = 0
    for batch in opened.scan(selected_fields=tuple(asked)).to_arrow_batch_reader():
        told = batch.column(asked[-1])
        rows += len(batch)
        open_ += told.null_count if ends else pc.sum(told).as_py() or 0
        if layout.adopted:
            open_ += pc.sum(pc.greater_equal(told.cast(_INSTANT), pa.scalar(span.far, _INSTANT))).as_py() or 0
        if layout is Layout.VERSIONS:
            memory += pc.sum(pc.equal(batch.column(span.start), told)).as_py() or 0
    return Counts(rows - memory, open_, memory)
