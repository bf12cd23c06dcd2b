"""The catalogs that are read without Spark, and their properties."""

import pytest

from backstory.settings import CATALOG, Settings
from backstory.stores.metadata.catalogs import EmbeddedCatalog, open_without_spark
from backstory.stores.metadata.pyiceberg_catalog import _pyiceberg_properties

REST = {"type": "rest", "uri": "http://localhost:8181", "warehouse": "w", "header.x": "1"}
SQL = {"type": "sql", "init_catalog_tables": "false"}


def test_only_the_embedded_catalog_is_read_without_spark(tmp_path):
    assert open_without_spark(Settings(tmp_path)) == EmbeddedCatalog(tmp_path)
    spark_settings = {f"spark.sql.catalog.{CATALOG}.type": "hive"}
    assert open_without_spark(Settings(tmp_path, spark=spark_settings)) is None
    assert open_without_spark(Settings(tmp_path, {CATALOG: {"type": "glue"}})) is None


@pytest.mark.parametrize(
    ("java", "python"),
    [
        (REST, REST),
        (REST | {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "cache-enabled": "false"}, REST),
        (REST | {"io-impl": "com.example.FileIO"}, None),
        (REST | {"rest.unheard-of": "x"}, None),
        (REST | {"jdbc.user": "x"}, None),
        ({"type": "jdbc", "uri": "jdbc:sqlite:/a/c.db?busy_timeout=9"}, SQL | {"uri": "sqlite:////a/c.db"}),
        (
            {"type": "jdbc", "uri": "jdbc:postgresql://h:1/d?user=u", "jdbc.password": "p@w"},
            SQL | {"uri": "postgresql+psycopg://u:p%40w@h:1/d"},
        ),
        ({"type": "jdbc", "uri": "jdbc:postgresql://h/d?ssl=true"}, None),
        ({"type": "jdbc", "uri": "jdbc:mysql://h/d"}, None),
        ({"type": "hadoop", "warehouse": "/w"}, None),
    ],
)
def test_properties_unsupported_by_pyiceberg_are_left_to_spark(java, python):
    assert _pyiceberg_properties(java) == python
