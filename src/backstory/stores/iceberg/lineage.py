"""Row lineage: a row that is written anew remains the row that it was (Iceberg's specification, Row Lineage).

Tables of format version 3 give each row an id. Who writes a row into another file copies its id beside it;
a row without one begins there and gets one from Iceberg. The sequence number of a row's last update is
copied for a row that only moves. Left empty it is that of the commit, which is right for one that changes.
"""

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.model.change import Pieces
from backstory.model.places import ROW_ID
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UPDATED_IN: Final = "_last_updated_sequence_number"
FIELD_IDS: Final = {ROW_ID: 2147483540, UPDATED_IN: 2147483539}
LINEAGE_SINCE: Final = 3


def keeps_row_ids(table: StoredTable) -> bool:
    """Whether the rows of the table have ids, and no column of somebody's hides them."""
    return table.format_version >= LINEAGE_SINCE and ROW_ID not in table.shape.names


def with_row_ids(table: StoredTable, rows: "DataFrame") -> "DataFrame":
    """Rows that were read from the table, with their ids if it has any, to go back into it."""
    return rows.withColumn(ROW_ID, column(ROW_ID)) if keeps_row_ids(table) else rows


def without_row_ids(rows: Any) -> Any:
    """The rows, Arrow tables or a frame, as ones that begin where they are written to."""
    if isinstance(rows, Pieces):
        return Pieces(lambda: map(without_row_ids, rows.tables()))
    if not isinstance(rows, pa.Table):
        return rows.drop(ROW_ID)
    return rows.select([name for name in rows.column_names if name != ROW_ID])
