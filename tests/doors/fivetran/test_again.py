"""A request that is repeated after success or after a partial failure: requirements 39 and 79."""

from pathlib import Path

import grpc
import pytest
from destination import HISTORY, LIVE, Place, gives, status

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.stores.iceberg.store import existing


@pytest.mark.parametrize(
    ("columns", "drop"),
    [
        ("id:LONG* v n:LONG synced more", False),
        ("id:LONG* v* n:LONG synced", False),
        ("id:LONG v* n:LONG synced", False),
        ("id:LONG* synced", False),
        ("id:LONG* synced", True),
        ("id:LONG v* synced more:DECIMAL(9,2)* other", True),
    ],
)
def test_an_alter_sent_twice_is_applied_once(sender, store, schema, columns, drop):
    """39: A repeated alter succeeds without a commit, whatever it adds, drops or changes in the key."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T1 \n 2 b 2 T1")
    before = place.metadata()
    altered = place.alter(columns, drop_columns=drop)
    once = place.metadata()
    assert (once == before) is (columns == "id:LONG* synced" and not drop)
    request = sdk.AlterTableRequest(schema_name=schema, table=altered.table, drop_columns=drop)
    assert sender.stub.AlterTable(request) == sdk.AlterTableResponse(success=True)
    assert place.metadata() == once


COLUMNS = "id v n synced start end active"
STORED = f"{COLUMNS} \n 1 a 1 T1 T1 TMAX true \n 2 b 2 T1 T1 TMAX true \n 3 c 3 T1 T1 TMAX true"
BATCH = {
    "earliest": "id start \n 1 T3",
    "update": f"{COLUMNS} \n 1 new . T7 T3 TMAX true",
    "replace": f"{COLUMNS} \n 4 d 4 T7 T5 TMAX true",
    "delete": "id end \n 2 T4",
}
AFTER = f"""
    {COLUMNS}
    1  a    1  T1  T1  T3-1  false
    1  new  1  T7  T3  TMAX  true
    2  b    2  T1  T1  T4    false
    3  c    3  T1  T1  TMAX  true
    4  d    4  T7  T5  TMAX  true
"""


@pytest.mark.parametrize("partition", ["_fivetran_active=true", "_fivetran_active=false"])
@pytest.mark.tables_on("iceberg")
def test_a_batch_that_failed_halfway_can_be_repeated(sender, store, schema, partition):
    """79, 11, F3: If one of a batch's two data files cannot be written, nothing is visible. The repeated
    batch is one commit."""
    place = Place.made(sender, store, schema, HISTORY, STORED)
    files = {kind: place.files(rows) for kind, rows in BATCH.items()}
    blocked = Path(existing(store, place.name).iceberg.location().removeprefix("file:"), "data", partition)
    backup = blocked.with_name("kept")
    if blocked.exists():
        blocked.rename(backup)
    blocked.write_text("no folder")
    before = place.metadata()
    error = status(lambda kinds: place.reply(**kinds), files)
    assert error is not None
    assert error.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
    assert place.metadata() == before
    blocked.unlink()
    if backup.exists():
        backup.rename(blocked)
    assert gives(STORED) == place.rows()
    place.send(**files)
    assert gives(AFTER) == place.rows()
    assert len(place.snapshots()) == 2
