"""A batch as the dataset has it, the log that it meets, and how they meet."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.doors.odf.batch import DeliveredSide
from backstory.doors.odf.registry import Registered
from backstory.engine.staging import StagedRows
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.iceberg.store import Store
from backstory.strategies.events.sides import OP, PLACE, TIME
from backstory.strategies.events.terms import EventTerms, Moment, Strategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class MergeSides:
    """Both sides of a merge; `read` is the batch as it was read."""

    store: Store
    dataset: Registered
    read: StagedRows | None
    arrived: DeliveredSide
    terms: EventTerms
    moment: Moment

    @property
    def stored(self) -> int:
        """How many events the log has that have a say."""
        looks_back = self.terms.looks_back and self.moment.start
        return self.dataset.table.rows if self.dataset.table and looks_back else 0

    @property
    def whole(self) -> bool:
        """Whether the delivery is about all records, not about those that it names alone."""
        return self.terms.strategy is Strategy.SNAPSHOT

    @property
    def schema(self) -> pa.Schema:
        """The columns of both sides where they are Arrow tables."""
        from pyspark.sql.pandas.types import to_arrow_type

        time = pa.date32() if self.arrived.dated else pa.timestamp("us", "UTC")
        data = [(each.name, to_arrow_type(each.dataType)) for each in self.arrived.data]
        return pa.schema([(OP, pa.int32()), (TIME, time), (PLACE, pa.int64()), *data])

    def logged(self, keys: pa.Table | None = None) -> "DataFrame | None":
        """The log for Spark, only the events of these keys if there are any; None for no log."""
        if not self.stored:
            return None
        rows = self.store.spark.table(self.store.sql_name(self.dataset.name))
        rows = rows if keys is None else of_keys(self.store, rows, keys)
        return self.dataset.columns.logged(rows, [field.name for field in self.arrived.data])
