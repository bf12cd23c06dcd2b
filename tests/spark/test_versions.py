"""Differences between Spark versions: each way has the same meaning, and missing features are refused."""

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col
from test_architecture import MODULES, shown

import backstory
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.settings import Settings
from backstory.spark.java_names import java_class
from backstory.spark.session import OUR_SETTINGS, hold_settings, session_properties
from backstory.spark.versions import (
    arrow_of,
    installed_build,
    own_defaults,
    package_suffix,
    require_build,
    require_fields,
    sessions_class,
    submit_options,
    try_cast,
)
from backstory.stores.iceberg.frames import frame_of, rows_at
from backstory.stores.iceberg.store import existing

# Only Spark 4 has these. Spark 3.5 silently ignores a reader's option of a version.
OF_SPARK_4 = (".toArrow(", ".getCondition(", ".try_cast(", ".metadataColumn(", "sql.classic", "storageLevel=")
OVERLOOKED = ("versionAsOf", "timestampAsOf")
ROWS = pa.table(
    {
        "k": pa.array([1, None], pa.int64()),
        "n": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "d": pa.array([date(1583, 1, 1), date(9999, 12, 31)]),
        "t": pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999), None], pa.timestamp("us", "UTC")),
        "w": pa.array([datetime(2026, 3, 29, 2, 30), None], pa.timestamp("us")),
        "b": pa.array([b"\0", b""]),
        "s": pa.array(
            [{"a": 1, "b": ["x"]}, None], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
        ),
        "m": pa.array([[("x", 1.5)], []], pa.map_(pa.string(), pa.float64())),
    }
)


def test_version_specific_calls_are_in_a_single_module():
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        own = OVERLOOKED if shown(path) == "spark/versions.py" else [*OF_SPARK_4, *OVERLOOKED]
        assert not [each for each in own if each in text], shown(path)


KAFKA = "org.apache.spark:spark-sql-kafka-0-10"
FITTING = [f"{KAFKA}_2.12:3.5.7", "org.postgresql:postgresql:42.7.8", "io.delta:delta-spark_2.12:3.3.0"]


@pytest.mark.parametrize(
    ("package", "spark", "scala", "instead"),
    [
        (f"{KAFKA}_2.13:4.1.3", "3.5.9", "2.12", f"{KAFKA}_2.12:3.5.9."),
        (f"{KAFKA}_2.12:3.5.7", "4.1.4", "2.13", f"{KAFKA}_2.13:4.1.4."),
        (f"{KAFKA}_2.13:4.1.3", "3.5.9", "2.13", f"{KAFKA}_2.13:3.5.9."),
        ("io.delta:delta-spark_2.13:4.0.0", "3.5.9", "2.12", "io.delta:delta-spark_2.12 in a version for"),
    ],
)
def test_a_package_for_another_spark_is_refused_with_a_fitting_name(package, spark, scala, instead):
    require_build(FITTING, "3.5.9", "2.12")
    with pytest.raises(UsageError) as stop:
        require_build([*FITTING[1:2], package], spark, scala)
    assert (stop.value.code, f"Name {instead}" in stop.value.remedy) == ("other-spark", True)


def test_the_spark_build_is_determined_before_java_starts(store, tmp_path):
    spark, scala = installed_build()
    assert spark == store.spark.version
    assert store.jvm.scala.util.Properties.versionNumberString().startswith(f"{scala}.")
    other = "2.12:3.5.7" if scala == "2.13" else "2.13:4.1.3"
    settings = Settings(warehouse=tmp_path, spark={"spark.jars.packages": f"{KAFKA}_{other}"})
    with pytest.raises(UsageError, match=f"{other} does not fit Spark {spark} with Scala {scala}"):
        session_properties(settings)


@pytest.mark.parametrize(
    ("spark_version", "scala", "suffix"),
    [
        ("3.5.6-amzn-0", None, "3.5_2.12"),
        ("3.5.9", "2.12.18", "3.5_2.12"),
        ("3.5.1", "2.13.8", "3.5_2.13"),
        ("4.0.2", None, "4.0_2.13"),
        ("4.1.3", None, "4.1_2.13"),
    ],
)
def test_a_package_suffix_contains_spark_and_scala_versions(spark_version, scala, suffix):
    assert package_suffix(spark_version, scala) == suffix


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(1), ROWS.slice(0, 0), ROWS.schema.empty_table()])
def test_arrow_tables_survive_a_round_trip_through_spark(store, rows):
    assert arrow_of(frame_of(store, rows)).cast(rows.schema).equals(rows)


def test_a_value_that_cannot_be_cast_is_null(spark):
    texts = spark.createDataFrame([("1.5",), ("x",), (None,)], "v string")
    assert [row[0] for row in texts.select(try_cast(col("v"), "double")).collect()] == [1.5, None, None]


def test_a_snapshot_is_read_with_its_own_columns(spark, store):
    """The newest snapshot lacks a column that was added after the last write."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.versions")
    spark.sql("CREATE TABLE backstory.versions.t USING iceberg AS SELECT 1 AS k")
    name = TableName("versions", "t")
    first = int(existing(store, name).iceberg.currentSnapshot().snapshotId())
    spark.sql("ALTER TABLE backstory.versions.t ADD COLUMN later INT")
    spark.sql("INSERT INTO backstory.versions.t VALUES (2, 2)")
    last = int(existing(store, name).iceberg.currentSnapshot().snapshotId())
    spark.sql("ALTER TABLE backstory.versions.t ADD COLUMN latest INT")
    assert [tuple(row) for row in rows_at(store, name, first).collect()] == [(1,)]
    assert rows_at(store, name, last).columns == ["k", "later"]


def test_invalid_casts_fail_in_a_held_session_that_is_not_active(spark):
    """Without ANSI mode, an invalid number would silently become NULL."""
    other, own = spark.newSession(), spark.newSession()
    for each in (other, own):
        each.conf.set("spark.sql.ansi.enabled", "false")
    sessions = java_class(spark._jvm, sessions_class())
    sessions.setActiveSession(other._jsparkSession)
    try:
        with hold_settings(own):
            assert {name: own.conf.get(name) for name in OUR_SETTINGS} == OUR_SETTINGS
            texts = own.sql("SELECT 'x' AS v")
            with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
                texts.select(col("v").cast("int")).collect()
        assert sessions.getActiveSession().get().equals(other._jsparkSession)
    finally:
        sessions.setActiveSession(spark._jsparkSession)


def test_sparks_own_defaults_are_read_from_a_file_or_by_an_option(tmp_path):
    """spark-submit of Spark 4 reads them by an option. Otherwise they are first in our file."""
    assert not own_defaults({"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "spark-defaults.conf").write_text("spark.eventLog.enabled  false\n", "utf-8")
    defaults = own_defaults({"SPARK_CONF_DIR": str(tmp_path)})
    assert bool(defaults) is not bool(submit_options())
    assert defaults.strip() in {"", "spark.eventLog.enabled  false"}


def refusal(act):
    with pytest.raises(UsageError) as caught:
        act()
    return caught.value


@pytest.mark.spark_3
def test_a_table_with_variants_requires_spark_4(spark, store):
    java, types = store.jvm.org.apache.iceberg, store.jvm.org.apache.iceberg.types.Types
    optional = types.NestedField.optional
    columns = [optional(1, "id", types.LongType.get()), optional(2, "x", types.VariantType.get())]
    schema, version = java.Schema(columns), {"format-version": "3"}
    name = java.catalog.TableIdentifier.of(store.namespace("versions"), "variants")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.versions")
    store.iceberg().createTable(name, schema, java.PartitionSpec.unpartitioned(), version)
    warehouse = backstory.open(spark=spark)
    error = refusal(lambda: warehouse.table("versions.variants").current())
    assert (error.code, list(error.keys)) == ("other-spark", ["x"])
    assert refusal(lambda: warehouse.sql("SELECT * FROM versions.variants")).code == "wrong-query"


@pytest.mark.spark_3
def test_an_interval_column_requires_another_spark(spark):
    rows = spark.sql("SELECT 1 AS id, make_interval(1) AS x")
    error = refusal(lambda: backstory.open(spark=spark).snapshot(rows, into="versions.intervals", key="id"))
    assert error.code == "other-spark"


@pytest.mark.spark_3
def test_rows_without_columns_require_spark_4(spark):
    assert refusal(lambda: require_fields(0, "Rows")).code == "other-spark"
    require_fields(1, "Rows")
