"""Views of a table in its catalog: whoever asks in Spark SQL reads as `current` and `as_of` do."""

from collections.abc import Mapping
from typing import Any

from backstory.errors import Refused, UsageError
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.reading.frames.versions import versions_sql
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import EXTENSIONS, holds_views
from backstory.stores.iceberg.literals import quote, text_literal
from backstory.stores.iceberg.store import Store, existing, load

CURRENT, VERSIONS = "_current", "_versions"
OF = "backstory.view-of"  # a property of the view


def views(store: Store, table: TableName, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Make `<table>_current` and `<table>_versions`, anew if they are there; each with its SQL.

    The last is no view but the query of an instant on the versions, with the parameter `:time`: no Iceberg
    catalog holds functions. A view has the columns that the table had when it was made. `made` is false
    where nothing was: in a dry run, and where the catalog holds no views. Raises UsageError for a table that
    keeps no history and for a session that cannot make views, and Refused for a name that something else has.
    """
    wanted = {TableName(table.schema, f"{table.name}{name}"): sql for name, sql in _definitions(store, table)}
    told = make_views(store, table, wanted, dry_run=dry_run)
    at = f"{VALID_FROM} <= :time AND ({VALID_TO} IS NULL OR :time < {VALID_TO})"
    of = store.sql_name(TableName(table.schema, f"{table.name}{VERSIONS}"))
    return [*told, {"view": None, "made": False, "sql": f"SELECT * FROM {of} WHERE {at}"}]


def make_views(
    store: Store, table: TableName, wanted: Mapping[TableName, str], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Make views of a table, anew if they are there; for each its name, its SQL, and whether it was made.

    Raises Refused for a name that something else has, UsageError for a session that can make none.
    """
    if not dry_run:
        _require_extensions(store)
    makes = not dry_run and holds_views(store.jvm, store.iceberg())
    there = _views_of(store, table.schema) if makes else None
    holds = there is not None
    for name in wanted if there is not None else ():
        _require_free(store, table, name, there or set())
    for name, sql in wanted.items() if holds else ():
        marked = f"TBLPROPERTIES ('{OF}' = {text_literal(str(table))})"
        with translate_faults(name):
            store.spark.sql(f"CREATE OR REPLACE VIEW {store.sql_name(name)} {marked} AS {sql}")
    return [{"view": str(name), "made": holds, "sql": sql} for name, sql in wanted.items()]


def _require_extensions(store: Store) -> None:
    """Raises UsageError where the catalog holds views, but the session's SQL cannot make them."""
    setting = "spark.sql.extensions"
    told = store.setting(setting) or ""
    if EXTENSIONS not in told and holds_views(store.jvm, store.iceberg()):
        both = ",".join(filter(None, [told, EXTENSIONS]))
        raise UsageError(
            "no-extensions",
            f"The session can make no views in the catalog {store.catalog}: it lacks Iceberg's extensions.",
            f'Start the session with .config("{setting}", "{both}").',
        )


def _views_of(store: Store, schema: str) -> set[str] | None:
    """The names of the schema's views; None where the catalog holds none beside tables."""
    from pyspark.errors import AnalysisException, UnsupportedOperationException

    namespace = ".".join(map(quote, (store.catalog, schema)))
    try:
        return {row["viewName"] for row in store.spark.sql(f"SHOW VIEWS IN {namespace}").collect()}
    except (AnalysisException, UnsupportedOperationException):
        return None


def _definitions(store: Store, table: TableName) -> list[tuple[str, str]]:
    every = versions_sql(store, existing(store, table))
    return [
        (CURRENT, f"SELECT * FROM ({every}) AS versions WHERE {VALID_TO} IS NULL"),
        (VERSIONS, every),
    ]


def _require_free(store: Store, table: TableName, name: TableName, there: set[str]) -> None:
    """Raise Refused if the name is a table's, or a view's that was not made here of this table."""
    taken = load(store, name) is not None
    if not taken and name.name in there:
        properties = store.spark.sql(f"SHOW TBLPROPERTIES {store.sql_name(name)}").collect()
        taken = (OF, str(table)) not in {(row["key"], row["value"]) for row in properties}
    if taken:
        raise Refused("view-exists", f"There is another table or view {name}.", "Rename or drop it first.")
