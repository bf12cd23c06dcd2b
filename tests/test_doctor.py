"""`doctor` reports the working abilities of a session and a catalog, the errors of others, and leaves
nothing."""

import json

from backstory.cli.app import run
from backstory.doctor import ABSENT, FAILS, SCHEMA, UNTRIED, WORKS
from backstory.formats.memory import Memory
from backstory.stores.iceberg.store import IcebergStore, tables
from backstory.warehouse import Warehouse

ABILITIES = 12


def statuses(diagnosis):
    return {each.ability: each.status for each in diagnosis.abilities}


def test_all_abilities_work_in_the_test_session_and_leave_no_tables(python):
    report = python.doctor()
    assert {each.ability: each.error for each in report.abilities if each.status != WORKS} == {}
    assert (len(report.abilities), report.exit_code) == (ABILITIES, 0)
    assert report.versions["spark"] == python.spark.version
    assert all(report.versions.values())
    assert not [each for each in tables(python.store) if each.schema == SCHEMA]
    assert SCHEMA not in {
        each.namespace for each in python.spark.sql("SHOW NAMESPACES IN backstory").collect()
    }
    json.dumps(report.to_dict())


def test_unsupported_catalog_operations_are_reported(spark, tmp_path):
    """A Hadoop catalog has no renames and no views. All other abilities are still tested."""
    spark.conf.set("spark.sql.catalog.folders", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.folders.type", "hadoop")
    spark.conf.set("spark.sql.catalog.folders.warehouse", str(tmp_path))
    report = Warehouse(IcebergStore(spark, "folders"), embedded=False).doctor()
    assert {name: each for name, each in statuses(report).items() if each != WORKS} == {
        "make views": ABSENT,
        "rename a table": FAILS,
    }
    (error,) = (each.error for each in report.abilities if each.error)
    assert (error.remedy, report.exit_code) != ("", 0)
    assert not [*tmp_path.rglob("*.parquet")]


def test_dependents_of_a_failing_ability_are_not_tried(spark, tmp_path):
    """Without a table to write to, only the Python workers are tested."""
    (tmp_path / "file").write_text("no folder")
    spark.conf.set("spark.sql.catalog.nowhere", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.nowhere.type", "hadoop")
    spark.conf.set("spark.sql.catalog.nowhere.warehouse", str(tmp_path / "file"))
    abilities = statuses(
        Warehouse(IcebergStore(spark, "nowhere", 3, Memory(1 << 28)), embedded=False).doctor()
    )
    assert (abilities.pop("create a table and write rows"), abilities.pop("run Python workers")) == (
        FAILS,
        WORKS,
    )
    assert set(abilities.values()) == {UNTRIED}


def test_a_catalog_that_cannot_be_opened_is_reported_with_the_versions(spark):
    """The report has the error of the catalog, and its type instead of its class."""
    spark.conf.set("spark.sql.catalog.closed", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.closed.type", "nonsense")
    report = Warehouse(IcebergStore(spark, "closed", 3, Memory(1 << 28)), embedded=False).doctor()
    assert (report.exit_code, report.versions["catalog"]) == (1, "closed: nonsense")
    (error,) = (each.error for each in report.abilities if each.error)
    assert error.code == "spark-failed"
    assert all(report.versions.values())


def test_a_catalog_that_is_not_configured_is_named_before_java_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run(["doctor", "--catalog", "none", "--warehouse", str(tmp_path / "w"), "--output", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "no-iceberg-catalog"
