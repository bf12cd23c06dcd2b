"""Change the rows for which a condition holds, however many there are, in one commit."""

from typing import TYPE_CHECKING

from pyroaring import BitMap64

from backstory.tables.commit import Note, commit
from backstory.tables.data_files import write_frame
from backstory.tables.faults import translated
from backstory.tables.literals import quoted
from backstory.tables.store import Store, StoredTable
from backstory.tables.vectors import write_deletions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import Column


def delete_where(store: Store, table: StoredTable, condition: "Column", note: Note) -> int | None:
    """Delete the rows, and give the snapshot's id; None, and no commit, if there are none."""
    return update_where(store, table, condition, None, note)


def update_where(
    store: Store,
    table: StoredTable,
    condition: "Column",
    values: "Mapping[str, Column] | None",
    note: Note,
) -> int | None:
    """Set columns of the rows, or delete them where `values` is None; else as `delete_where`."""
    if not table.rows:
        return None
    with translated(table.shape.table):
        frame = store.spark.table(store.sql_name(table.shape.table)).where(condition)
        positions = _positions(frame)
        if not positions:
            return None
        files = []
        if values is not None:
            names = [quoted(name) for name in table.shape.names]
            files = write_frame(store, table, frame.withColumns(dict(values)).select(*names))
        deletions = write_deletions(store, table, positions)
    count = sum(len(bitmap) for bitmap in positions.values())
    counts = {"deleted" if values is None else "updated": count}
    return commit(store, table, files, deletions, Note(note.door, note.token, counts))


def _positions(frame: object) -> dict[str, BitMap64]:
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
