"""Where a stored row is, and which row it is: the columns that stores, plans and changes know it by."""

from typing import Final

FILE: Final = "_file"
POSITION: Final = "_pos"
# Iceberg's id of a row, which it keeps when it changes; NULL, or no such column, where there are none.
ROW_ID: Final = "_row_id"
