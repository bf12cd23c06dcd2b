"""Write every row of a table anew, in another shape, in one commit."""

from dataclasses import replace
from typing import TYPE_CHECKING

from backstory.model.schema import Shape
from backstory.stores.iceberg.commit import Note, commit_all, finish
from backstory.stores.iceberg.create import builder
from backstory.stores.iceberg.data_files import write_frame
from backstory.stores.iceberg.evolve import stage
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.store import DISORDER, Store, StoredTable, settle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pyspark.sql import DataFrame


def rows_of(store: Store, table: StoredTable) -> "DataFrame":
    """Every row of the table."""
    with translated(table.shape.table):
        return store.spark.table(store.sql_name(table.shape.table))


def rebuild(store: Store, table: StoredTable, into: Shape, rows: "DataFrame", note: Note) -> int | None:
    """Give the table this shape and these rows instead of its own; the snapshot's id.

    A reader sees the table before it or after it. Without any row, before and after, the shape
    changes without a snapshot. Raises TryAgain if the table was written to meanwhile.
    """
    with translated(table.shape.table):
        staged = stage(store, table, into)
        if not table.rows:
            settle(staged)
            return None
        files = _written(store, into, staged, rows)
    return commit_all(store, table, files, _counting(note, "rewritten", files), staged=staged)


def create_filled(
    store: Store, shape: Shape, rows: "DataFrame", note: Note, *, disorderly: bool = False
) -> int:
    """Create the table with these rows, or replace it by them, in one commit; the snapshot's id."""
    with translated(shape.table):
        building = builder(store, shape)
        if disorderly:
            building = building.withProperty(DISORDER, "true")
        staged = building.createOrReplaceTransaction()
        files = _written(store, shape, staged, rows)
        append = staged.newAppend()
        for file in files:
            append.appendFile(file)
    return finish(shape.table, staged, append, _counting(note, "inserted", files), files)


def _counting(note: Note, outcome: str, files: "Sequence[Any]") -> Note:
    return replace(note, counts={outcome: sum(int(file.recordCount()) for file in files)})


def _written(store: Store, shape: Shape, staged: "Any", rows: "DataFrame") -> "Sequence[Any]":
    pending = StoredTable(shape, staged.table())
    names = [field["name"] for field in fields_of(store.jvm, pending.iceberg.schema())]
    return write_frame(store, pending, rows.select(*map(quoted, names)))
