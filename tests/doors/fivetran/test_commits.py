"""The effect of a batch on its table: decisions F3, F14 and E2, interface section 1."""

import json
import re
from importlib.metadata import version

import pytest
from committing import hide_by_value
from destination import HISTORY, LIVE, Place, gives, serving
from tables_as_text import instant

from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

pytestmark = pytest.mark.tables_on("iceberg")

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1 \n 3 c 3 T1"


def properties(place):
    rows = place.store.spark.sql(f"SHOW TBLPROPERTIES {place.store.sql_name(place.name)}").collect()
    return {row.key: row.value for row in rows}


def test_a_batch_is_one_commit_that_records_its_counts(sender, store, schema):
    """F3, interface 1: Every batch is one snapshot with token, door, counts and version."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    place.write(
        replace="id v n synced \n 1 x 1 T2 \n 4 d 4 T2 \n 3 c 3 T1",
        update="id v \n 9 no \n 8 no",
        delete="id \n 2 \n 7",
    )
    first, second = place.snapshots()
    for snapshot in (first, second):
        assert re.fullmatch(r"[0-9a-f]{64}", snapshot["backstory.token"])
        assert snapshot["backstory.door"] == "fivetran"
        assert snapshot["backstory.version"] == version("backstory")
    assert first["backstory.token"] != second["backstory.token"]
    counts = json.loads(second["backstory.counts"])
    assert counts == {"inserted": 1, "updated": 1, "deleted": 1, "unchanged": 1, "ignored": 3}
    assert json.loads(first["backstory.counts"])["inserted"] == 3
    assert int(second["added-records"]) == 2


@pytest.mark.tables_on("memory")
def test_a_token_identifies_the_newest_delivery(sender, store, schema):
    """F14, E2: The newest delivery is recognised if it is repeated, and an older one is applied again. No
    change means no commit."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    batch = place.files("id v n synced \n 1 x 1 T2")
    place.send(replace=batch)
    place.send(replace=batch)
    assert len(place.snapshots()) == 2
    place.alter(f"{LIVE} more")
    place.send(replace=batch)
    place.write(replace="id v n synced \n 2 b 2 T1", delete="id \n 77")
    assert len(place.snapshots()) == 2
    place.truncate(instant("T9"))
    place.send(replace=batch)
    assert gives("id v n synced more \n 1 x 1 T2 -") == place.rows()
    assert len(place.snapshots()) == 4


@pytest.mark.parametrize(("columns", "layout"), [(LIVE, "fivetran-live"), (HISTORY, "fivetran-history")])
def test_tables_store_their_layout_and_key(sender, store, schema, columns, layout):
    """Interface 1, F15: The table stores layout, layout version, key as JSON without the start, and format
    version 3."""
    place = Place.made(sender, store, schema, columns.replace("v ", 'v k"ü* '))
    stored = properties(place)
    assert stored["backstory.layout"] == layout
    assert json.loads(stored["backstory.key"]) == ["id", 'k"ü']
    assert stored["backstory.layout-version"] == "1"
    assert stored["format-version"] == "3"
    assert stored["write.delete.mode"] == "merge-on-read"


@pytest.fixture(scope="module")
def older(spark):
    """A server that makes tables of format version 2."""
    with serving({"backstory": IcebergStore(spark, format_version=2)}) as address:
        yield address


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_are_vectors_or_positions(sender, older, store, schema, tmp_path, version):
    """Interface 1: Format version 3 hides rows by one deletion vector per data file, version 2 by position
    deletes. Results are equal."""
    if version == 2:
        sender = Sender.to(older, tmp_path)
    place = Place.made(sender, store, schema, LIVE, STORED)
    assert properties(place)["format-version"] == str(version)
    place.write(delete="id \n 1")
    place.write(update="id v \n 2 x", delete="id \n 1")
    place.write(delete="id \n 3")
    assert gives("id v n synced \n 2 x 2 T1") == place.rows()

    deletes = store.spark.table(store.sql_name(place.name, "delete_files")).collect()
    assert {row.content for row in deletes} == {1}
    assert {row.file_format for row in deletes} == {"PUFFIN" if version == 3 else "PARQUET"}
    if version == 3:
        assert len(deletes) == 1

    versions = "id v n synced start end active"
    history = Place.made(sender, store, schema, HISTORY, f"{versions} \n 1 a 1 T1 T1 TMAX true")
    history.write(earliest="id start \n 1 T2", update=f"{versions} \n 1 b . T3 T2 TMAX true")
    history.write(delete="id end \n 1 T4")
    expected = f"{versions} \n 1 a 1 T1 T1 T2-1 false \n 1 b 1 T3 T2 T4 false"
    assert gives(expected) == history.rows()
    assert len(history.snapshots()) == 3


def test_deleted_rows_stay_deleted_in_an_upgraded_table(older, store, schema, tmp_path):
    """The first vector of an upgraded table contains all position deletes of its file, which are then
    removed."""
    place = Place.made(Sender.to(older, tmp_path), store, schema, LIVE, f"{STORED} \n 4 d 4 T1")
    place.write(delete="id \n 1")
    place.write(delete="id \n 2")
    place.write(update="id v \n 3 x")
    store.spark.sql(f"ALTER TABLE {store.sql_name(place.name)} SET TBLPROPERTIES ('format-version'='3')")
    place.write(delete="id \n 4")
    assert place.rows() == gives("id v n synced \n 3 x 3 T1")
    place.write(update="id v \n 3 y")
    assert place.rows() == gives("id v n synced \n 3 y 3 T1")
    deletes = store.spark.table(store.sql_name(place.name, "delete_files")).collect()
    assert {row.file_format for row in deletes} == {"PUFFIN"}


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_another_writer_deleted_by_value_stay_deleted(
    sender, older, store, schema, tmp_path, version
):
    """Another writer's equality deletes hide their rows before and after a batch. A row that is sent again is
    visible again."""
    place = Place.made(Sender.to(older, tmp_path) if version == 2 else sender, store, schema, LIVE, STORED)
    place.write(delete="id \n 1")
    hide_by_value(store, place.name, "id", 2)
    place.write(update="id v \n 2 no \n 3 x")
    assert place.rows() == gives("id v n synced \n 3 x 3 T1")
    place.write(delete="id \n 3", replace="id v n synced \n 2 z 2 T2")
    assert place.rows() == gives("id v n synced \n 2 z 2 T2")


def test_other_readers_read_while_the_server_runs(sender, older, store, schema, warehouse, tmp_path):
    """Interface 1: pyiceberg reads the same visible rows through the catalog's file."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("backstory", uri=f"sqlite:///{warehouse}/catalog.db")
    try:
        for server in (sender, Sender.to(older, tmp_path)):
            place = Place.made(server, store, schema, f"{LIVE} d:DECIMAL(9,2) x:BINARY when:NAIVE_DATE")
            place.write(replace=STORED)
            read = catalog.load_table((schema, place.table.name)).scan().to_arrow()
            assert gives(read.select(["id", "v", "n"]).to_pylist()) == place.rows("id v n")
            place.write(update="id v \n 2 x", delete="id \n 1")
            read = catalog.load_table((schema, place.table.name)).scan().to_arrow()
            assert gives(read.select(["id", "v", "n"]).to_pylist()) == place.rows("id v n")
    finally:
        catalog.engine.dispose()
