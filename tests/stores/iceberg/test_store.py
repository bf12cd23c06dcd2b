"""The name of a catalog in a session."""

import pytest

from backstory.stores.iceberg.store import IcebergStore


@pytest.mark.parametrize("named", ["prod", "arn:aws:s3tables:eu-1:1:bucket/b", "s3://bucket/w"])
def test_a_warehouse_given_by_name_has_no_folder(spark, named):
    """A catalog that is not embedded determines the locations of tables, and is identified by its name."""
    spark.conf.set("spark.sql.catalog.named.warehouse", named)
    try:
        store = IcebergStore(spark, "named")
        assert store.folder is None
        assert named.rpartition("/")[2] in store.address
    finally:
        spark.conf.unset("spark.sql.catalog.named.warehouse")


def test_an_embedded_warehouse_has_its_folder_as_address(spark, warehouse):
    assert IcebergStore(spark).folder == warehouse
    assert IcebergStore(spark).address == str(warehouse.resolve())
