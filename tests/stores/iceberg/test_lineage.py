"""Rows keep their ids when they change or files are rewritten (law 5, Iceberg's row lineage)."""

import pytest
from destination import HISTORY, LIVE, VERSIONS, Place, done, serving
from tables_as_text import instant

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1 \n 3 c 3 T1"


def ids(place: Place, *key: str) -> dict:
    """The id of each row and the commit that last changed it, by these columns."""
    columns = ", ".join(f"`{name}`" for name in (*key, "_row_id", "_last_updated_sequence_number"))
    rows = place.store.spark.sql(f"SELECT {columns} FROM {place.store.sql_name(place.name)}").collect()
    by_key = {tuple(row)[:-2] if len(key) > 1 else row[0]: tuple(row)[-2:] for row in rows}
    assert len(by_key) == len(rows)
    assert len({row_id for row_id, _ in by_key.values()}) == len(rows)
    return by_key


def rewrite(place: Place) -> None:
    """Iceberg's own compaction of every file."""
    name = f"{place.schema}.{place.table.name}"
    call = (
        f"CALL backstory.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    place.store.spark.sql(call).collect()


def test_a_changed_row_keeps_its_id_and_has_the_commit_of_its_change(sender, store, schema):
    """Replaced and updated rows keep their ids with a new commit. A row that returns is new."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    before = ids(place, "id")
    place.write(replace="id v n synced \n 1 x 1 T2 \n 4 d 4 T2", update="id v \n 2 y", delete="id \n 3")
    after = ids(place, "id")
    assert {key: row_id for key, (row_id, _) in after.items() if key < 4} == {
        key: before[key][0] for key in (1, 2)
    }
    assert after[4][0] not in {row_id for row_id, _ in before.values()}
    assert {number for _, number in after.values()} == {2}
    rewrite(place)
    assert ids(place, "id") == after
    place.write(replace="id v n synced \n 3 c 3 T3 \n 1 z 1 T3")
    again = ids(place, "id")
    assert again[1] == (after[1][0], 4)
    assert again[2] == after[2]
    assert again[3][0] not in {row_id for row_id, _ in {**before, **after}.values()}


def test_a_closed_version_keeps_its_id_and_its_successor_gets_a_new_one(sender, store, schema):
    """A rewritten version keeps its id too. An untouched version is unchanged."""
    place = Place.made(sender, store, schema, HISTORY, VERSIONS)
    key = ("id", "_fivetran_start")
    before = ids(place, *key)
    place.write(
        earliest="id start \n 1 T5",
        replace="id v n start end active synced \n 1 z 9 T5 TMAX true T5 \n 3 D 4 T3 TMAX true T5",
    )
    after = ids(place, *key)
    assert {version: row_id for version, (row_id, _) in after.items() if version in before} == {
        version: row_id for version, (row_id, _) in before.items()
    }
    (new,) = after.keys() - before.keys()
    assert after[new][0] > max(row_id for row_id, _ in before.values())
    untouched = {version for version, (_, number) in after.items() if number == 1}
    assert len(untouched) == 2
    rewrite(place)
    assert ids(place, *key) == after


def test_rows_that_spark_changes_keep_their_ids(sender, store, schema):
    """Rows that a soft truncate flags, a migration changes or a type change rewrites keep their ids."""
    place = Place.made(sender, store, schema, f"{LIVE} deleted", STORED)
    before = {key: row_id for key, (row_id, _) in ids(place, "id").items()}
    assert place.truncate(instant("T9"), soft="_fivetran_deleted").success
    assert ids(place, "id") == {key: (row_id, 2) for key, row_id in before.items()}
    assert place.migrate("update_column_value", column="v", value="z").success
    assert ids(place, "id") == {key: (row_id, 3) for key, row_id in before.items()}
    place.alter(f"{LIVE.replace('n:LONG', 'n:STRING')} deleted")
    assert {key: row_id for key, (row_id, _) in ids(place, "id").items()} == before


def test_a_row_that_becomes_a_version_keeps_its_id(sender, store, schema):
    """This holds for a change of the sync mode. A version that a migration closes keeps its id, and its
    successor gets one."""
    place = Place.made(sender, store, schema, f"{LIVE} deleted", STORED)
    before = {key: row_id for key, (row_id, _) in ids(place, "id").items()}
    mode = sdk.TableSyncModeMigrationType.SOFT_DELETE_TO_HISTORY
    done(place.migrate("table_sync_mode_migration", type=mode, soft_deleted_column="_fivetran_deleted"))
    assert {key: row_id for key, (row_id, _) in ids(place, "id").items()} == before
    column = {"column": "w", "column_type": common.STRING, "default_value": "w"}
    done(place.migrate("add_column_in_history_mode", **column, operation_timestamp="2999-01-01T00:00:00Z"))
    after = ids(place, "id", "_fivetran_active")
    assert {key: row_id for (key, active), (row_id, _) in after.items() if not active} == before
    assert len(after) == 2 * len(before)


def test_a_copied_table_has_its_own_row_ids(sender, store, schema):
    """Its ids start again, because they could collide with the source's."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    place.write(update="id v \n 2 y")
    assert place.migrate(
        "copy_table", from_table=place.table.name, to_table=f"{place.table.name}_copy"
    ).success
    copied = ids(place.named(f"{place.table.name}_copy"), "id")
    assert {row_id for row_id, _ in copied.values()} == {0, 1, 2}


def test_a_batch_planned_by_spark_keeps_row_ids_too(spreading, store, schema, tmp_path):
    """Law 5: The driver's plan would keep the same ids."""
    place = Place.made(Sender.to(spreading, tmp_path), store, schema, LIVE, STORED)
    before = ids(place, "id")
    place.write(replace="id v n synced \n 1 x 1 T2 \n 4 d 4 T2", update="id v \n 2 y")
    after = ids(place, "id")
    assert {key: after[key] for key in (1, 2, 3)} == {
        1: (before[1][0], 2),
        2: (before[2][0], 2),
        3: before[3],
    }


@pytest.fixture
def older(spark, tmp_path):
    """A sender to a server that makes tables of format version 2."""
    with serving({"backstory": IcebergStore(spark, format_version=2)}) as address:
        yield Sender.to(address, tmp_path)


def test_tables_of_format_version_2_have_no_row_ids(older, store, schema):
    """Format version 2 has no ids, so no file has a column for them."""
    place = Place.made(older, store, schema, HISTORY, VERSIONS)
    place.write(
        earliest="id start \n 1 T5", replace="id v n start end active synced \n 1 z 9 T5 TMAX true T5"
    )
    assert len(place.rows()) == 5
    assert not _columns_beside(place)


def test_new_rows_are_written_without_ids(sender, store, schema):
    """Iceberg assigns their ids, so a file of new rows is not larger."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    place.write(replace="id v n synced \n 4 d 4 T2")
    assert not _columns_beside(place)


def _columns_beside(place: Place) -> bool:
    """Whether a data file has columns that the table lacks."""
    files = place.store.spark.table(place.store.sql_name(place.name, "data_files")).collect()
    return any(column > 2_000_000_000 for file in files for column in file.column_sizes)
