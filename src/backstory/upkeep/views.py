"""The views of a history: all versions including archived ones, labeled states, effective time (section 7).

A view has the columns that the history had when the view was created. So views are dropped before the columns
change, and created again after a change or after pruning. A database rewrites the definition of a view, so
each view is marked by a comment with a hash of our query.
"""

from collections.abc import Iterator
from hashlib import sha256

from backstory.reading.history_queries import StoredHistory, columns_of, effective, labeled, select
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import DuckDB, Postgres
from backstory.stores.sql.engine import Engine

ALL, LABELED, EFFECTIVE = "_all", "_labeled", "_effective"
SUFFIXES = (ALL, LABELED, EFFECTIVE)


def drop_views(history: StoredHistory) -> list[str]:
    """The statements that drop all views of the history."""
    return [f"DROP VIEW IF EXISTS {history.name_with_suffix(suffix)}" for suffix in reversed(SUFFIXES)]


def create_views(history: StoredHistory) -> list[str]:
    """The statements that create the views that the history's model defines."""
    return [
        f"CREATE VIEW {history.name_with_suffix(suffix)} AS\n{sql}" for suffix, sql in definitions(history)
    ]


def definitions(history: StoredHistory) -> Iterator[tuple[str, str]]:
    """The suffix and the query of each view that the history's model defines. A pruned history has `_all`."""
    if history.model.archive:
        everything = f"FROM {history.all_versions} AS v"
        yield ALL, select(history.dialect, columns_of(history, "v", history.names), everything).sql
    if history.model.shown_labels:
        yield LABELED, labeled(history, history.model.shown_labels).sql
    if history.model.dating:
        yield EFFECTIVE, effective(history, history.model.dating).sql


# The cast truncates the name as PostgreSQL did when the view was created.
_COMMENTS: dict[type[Dialect], str] = {
    DuckDB: "SELECT comment FROM duckdb_views() WHERE database_name = current_database() "
    "AND lower(schema_name) = lower({schema}) AND lower(view_name) = lower({view})",
    Postgres: "SELECT obj_description(c.oid, 'pg_class') FROM pg_class AS c "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind = 'v' "
    "AND n.nspname = {schema} AND c.relname = CAST({view} AS name)",
}


def stored_view_marks(engine: Engine, history: StoredHistory) -> dict[str, str | None]:
    """The suffix and the mark of each existing view. A view without a comment has no mark."""
    comments_of = {suffix: _comments(engine, history, suffix) for suffix in SUFFIXES}
    return {suffix: comments[0] for suffix, comments in comments_of.items() if comments}


def defined_view_marks(history: StoredHistory) -> dict[str, str | None]:
    """The suffix and the mark of each view that the history's model defines."""
    return {suffix: _mark(sql) for suffix, sql in definitions(history)}


def create_marked_views(history: StoredHistory) -> list[str]:
    """The statements that create the views, and mark them if marks can be read in this dialect."""
    created = create_views(history)
    if _query(history.dialect) is None:
        return created
    return created + [
        f"COMMENT ON VIEW {history.name_with_suffix(suffix)} IS {history.text(_mark(sql))}"
        for suffix, sql in definitions(history)
    ]


def _mark(sql: str) -> str:
    return f"backstory {sha256(sql.encode()).hexdigest()}"


def _comments(engine: Engine, history: StoredHistory, suffix: str) -> list[str | None]:
    """A list with the view's comment. The list is empty if the view does not exist."""
    name = f"{history.model.name}{suffix}"
    query = _query(history.dialect)
    if query is None:
        return [] if engine.introspect_table(history.schema, name) is None else [None]
    rows = engine.fetch_all(query.format(schema=history.text(history.schema), view=history.text(name)))
    return [comment for (comment,) in rows]


def _query(dialect: Dialect) -> str | None:
    return next((query for kind, query in _COMMENTS.items() if isinstance(dialect, kind)), None)
