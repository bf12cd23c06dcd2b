"""Statements: each version as a table stated it, from one recorded time to another."""

from typing import TYPE_CHECKING

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.reading.frames.records import of_record
from backstory.reading.frames.versions import RECORDING, history_of, lifetimes_sql, shown_sql, versions
from backstory.reading.lifetimes import ENDED, KNOWN_FROM, KNOWN_TO, STARTED
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.stores.iceberg.store import Store, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def statements(store: Store, table: TableName, key: object = None) -> "DataFrame":
    """The statements of a record, or of every one: user's columns, `valid_from`, `valid_to` and two more.

    `TOLD_FROM` and `TOLD_TO` are the recorded times of a statement (native.md V97; NULL: still). Layout
    `versions` has them in its rows (V6), an event log in its system time. Other layouts give the versions as
    they are known now, and NULL. Raises UsageError for a key that the table does not have.
    """
    from pyspark.sql.functions import lit

    stored = existing(store, table)
    if stored.shape.layout in RECORDING:
        history = history_of(stored)
        query = lifetimes_sql(stored, history, store.sql_name(table), stated=True)
        times = {VALID_FROM: STARTED, VALID_TO: ENDED, TOLD_FROM: KNOWN_FROM, TOLD_TO: KNOWN_TO}
        rows = store.spark.sql(f"SELECT {shown_sql(history, times)} FROM ({query}) AS stated")  # noqa: S608
    else:
        unknown = lit(None).cast("timestamp")
        rows = versions(store, table).withColumns({TOLD_FROM: unknown, TOLD_TO: unknown})
    return rows if key is None else of_record(rows, stored.shape, key)
