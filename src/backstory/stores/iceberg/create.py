"""Make, rename and drop tables."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from backstory.errors import Refused
from backstory.model.change import COLUMNS_STATE
from backstory.model.layout import YEAR
from backstory.model.table import Column, Shape, TableName
from backstory.stores.embedded_catalog import remember
from backstory.stores.iceberg.data_files import delete_files
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import ascending, holds_views, partition_spec
from backstory.stores.iceberg.schema import iceberg_schema
from backstory.stores.iceberg.scripts import files_of_history
from backstory.stores.iceberg.store import (
    KEY,
    LAYOUT,
    LAYOUT_VERSION,
    SOURCE_NAMES,
    Store,
    exists,
    require_here,
    source_names,
)
from backstory.stores.refusals import table_exists, view_exists

PROPERTIES = {
    LAYOUT_VERSION: "1",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.retry.num-retries": "10",
    # Small splits keep all cores busy on tables of a few files.
    "read.split.target-size": str(32 << 20),
    # A row group weighs what it holds: at Iceberg's 4 MiB each they would make many times the tasks.
    "read.split.open-file-cost": str(1 << 18),
}
# Rows are sorted by key: small row groups let a delivery of a few keys read a few of them. A dictionary that
# is large in such a group saves nothing, and takes a third of the time of writing.
SORTED = {
    "write.parquet.row-group-size-bytes": str(1 << 20),
    "write.parquet.dict-size-bytes": str(1 << 14),
}
# Rows in the order of their offsets are read by ranges of them.
IN_ORDER = {"write.parquet.row-group-size-bytes": str(16 << 20)}
LONGEST_FOLDER = 128
PLAIN = re.compile(r"[A-Za-z0-9_-]+")

log = structlog.get_logger()


def refuse_existing(store: Store, table: TableName) -> None:
    """Raise Refused if there is such a table."""
    if exists(store, table):
        raise table_exists(table)


def is_view(store: Store, name: TableName) -> bool:
    """Whether a view has the name, which no table can have then; a catalog that cannot say so has none."""
    from py4j.protocol import Py4JJavaError

    catalog = store.iceberg()
    try:
        return holds_views(store.jvm, catalog) and bool(catalog.viewExists(store.identifier(name)))
    except Py4JJavaError:  # one of an older layout, or a server without views
        return False


def builder(store: Store, shape: Shape) -> Any:
    """Iceberg's builder of a table of this shape; makes the schema if it is missing (section 2.5).

    The order of its rows is set after it was made, by `sort_by_key`.

    Histories are partitioned so that open versions lie apart from closed ones. Raises Refused for a name
    that Iceberg cannot hold, and for one of a view.
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
    for name, value in (PROPERTIES | _own_properties(store, shape)).items():
        properties.put(name, value)
    ensure_schema(store, shape.table.schema)
    building = store.iceberg().buildTable(identifier, schema).withPartitionSpec(spec.build())
    building = building.withProperties(properties)
    location = location_of(store, shape.table)
    return building.withLocation(location) if location else building


def drop(store: Store, table: TableName) -> bool:
    """Drop the table with those of its files that lie in its folder; whether there was one.

    Files elsewhere stay, and a warning in the log counts them.
    """
    from py4j.protocol import Py4JJavaError

    require_here(store, table)
    catalog, identifier = store.iceberg(), store.identifier(table)
    with translate_faults(table):
        try:
            iceberg = catalog.loadTable(identifier)
            named = files_of_history(store.jvm, iceberg, store.jvm.java.util.HashMap())
            folder, keeps = str(iceberg.location()), iceberg.properties().get("gc.enabled") == "false"
            former = [str(each.file()) for each in iceberg.operations().current().previousFiles()]
        except Py4JJavaError:  # none, or one whose files nobody can tell: they stay
            return bool(catalog.dropTable(identifier, False))
        dropped = bool(catalog.dropTable(identifier, False))
        files = [each.location for each in named if not keeps or each.kind == "METADATA"]
        left = delete_files(iceberg, dict.fromkeys([*files, *former]), folder)
    if left:
        log.warning(f"{table} was dropped; {len(left)} of its files are outside of its folder and stay")
    return dropped


def rename(store: Store, table: TableName, name: TableName) -> None:
    """Give the table another name; its data, columns and properties stay where they are.

    Raises Refused for the name of a view.
    """
    require_here(store, table)
    if is_view(store, name):
        raise view_exists(name)
    with translate_faults(table):
        store.iceberg().renameTable(store.identifier(table), store.identifier(name))


def ensure_schema(store: Store, schema: str) -> None:
    """Create the schema; another writer may do the same at the same time."""
    from py4j.protocol import Py4JJavaError

    catalog, namespace = store.iceberg(), store.namespace(schema)
    if catalog.namespaceExists(namespace):
        return
    try:
        catalog.createNamespace(namespace)
    except Py4JJavaError:
        if not catalog.namespaceExists(namespace):
            raise


def create_view(
    store: Store, name: TableName, columns: Sequence[Column], sql: str, properties: Mapping[str, str]
) -> None:
    """Make a view for Spark SQL, for which Spark is not started; nothing where the catalog holds none.

    One that is there is made anew; without these properties it is another's, and stays. Raises Refused if
    there is such a table.
    """
    refuse_existing(store, name)
    remember_here(store, name)
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


def _own_properties(store: Store, shape: Shape) -> dict[str, str]:
    return {
        LAYOUT: shape.layout.value,
        KEY: json.dumps(list(shape.key), ensure_ascii=False),
        "format-version": str(store.format_version),
        COLUMNS_STATE: "0",
        **(SORTED if shape.layout.is_sorted else IN_ORDER),
        **(
            {SOURCE_NAMES: source_names(shape)} if any(column.source_name for column in shape.columns) else {}
        ),
    }


def sort_by_key(store: Store, transaction: Any, shape: Shape) -> None:
    """Tell Iceberg the order in which rows lie.

    A table keeps the order of none beside it: Iceberg's procedures that sort rows otherwise look for it.
    """
    if not shape.layout.is_sorted or not shape.key:
        return
    order = transaction.replaceSortOrder()
    for name in shape.key:
        order = ascending(store.jvm, order, name)
    order.commit()


def location_of(store: Store, table: TableName) -> str | None:
    """A folder below an embedded warehouse that holds nothing yet; None lets the catalog choose.

    A name never becomes a path as it is: it could climb out of the warehouse. Raises Refused for one that
    would, in a catalog that makes paths of names.
    """
    if str(store.iceberg().getClass().getSimpleName()) == "HadoopCatalog":
        for name in (table.schema, table.name):
            if "/" in name or name in {".", ".."}:
                raise Refused(
                    "no-folder",
                    f"{name!r} cannot be the name of a folder, as a Hadoop catalog needs.",
                    "Choose another name, or a catalog of another type (jdbc, rest, hive).",
                )
        return None
    root = store.folder
    if root is None:
        return None
    remember_here(store, table)
    folder = Path(root, _folder_name(table.schema), _folder_name(table.name))
    if folder.exists():
        folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
    return str(folder)


def remember_here(store: Store, table: TableName) -> None:
    """Let an embedded warehouse remember the folder that a table or a view is put below."""
    if store.home is not None:
        remember(store.home, table)


def _folder_name(name: str) -> str:
    if PLAIN.fullmatch(name) and len(name) <= LONGEST_FOLDER:
        return name
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
    return f"{safe}-{uuid.uuid5(uuid.NAMESPACE_URL, name).hex[:8]}"
