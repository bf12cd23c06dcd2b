"""No file outside of a table's own folder is deleted, neither the original's nor a failed commit's."""

import pytest
from copied_warehouses import copy_of, digests, embedded

from backstory import relocate
from backstory.engine import deliver
from backstory.errors import BackstoryError
from backstory.model.table import TableName
from backstory.stores.iceberg import commit as commits
from backstory.stores.iceberg.create import drop
from backstory.stores.port import conflict

NAME = TableName("crm", "c")
ALTER = "ALTER TABLE {}.crm.c SET TBLPROPERTIES ('{}' = '{}')"


def frame(spark, *rows):
    return spark.createDataFrame(rows, "id int, v string")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("outside")


@pytest.fixture(scope="module")
def original(spark, folder):
    """A table whose rows are outside of its folder, except those of its first copy."""
    warehouse = embedded(spark, "outer", folder / "original")
    warehouse.snapshot(frame(spark, (1, "a"), (2, "b")), into="crm.c", key="id", at="2026-01-01")
    spark.sql(ALTER.format("outer", "write.data.path", folder / "rows"))
    warehouse.snapshot(frame(spark, (1, "a"), (2, "B"), (3, "c")), into="crm.c", key="id", at="2026-01-02")
    warehouse.snapshot(frame(spark, (1, "A"), (2, "B"), (3, "C")), into="crm.c", key="id", at="2026-01-03")
    return warehouse


def test_a_relocated_copy_deletes_no_files_of_the_original(spark, original, folder, tmp_path):
    """Forget, maintain and drop on the relocated copy name the shared files, and the original reads
    everything."""
    rows = folder / "rows"
    before, shared = digests(original.store.home), digests(rows)
    answer = sorted(map(str, original.table("crm.c").as_of("2026-01-02").collect()))
    copy = copy_of(spark, "inner", original, tmp_path)
    would, done = relocate(copy.store.home, dry_run=True), relocate(copy.store.home)
    assert would.warnings == done.warnings
    assert ["crm.c are outside of" in each for each in done.warnings] == [True]

    forgotten = copy.table("crm.c").forget(2, apply=True)
    assert forgotten.applied
    holding = [each for each in forgotten.left if str(rows) in each]
    assert holding
    spark.sql(ALTER.format("inner", "history.expire.max-snapshot-age-ms", "1"))
    spark.sql("DELETE FROM inner.crm.c")
    copy.snapshot(frame(spark, (1, "z"), (3, "z")), into="crm.c", key="id", at="2026-01-04")
    receipt = copy.maintain("crm.c")[0]
    assert receipt.snapshots_expired
    assert receipt.left
    assert all(each.startswith(str(rows)) for each in receipt.left)
    assert copy.table("crm.c").forget(2, apply=True).left
    assert drop(copy.store, NAME)

    assert not list((copy.store.home / "crm" / "c").rglob("*.parquet"))
    assert digests(original.store.home) == before
    assert {name: digests(rows)[name] for name in shared} == shared
    assert sorted(map(str, original.table("crm.c").as_of("2026-01-02").collect())) == answer


def test_a_failed_commit_leaves_its_files_outside_the_folder(spark, original, folder, monkeypatch):
    """Files within the folder are deleted, including a rollback's files. Files outside stay as orphans."""

    def lost(*_):
        raise conflict(NAME)

    home, rows = original.store.home, folder / "rows"
    before, outside = digests(home / "crm"), digests(rows)
    monkeypatch.setattr(commits, "settle", lost)
    monkeypatch.setattr(deliver, "SECONDS", 1.0)
    with pytest.raises(BackstoryError):
        original.snapshot(frame(spark, (1, "x")), into="crm.c", key="id", at="2026-01-05", max_delete_ratio=1)
    assert digests(home / "crm") == before
    after = digests(rows)
    assert {name: after[name] for name in outside} == outside
    assert len(after) > len(outside)
