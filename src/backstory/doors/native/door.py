"""What the warehouse and the command line ask of native tables."""

from typing import TYPE_CHECKING, Any

from backstory.doors.native.asked import Asked, asked
from backstory.doors.native.snapshot import Answer, Snapshot
from backstory.engine.deliver import deliver
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["asked", "snapshot"]


def snapshot(store: Store, frame: Any, into: TableName, given: Asked) -> Answer:
    """Bring a full copy into its table; its receipt, or the plan of a dry run.

    `frame` is one of Spark, of pandas, or an Arrow table.
    """
    return deliver(store, Snapshot(into, _frame(store, frame), given))


def _frame(store: Store, given: Any) -> "DataFrame":
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backstory.stores.iceberg.frames import frame_of

    if isinstance(given, DataFrame):
        return given
    if type(given).__module__.partition(".")[0] == "pandas":
        given = pa.Table.from_pandas(given, preserve_index=False)
    if isinstance(given, pa.Table):
        return frame_of(store, given.replace_schema_metadata())
    raise UsageError(
        "bad-option",
        f"A {type(given).__name__} has no rows to snapshot.",
        "Give a DataFrame or an Arrow table.",
    )
