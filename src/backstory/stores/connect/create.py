"""Tables over Spark Connect: creation, renaming and dropping, and changes of columns and properties.

Each operation runs SQL statements. It may be interrupted after any of them without harm.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, cast

import pyarrow as pa

from backstory.model.change import COLUMNS_STATE, Change
from backstory.model.layout import YEAR
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import added_fields, widens
from backstory.observe import time_stage
from backstory.spark.connect import needs_java
from backstory.stores.connect.store import ConnectStore, in_commit
from backstory.stores.iceberg.create import refuse_paths, table_properties
from backstory.stores.iceberg.frames import frame_of, without_row_ids
from backstory.stores.iceberg.literals import column, property_list, quote, text_literal
from backstory.stores.iceberg.schema import SOURCE_NAMES, spark_type
from backstory.stores.iceberg.store import IcebergTable, source_names

# The name of the view of staged rows.
ROWS: Final = "backstory_rows"


def new_properties(table: IcebergTable, properties: Mapping[str, str | None]) -> dict[str, str | None]:
    """The properties whose values differ from the table's."""
    return {name: value for name, value in properties.items() if table.properties.get(name) != value}


def set_properties(store: ConnectStore, table: TableName, properties: Mapping[str, str | None]) -> None:
    """Set properties of the table. None removes a property."""
    altering = f"ALTER TABLE {store.sql_name(table)}"
    values = {name: value for name, value in properties.items() if value is not None}
    removed = [text_literal(name) for name, value in properties.items() if value is None]
    if removed:
        store.spark.sql(f"{altering} UNSET TBLPROPERTIES IF EXISTS ({', '.join(removed)})")
    if values:
        store.spark.sql(f"{altering} SET TBLPROPERTIES ({property_list(values)})")


def reshape(
    store: ConnectStore, table: IcebergTable, into: Shape, renamed: Mapping[str, str]
) -> Mapping[str, str]:
    """Give the table the columns of the new shape, and return its properties.

    If the process is killed before the rows are written, the new columns have no values. The properties are
    set first, so that a new column is never mistaken for another column of the source.
    """
    altering = f"ALTER TABLE {store.sql_name(table.shape.table)}"
    statements = [f"{altering} {clause}" for clause in _alterations(table.shape, into, renamed)]
    last = max(schema["schema-id"] for schema in table.metadata["schemas"])
    state = str(last + len(statements) if statements else table.schema_id)
    properties = {SOURCE_NAMES: source_names(into), COLUMNS_STATE: state}
    if source_names(into) == source_names(table.shape):
        del properties[SOURCE_NAMES]
    if table.properties.get(COLUMNS_STATE) in {None, state}:
        del properties[COLUMNS_STATE]
    set_properties(store, table.shape.table, properties)
    for statement in statements:
        store.spark.sql(statement)
    return {**table.properties, **properties}


def _alterations(before: Shape, into: Shape, renamed: Mapping[str, str]) -> Iterator[str]:
    """The clauses that change the columns. The table can be read after each of them.

    A type is widened before its comment is changed. The comment contains the source's type, and is valid only
    if the source's type fits the stored type.
    """
    for old, new in renamed.items():
        if old != new:
            yield f"RENAME COLUMN {quote(old)} TO {quote(new)}"
    known = {renamed.get(each.name, each.name): each.type for each in before.columns}
    present = [(each, known[each.name]) for each in into.columns if each.name in known]
    wider = [(each, old) for each, old in present if each.type != old and widens(old, each.type)]
    types = [
        f"{quote(each.name)} TYPE {spark_type(each.type)}"
        for each, old in wider
        if spark_type(each.type) != spark_type(old)
    ]
    if types:
        yield f"ALTER COLUMN {', '.join(types)}"
    if wider:
        comments = (f"{quote(each.name)} COMMENT {text_literal(each.doc)}" for each, _ in wider)
        yield f"ALTER COLUMN {', '.join(comments)}"
    places = ("FIRST", *(f"AFTER {quote(name)}" for name in into.names))
    # New columns are added first, because copies remember their ids.
    added = [
        f"{column_definition(each)} {place}"
        for each, place in zip(into.columns, places, strict=False)
        if each.name not in known
    ]
    added += [
        f"{'.'.join(map(quote, (each.name, *part.within, part.name)))} {spark_type(part.type)}"
        for each, old in present
        for part in added_fields(old, each.type) or ()
    ]
    if added:
        yield f"ADD COLUMNS ({', '.join(added)})"
    dropped = [quote(name) for name in known if into.column(name) is None]
    if dropped:
        yield f"DROP COLUMNS ({', '.join(dropped)})"


def column_definition(column: Column) -> str:
    """A column, its type and its comment, in a statement."""
    return f"{quote(column.name)} {spark_type(column.type)} COMMENT {text_literal(column.doc)}"


def require_alterable(table: IcebergTable, change: Change, into: Shape) -> None:
    """Raise UsageError for a new shape if interrupted statements could leave the table in a wrong state."""
    before, renamed = table.shape, {old: new for old, new in change.renamed.items() if old != new}
    if into.table != before.table or into.layout is not before.layout:
        raise needs_java("Another name or layout of a table")
    settings = new_properties(table, change.properties)
    texts = [*settings.values(), *(table.properties.get(name) for name in settings)]
    names_one = any(
        json.dumps(name, ensure_ascii=False) in (text or "")
        for name in chain(*renamed.items())
        for text in texts
    )
    if {*renamed} & {*before.key} or {*renamed.values()} & {*before.names} or names_one:
        raise needs_java("A new name for a key column, or for a column that options of the table name,")
    if any(column.source_name for column in before.columns if column.name in renamed):
        raise needs_java("Another source of a column")
    known = {renamed.get(each.name, each.name): each.type for each in before.columns}
    dropped = {*known} - {*into.names}
    if [name for name in into.names if name in known] != [name for name in known if name not in dropped]:
        raise needs_java("Another order of columns")
    if dropped and (change.added is not None or change.removed is not None):
        raise needs_java("A dropped column with changed rows")
    if into.key != tuple(renamed.get(name, name) for name in before.key):
        raise needs_java("Another key of a table")
    for each in into.columns:
        type_ = known.get(each.name, each.type)
        if not (widens(type_, each.type) or added_fields(type_, each.type)):
            raise needs_java(f"A type of column {each.name} to which its own does not widen")


def create(store: ConnectStore, change: Change, notes: Mapping[str, str]) -> int | None:
    """Create the table of a change together with its rows.

    Returns its first snapshot, or None if there are no rows.
    """
    shape, added = cast("Shape", change.into), change.added
    refuse_paths(shape.table)
    properties = {**table_properties(store, shape), **change.properties}
    settings = {name: value for name, value in properties.items() if value is not None}
    with in_commit(store, shape.table, notes) as own:
        own.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quote(own.catalog)}.{quote(shape.table.schema)}")
        with time_stage("commit"):
            _create_table(own, shape, settings, added)
        if shape.layout.is_sorted and shape.key:
            order = ", ".join(map(quote, shape.key))
            own.spark.sql(f"ALTER TABLE {own.sql_name(shape.table)} WRITE LOCALLY ORDERED BY {order}")
        if added is None:
            return None
        snapshots = own.spark.table(own.sql_name(shape.table, "snapshots"))
        return int(snapshots.where("parent_id IS NULL").collect()[0].snapshot_id)


def _create_table(
    store: ConnectStore, shape: Shape, properties: Mapping[str, str], added: pa.Table | None
) -> None:
    """Create a table with these rows in one statement. Comments of columns are part of the rows' frame."""
    columns, query = f"({', '.join(map(column_definition, shape.columns))})", ""
    if added is not None:
        names = [each.name for each in shape.columns]
        rows = frame_of(store, without_row_ids(added).select(names))
        typed = (
            column(each.name).cast(spark_type(each.type)).alias(each.name, metadata={"comment": each.doc})
            for each in shape.columns
        )
        rows.select(*typed).createOrReplaceTempView(ROWS)
        columns, query = "", f" AS SELECT * FROM {ROWS}"  # noqa: S608
    parts = ", ".join(
        f"years({quote(name)})" if transform == YEAR else quote(name)
        for transform, name in shape.layout.partitioning
    )
    store.spark.sql(
        f"CREATE TABLE {store.sql_name(shape.table)} {columns} USING iceberg "
        f"{f'PARTITIONED BY ({parts}) ' if parts else ''}TBLPROPERTIES ({property_list(properties)}){query}"
    )


def drop_or_rename(store: ConnectStore, table: IcebergTable, change: Change) -> None:
    """Drop the table with its files, or rename it.

    Raises UsageError for the drop of a table that keeps its files or has files outside of its folder, because
    SQL would delete these files.
    """
    name = table.shape.table
    with in_commit(store, name, {}) as own:
        if change.into is not None:
            into = change.into.table
            own.spark.sql(
                f"ALTER TABLE {own.sql_name(name)} RENAME TO {quote(into.schema)}.{quote(into.name)}"
            )
            return
        if table.properties.get("gc.enabled") == "false":
            raise needs_java("A drop of a table that keeps its files", f"drop {name}")
        folder = text_literal(f"{table.metadata['location'].rstrip('/')}/")
        files = own.spark.table(own.sql_name(name, "all_files"))
        if files.where(f"NOT startswith(file_path, {folder})").limit(1).count():
            raise needs_java("A drop of a table with files outside of its folder", f"drop {name}")
        own.spark.sql(f"DROP TABLE {own.sql_name(name)} PURGE")
