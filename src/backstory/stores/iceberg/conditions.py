"""Change the rows for which a condition holds, however many there are, in one commit."""

from dataclasses import replace
from typing import TYPE_CHECKING

from backstory.model.schema import Shape
from backstory.stores.iceberg.commit import Note
from backstory.stores.iceberg.evolve import stage
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.literals import absent
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.replace import replace_rows
from backstory.stores.iceberg.store import Store, StoredTable, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    with translated(table.shape.table):
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
    count = sum(len(bitmap) for bitmap in positions.values())
    counted = replace(note, counts={"updated" if becoming else "deleted": count})
    come = becoming(rows) if becoming else None
    return replace_rows(store, table, positions, come, counted, staged=staged)
