"""Catalogs for single tests, in addition to the one that all tests share."""

from backstory.stores.iceberg.store import IcebergStore


def lake(spark, name, folder):
    """A store in an empty catalog with this name."""
    catalog = f"spark.sql.catalog.{name}"
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/{name}.db?busy_timeout=60000",
        "jdbc.schema-version": "V1",
        "warehouse": f"{folder}/{name}",
        "cache-enabled": "false",
    }
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"{catalog}.{key}", value)
    return IcebergStore(spark, name)
