"""Tables over Spark Connect: creation, renaming and dropping, each by one visible statement."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import partitioning

from backstory.formats.delivered import arrow_schema
from backstory.model.change import Change
from backstory.model.layout import YEAR
from backstory.model.table import Shape
from backstory.observe.metrics import time_stage
from backstory.spark.connect import needs_java
from backstory.stores.connect.columns import column_definition
from backstory.stores.connect.rows import frame_in
from backstory.stores.connect.sessions import commit_session
from backstory.stores.connect.store import ConnectStore
from backstory.stores.iceberg.create import refuse_paths, table_properties
from backstory.stores.iceberg.frames import without_row_ids
from backstory.stores.iceberg.literals import column, property_list, quote, text_literal
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create(
    store: ConnectStore,
    shape: Shape,
    properties: Mapping[str, str | None],
    added: pa.Table | None,
    notes: Mapping[str, str],
) -> int | None:
    """Create a table of this shape together with its rows.

    Returns its first snapshot, or None if there are no rows.
    """
    refuse_paths(shape.table)
    properties = {**table_properties(store, shape), **properties}
    settings = {name: value for name, value in properties.items() if value is not None}
    with commit_session(store, shape.table, notes) as session:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {quote(store.catalog)}.{quote(shape.table.schema)}")
        with time_stage("commit"):
            if added is None:
                _create_empty(store, session, shape, settings)
            else:
                _create_with_rows(store, session, shape, settings, added)
        if shape.layout.is_sorted and shape.key:
            order = ", ".join(map(quote, shape.key))
            session.sql(f"ALTER TABLE {store.sql_name(shape.table)} WRITE LOCALLY ORDERED BY {order}")
        if added is None:
            return None
        snapshots = session.table(store.sql_name(shape.table, "snapshots"))
        return int(snapshots.where("parent_id IS NULL").collect()[0].snapshot_id)


def _create_empty(
    store: ConnectStore, session: "SparkSession", shape: Shape, properties: Mapping[str, str]
) -> None:
    columns = ", ".join(map(column_definition, shape.columns))
    parts = ", ".join(
        f"years({quote(name)})" if transform == YEAR else quote(name)
        for transform, name in shape.layout.partitioning
    )
    session.sql(
        f"CREATE TABLE {store.sql_name(shape.table)} ({columns}) USING iceberg "
        f"{f'PARTITIONED BY ({parts}) ' if parts else ''}TBLPROPERTIES ({property_list(properties)})"
    )


def _create_with_rows(
    store: ConnectStore,
    session: "SparkSession",
    shape: Shape,
    properties: Mapping[str, str],
    added: pa.Table,
) -> None:
    schema = arrow_schema({each.name: each.type for each in shape.columns})
    typed = frame_in(session, without_row_ids(added).select(schema.names)).select(
        *(
            column(each.name).cast(spark_type(each.type)).alias(each.name, metadata={"comment": each.doc})
            for each in shape.columns
        )
    )
    writer = typed.writeTo(store.sql_name(shape.table)).using("iceberg")
    for name, value in properties.items():
        writer = writer.tableProperty(name, value)
    parts = [
        partitioning.years(quote(name)) if transform == YEAR else column(name)
        for transform, name in shape.layout.partitioning
    ]
    (writer.partitionedBy(*parts) if parts else writer).create()


def drop_or_rename(store: ConnectStore, table: IcebergTable, change: Change) -> None:
    """Drop the table with its files, or rename it.

    Raises UsageError for a table with files outside of its folder, because a drop in SQL would also delete
    them.
    """
    name = table.shape.table
    with commit_session(store, name, {}) as session:
        if change.into is not None:
            into = change.into.table
            session.sql(
                f"ALTER TABLE {store.sql_name(name)} RENAME TO {quote(into.schema)}.{quote(into.name)}"
            )
            return
        if table.iceberg.properties().get("gc.enabled") == "false":
            raise needs_java("A drop of a table that keeps its files", f"drop {name}")
        folder = text_literal(f"{table.iceberg.location().rstrip('/')}/")
        files = session.table(store.sql_name(name, "all_files"))
        if files.where(f"NOT startswith(file_path, {folder})").limit(1).count():
            raise needs_java("A drop of a table with files outside of its folder", f"drop {name}")
        session.sql(f"DROP TABLE {store.sql_name(name)} PURGE")
