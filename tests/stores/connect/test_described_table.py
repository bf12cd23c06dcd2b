"""A session without Java reads a table's metadata file, and Java gives the same content."""

import json

from backstory.model.table import TableName
from backstory.stores.iceberg.jvm import json_of_metadata
from backstory.stores.iceberg.store import existing
from backstory.stores.table_files import local_path
from backstory.warehouse import Warehouse


def test_the_metadata_file_has_the_same_content_as_java(store):
    """Snapshots, schemas, references, partitions and properties."""
    warehouse, name = Warehouse(store, embedded=False), TableName("described", "t")
    for day, columns in enumerate(("k string, v string", "k string, v string, more int"), 1):
        row = ("a", f"v{day}", day)[: day + 1]
        frame = store.spark.createDataFrame([row], columns)
        warehouse.snapshot(frame, into=str(name), key="k", at=f"2026-01-0{day}")
    store.spark.sql(f"ALTER TABLE {store.sql_name(name)} SET TBLPROPERTIES ('backstory.note' = 'ä')")
    iceberg = existing(store, name).iceberg
    newest = iceberg.currentSnapshot().snapshotId()
    iceberg.manageSnapshots().createTag("kept", newest).setMaxRefAgeMs("kept", 10**9).commit()
    table = existing(store, name)
    in_java = json_of_metadata(store.jvm, table.base.operations().current())
    assert table.metadata == in_java == json.loads(local_path(table.location).read_bytes())
    assert (table.tags, table.newest.id) == ({"kept": newest}, newest)
    store.spark.sql(f"DROP TABLE {store.sql_name(name)}")
