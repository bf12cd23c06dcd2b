"""What becomes of the rows for which a condition holds, however many there are."""

from typing import TYPE_CHECKING

from backstory.model.change import Change
from backstory.model.schema import Shape
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.lineage import with_row_ids
from backstory.stores.iceberg.literals import absent
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame


def delete_where(store: Store, table: StoredTable, condition: "Column") -> Change | None:
    """The rows go; None if there are none."""
    return change_where(store, table, condition, None)


def update_where(
    store: Store, table: StoredTable, condition: "Column", values: "Mapping[str, Column]"
) -> Change | None:
    """The rows get these values; None if there are none."""
    return change_where(store, table, condition, lambda rows: rows.withColumns(dict(values)))


def change_where(
    store: Store,
    table: StoredTable,
    condition: "Column",
    becoming: "Callable[[DataFrame], DataFrame] | None",
    *,
    into: Shape | None = None,
) -> Change | None:
    """What `becoming` makes of the rows takes their place, or nothing; None if there are no such rows.

    With `into` the table gets that shape in the same commit, rows or not; it may only have columns more.
    """
    shape = into or table.shape
    with translate_faults(table.shape.table):
        positions = {}
        if table.rows:
            rows = store.spark.table(store.sql_name(table.shape.table))
            rows = rows.withColumns(absent(shape.columns, table.shape.names)).where(condition)
            positions = positions_of(rows)
    if not positions:
        return Change(into=into) if into else None
    count = sum(len(bitmap) for bitmap in positions.values())
    come = becoming(with_row_ids(table, rows)) if becoming else None
    return Change({"updated" if becoming else "deleted": count}, gone=positions, come=come, into=into)
