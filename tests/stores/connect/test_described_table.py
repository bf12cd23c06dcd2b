"""A table described by its metadata file has the same answers as Iceberg's Java."""

import json

import pytest

from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores.connect.store import DescribedTable
from backstory.stores.iceberg.jvm import metadata_json, schema_json, texts_of
from backstory.stores.iceberg.store import existing
from backstory.warehouse import Warehouse


@pytest.fixture
def tables(store):
    """A table with two commits, two schemas and a tag, from Java and from its metadata."""
    warehouse, name = Warehouse(store, embedded=False), TableName("described", "t")
    for day, columns in enumerate(("k string, v string", "k string, v string, more int"), 1):
        row = ("a", f"v{day}", day)[: day + 1]
        frame = store.spark.createDataFrame([row], columns)
        warehouse.snapshot(frame, into=str(name), key="k", at=f"2026-01-0{day}")
    store.spark.sql(f"ALTER TABLE {store.sql_name(name)} SET TBLPROPERTIES ('backstory.note' = 'ä')")
    iceberg = existing(store, name).iceberg
    newest = iceberg.currentSnapshot().snapshotId()
    iceberg.manageSnapshots().createTag("kept", newest).setMaxRefAgeMs("kept", 10**9).commit()
    iceberg = existing(store, name).iceberg
    location = iceberg.operations().current().metadataFileLocation()
    yield iceberg, DescribedTable(json.loads(metadata_json(store.jvm, iceberg)), location)
    store.spark.sql(f"DROP TABLE {store.sql_name(name)}")


def answers(table, texts, fields):
    """The answers that readers need from a table."""
    state = table.operations().current()
    return {
        "state": [state.formatVersion(), state.lastColumnId(), state.metadataFileLocation()],
        "names": [str(table.uuid()), table.location(), texts(table.properties())],
        "snapshots": [of_snapshot(each, texts) for each in table.snapshots()],
        "current": of_snapshot(table.currentSnapshot(), texts),
        "missing": table.snapshot(1),
        "refs": {
            name: [ref.snapshotId(), ref.isTag(), ref.maxRefAgeMs()]
            for name, ref in dict(table.refs()).items()
        },
        "schemas": {number: fields(schema) for number, schema in dict(table.schemas()).items()},
        "columns": [(each.fieldId(), each.name()) for each in table.schema().columns()],
        "by name": [table.schema().findField("more").fieldId(), table.schema().findField("none")],
        "by id": [table.schema().findColumnName(1), table.schema().findColumnName(10**6)],
        "parts": [(each.name(), each.sourceId()) for each in table.spec().fields()],
    }


def of_snapshot(snapshot, texts):
    """The answers that readers need from a snapshot."""
    numbers = snapshot.snapshotId(), snapshot.parentId(), snapshot.timestampMillis(), snapshot.schemaId()
    return [*numbers, snapshot.operation(), texts(snapshot.summary())]


def test_a_described_table_gives_the_same_metadata_as_java(store, tables):
    """Snapshots, schemas, references, partitions and properties."""
    java, described = tables
    by_java = answers(java, texts_of, lambda schema: json.loads(schema_json(store.jvm, schema)))
    assert answers(described, dict, lambda schema: schema.json) == by_java


def test_methods_available_only_in_java_are_refused():
    """A reader gets no answer that the metadata lacks."""
    with pytest.raises(UsageError) as refusal:
        DescribedTable({}, "").newScan()
    assert refusal.value.code == "needs-java"
