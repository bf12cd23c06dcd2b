"""Embedded warehouses in the session of the tests, copies of their folders, and the contents of the folders."""

import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256

from backstory.stores.embedded_catalog import read_catalog
from backstory.stores.iceberg.store import IcebergStore
from backstory.warehouse import Warehouse


def embedded(spark, name, folder, version=3):
    """The warehouse in a folder, as a catalog with this name, which its database records with the tables."""
    folder.mkdir(exist_ok=True)
    (folder / "catalog.db").touch()
    catalog = f"spark.sql.catalog.{name}"
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=60000",
        "jdbc.schema-version": "V1",
        "warehouse": str(folder),
        "cache-enabled": "false",
    }
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"{catalog}.{key}", value)
    if read_catalog(folder).entries:
        with closing(sqlite3.connect(folder / "catalog.db")) as connection, connection:
            for table in ("iceberg_tables", "iceberg_namespace_properties"):
                connection.execute(f"UPDATE {table} SET catalog_name = ?", [name])
    return Warehouse(IcebergStore(spark, name, version), embedded=False)


def copy_of(spark, name, warehouse, tmp_path):
    folder = shutil.copytree(warehouse.store.home, tmp_path / name)
    return embedded(spark, name, folder)


def digests(folder):
    return {
        str(each.relative_to(folder)): sha256(each.read_bytes()).hexdigest()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }
