"""The whole history of a table, written to a file as Spark computes it: a part of it at a time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.model.table import TableName
from backstory.reading.exports import Export, Place
from backstory.reading.frames.point_in_time import current
from backstory.reading.frames.statements import statements
from backstory.reading.frames.versions import HISTORIES, ranking, versions
from backstory.reading.lives import TOLD_FROM
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def export(store: Store, table: TableName, place: Place) -> Export:
    """Write every version, or on `axis` both all that ever was told; of a table without a history its rows.

    In the order of the key and of the times. Raises UsageError for `axis` both of a table without a history.
    """
    shape = existing(store, table).shape
    if place.axis == "both":
        rows = statements(store, table)
    else:
        rows = versions(store, table) if shape.layout in HISTORIES else current(store, table)
    first = [*ranking(shape, rows.columns), *(name for name in rows.columns if name == TOLD_FROM)]
    if first:
        rows = rows.orderBy(*map(column, first))
    with translate_faults(table):
        schema = arrow_of(rows.limit(0)).schema
        return place.write(table, schema, _batches(rows, schema))


def _batches(rows: "DataFrame", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows, of which no more than one of Spark's partitions is held at a time."""
    parts = rows._jdf.toArrowBatchRdd().toJavaRDD().toLocalIterator()  # noqa: SLF001 - Python has no name for it
    while parts.hasNext():
        yield pa.ipc.read_record_batch(pa.py_buffer(bytes(parts.next())), schema)
