"""The batches of a stream, each a feed that is committed once (V66 to V68)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from backstory.doors.native.feeds.options import FeedRequest
from backstory.errors import BackstoryError
from backstory.model.table import TableName
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import Store, StoredTable, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a commit says of the stream that it is of; and Spark's property with the stream's id.
STREAM: Final = "backstory.stream"
BATCH: Final = "backstory.batch"
QUERY: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch by the id of its query and its number."""

    query: str
    number: int

    def properties(self) -> dict[str, str]:
        """What its commit says of it."""
        return {STREAM: self.query, BATCH: str(self.number)}

    def is_committed(self, table: StoredTable) -> bool:
        """Whether it, or a later one of its query, is committed."""
        for snapshot in ancestry(table):
            if snapshot.get_property(STREAM) == self.query:
                return int(snapshot.get_property(BATCH) or -1) >= self.number
        return False


def batch_writer(store: Store, into: TableName, request: FeedRequest) -> "Callable[[DataFrame, int], None]":
    """What applies the batches of a stream; Refused ends the query, and the table is as before."""

    def write(rows: "DataFrame", number: int) -> None:
        from backstory.doors.native import door

        session = rows.sparkSession
        query = session.sparkContext.getLocalProperty(QUERY)
        batch = None if query is None else StreamBatch(query, number)
        own = replace(store, session=session)
        table = load(own, into)
        if batch is not None and table is not None and batch.is_committed(table):
            return
        try:
            door.apply(own, rows, into, request, batch)
        except BackstoryError as stop:
            raise _in_words(stop) from None

    return write


def _in_words(stop: BackstoryError) -> BackstoryError:
    """The same error, whose text has its code and keys: a query that ends has nothing else of it."""
    keys = f" Keys: {', '.join(map(str, stop.keys))}." if stop.keys else ""
    return type(stop)(stop.code, f"{stop.code}: {stop.message}", f"{stop.remedy}{keys}", stop.keys)
