"""Row lineage: a row that is written anew remains the row that it was (Iceberg's specification, Row Lineage).

Tables of format version 3 give each row an id. Who writes a row into another file copies its id beside it;
a row without one begins there and gets one from Iceberg. The sequence number of a row's last update is
copied for a row that only moves. Left empty it is that of the commit, which is right for one that changes.
"""

from typing import TYPE_CHECKING, Final

from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_ID: Final = "_row_id"
UPDATED_IN: Final = "_last_updated_sequence_number"
FIELD_IDS: Final = {ROW_ID: 2147483540, UPDATED_IN: 2147483539}
LINEAGE_SINCE: Final = 3


def keeps_row_ids(table: StoredTable) -> bool:
    """Whether the rows of the table have ids, and no column of somebody's hides them."""
    return table.format_version >= LINEAGE_SINCE and ROW_ID not in table.shape.names


def with_row_ids(table: StoredTable, rows: "DataFrame") -> "DataFrame":
    """Rows read from the table, with their ids if it has any; for rows that go back into the same table."""
    return rows.withColumn(ROW_ID, column(ROW_ID)) if keeps_row_ids(table) else rows
