"""A history ends after a preview: dropped with its files, or archived, which is readable and not writable."""

from pathlib import Path

import pyarrow as pa
import pytest

from backstory.engine.deliver import ARCHIVED
from backstory.errors import Refused, UsageError

FIRST, SECOND = "2024-01-01", "2024-01-02"


def rows(**values):
    return pa.table({"k": list(values), "v": list(values.values())})


def keep(python, into):
    """A history of two copies, and the folder of its files."""
    python.snapshot(rows(a=1, b=2), into=into, key="k", at=FIRST)
    python.snapshot(rows(a=1, b=3), into=into, at=SECOND)
    table = python.table(into)
    (location,) = (
        python.spark.sql(f"DESCRIBE EXTENDED {python.store.sql_name(table.name)}")
        .where("col_name = 'Location'")
        .toPandas()["data_type"]
    )
    return table, Path(location.removeprefix("file:"))


def names(python):
    """The tables of the schema, because a list of the warehouse would read other tests' tables."""
    catalog = python.store.catalog
    return {f"ends.{each.tableName}" for each in python.spark.sql(f"SHOW TABLES IN {catalog}.ends").collect()}


def test_a_drop_without_apply_changes_nothing(python):
    table, folder = keep(python, "ends.planned")
    for archive in (None, "elsewhere"):
        plan = table.drop(archive=archive)
        assert (plan.applied, plan.rows, plan.snapshots) == (False, 3, 2)
    assert "ends.planned" in names(python)
    assert any(folder.rglob("*.parquet"))


def test_a_dropped_history_leaves_no_file(python):
    table, folder = keep(python, "ends.dropped")
    table.changes(cursor="mart", start="first").frame.count()
    assert table.drop(apply=True).applied
    assert "ends.dropped" not in names(python)
    assert not any(each.is_file() for each in folder.rglob("*"))
    with pytest.raises(UsageError, match="no table"):
        python.table("ends.dropped")


def test_an_archive_is_readable_but_not_writable(python):
    """Every delivery and every change of rows is refused. A delivery to the old name begins a new table."""
    table, _ = keep(python, "ends.old")
    ended = table.drop(archive="older", apply=True)
    assert (ended.archive, ended.cursors) == ("ends.older", [])
    archive = python.table("ends.older")
    assert archive.as_of(FIRST).count() == archive.current().count() == 2
    assert len(archive.timeline("b").versions) == 2
    assert {each["status"] for each in archive.check()} == {"ok"}
    fed = pa.table({"k": ["a"], "v": [9], "at": ["2024-01-05T00:00:00Z"]})
    for deed in (
        lambda: python.snapshot(rows(a=7), into="ends.older", at="2024-01-03"),
        lambda: python.snapshot(rows(a=1, b=3), into="ends.older", at="2024-01-03", dry_run=True),
        lambda: python.apply(fed, into="ends.older", sequence_by="at"),
        lambda: archive.rewind(FIRST, apply=True),
    ):
        with pytest.raises(Refused) as refused:
            deed()
        assert refused.value.code == "archived"
    python.snapshot(rows(c=1), into="ends.old", key="k")
    assert {"ends.old", "ends.older"} <= names(python)
    assert python.table("ends.old").current().count() == 1
    assert archive.forget("b", apply=True).applied  # erasure still works after the end of a history
    assert archive.current().count() == 1


def test_an_interrupted_archiving_is_completed(python):
    """After a kill between its two commits, the table is archived under its old name and cannot be written."""
    table, _ = keep(python, "ends.halfway")
    python.spark.sql(
        f"ALTER TABLE {python.store.sql_name(table.name)} SET TBLPROPERTIES ('{ARCHIVED}' = '2026-01-01T00:00:00Z')"
    )
    with pytest.raises(Refused, match="archived since 2026-01-01"):
        python.snapshot(rows(a=7), into="ends.halfway")
    assert table.drop(archive="ends.halfway_old", apply=True).applied
    assert {"ends.halfway_old"} == {each for each in names(python) if "halfway" in each}


def test_a_run_refuses_an_archived_table(python, tmp_path):
    table, _ = keep(python, "ends.nightly")
    table.drop(archive="gone", apply=True)
    (tmp_path / "a.csv").write_text("k,v\na,1\n")
    (tmp_path / "histories.yaml").write_text(
        "format: histories/1\ntables: {ends.gone: {source: a.csv, key: k}}\n"
    )
    (receipt,) = python.run(tmp_path / "histories.yaml")
    assert (receipt.status, receipt.error.code) == ("refused", "archived")


def test_foreign_tables_are_neither_dropped_nor_overwritten(python):
    """A table of another program, and a name in use, are refused."""
    table, _ = keep(python, "ends.taken")
    python.spark.sql(f"CREATE TABLE {python.store.catalog}.ends.foreign (id INT) USING iceberg")
    with pytest.raises(Refused) as refused:
        python.table("ends.foreign").drop(apply=True)
    assert refused.value.code == "other-layout"
    with pytest.raises(Refused) as refused:
        table.drop(archive="ends.foreign", apply=True)
    assert refused.value.code == "table-exists"
    assert table.current().count() == 2
