"""Whether a column has any value, by the statistics of files; rows are read where these leave it open."""

from contextlib import closing
from typing import Any

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.stores.iceberg.jvm import scan_where
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, StoredTable


def has_no_values(store: Store, table: StoredTable, name: str) -> bool:
    """Whether no row of the table, old versions included, has a value in a column."""
    if not table.rows:
        return True
    field = int(table.iceberg.schema().findField(name).fieldId())
    scan = scan_where(store.jvm, table.iceberg, {"type": "not-null", "term": name}).includeColumnStats()
    with closing(scan.planFiles()) as planned:
        tasks = planned.iterator()
        if not tasks.hasNext():
            return True
        while tasks.hasNext():
            if _has_values(tasks.next(), field):
                return False
    return store.spark.table(store.sql_name(table.shape.table)).where(column(name).isNotNull()).isEmpty()


def is_taken_back(store: Store, table: StoredTable, name: str) -> bool:
    """Whether a column has values in none but rows without length: statements that were taken back."""
    start, end = column(VALID_FROM), column(VALID_TO)
    rows = store.spark.table(store.sql_name(table.shape.table))
    return rows.where(column(name).isNotNull() & ~end.eqNullSafe(start)).isEmpty()


def _has_values(task: Any, field: int) -> bool:
    """Whether a file surely has a row with a value, by its statistics; hidden rows could be all of these."""
    nulls = (task.file().nullValueCounts() or {}).get(field)
    return nulls is not None and not task.deletes() and int(nulls) < int(task.file().recordCount())
