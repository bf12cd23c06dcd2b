"""Migrations of tables and of sync modes: requirements 93, 94, 103 to 110."""

from pathlib import Path

import pytest
from destination import HISTORY, LIVE, VERSIONS, Place, done, gives, migration, refusal, serving, twice
from tables_as_text import table

from backstory.testing.sender import Sender

MODES = {
    "SOFT_DELETE_TO_LIVE": 0,
    "SOFT_DELETE_TO_HISTORY": 1,
    "HISTORY_TO_SOFT_DELETE": 2,
    "HISTORY_TO_LIVE": 3,
    "LIVE_TO_SOFT_DELETE": 4,
    "LIVE_TO_HISTORY": 5,
}
SOFT = "id:LONG* v n:DECIMAL(12,2) synced deleted"
FLAGGED = [
    row | {"_fivetran_deleted": flag}
    for row, flag in zip(
        table("id v synced \n 1 a T1 \n 2 b T3 \n 3 c T2 \n 4 d T2"), [False, True, None, False], strict=True
    )
]


def mode(place, name, **options):
    twice(place, "table_sync_mode_migration", type=MODES[name], **options)


def other(place, name):
    """A second table with another name."""
    return place.named(f"{place.table.name}_{name}")


@pytest.fixture
def soft(sender, store, schema):
    return Place.made(sender, store, schema, SOFT, FLAGGED)


@pytest.fixture
def with_live_modes(store, tmp_path):
    with serving({"backstory": store}, enable_live_modes=True) as address:
        yield Sender.to(address, tmp_path)


@pytest.mark.parametrize("kind", ["soft", "history"])
@pytest.mark.usefixtures("tables_on")
@pytest.mark.tables_on("memory", "iceberg")
def test_a_copied_table_equals_its_source(kind, request):
    """93, 103: Rows, types, keys and parameters are equal. The source is unchanged, and the copy gets its own
    batches."""
    place = request.getfixturevalue(kind)
    copy = other(place, "copy")
    before, metadata = place.rows(), place.metadata()
    for _ in range(2):
        done(place.migrate("copy_table", from_table=place.table.name, to_table=copy.table.name))
        assert (copy.rows(), copy.described()) == (before, place.described())
    assert place.metadata() == metadata
    copied = copy.having(SOFT if kind == "soft" else HISTORY)
    copied.write(delete="id end \n 1 T9" if kind == "history" else "id \n 1")
    assert copy.rows() != before
    assert place.rows() == before


def test_a_copy_overwrites_an_existing_table(soft, history):
    """104: A copy replaces an existing table of any layout."""
    done(soft.migrate("copy_table", from_table=soft.table.name, to_table=history.table.name))
    assert (history.rows(), history.described()) == (soft.rows(), soft.described())


@pytest.mark.tables_on("memory", "iceberg")
def test_a_renamed_table_keeps_all_but_its_name(soft):
    """93, 103: The table keeps all but its name, and another table can use the old name."""
    new = other(soft, "new")
    before, columns = soft.rows(), soft.described()
    arguments = {"from_table": soft.table.name, "to_table": new.table.name}
    for _ in range(2):
        done(soft.migrate("rename_table", **arguments))
        assert soft.described() is None
        assert (new.rows(), new.described()) == (before, columns)
    soft.sender.create(soft.schema, soft.table)
    assert soft.rows() == []
    soft.drop()
    assert new.rows() == before


@pytest.mark.parametrize("entity", ["copy_table", "copy_table_to_history_mode", "rename_table"])
def test_a_missing_source_is_a_task(soft, entity):
    """6.1: The answer is a task, and the target is unchanged."""
    arguments = {"from_table": "missing", "to_table": "nowhere"}
    assert "missing" in refusal(soft.migrate(entity, **arguments)) or entity == "rename_table"
    assert soft.named("nowhere").described() is None


def test_tables_are_not_copied_onto_themselves_nor_renamed_over_others(soft, history):
    """6.6, 110: The answer is a task, and both tables are unchanged."""
    metadata = soft.metadata(), history.metadata()
    names = {"from_table": soft.table.name, "to_table": history.table.name}
    itself = names | {"to_table": soft.table.name}
    assert refusal(soft.migrate("rename_table", **names))
    assert refusal(soft.migrate("copy_table", **itself))
    assert refusal(soft.migrate("copy_table_to_history_mode", **itself))
    assert (soft.metadata(), history.metadata()) == metadata


@pytest.mark.tables_on("memory", "iceberg")
def test_a_table_is_dropped_once(soft):
    """104: Dropping a missing table succeeds. A request that does not confirm the drop is answered with a
    task."""
    assert refusal(soft.migrate("drop_table", drop=False))
    assert soft.described()
    done(soft.migrate("drop_table"))
    assert soft.described() is None
    done(soft.migrate("drop_table"))


@pytest.mark.tables_on("iceberg")
@pytest.mark.parametrize("operation", ["copy_table", "copy_table_to_history_mode"])
def test_a_drop_removes_the_files_of_each_copy(soft, store, operation):
    """104: The data of a table is removed, including the data of copies that it replaced."""

    def files():
        return {path.name for path in Path(store.folder).rglob("*.parquet")}

    before, copy = files(), other(soft, operation)
    twice(soft, operation, from_table=soft.table.name, to_table=copy.table.name)
    assert files() > before
    done(copy.migrate("drop_table"))
    assert files() == before


def expected_history(place, flag="_fivetran_deleted"):
    """The history that section 6.8 defines for `FLAGGED`."""
    from datetime import UTC, datetime

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    open_ = table("start end active \n T3 TMAX true")[0]
    gone = {"_fivetran_start": epoch, "_fivetran_end": epoch, "_fivetran_active": False}
    return gives(
        [
            {n: v for n, v in (row | {"n": None}).items() if n != "_fivetran_deleted"}
            | (gone if row.get(flag) else open_)
            for row in place
        ]
    )


def test_soft_delete_becomes_history(soft):
    """105: Flagged rows are closed at the least instant, and others are open since the newest sync. The key
    gains the start."""
    mode(soft, "SOFT_DELETE_TO_HISTORY")
    assert expected_history(FLAGGED) == soft.rows()
    assert soft.described() == {
        "id": "LONG*",
        "v": "STRING",
        "n": "DECIMAL(12,2)",
        "_fivetran_synced": "UTC_DATETIME",
        "_fivetran_start": "UTC_DATETIME*",
        "_fivetran_end": "UTC_DATETIME",
        "_fivetran_active": "BOOLEAN",
    }


def test_a_custom_deleted_flag_stays_as_a_column(sender, store, schema):
    """105: `_fivetran_deleted` is removed, whatever the flag is."""
    rows = [row | {"gone": row["_fivetran_deleted"], "_fivetran_deleted": False} for row in FLAGGED]
    place = Place.made(sender, store, schema, f"{SOFT} gone:BOOLEAN", rows)
    mode(place, "SOFT_DELETE_TO_HISTORY", soft_deleted_column="gone")
    assert expected_history(rows, "gone") == place.rows()


def test_history_becomes_soft_delete(history):
    """106: The newest version of each key remains, flagged if it is closed, including deleted keys."""
    mode(history, "HISTORY_TO_SOFT_DELETE")
    rows = table("id v n synced \n 1 b 1 T2 \n 2 c 2 T3 \n 3 d 3 T3")
    flags = [False, True, False]
    assert (
        gives([row | {"_fivetran_deleted": flag} for row, flag in zip(rows, flags, strict=True)])
        == history.rows()
    )
    assert history.described()["id"] == "LONG*"


@pytest.mark.tables_on("memory", "iceberg")
def test_zero_and_minus_zero_remain_separate_keys(sender, store, schema):
    """106: As in batches, floats are distinguished by their bits, including in keys."""
    rows = table("v start end active synced \n a T1 TMAX true T1 \n b T2 TMAX true T2")
    rows = [row | {"id": id_} for row, id_ in zip(rows, [0.0, -0.0], strict=True)]
    place = Place.made(sender, store, schema, "id:DOUBLE* v synced start* end active", rows)
    mode(place, "HISTORY_TO_SOFT_DELETE")
    assert {(str(row["id"]), row["v"]) for row in place.rows()} == {("0.0", "a"), ("-0.0", "b")}


def test_a_custom_deleted_flag_is_added_next_to_the_standard_flag(history):
    """106: The table has both flags, and ours is FALSE."""
    mode(history, "HISTORY_TO_SOFT_DELETE", soft_deleted_column="gone")
    flags = {row["id"]: (row["gone"], row["_fivetran_deleted"]) for row in history.rows()}
    assert flags == {1: (False, False), 2: (True, False), 3: (False, False)}


@pytest.mark.parametrize("flag", ["_fivetran_deleted", "", "missing"])
@pytest.mark.tables_on("memory", laws="iceberg")
def test_a_copy_to_history_leaves_its_source_unchanged(soft, flag):
    """107: The source is unchanged, with its flag, without a flag, and with a missing flag."""
    copy = other(soft, "history")
    arguments = {"from_table": soft.table.name, "to_table": copy.table.name, "soft_deleted_column": flag}
    metadata = soft.metadata()
    for _ in range(2):
        done(soft.migrate("copy_table_to_history_mode", **arguments))
        assert expected_history(FLAGGED, flag) == copy.rows()
    assert copy.described()["_fivetran_start"] == "UTC_DATETIME*"
    assert soft.metadata() == metadata


def test_a_copy_of_a_history_to_history_mode_is_equal(history):
    """6.10: A history that is copied to history mode is copied unchanged."""
    copy = other(history, "copy")
    arguments = {"from_table": history.table.name, "to_table": copy.table.name}
    done(history.migrate("copy_table_to_history_mode", **arguments))
    assert (copy.rows(), copy.described()) == (history.rows(), history.described())


def test_the_next_history_batch_loads(soft):
    """108: An update older than the only version (example I) and a delete are applied."""
    mode(soft, "SOFT_DELETE_TO_HISTORY")
    place = soft.having("id:LONG* v n:DECIMAL(12,2) synced start* end active")
    place.write(
        earliest="id start \n 1 T2",
        update="id v n start end active synced \n 1 . 7 T2 TMAX true T9",
        delete="id end \n 3 T8",
    )
    rows = {(row["id"], row["v"], row["n"], row["_fivetran_active"]) for row in soft.rows()}
    assert rows == {(1, "a", 7, True), (2, "b", None, False), (3, "c", None, False), (4, "d", None, True)}


def test_the_next_soft_delete_batch_loads(history):
    """108: A deleted row returns, another is flagged, and the table returns to history mode."""
    mode(history, "HISTORY_TO_SOFT_DELETE")
    place = history.having(f"{LIVE} deleted")
    place.write(
        replace=[table("id v n synced \n 2 C 2 T5")[0] | {"_fivetran_deleted": False}],
        update=[
            {
                "id": 3,
                "_fivetran_deleted": True,
                "_fivetran_synced": table("synced \n T5")[0]["_fivetran_synced"],
            }
        ],
    )
    assert {(r["id"], r["v"], r["_fivetran_deleted"]) for r in history.rows()} == {
        (1, "b", False),
        (2, "C", False),
        (3, "d", True),
    }
    mode(history, "SOFT_DELETE_TO_HISTORY")
    mode(history, "HISTORY_TO_SOFT_DELETE")
    assert {(r["id"], r["_fivetran_deleted"]) for r in history.rows()} == {(1, False), (2, False), (3, True)}
    place.write(delete="id \n 1")
    assert {row["id"] for row in history.rows()} == {2, 3}


@pytest.mark.parametrize("name", ["SOFT_DELETE_TO_HISTORY", "HISTORY_TO_SOFT_DELETE"])
def test_a_mode_change_of_an_empty_table_makes_no_snapshot(sender, store, schema, name):
    """6.8: The table gets the columns of the mode, but no snapshot."""
    columns = SOFT if name.startswith("SOFT") else HISTORY
    place = Place.made(sender, store, schema, columns)
    mode(place, name)
    assert ("_fivetran_start" in place.described()) == name.startswith("SOFT")
    assert not place.snapshots()


@pytest.mark.tables_on("memory", laws="iceberg")
def test_rows_without_a_sync_time_start_at_the_current_time(sender, store, schema):
    """6.8: The start is rounded to the millisecond."""
    place = Place.made(sender, store, schema, SOFT, "id v \n 1 a")
    mode(place, "SOFT_DELETE_TO_HISTORY")
    [row] = place.rows()
    assert row["_fivetran_start"].year > 2000
    assert row["_fivetran_start"].microsecond % 1000 == 0


def test_a_flag_of_another_type_is_refused(soft, history):
    """110: The answer is a task, and the tables are unchanged. The same holds for a history's own column."""
    metadata = soft.metadata(), history.metadata()
    arguments = {"type": 2, "soft_deleted_column": "_fivetran_active"}
    assert refusal(history.migrate("table_sync_mode_migration", **arguments))
    for place, type_ in ((soft, 1), (history, 2)):
        arguments = {"type": type_, "soft_deleted_column": "v"}
        assert refusal(place.migrate("table_sync_mode_migration", **arguments))
    assert (soft.metadata(), history.metadata()) == metadata


@pytest.mark.parametrize("type_", [0, 3, 4, 5, 77])
def test_live_modes_are_unsupported(soft, type_):
    """94, F8: Live modes and unknown types are unsupported, and nothing changes."""
    metadata = soft.metadata()
    reply = soft.migrate("table_sync_mode_migration", type=type_)
    assert [field.name for field, _ in reply.ListFields()] == ["unsupported"]
    assert soft.metadata() == metadata


@pytest.mark.parametrize("operation", ["", "drop", "copy", "rename", "add"])
def test_an_unset_operation_is_unsupported(soft, operation):
    """94: An operation without an entity is also unsupported."""
    request = migration(soft.schema, soft.table.name, "drop_table")
    request.details.ClearField("drop")
    if operation:
        getattr(request.details, operation).SetInParent()
    assert soft.sender.stub.Migrate(request).unsupported


@pytest.mark.tables_on("memory", laws="iceberg")
def test_a_switch_enables_live_modes(with_live_modes, store, schema):
    """F8, 6.9: With the switch, live modes work as the guide once defined them."""
    soft = Place.made(with_live_modes, store, schema, SOFT, FLAGGED)
    mode(soft, "SOFT_DELETE_TO_LIVE")
    assert [row["id"] for row in soft.rows()] == [1, 3, 4]
    assert "_fivetran_deleted" not in soft.described()
    mode(soft, "LIVE_TO_HISTORY")
    assert {row["_fivetran_active"] for row in soft.rows()} == {True}
    assert len({row["_fivetran_start"] for row in soft.rows()}) == 1
    mode(soft, "HISTORY_TO_LIVE")
    assert "_fivetran_start" not in soft.described()
    mode(soft, "LIVE_TO_SOFT_DELETE")
    assert {row["_fivetran_deleted"] for row in soft.rows()} == {False}


@pytest.mark.parametrize(("keep", "ids"), [(False, [1, 3]), (True, [1, 2, 3])])
@pytest.mark.tables_on("memory", laws="iceberg")
def test_a_history_made_live_may_keep_deleted_rows(with_live_modes, store, schema, keep, ids):
    """6.9: The newest version of each key is kept, so that the key stays unique."""
    place = Place.made(with_live_modes, store, schema, HISTORY, VERSIONS)
    mode(place, "HISTORY_TO_LIVE", keep_deleted_rows=keep)
    assert [row["id"] for row in place.rows()] == ids
