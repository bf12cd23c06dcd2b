"""Change the rows for which a condition holds, however many there are, in one commit."""

from dataclasses import replace
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from backstory.model.table import Shape
from backstory.tables.commit import Note, commit, discarding
from backstory.tables.data_files import write_frame
from backstory.tables.evolve import stage
from backstory.tables.faults import translated
from backstory.tables.literals import absent, quoted
from backstory.tables.store import Store, StoredTable, settle
from backstory.tables.vectors import write_deletions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def delete_where(store: Store, table: StoredTable, condition: "Column", note: Note) -> int | None:
    """Delete the rows, and give the snapshot's id; None, and no commit, if there are none."""
    return change_where(store, table, condition, None, note)


def update_where(
    store: Store, table: StoredTable, condition: "Column", values: "Mapping[str, Column]", note: Note
) -> int | None:
    """Set columns of the rows; else as `delete_where`."""
    return change_where(store, table, condition, lambda rows: rows.withColumns(dict(values)), note)


def change_where(
    store: Store,
    table: StoredTable,
    condition: "Column",
    becoming: "Callable[[DataFrame], DataFrame] | None",
    note: Note,
    *,
    into: Shape | None = None,
) -> int | None:
    """Put what `becoming` makes of the rows in their place, or nothing; else as `delete_where`.

    With `into` the table gets that shape in the same commit; it may only have columns more.
    """
    shape = into or table.shape
    with translated(table.shape.table), discarding(table) as written:
        staged = None if into is None else stage(store, table, into)
        positions = {}
        if table.rows:
            rows = store.spark.table(store.sql_name(table.shape.table))
            rows = rows.withColumns(absent(shape.columns, table.shape.names)).where(condition)
            positions = positions_of(rows)
        if not positions:
            if staged:
                settle(staged)
            return None
        files = []
        if becoming:
            pending = table if staged is None else StoredTable(shape, staged.table())
            files = write_frame(store, pending, becoming(rows).select(*map(quoted, shape.names)))
            written.extend(files)
        deletions = write_deletions(store, table, positions)
    count = sum(len(bitmap) for bitmap in positions.values())
    counted = replace(note, counts={"updated" if becoming else "deleted": count})
    return commit(table, files, deletions, counted, staged=staged)


def positions_of(frame: object) -> dict[str, BitMap64]:
    """For each data file the positions of its rows, packed where Spark runs."""
    packed = (
        frame.select("_file", "_pos")  # type: ignore[attr-defined]
        .groupBy("_file")
        .applyInArrow(_packed, "file string, positions binary")
        .collect()
    )
    return {row.file: BitMap64.deserialize(bytes(row.positions)) for row in packed}


def _packed(rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa
    from pyroaring import BitMap64

    bitmap = BitMap64(rows["_pos"].to_numpy())
    return pa.table({"file": [rows["_file"][0].as_py()], "positions": [bitmap.serialize()]})
