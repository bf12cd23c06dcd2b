"""Changes that tests make to tables without a door."""

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from memory_store.store import MemoryTable, Snapshot

from backstory.engine.deliver import commit_change
from backstory.formats.delivered import rows_as
from backstory.model.change import Change, Note
from backstory.stores.iceberg.data_files import write_rows
from backstory.stores.iceberg.jvm import array
from backstory.stores.iceberg.store import existing

BY_TEST = Note("test", "")


def commit(store, table, change, note=BY_TEST):
    return commit_change(store, table, change, note)


def make(store, shape):
    """Create an empty table."""
    commit(store, None, Change(into=shape))


def snapshots_of(table):
    """Every commit of rows of a table in any store, oldest first."""
    if isinstance(table, MemoryTable):
        return table.snapshots
    return [
        Snapshot(
            one["snapshot-id"], {name: one["summary"][name] for name in one["summary"] if name != "operation"}
        )
        for one in table.metadata.get("snapshots") or ()
    ]


def append_past(store, target, rows):
    """Append rows, given as dicts or tuples, as a program that is not backstory would."""
    table = existing(store, target)
    names = table.shape.names
    row_dicts = [row if isinstance(row, dict) else dict(zip(names, row, strict=True)) for row in rows]
    adding = table.iceberg.newAppend()
    for file in write_rows(store, table, rows_as(table.shape.columns, row_dicts)):
        adding.appendFile(file)
    adding.commit()


def hide_by_value(store, table, column, value):
    """Write an equality delete file for one value of a column, as another writer would."""
    stored = existing(store, table).iceberg
    java, field = store.jvm, stored.schema().findField(column)
    location = stored.locationProvider().newDataLocation(f"{uuid.uuid4()}-equality.parquet")
    metadata = {"PARQUET:field_id": str(field.fieldId())}
    rows = pa.table([pa.array([value])], schema=pa.schema([pa.field(column, pa.int64(), metadata=metadata)]))
    pq.write_table(rows, location, store_schema=False)
    file = (
        java.org.apache.iceberg.FileMetadata.deleteFileBuilder(stored.spec())
        .ofEqualityDeletes(array(java, java.java.lang.Integer.TYPE, [field.fieldId()]))
        .withFormat("parquet")
        .withPath(location)
        .withFileSizeInBytes(Path(location).stat().st_size)
        .withRecordCount(1)
        .build()
    )
    stored.newRowDelta().addDeletes(file).commit()
