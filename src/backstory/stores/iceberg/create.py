"""The creation, renaming and dropping of tables, and the creation of views."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from backstory.errors import Refused
from backstory.model.change import COLUMNS_STATE
from backstory.model.layout import YEAR
from backstory.model.table import Column, Shape, TableName
from backstory.spark.connect import Py4JJavaError
from backstory.stores.embedded_catalog import remember
from backstory.stores.iceberg.data_files import delete_files
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import ascending, holds_views, partition_spec
from backstory.stores.iceberg.literals import property_list, quote
from backstory.stores.iceberg.schema import KEY, LAYOUT, LAYOUT_VERSION, SOURCE_NAMES, iceberg_schema
from backstory.stores.iceberg.scripts import files_of_history
from backstory.stores.iceberg.store import IcebergStore, exists, require_here, source_names
from backstory.stores.port import table_exists, view_exists

PROPERTIES = {
    LAYOUT_VERSION: "1",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.retry.num-retries": "10",
    # Small splits use all cores on tables of a few files.
    "read.split.target-size": str(32 << 20),
    # A row group counts by its size. Iceberg's default of 4 MiB for each would make many times as many tasks.
    "read.split.open-file-cost": str(1 << 18),
}
# Rows are sorted by key, so a delivery of a few keys reads few row groups if they are small. In a small group
# a large dictionary saves no space and takes a third of the writing time.
SORTED = {"write.parquet.row-group-size-bytes": str(1 << 20), "write.parquet.dict-size-bytes": str(1 << 14)}
# Rows that are sorted by offset are read by ranges of offsets.
IN_ORDER = {"write.parquet.row-group-size-bytes": str(16 << 20)}
LONGEST_FOLDER = 128
PLAIN = re.compile(r"[A-Za-z0-9_-]+")

log = structlog.get_logger()


def is_view(store: IcebergStore, name: TableName) -> bool:
    """Whether a view has the name, so that no table can have it.

    The result is False if the catalog has no views.
    """
    if not store.has_java:
        schemas = store.spark.sql(f"SHOW NAMESPACES IN {quote(store.catalog)}").collect()
        known = name.schema in {row[0] for row in schemas}
        return known and name.name in (views_of(store, name.schema) or ())
    catalog = store.iceberg()
    try:
        return holds_views(store.jvm, catalog) and bool(catalog.viewExists(store.identifier(name)))
    except Py4JJavaError:  # a view of an older layout, or a server without views
        return False


def views_of(store: IcebergStore, schema: str) -> set[str] | None:
    """The names of the schema's views, or None if the catalog does not support views."""
    from pyspark.errors import AnalysisException, UnsupportedOperationException

    namespace = ".".join(map(quote, (store.catalog, schema)))
    try:
        return {row["viewName"] for row in store.spark.sql(f"SHOW VIEWS IN {namespace}").collect()}
    except (AnalysisException, UnsupportedOperationException):
        return None


def builder(store: IcebergStore, shape: Shape, *, recreate: bool = False) -> Any:
    """Iceberg's builder for a table of this shape. Creates a missing schema (section 2.5).

    If `recreate` is true, the folder of an existing table is used, so that a later drop removes all files.
    `sort_by_key` sets the order of the rows afterwards. Histories are partitioned so that open versions have
    their own files. Raises Refused for a name that Iceberg cannot store, or that a view has.
    """
    require_here(store, shape.table)
    if is_view(store, shape.table):
        raise view_exists(shape.table)
    jvm, identifier = store.jvm, store.identifier(shape.table)
    schema = iceberg_schema(jvm, shape.columns)
    spec = partition_spec(jvm, schema)
    for transform, name in shape.layout.partitioning:
        spec = spec.year(name) if transform == YEAR else spec.identity(name)
    properties = jvm.java.util.HashMap()
    for name, value in table_properties(store, shape).items():
        properties.put(name, value)
    ensure_schema(store, shape.table.schema)
    building = store.iceberg().buildTable(identifier, schema).withPartitionSpec(spec.build())
    building = building.withProperties(properties)
    existing = recreate and store.iceberg().tableExists(identifier)
    location = (
        str(store.iceberg().loadTable(identifier).location()) if existing else location_of(store, shape.table)
    )
    return building.withLocation(location) if location else building


def drop(store: IcebergStore, table: TableName) -> bool:
    """Drop the table and the files in its own folder. Returns whether the table existed.

    Its files outside of the folder remain, and so do all files if they cannot be listed. A warning in the log
    reports files that remain.
    """
    require_here(store, table)
    catalog, identifier = store.iceberg(), store.identifier(table)
    with translate_faults(table):
        try:
            iceberg = catalog.loadTable(identifier)
            named = files_of_history(store.jvm, iceberg, store.jvm.java.util.HashMap())
            folder, keeps = str(iceberg.location()), iceberg.properties().get("gc.enabled") == "false"
            former = [str(entry.file()) for entry in iceberg.operations().current().previousFiles()]
        except Py4JJavaError:  # the table does not exist, or its files cannot be listed
            dropped = bool(catalog.dropTable(identifier, False))
            if dropped:
                log.warning(f"{table} was dropped; its files cannot be listed and stay")
            return dropped
        dropped = bool(catalog.dropTable(identifier, False))
        files = [file.location for file in named if not keeps or file.kind == "METADATA"]
        left = delete_files(iceberg, dict.fromkeys([*files, *former]), folder)
    if left:
        log.warning(f"{table} was dropped; {len(left)} of its files are outside of its folder and stay")
    return dropped


def rename(store: IcebergStore, table: TableName, name: TableName) -> None:
    """Rename the table, which keeps its data and properties. Raises Refused if a view has the name."""
    require_here(store, table)
    if is_view(store, name):
        raise view_exists(name)
    with translate_faults(table):
        store.iceberg().renameTable(store.identifier(table), store.identifier(name))


def ensure_schema(store: IcebergStore, schema: str) -> None:
    """Create the schema if it is missing. Another writer may create it at the same time."""
    catalog, namespace = store.iceberg(), store.namespace(schema)
    if catalog.namespaceExists(namespace):
        return
    try:
        catalog.createNamespace(namespace)
    except Py4JJavaError:
        if not catalog.namespaceExists(namespace):
            raise


def create_view(
    store: IcebergStore, name: TableName, columns: Sequence[Column], sql: str, properties: Mapping[str, str]
) -> None:
    """Create or replace a view for Spark SQL, without Spark.

    Does nothing if the catalog does not support views. An existing view without these properties is another
    program's, and is not replaced. Raises Refused if a table has the name.
    """
    if exists(store, name):
        raise table_exists(name)
    remember_here(store, name)
    if not store.has_java:
        _create_view_by_sql(store, name, sql, properties)
        return
    catalog, identifier = store.iceberg(), store.identifier(name)
    if not holds_views(store.jvm, catalog):
        return
    if catalog.viewExists(identifier):
        known = catalog.loadView(identifier).properties()
        if any(known.get(key) != value for key, value in properties.items()):
            return
    building = catalog.buildView(identifier).withSchema(iceberg_schema(store.jvm, columns))
    building = building.withDefaultNamespace(store.namespace(name.schema)).withQuery("spark", sql)
    for key, value in properties.items():
        building = building.withProperty(key, value)
    with translate_faults(name):
        building.createOrReplace()


def _create_view_by_sql(
    store: IcebergStore, name: TableName, sql: str, properties: Mapping[str, str]
) -> None:
    """Create a view by Spark SQL. An existing view stays as it is."""
    from pyspark.errors import UnsupportedOperationException

    marked = f"TBLPROPERTIES ({property_list(properties)})"
    statement = f"CREATE VIEW IF NOT EXISTS {store.sql_name(name)} {marked} AS {sql}"
    with translate_faults(name), suppress(UnsupportedOperationException):
        store.spark.sql(statement)


def table_properties(store: IcebergStore, shape: Shape) -> dict[str, str]:
    """The properties of a new table of this shape."""
    return {
        **PROPERTIES,
        LAYOUT: shape.layout.value,
        KEY: json.dumps(list(shape.key), ensure_ascii=False),
        "format-version": str(store.format_version),
        COLUMNS_STATE: "0",
        **(SORTED if shape.layout.is_sorted else IN_ORDER),
        **(
            {SOURCE_NAMES: source_names(shape)} if any(column.source_name for column in shape.columns) else {}
        ),
    }


def sort_by_key(store: IcebergStore, transaction: Any, shape: Shape) -> None:
    """Make the key the sort order of a table.

    The unsorted order remains among the table's sort orders, because Iceberg's procedures look it up if they
    sort differently.
    """
    if not shape.layout.is_sorted or not shape.key:
        return
    order = transaction.replaceSortOrder()
    for name in shape.key:
        order = ascending(store.jvm, order, name)
    order.commit()


def location_of(store: IcebergStore, table: TableName) -> str | None:
    """A new folder below an embedded warehouse, or None if the catalog chooses the location.

    A name is never used unchanged as a path, because the path could lead out of the warehouse. A Hadoop
    catalog uses names as folders, so Refused is raised for a name that cannot be a folder's name.
    """
    if str(store.iceberg().getClass().getSimpleName()) == "HadoopCatalog":
        refuse_paths(table)
        return None
    root = store.folder
    if root is None:
        return None
    remember_here(store, table)
    folder = Path(root, _folder_name(table.schema), _folder_name(table.name))
    if folder.exists():
        folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
    return str(folder)


def refuse_paths(table: TableName) -> None:
    """Raise Refused for a name that cannot be a folder's name, which a Hadoop catalog requires."""
    for name in (table.schema, table.name):
        if "/" in name or name in {".", ".."}:
            raise Refused(
                "no-folder",
                f"{name!r} cannot be the name of a folder, which a Hadoop catalog needs.",
                "Choose another name, or a catalog of another type (jdbc, rest, hive).",
            )


def remember_here(store: IcebergStore, table: TableName) -> None:
    """Record the folder of an embedded warehouse, before a table or view is created in it."""
    if store.home is not None:
        remember(store.home, table)


def _folder_name(name: str) -> str:
    if PLAIN.fullmatch(name) and len(name) <= LONGEST_FOLDER:
        return name
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
    return f"{safe}-{uuid.uuid5(uuid.NAMESPACE_URL, name).hex[:8]}"
