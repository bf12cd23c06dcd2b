"""Columns named like Iceberg's own columns keep the source's name: decision F21.

They are stored with an underscore appended. Every table of Fivetran's file connectors has `_file`.
"""

import json

import pytest
from depth import DEPTH, deep
from destination import PLAIN, Place, done, gives, refusal, serving
from tables_as_text import instant

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.formats.batch_file import Compression, Encoding, Format
from backstory.formats.memory import Memory
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.table import Table
from backstory.testing.sender import Sender

pytestmark = pytest.mark.tables_on("iceberg")

RESERVED = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
LIVE = "_file:STRING* _pos:LONG* _file_ v synced"
HISTORY = "_file:STRING* _pos:LONG* _file_ v synced start* end active"
PARQUET = Encoding(Format.PARQUET, Compression.OFF, False, "null-marker", "unmodified-marker")
SMALL, SPREAD = Memory(1 << 28), Memory(0)
# The other tests send CSV, which the driver plans. Before a release, each format is planned in tasks too.
WAYS = [(PARQUET, SMALL)]
if DEPTH == "laws":
    WAYS += [(PLAIN, SMALL), (PLAIN, SPREAD), (PARQUET, SPREAD)]


@pytest.fixture
def place(sender, store, schema):
    rows = "_file _pos _file_ v synced \n a.csv 1 A one T1 \n a.csv 2 B two T2"
    return Place.made(sender, store, schema, LIVE, rows)


def names(place):
    """The stored columns of a table, and the property with their source names."""
    table = existing(place.store, place.name)
    return table.shape.names, json.loads(table.iceberg.properties().get("backstory.source-names") or "{}")


def current(place):
    """The rows for a reader of the table."""
    rows = Table(place.store, place.name).current()
    return gives(rows.toArrow().to_pylist())


def test_every_reserved_name_is_described_as_sent(sender, store, schema):
    """F21: A reserved name is stored with underscores appended until it is unique, and is described by its
    own name."""
    jvm = store.spark._jvm
    assert all(map(jvm.org.apache.iceberg.MetadataColumns.isMetadataColumn, RESERVED))
    columns = " ".join(["id:LONG*", *RESERVED, "_file_", "_pos_", "_pos__"])
    place = Place.made(sender, store, schema, columns, [{"id": 1} | {name: name for name in RESERVED}])
    assert place.described() == {"id": "LONG*"} | dict.fromkeys(columns.split()[1:], "STRING")
    stored, remembered = names(place)
    assert stored == [
        "id",
        "_file__",
        "_pos___",
        *(f"{name}_" for name in RESERVED[2:]),
        "_file_",
        "_pos_",
        "_pos__",
    ]
    assert remembered == dict(zip(stored[1:8], RESERVED, strict=True))
    (row,) = current(place)
    assert {name: row[name] for name in RESERVED} == {name: name for name in RESERVED}


@pytest.mark.parametrize(("encoding", "memory"), WAYS)
def test_batches_load_columns_with_reserved_names(spark, store, schema, tmp_path, encoding, memory):
    """F21: Batches use the source's names, in CSV and Parquet, small and spread, in every mode."""
    stores = {"backstory": IcebergStore(spark, memory=memory)}
    with serving(stores, batch_format=encoding.format) as address:
        sender = Sender.to(address, tmp_path, encoding=encoding)
        place = Place.made(sender, store, schema, "_file* _pos:LONG* _file_ v _deleted:BOOLEAN synced")
        place.write(
            replace="_file _pos _file_ v _deleted \n a 1 A x false \n a 2 B y false \n b 1 C z false",
        )
        place.write(update="_file _pos v _deleted \n a 1 . true \n b 1 w .", delete="_pos _file \n 2 a")
        rows = "_file _pos _file_ v _deleted \n a 1 A x true \n b 1 C w false"
        assert current(place) == gives(rows)

        history = Place.made(sender, store, schema, HISTORY)
        first = "_file _pos _file_ v start end active \n a 1 A x T1 TMAX true"
        history.write(earliest="_file _pos start \n a 1 T1", replace=first)
        history.write(
            earliest="_file _pos start \n a 1 T3",
            update="_file _pos _file_ v start end active \n a 1 A2 . T3 TMAX true",
        )
        history.write(delete="_file _pos end \n a 1 T5")
    table = Table(store, history.name)
    (version,) = table.as_of(instant("T2")).toArrow().to_pylist()
    assert [version[name] for name in ("_file", "_pos", "_file_", "v")] == ["a", 1, "A", "x"]
    life = table.timeline({"_file": "a", "_pos": 1})
    assert [(each["_file_"], each["v"]) for each in life.versions] == [("A", "x"), ("A2", "x")]
    assert life.columns == ["_file_", "v"]
    assert [commit["door"] for commit in table.log()] == ["fivetran"] * 3
    assert current(history) == []


@pytest.mark.tables_on("iceberg")
def test_alter_adds_retypes_and_drops_columns_with_reserved_names(place):
    """F21: Later definitions also work, whether `_file` or `_file_` was first."""
    place = place.alter(f"{LIVE} _row_id:INT _spec_id_ _spec_id")
    assert names(place)[0][-3:] == ["_row_id_", "_spec_id_", "_spec_id__"]
    place.write(update="_file _pos _row_id _spec_id _spec_id_ \n a.csv 1 7 s s_")
    # The source's `_row_id_` is not its `_row_id`, which is stored under that name.
    place = place.alter(f"{LIVE} _row_id:STRING _row_id_ _spec_id_ _spec_id")
    assert names(place)[0][-4:] == ["_row_id_", "_spec_id_", "_spec_id__", "_row_id__"]
    place.write(update="_file _pos _row_id_ \n a.csv 1 8")
    row = current(place)[0]
    assert [row[name] for name in ("_row_id", "_row_id_", "_spec_id", "_spec_id_")] == ["7", "8", "s", "s_"]
    place = place.alter(f"{LIVE} _row_id_ _spec_id", drop_columns=True)
    row = current(place)[0]
    assert [row.get(name) for name in ("_row_id", "_row_id_", "_spec_id", "_spec_id_")] == [
        None,
        "8",
        "s",
        None,
    ]
    assert "_row_id" not in place.described()
    # The column is dropped and added in one request, so it has none of the old values.
    place = place.alter(f"{LIVE} _row_id _spec_id", drop_columns=True)
    assert current(place)[0]["_row_id"] is None


def test_alter_changes_keys_with_reserved_names(place):
    """F21: Key changes, keys in replies and messages use the source's names."""
    metadata = place.metadata()
    request = sdk.AlterTableRequest(
        schema_name=place.schema, table=place.having(LIVE.replace("_pos:LONG*", "_pos:LONG")).table
    )
    text = refusal(place.sender.stub.AlterTable(request))
    assert "(_file) is not a key of" in text
    assert place.metadata() == metadata
    text = refusal(place.having(LIVE.replace("_file:STRING*", "_file")).reply())
    assert "is (_file, _pos), not (_pos)" in text
    other = place.alter(LIVE.replace("_file:STRING*", "_file").replace("_file_", "_file_*"))
    assert other.described()["_file"] == "STRING"
    assert other.described()["_file_"] == "STRING*"


@pytest.mark.parametrize("spread", [True, False][: deep(2, 1)])
def test_messages_use_the_sources_names(sender, spreading, store, schema, tmp_path, spread):
    """F21: Messages about files, cells and missing columns never contain the stored name."""
    sender = Sender.to(spreading, tmp_path) if spread else sender
    place = Place.made(sender, store, schema, "id:LONG* _pos:LONG _row_id:LONG")
    texts = [
        refusal(place.reply(replace=place.files("id _pos \n 1 x"))),
        refusal(place.reply(replace=place.files("id _pos_ \n 1 1"))),
        refusal(place.having("id:LONG* _pos_").reply()),
        refusal(place.migrate("rename_column", from_column="_row_id", to_column="_pos")),
        refusal(place.migrate("copy_column", from_column="_row_id", to_column="id")),
        refusal(place.migrate("update_column_value", column="_pos", value="x")),
    ]
    assert ["column _pos:" in texts[0], "no column _pos_." in texts[1], "no column _pos_." in texts[2]] == [
        True
    ] * 3
    assert "already has a column '_pos'" in texts[3]
    assert "The value for _pos is" in texts[5]
    assert not any("_row_id_" in text or "_pos__" in text for text in texts)
    place.write(replace="id _pos _row_id \n 1 2 3", update="id _pos \n 1 4")
    assert place.rows() == gives("id _pos_ _row_id_ \n 1 4 3")


def test_columns_are_renamed_to_and_from_reserved_names(place):
    """F21: A column is renamed from `v` to `_row_id` to `_row_id_` and back. A repeated rename changes
    nothing."""
    for old, new in [("v", "_row_id"), ("_row_id", "_row_id_"), ("_row_id_", "_row_id"), ("_row_id", "w")]:
        for _ in range(2):
            done(place.migrate("rename_column", from_column=old, to_column=new))
        assert new in place.described()
        assert old not in place.described()
        assert sorted(row[new] for row in current(place)) == ["one", "two"]
    done(place.migrate("rename_column", from_column="_file", to_column="path"))
    done(place.migrate("rename_column", from_column="_file_", to_column="_file"))
    assert place.described() == {
        "path": "STRING*",
        "_pos": "LONG*",
        "_file": "STRING",
        "w": "STRING",
        "_fivetran_synced": "UTC_DATETIME",
    }
    assert sorted((row["path"], row["_file"]) for row in current(place)) == [("a.csv", "A"), ("a.csv", "B")]


def test_migrations_and_truncates_support_reserved_names(place, schema):
    """F21: Defaults, copies and truncation flags work, and a copied table keeps the names."""
    for _ in range(2):
        done(
            place.migrate(
                "add_column_with_default_value", column="_row_id", column_type="LONG", default_value="4"
            )
        )
        done(place.migrate("copy_column", from_column="_file_", to_column="_partition"))
        done(
            place.migrate(
                "add_column_with_default_value",
                column="_deleted",
                column_type="BOOLEAN",
                default_value="false",
            )
        )
    done(place.migrate("update_column_value", column="_row_id", value="5"))
    done(place.truncate(instant("T2"), soft="_deleted"))
    done(place.migrate("copy_table", from_table=place.table.name, to_table=f"{place.table.name} copy"))
    copy = place.named(f"{place.table.name} copy")
    for each in (place, copy):
        rows = [(row["_file_"], row["_partition"], row["_row_id"], row["_deleted"]) for row in current(each)]
        assert sorted(rows) == [("A", "A", 5, True), ("B", "B", 5, False)]
        assert each.described() == place.described()


def test_mode_migrations_keep_reserved_names(place):
    """F21: A soft-delete table with `_deleted` becomes a history, gains and loses a column, and returns."""
    place = place.alter(f"{LIVE} _deleted:BOOLEAN")
    place.write(update="_file _pos _deleted \n a.csv 1 true \n a.csv 2 false")
    mode = {"soft_deleted_column": "_deleted"}
    done(place.migrate("table_sync_mode_migration", type="SOFT_DELETE_TO_HISTORY", **mode))
    at = {"operation_timestamp": "2030-01-01T00:00:00Z"}
    done(
        place.migrate(
            "add_column_in_history_mode", column="_row_id", column_type="LONG", default_value="3", **at
        )
    )
    done(place.migrate("drop_column_in_history_mode", column="_file_", **at))
    (row,) = current(place)
    assert [row[name] for name in ("_file", "_pos", "_row_id", "_file_")] == ["a.csv", 2, 3, None]
    done(place.migrate("table_sync_mode_migration", type="HISTORY_TO_SOFT_DELETE", **mode))
    assert {(row["_pos"], row["_deleted"]) for row in current(place)} == {(1, True), (2, False)}
    assert place.described()["_file"] == "STRING*"
    named = f"{place.table.name} history"
    copied = {"from_table": place.table.name, "to_table": named, "soft_deleted_column": "_deleted"}
    done(place.migrate("copy_table_to_history_mode", **copied))
    (row,) = current(place.named(named))
    assert (row["_file"], row["_pos"]) == ("a.csv", 2)
