"""Upkeep of a model's history in a database: its views, pruning and erasure (sections 7 and 7.5).

A view has the columns that the history had when the view was created. Views are therefore dropped before the
columns change, and created again after a change or after pruning. A database rewrites the definition of a
view, so each view is marked by a comment with a hash of our query.

Pruning moves old closed versions to the archive. They are copied, then compared in every column, and finally
deleted. A version that is in both tables is copied again, so that an interrupted run can be repeated without
transactions. The watermark is stored before anything is deleted, so that it is never too early.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from backstory.errors import Failed
from backstory.model.layout import ROW_HASH
from backstory.model.table import ARCHIVE_SUFFIX
from backstory.reading.history_queries import (
    Key,
    StoredHistory,
    columns_of,
    distinct,
    effective,
    in_utc,
    labeled,
    select,
)
from backstory.stores.sql import ddl
from backstory.stores.sql.columns import Datatype, SqlColumn, TableColumn
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import DuckDB, Postgres
from backstory.stores.sql.engine import Engine

ALL, LABELED, EFFECTIVE = "_all", "_labeled", "_effective"
SUFFIXES = (ALL, LABELED, EFFECTIVE)


def drop_views(history: StoredHistory) -> list[str]:
    """The statements that drop all views of the history."""
    return [f"DROP VIEW IF EXISTS {history.name_with_suffix(suffix)}" for suffix in reversed(SUFFIXES)]


def create_views(history: StoredHistory) -> list[str]:
    """The statements that create the views that the history's model defines.

    The views are also marked if marks can be read in this dialect.
    """
    views = {history.name_with_suffix(suffix): sql for suffix, sql in definitions(history)}
    created = [f"CREATE VIEW {view} AS\n{sql}" for view, sql in views.items()]
    if _query(history.dialect) is None:
        return created
    marks = ((view, history.text(_mark(sql))) for view, sql in views.items())
    return created + [f"COMMENT ON VIEW {view} IS {mark}" for view, mark in marks]


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
    marks: dict[str, str | None] = {}
    query = _query(history.dialect)
    for suffix in SUFFIXES:
        name = f"{history.model.name}{suffix}"
        if query is not None:
            text = query.format(schema=history.text(history.schema), view=history.text(name))
            for (comment,) in engine.fetch_all(text):
                marks[suffix] = comment
        elif engine.introspect_table(history.schema, name) is not None:
            marks[suffix] = None
    return marks


def defined_view_marks(history: StoredHistory) -> dict[str, str | None]:
    """The suffix and the mark of each view that the history's model defines."""
    return {suffix: _mark(sql) for suffix, sql in definitions(history)}


def _mark(sql: str) -> str:
    return f"backstory {sha256(sql.encode()).hexdigest()}"


def _query(dialect: Dialect) -> str | None:
    return next((query for kind, query in _COMMENTS.items() if isinstance(dialect, kind)), None)


_ARCHIVE_COLUMNS = (
    TableColumn("archived_at", Datatype.TIMESTAMP),
    TableColumn("archive_run_id", Datatype.STRING, 64),
)


@dataclass(frozen=True, slots=True)
class Cut:
    """The closed versions to prune. They ended before `before`, and their records are not under legal hold.

    If `keep_last` is true, the last version of each record is kept.
    """

    before: datetime
    keep_last: bool = True
    legal_hold: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number of pruned versions, and the instant from which the history is then complete."""

    versions: int
    watermark: datetime | None


def prunable_condition(history: StoredHistory, cut: Cut) -> str:
    """The SQL condition for versions (alias `h`) that may be pruned. No open version meets it."""
    started, ended = history.start_of("h"), history.end_of("h")
    parts = [f"{ended} < {history.dialect.timestamp_literal(cut.before)}"]
    if cut.keep_last:
        same = f"{history.of('l', history.key)} = {history.of('h', history.key)}"
        later = f"{same} AND {history.start_of('l')} > {started}"
        parts.append(f"EXISTS (SELECT 1 FROM {history.table} AS l WHERE {later})")
    parts += [f"NOT ({history.is_record('h', key)})" for key in cut.legal_hold]
    return " AND ".join(parts)


def preview_query(history: StoredHistory, cut: Cut) -> str:
    """The query for the number of versions to prune and for their latest end."""
    ended = history.end_of("h")
    return f"SELECT COUNT(*), MAX({ended}) FROM {history.table} AS h WHERE {prunable_condition(history, cut)}"


def preview_pruning(history: StoredHistory, engine: Engine, cut: Cut) -> Pruned:
    """The result that `prune` would have."""
    count, newest = engine.fetch_all(preview_query(history, cut))[0]
    ends = [end for end in (newest and in_utc(newest), history.watermark) if end]
    return Pruned(count, max(ends, default=None))


def archive_columns(history: StoredHistory) -> list[TableColumn]:
    """The columns of the archive: the history's columns, all nullable, and two more."""
    columns = (*history.columns, *_ARCHIVE_COLUMNS)
    names = distinct(column.name for column in columns)
    return [
        TableColumn(
            name,
            column.datatype,
            column.max_length,
            column.decimal_precision,
            column.decimal_scale,
            former_names=column.former_names,
        )
        for column, name in zip(columns, names, strict=True)
    ]


def copy_statements(history: StoredHistory, cut: Cut, run_id: str, instant: datetime) -> list[str]:
    """The statements that copy versions to the archive, and replace copies of an interrupted run."""
    names = [history.name(column.name) for column in archive_columns(history)]
    values = [history.of("h", column.name) for column in history.columns]
    values += [history.dialect.timestamp_literal(instant), history.text(run_id)]
    left = f"EXISTS (SELECT 1 FROM {history.table} AS h WHERE {_same_version(history)})"
    return [
        history.dialect.render_delete_detection_statement(history.archive, "a", left),
        history.dialect.render_insert_select_guarded(
            history.archive, names, values, history.table, "h", prunable_condition(history, cut)
        ),
    ]


def uncopied_query(history: StoredHistory, cut: Cut) -> str:
    """The query that counts versions to prune whose copy in the archive is missing or has other values."""
    pairs = [
        (column, history.of("a", column.name), history.of("h", column.name)) for column in history.columns
    ]
    equal = " AND ".join(
        f"NOT ({history.dialect.null_safe_ne(*(_comparable(history, column, side) for side in sides))})"
        for column, *sides in pairs
    )
    copied = f"EXISTS (SELECT 1 FROM {history.archive} AS a WHERE {_same_version(history)} AND {equal})"
    return (
        f"SELECT COUNT(*) FROM {history.table} AS h WHERE {prunable_condition(history, cut)} AND NOT {copied}"
    )


def delete_statement(history: StoredHistory, cut: Cut) -> str:
    """The statement that deletes the versions to prune, if they are in the archive."""
    copied = f"EXISTS (SELECT 1 FROM {history.archive} AS a WHERE {_same_version(history)})"
    where = f"{prunable_condition(history, cut)} AND {copied}"
    return history.dialect.render_delete_detection_statement(history.table, "h", where)


def _same_version(history: StoredHistory) -> str:
    return f"{history.of('a', history.model.version_key)} = {history.of('h', history.model.version_key)}"


def _comparable(history: StoredHistory, column: SqlColumn, sql: str) -> str:
    return history.dialect.canonical_text(sql, column.datatype) if column.datatype is Datatype.JSON else sql


def prepare_archive(history: StoredHistory, engine: Engine) -> None:
    """Create the archive, rename it from a former name, or give it the history's columns."""
    name = f"{history.model.name}{ARCHIVE_SUFFIX}"
    stored, columns = engine.introspect_table(history.schema, name), archive_columns(history)
    if stored is None:
        former = [f"{former_name}{ARCHIVE_SUFFIX}" for former_name in reversed(history.model.former_names)]
        old = next((memory for memory in former if engine.introspect_table(history.schema, memory)), None)
        if old is None:
            into = history.name_with_suffix(ARCHIVE_SUFFIX)
            built = history.dialect.render_create_table_if_not_exists_from_columns(into, columns)
            engine.execute(built)
            return
        engine.execute(history.dialect.render_rename_table(history.schema, old, name))
        stored = engine.introspect_table(history.schema, name)
    plan = ddl.plan_changes(name, columns, stored or {}, history.dialect)
    for statement in plan.statements(history.dialect, history.schema, name):
        engine.execute(statement)


def prune(
    history: StoredHistory,
    engine: Engine,
    cut: Cut,
    run_id: str,
    instant: datetime,
    remember: Callable[[datetime], None],
) -> Pruned:
    """Copy, compare and delete versions, in the caller's transaction.

    `remember` is called with the watermark before anything is deleted. Raises Failed if a copy differs.
    """
    pruned = preview_pruning(history, engine, cut)
    if not pruned.versions or pruned.watermark is None:
        return pruned
    for statement in copy_statements(history, cut, run_id, instant):
        engine.execute(statement)
    missing = engine.execute_scalar(uncopied_query(history, cut))
    if not missing:
        remember(pruned.watermark)
        missing = pruned.versions - engine.execute(delete_statement(history, cut))
    if missing:
        raise Failed(
            "ARCHIVE_DIFFERS",
            f"{missing} versions of {history.model.name} were not written to its archive.",
            "Nothing is lost; check the archive.",
        )
    return pruned


ERASED = "erased"


def forget_values(history: StoredHistory, table: str, stored: Sequence[str], key: Key) -> str:
    """The statement that sets a record's values to NULL, and its hash to `erased`. Keys and times stay."""
    attributes = {attribute.name for attribute in history.model.attributes}
    own_columns = {name for name in history.names if name not in attributes}
    own_columns |= {column.name for column in archive_columns(history)[len(history.columns) :]}
    values = {history.name(column): "NULL" for column in stored if column not in own_columns}
    values[history.name(ROW_HASH)] = history.text(ERASED)
    return history.dialect.render_update_exists(table, "h", values, history.is_record("h", key))


def forget_rows(history: StoredHistory, table: str, key: Key) -> str:
    """The statement that deletes all versions of a record."""
    return history.dialect.render_delete_detection_statement(table, "h", history.is_record("h", key))


def versions_of(history: StoredHistory, table: str, key: Key) -> str:
    """The query for the number of versions of a record in a table."""
    return f"SELECT COUNT(*) FROM {table} AS h WHERE {history.is_record('h', key)}"


def erase_record(history: StoredHistory, engine: Engine, key: Key, *, rows: bool, apply: bool) -> int:
    """Erase a record's values or rows from the history and archive. Returns the number of its versions.

    Without `apply`, they are only counted.
    """
    count = 0
    names = {history.table: history.model.name, history.archive: history.model.archive_name}
    for table, name in names.items():
        if stored := engine.introspect_table(history.schema, name):
            count += int(engine.execute_scalar(versions_of(history, table, key)))
            if apply and rows:
                engine.execute(forget_rows(history, table, key))
            elif apply:
                engine.execute(forget_values(history, table, list(stored), key))
    return count
