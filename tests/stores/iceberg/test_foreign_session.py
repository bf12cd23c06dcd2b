"""Foreign sessions: an unusable one is refused before anything is requested from it."""

from types import SimpleNamespace

import pytest

import backstory
from backstory.errors import Failed, UsageError
from backstory.formats.memory import Memory
from backstory.spark.jars import iceberg_package
from backstory.spark.versions import is_older
from backstory.stores.iceberg import jvm, sessions


def refusal(spark, catalog="backstory"):
    with pytest.raises(UsageError) as caught:
        backstory.open(spark=spark, catalog=catalog)
    return caught.value


def code(spark, catalog="backstory"):
    return refusal(spark, catalog).code


@pytest.mark.parametrize(
    ("named", "error_code"),
    [
        (None, "no-iceberg-catalog"),
        ("org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog", "no-iceberg-catalog"),
        ("org.apache.iceberg.spark.NoSuchCatalog", "no-iceberg"),
    ],
)
def test_a_catalog_of_another_kind_is_refused_at_open(spark, named, error_code):
    """Interface 7: A catalog that is not configured, of another kind, or without its jar is refused."""
    if named:
        spark.conf.set("spark.sql.catalog.strange", named)
    try:
        assert code(spark, "strange") == error_code
    finally:
        spark.conf.unset("spark.sql.catalog.strange")


@pytest.mark.parametrize("way", ["config", "environment", "arguments"])
def test_settings_apply_in_a_session_of_the_caller(spark, tmp_path, monkeypatch, way):
    """A file from `config` or the environment applies, and arguments take precedence over both."""
    file = tmp_path / "b.toml"
    file.write_text('[delivery]\ndriver-memory = "7m"\n[tables]\nformat-version = 2\n')
    chosen = {
        "config": {"config": file},
        "environment": {},
        "arguments": {"driver_memory": "7m", "format_version": 2},
    }[way]
    if way == "environment":
        monkeypatch.setenv("BACKSTORY_CONFIG", str(file))
    store = backstory.open(spark=spark, **chosen).store
    assert (store.format_version, store.memory.most) == (2, Memory(7 << 20).most)


@pytest.mark.parametrize("wrong", [{"driver_memory": "much"}, {"format_version": 4}])
def test_invalid_settings_are_refused(spark, wrong):
    with pytest.raises(UsageError) as caught:
        backstory.open(spark=spark, **wrong)
    assert caught.value.code == "bad-option"


@pytest.mark.parametrize("verbose", [True, False])
def test_errors_contain_the_whole_cause_only_with_verbose(spark, verbose):
    """This includes failures in a function of the source."""
    from pyspark.sql.functions import udf

    fails = udf(lambda _: int("bad customer code"), "int")
    try:
        warehouse = backstory.open(spark=spark, verbose=verbose)
        with pytest.raises(Failed) as caught:
            warehouse.snapshot(spark.range(3).withColumn("v", fails("id")), into="verbose.t", key="id")
        assert ("bad customer code" in caught.value.message) is verbose
    finally:
        backstory.open(spark=spark)


def test_the_remedy_has_the_settings_to_add(spark):
    """For an unconfigured catalog the error has both settings, for a missing jar its package for this Spark."""
    remedy = refusal(spark, "lake").remedy
    assert '.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")' in remedy
    assert '.config("spark.sql.catalog.lake.type", "rest")' in remedy
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.NoSuchCatalog")
    remedy = refusal(session, "lake").remedy
    assert f'.config("spark.jars.packages", "{iceberg_package(spark.version)}")' in remedy
    assert "org.apache.iceberg.spark.SparkSessionCatalog" in refusal(session, "spark_catalog").remedy


def test_a_spark_that_is_too_old_is_refused_at_open():
    """Spark 3.4 is refused, including in a vendor's spelling."""
    assert code(SimpleNamespace(_jsparkSession=None, version="3.4.4-amzn-0")) == "other-spark"


def test_an_iceberg_without_a_needed_class_is_refused(spark, monkeypatch):
    """Interface 7: The error contains the version and the missing feature."""
    monkeypatch.setattr(jvm, "NEEDED", ("IcebergBuild", "spark.NoSuchClass"))
    with pytest.raises(UsageError, match=r"Iceberg \d+\.\d+.* lacks spark.NoSuchClass") as caught:
        backstory.open(spark=spark)
    assert "1.11 or 1.12" in caught.value.remedy


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.14.1", True),
        ("1.9.2", True),
        ("1.10.2", True),
        ("1.11.0", False),
        ("1.12.0", False),
        ("2.0.0", False),
        ("vendor-7", False),
    ],
)
def test_iceberg_versions_before_1_11_are_too_old(version, old):
    assert is_older(version, sessions.OLDEST) is old


def test_a_session_with_icebergs_catalog_is_opened(spark):
    opened = backstory.open(spark=spark)
    assert opened.spark is spark
    assert opened.store.tables() is not None
