"""The views of a history: all versions with the archived ones, labelled states, effective time (section 7).

A view has the columns that the history had when it was made. So the views go before a history's columns
change, and are made anew after that, and after pruning.

What a history's views were made from, as a mark in each view's comment (section 7).

A database keeps a view in words of its own, so its definition does not tell whether something else is
asked for now. A comment comes and goes with its view, in the same transaction.
"""

from collections.abc import Iterator
from hashlib import sha256

from backstory.reading.databases.history_queries import effective, labeled
from backstory.reading.databases.stored_history import StoredHistory, columns_of, select
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import DuckDB, Postgres
from backstory.stores.sql.engine import Engine

ALL, LABELED, EFFECTIVE = "_all", "_labeled", "_effective"
SUFFIXES = (ALL, LABELED, EFFECTIVE)


def drop_views(history: StoredHistory) -> list[str]:
    """Statements after which the history has no view."""
    return [f"DROP VIEW IF EXISTS {history.name_with_suffix(suffix)}" for suffix in reversed(SUFFIXES)]


def create_views(history: StoredHistory) -> list[str]:
    """Statements that make the views which the history asks for."""
    return [
        f"CREATE VIEW {history.name_with_suffix(suffix)} AS\n{sql}" for suffix, sql in definitions(history)
    ]


def definitions(history: StoredHistory) -> Iterator[tuple[str, str]]:
    """The suffixes of the views that the history asks for, and the query of each.

    What was pruned asks for `_all`.
    """
    if history.model.archive:
        everything = f"FROM {history.all_versions} AS v"
        yield ALL, select(history.dialect, columns_of(history, "v", history.names), everything).sql
    if history.model.shown_labels:
        yield LABELED, labeled(history, history.model.shown_labels).sql
    if history.model.dating:
        yield EFFECTIVE, effective(history, history.model.dating).sql


# The cast cuts a name as PostgreSQL cut it when the view was made.
_COMMENTS: dict[type[Dialect], str] = {
    DuckDB: "SELECT comment FROM duckdb_views() WHERE database_name = current_database() "
    "AND lower(schema_name) = lower({schema}) AND lower(view_name) = lower({view})",
    Postgres: "SELECT obj_description(c.oid, 'pg_class') FROM pg_class AS c "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind = 'v' "
    "AND n.nspname = {schema} AND c.relname = CAST({view} AS name)",
}


def stored_view_marks(engine: Engine, history: StoredHistory) -> dict[str, str | None]:
    """The suffixes of the views that are there, each with its mark; None for one that has none."""
    found = {suffix: _comments(engine, history, suffix) for suffix in SUFFIXES}
    return {suffix: comments[0] for suffix, comments in found.items() if comments}


def defined_view_marks(history: StoredHistory) -> dict[str, str | None]:
    """The suffixes of the views that the history defines, each with its mark."""
    return {suffix: _mark(sql) for suffix, sql in definitions(history)}


def create_marked_views(history: StoredHistory) -> list[str]:
    """Statements that make the views which the history asks for, and mark them where we can read marks."""
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
    """The comment of the view, in a list that is empty where there is no view."""
    name = f"{history.model.name}{suffix}"
    query = _query(history.dialect)
    if query is None:
        return [] if engine.introspect_table(history.schema, name) is None else [None]
    rows = engine.fetch_all(query.format(schema=history.text(history.schema), view=history.text(name)))
    return [comment for (comment,) in rows]


def _query(dialect: Dialect) -> str | None:
    return next((query for kind, query in _COMMENTS.items() if isinstance(dialect, kind)), None)
