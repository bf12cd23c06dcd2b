"""A copied warehouse is refused, then relocated: no file of the original is read, written or deleted."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from copied_warehouses import copy_of, digests, embedded
from manifesting import manifest, push

from backstory import relocate
from backstory.errors import BackstoryError, Failed, TryAgain, UsageError
from backstory.model.table import TableName, table_name
from backstory.reading.commits import inventory
from backstory.stores.embedded_catalog import read_catalog
from backstory.stores.iceberg.create import drop, rename
from backstory.stores.iceberg.store import existing

AT = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
READ = "{kind: ndJson, ddlSchema: [id BIGINT, event_time TIMESTAMP]}"
VERSIONS = {"crm.three": 3, "crm.two": 2}


def delivered(warehouse, path, number):
    """The number of rows that a delivery added to the dataset."""
    rows = path.with_suffix(".ndjson")
    rows.write_text(json.dumps({"id": number, "event_time": f"{AT[0]}T00:00:00Z"}))
    receipt = warehouse.ingest("cities", rows)
    assert receipt.error is None, receipt
    return receipt.counts["appended"]


def frame(spark, rows):
    return spark.createDataFrame(rows, "id int, v string")


@pytest.fixture(scope="module")
def original(spark, tmp_path_factory):
    """Tables of both format versions, with all kinds of metadata."""
    folder = tmp_path_factory.mktemp("home") / "a b%20ü"
    warehouse = embedded(spark, "home", folder)
    for name, version in VERSIONS.items():
        store = embedded(spark, "home", folder, version)
        store.snapshot(frame(spark, [(1, "a"), (2, "b"), (3, "c")]), into=name, key="id", at=AT[0])
        store.snapshot(frame(spark, [(1, "a"), (2, "B"), (3, "c")]), into=name, key="id", at=AT[1])
        with store.table(name).changes(cursor="crm") as feed:
            feed.frame.collect()
        spark.sql(f"ALTER TABLE home.{name} CREATE BRANCH aside")
        spark.sql(f"CALL home.system.compute_table_stats(table => '{name}')")
        spark.sql(f"CALL home.system.compute_partition_stats(table => '{name}')")
        store.snapshot(frame(spark, [(1, "A"), (2, "B")]), into=name, key="id", at=AT[2])
    warehouse.table("crm.three").views()
    path = tmp_path_factory.mktemp("manifests") / "cities.yaml"
    path.write_text(manifest(push("{kind: ledger, primaryKey: [id]}", read=READ)))
    warehouse.add(path)
    assert delivered(warehouse, path, 1) == delivered(warehouse, path, 2) == 1
    spark.sql("CREATE TABLE home.crm.none (id int) USING iceberg")
    far = tmp_path_factory.mktemp("far") / "far"
    spark.sql(f"CREATE TABLE home.crm.far (id int) USING iceberg LOCATION '{far}'")
    spark.sql("INSERT INTO home.crm.far VALUES (7)")
    return warehouse


def answers(warehouse, names=tuple(VERSIONS)):
    """The results of all readers: snapshots, branches, row ids, changes, lives, files."""
    results = {}
    store = warehouse.store
    for name in names:
        table, sql = warehouse.table(name), store.sql_name(TableName("crm", name.partition(".")[2]))
        snapshots = store.spark.sql(
            f"SELECT snapshot_id FROM {sql}.snapshots ORDER BY committed_at"
        ).collect()
        ids = ", _row_id" if VERSIONS[name] == 3 else ""
        results[name] = [
            [
                sorted(
                    map(str, store.spark.sql(f"SELECT *{ids} FROM {sql} VERSION AS OF {each[0]}").collect())
                )
                for each in snapshots
            ],
            sorted(map(str, store.spark.sql(f"SELECT * FROM {sql}.branch_aside").collect())),
            sorted(map(str, table.current().collect())),
            sorted(map(str, table.as_of(AT[1]).collect())),
            sorted(map(str, table.changes(since=snapshots[0][0]).frame.collect())),
            str(table.timeline(2)),
            [each["violations"] for each in table.check()],
            existing(store, table.name).tags,
        ]
    return results


def calls(warehouse, spark):
    """Every way to read or write a table."""
    rows = frame(spark, [(1, "z")])
    table = TableName("crm", "three")
    return {
        "table": lambda: warehouse.table("crm.three"),
        "snapshot": lambda: warehouse.snapshot(rows, into="crm.three", key="id"),
        "source": lambda: warehouse.snapshot("table:crm.three", into="crm.new", key="id"),
        "sql": lambda: warehouse.sql("SELECT * FROM crm.three"),
        "sql of metadata": lambda: warehouse.sql("SELECT * FROM crm.three.files"),
        "sql describe": lambda: warehouse.sql("DESCRIBE TABLE crm.three"),
        "maintain": lambda: warehouse.maintain("crm.three"),
        "check": lambda: warehouse.check("crm.three"),
        "adopt": lambda: warehouse.adopt("crm.three", layout="dbt", key="id"),
        "ingest": lambda: refusal(warehouse.ingest("cities", __file__)),
        "verify": lambda: raised(warehouse.verify("cities").error),
        "drop": lambda: drop(warehouse.store, table),
        "rename": lambda: rename(warehouse.store, table, TableName("crm", "other")),
    }


def refusal(receipt):
    raised(receipt.error)


def raised(error):
    raise error


def used(copy, spark, tmp_path):
    """A relocated copy accepts deliveries, moves cursors, forgets only its own files, and keeps the laws."""
    assert copy.sql("SELECT * FROM crm.none").collect() == []
    view = copy.store.iceberg().loadView(copy.store.identifier(TableName("crm", "three_current")))
    assert view.location().startswith(
        str(copy.store.home)
    )  # its SQL contains the catalog's name, which is another one here
    assert copy.verify("cities").valid
    assert delivered(copy, tmp_path / "more", 3) == 1
    assert copy.verify("cities").valid
    copy.snapshot(frame(spark, [(1, "A"), (2, "b2")]), into="crm.three", key="id", at=AT[3])
    for name in VERSIONS:
        with copy.table(name).changes(cursor="crm") as feed:
            assert feed.frame.count()
        copy.maintain(name)
        copy.store.spark.sql(f"ALTER TABLE {copy.store.sql_name(table_name(name))} DROP BRANCH aside")
        gone = copy.table(name).forget(3, drop_cursors=True, apply=True)
        assert gone.applied
        assert [each["violations"] for each in copy.check(name) if each["violations"]] == []


def test_a_copied_warehouse_is_refused_until_it_is_relocated(spark, original, tmp_path):
    """No table of the copy is used, except tables outside. Afterwards, everything is as in the original."""
    home = original.store.home
    before, expected = digests(home), answers(original)
    copy = copy_of(spark, "copied", original, tmp_path)
    folder = copy.store.home
    as_copied = digests(folder)

    for what, call in calls(copy, spark).items():
        with pytest.raises(UsageError) as refused:
            call()
        assert refused.value.code == "warehouse-moved", what
        assert str(folder) in refused.value.message, what
        assert str(home) in refused.value.message, what
    assert copy.sql("SELECT * FROM crm.far").collect() == [(7,)]
    listed = {each["table"]: each.get("error", {}).get("code") for each in inventory(copy.store)}
    assert listed.pop("crm.far") is None
    assert set(listed) > {"crm.none", *VERSIONS}
    assert set(listed.values()) == {"warehouse-moved"}
    [failed] = [each for each in copy.maintain(all=True, dry_run=True) if each.table == "crm.three"]
    assert failed.error["code"] == "warehouse-moved"
    assert digests(folder) == as_copied
    assert digests(home) == before

    would = relocate(folder, dry_run=True)
    assert not would.applied
    assert digests(folder) == as_copied
    done = relocate(folder)

    assert (done.tables, done.files, done.former) == (would.tables, would.files, [str(home)])
    assert sorted(done.tables) == sorted(listed)
    assert "crm.three_current" in done.views
    assert str(home).encode() not in b"".join(each.read_bytes() for each in folder.rglob("*.json"))
    assert str(home).encode() not in b"".join(each.read_bytes() for each in folder.rglob("*.puffin"))
    shutil.move(home, home.with_name("away"))  # readers of the original would find nothing
    try:
        assert answers(copy) == expected
        used(copy, spark, tmp_path)
    finally:
        shutil.move(home.with_name("away"), home)
    assert digests(home) == before
    assert relocate(folder).tables == []  # the warehouse is already in the folder of its tables


def test_relocation_with_a_damaged_file_changes_no_table(spark, original, tmp_path):
    """A missing or shortened file is named and nothing changes. With the file, the same call succeeds."""
    copy = copy_of(spark, "torn", original, tmp_path)
    folder = copy.store.home
    lost = next(folder.glob("crm/two/data/**/*.parquet"))
    backup = lost.rename(tmp_path / "kept")
    before = read_catalog(folder)

    with pytest.raises(Failed) as failed:
        relocate(folder)
    assert (failed.value.code, lost.name in failed.value.message) == ("file-lost", True)
    assert read_catalog(folder) == before
    backup.rename(lost)
    manifest = next(folder.glob("crm/two/metadata/*-m0.avro"))
    content = manifest.read_bytes()
    header = content[: content.index(content[-16:]) + 16]
    for damaged in (b"", content[:40], b"no manifest" * 9, header):
        manifest.write_bytes(damaged)
        with pytest.raises(Failed) as failed:
            relocate(folder)
        assert (failed.value.code, manifest.name in failed.value.message) == ("file-garbled", True)
        assert read_catalog(folder) == before
    manifest.write_bytes(content)
    relocate(folder)
    assert answers(copy, ["crm.two"]) == answers(original, ["crm.two"])


def test_a_folder_linked_to_another_warehouse_is_not_relocated(spark, original, tmp_path):
    """A catalog with two links, a folder that leads out and a missing folder are refused without a write."""
    copy = copy_of(spark, "linked", original, tmp_path)
    folder, before = copy.store.home, digests(original.store.home)
    (tmp_path / "other.db").hardlink_to(folder / "catalog.db")
    with pytest.raises(UsageError) as refused:
        relocate(folder)
    assert refused.value.code == "linked-folder"
    (tmp_path / "other.db").unlink()

    shutil.rmtree(folder / "crm")
    (folder / "crm").symlink_to(original.store.home / "crm")
    with pytest.raises(UsageError) as refused:
        relocate(folder)
    assert refused.value.code == "linked-folder"
    with pytest.raises(UsageError, match="is below"):
        relocate(folder, from_=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no embedded warehouse"):
        relocate(tmp_path / "nowhere")
    assert digests(original.store.home) == before


def test_relocation_is_refused_while_another_program_writes_the_catalog(
    spark, original, tmp_path, monkeypatch
):
    """Only one writer at a time locks the catalog."""
    copy = copy_of(spark, "busy", original, tmp_path)
    monkeypatch.setattr("backstory.stores.embedded_catalog.PATIENCE", 0)
    with closing(sqlite3.connect(copy.store.home / "catalog.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TryAgain) as stopped:
            relocate(copy.store.home)
    assert isinstance(stopped.value, BackstoryError)
    assert stopped.value.code == "catalog-busy"
    assert json.dumps(relocate(copy.store.home).to_dict())
