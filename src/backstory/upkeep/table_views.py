"""Views of a table in its catalog, so that Spark SQL can read it as `current` and `as_of` do."""

from collections.abc import Mapping
from typing import Any

from backstory.errors import Refused, UsageError
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.reading.frames import versions_sql
from backstory.stores.iceberg.create import views_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import EXTENSIONS, holds_views
from backstory.stores.iceberg.literals import text_literal
from backstory.stores.iceberg.store import IcebergStore, existing, load

CURRENT, VERSIONS = "_current", "_versions"
OF = "backstory.view-of"  # a property of the view: the table


def views(store: IcebergStore, table: TableName, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Create or replace the views `<table>_current` and `<table>_versions`. Returns entries with their SQL.

    The last entry is not a view. It is a query on the versions with the parameter `:time`, because Iceberg
    catalogs have no functions. A view has the columns that the table had when the view was created. `made` is
    false in a dry run, and if the catalog does not support views. Raises UsageError if the table keeps no
    history, or if the session cannot create views. Raises Refused if a name is in use.
    """
    current, versions = (TableName(table.schema, f"{table.name}{name}") for name in (CURRENT, VERSIONS))
    every = versions_sql(store, existing(store, table))
    queries = {current: f"SELECT * FROM ({every}) AS versions WHERE {VALID_TO} IS NULL", versions: every}
    entries = make_views(store, table, queries, dry_run=dry_run)
    condition = f"{VALID_FROM} <= :time AND ({VALID_TO} IS NULL OR :time < {VALID_TO})"
    query = f"SELECT * FROM {store.sql_name(versions)} WHERE {condition}"
    return [*entries, {"view": None, "made": False, "sql": query}]


def make_views(
    store: IcebergStore, table: TableName, queries: Mapping[TableName, str], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Create or replace views of a table. Each entry has the view's name, its SQL, and whether it was made.

    Raises Refused if a name is in use, and UsageError if the session cannot create views.
    """
    if not dry_run:
        _require_extensions(store)
    names, made = None, False
    if not dry_run and _may_hold_views(store):
        names = views_of(store, table.schema)
    if names is not None:
        for name in queries:
            _require_free(store, table, name, names)
        made = all(_make_view(store, table, name, sql) for name, sql in queries.items())
    return [{"view": str(name), "made": made, "sql": sql} for name, sql in queries.items()]


def _require_extensions(store: IcebergStore) -> None:
    """Raise UsageError if the catalog supports views, but the session's SQL cannot create them."""
    setting = "spark.sql.extensions"
    extensions = store.setting(setting) or ""
    if EXTENSIONS not in extensions and _may_hold_views(store):
        both = ",".join(filter(None, [extensions, EXTENSIONS]))
        raise UsageError(
            "no-extensions",
            f"The session cannot create views in the catalog {store.catalog}: it lacks Iceberg's extensions.",
            f'Start the session with .config("{setting}", "{both}").',
        )


def _make_view(store: IcebergStore, table: TableName, name: TableName, sql: str) -> bool:
    """Create or replace a view. Returns whether the catalog supports views."""
    from pyspark.errors import UnsupportedOperationException

    marked = f"TBLPROPERTIES ('{OF}' = {text_literal(str(table))})"
    with translate_faults(name):
        try:
            store.spark.sql(f"CREATE OR REPLACE VIEW {store.sql_name(name)} {marked} AS {sql}")
        except UnsupportedOperationException:
            if store.has_java:
                raise
            return False
    return True


def _may_hold_views(store: IcebergStore) -> bool:
    """Whether the catalog may support views. Without Java, only SHOW VIEWS can show whether it does."""
    return not store.has_java or holds_views(store.jvm, store.iceberg())


def _require_free(store: IcebergStore, table: TableName, name: TableName, existing_names: set[str]) -> None:
    """Raise Refused if the name belongs to a table, or to a view that was not created for this table."""
    taken = load(store, name) is not None
    if not taken and name.name in existing_names:
        properties = store.spark.sql(f"SHOW TBLPROPERTIES {store.sql_name(name)}").collect()
        taken = (OF, str(table)) not in {(row["key"], row["value"]) for row in properties}
    if taken:
        raise Refused("view-exists", f"There is another table or view {name}.", "Rename or drop it first.")
