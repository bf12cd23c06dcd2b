"""Columns of types that no source has are answered with a clear task, and never cause an invalid file."""

import pytest
from destination import HISTORY, LIVE, VERSIONS, Place, gives, refusal, serving
from lakes import lake
from tables_as_text import instant

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.reading.commits import inventory
from backstory.stores.iceberg.store import existing
from backstory.testing.sender import Sender

pytestmark = pytest.mark.tables_on("iceberg")

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1"
TYPES = ["uuid", "time", "fixed[4]", "timestamptz_ns", "list", "struct", "map", "variant"]
SPELLINGS = {"list": "ARRAY<STRING>", "struct": "STRUCT<a: INT>", "map": "MAP<STRING, BIGINT>"}


def type_of(jvm, name):
    types = jvm.org.apache.iceberg.types.Types
    field = types.NestedField.optional
    return {
        "uuid": lambda: types.UUIDType.get(),
        "time": lambda: types.TimeType.get(),
        "fixed[4]": lambda: types.FixedType.ofLength(4),
        "timestamptz_ns": lambda: types.TimestampNanoType.withZone(),
        "list": lambda: types.ListType.ofOptional(100, types.StringType.get()),
        "struct": lambda: types.StructType.of([field(100, "a", types.IntegerType.get())]),
        "map": lambda: types.MapType.ofOptional(100, 101, types.StringType.get(), types.LongType.get()),
        "variant": lambda: types.VariantType.get(),
    }[name]()


def add(place, name, type_):
    """Change the table as its owner would, through Iceberg's own interface."""
    table = existing(place.store, place.name).iceberg
    table.updateSchema().addColumn(name, type_of(place.store.jvm, type_)).commit()


def test_a_batch_for_a_table_with_a_foreign_column_is_a_task(sender, store, schema):
    """The task names the column and its type, and nothing is written. Without the column, the batch is
    applied."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    batches = [{"replace": "id v n synced \n 9 x 9 T2"}, {"update": "id v \n 1 z"}, {"delete": "id \n 2"}]
    sent = [{kind: place.files(rows) for kind, rows in kinds.items()} for kinds in batches]
    for type_ in TYPES:
        add(place, "extra", type_)
        metadata = place.metadata()
        for files in sent:
            assert f"The column extra of {place.name} is of type {SPELLINGS.get(type_, type_)}" in refusal(
                place.reply(**files)
            )
        assert place.metadata() == metadata
        assert "extra" not in place.described()
        existing(store, place.name).iceberg.updateSchema().deleteColumn("extra").commit()
    place.write(update="id v \n 1 z")
    assert place.rows() == gives("id v n synced \n 1 z 1 T1 \n 2 b 2 T1")


@pytest.mark.parametrize("columns", [LIVE, HISTORY])
def test_changes_to_a_table_with_a_foreign_column_are_refused(sender, store, schema, columns):
    """Truncates, alters and migrations are answered with a task that names the column. The table can still be
    dropped."""
    place = Place.made(sender, store, schema, columns, VERSIONS if columns == HISTORY else STORED)
    add(place, "extra", "list")
    metadata, stub = place.metadata(), sender.stub
    replies = [
        place.reply(),
        place.truncate(instant("T9")),
        stub.AlterTable(sdk.AlterTableRequest(schema_name=schema, table=place.having(f"{columns} w").table)),
        place.migrate("rename_column", from_column="v", to_column="w"),
        place.migrate("copy_table", from_table=place.table.name, to_table="copy"),
        place.migrate("copy_table_to_history_mode", from_table=place.table.name, to_table="copy"),
        place.migrate("table_sync_mode_migration", type="SOFT_DELETE_TO_HISTORY"),
    ]
    assert all("The column extra of" in refusal(reply) for reply in replies)
    assert place.metadata() == metadata
    assert sender.describe(schema, "copy") is None
    assert place.migrate("drop_table").success
    assert place.described() is None


def test_an_unreadable_table_does_not_hide_other_tables(spark, schema, tmp_path):
    """`tables` lists the unreadable table without counts, and the others with their counts."""
    store = lake(spark, "foreign_columns", tmp_path)
    with serving({"backstory": store}) as address:
        sender = Sender.to(address, tmp_path)
        others, place = (Place.made(sender, store, schema, HISTORY, VERSIONS) for _ in range(2))
    add(place, "extra", "time")
    counts = {row["table"]: (row["rows"], row["open_versions"]) for row in inventory(store)}
    assert counts[str(others.name)] == (4, 2)
    assert counts[str(place.name)] == (None, None)
