"""Base and history tables of a database: the stage's rows, schema changes (sections 3.7 and 4.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from backstory.doors.historize import ddl, preflight
from backstory.doors.historize.columns import user_columns
from backstory.doors.historize.effective import EFFECTIVE
from backstory.doors.historize.engines.engine import Engine
from backstory.doors.historize.histories import ARCHIVE, History
from backstory.doors.historize.labels import LABELED
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import Column, Role
from backstory.doors.historize.stage import Stage
from backstory.doors.historize.stage_files import read_stage
from backstory.doors.historize.steps import Statement
from backstory.doors.historize.views import ALL, SUFFIXES, create_views, drop_views
from backstory.errors import Refused

LOAD_COLUMNS = frozenset({Role.LOAD_RUN_ID.value, Role.LOADED_AT.value})


def staged(engine: Engine, load: Load, stage: Stage | None) -> Load:
    """The load with the relation of the stage's rows, and the load columns that it brings.

    Raises Refused for a stage that is missing, lacks a column, or has one whose values do not fit.
    """
    if stage is None:
        raise Refused(
            "BASE_NOT_LOADED",
            f"{load.dataset.name} has no stage input.",
            "Give it an input, or take the base as it stands with --skip-base.",
        )
    columns = user_columns(load.dataset)
    if stage.path:
        name = f"backstory_stage_{load.dataset.name}"
        rows = read_stage(stage, columns)
        return replace(load, stage=engine.bring(name, rows, _as_staged(columns)))
    stored = engine.introspect_table(*stage.table)
    if stored is None:
        raise Refused(
            "no-stage", f"There is no table {stage.name}.", "Load the stage first, or mend the model."
        )
    names = {name.lower(): name for name in stored}
    for column in columns:
        source = names.get((column.input or column.name).lower())
        if source is None:
            raise Refused(
                "missing-column",
                f"{stage.name} has no column {column.input}.",
                "Mend the model.",
                [column.input],
            )
        if not ddl.fits(stored[source], column, load.dialect):
            raise Refused(
                "STAGE_TYPE",
                f"{stage.name}.{source} is {stored[source]}, and {column.name} "
                f"{load.dialect.type_of(column)} does not hold all of its values.",
                "Cast it in the stage, or widen the column.",
                [column.name],
            )
    table = load.dialect.render_table_identifier(*stage.table)
    return replace(load, stage=table, brought=frozenset(names) & LOAD_COLUMNS)


def _as_staged(columns: Sequence[Column]) -> list[Column]:
    """The columns under their names in the stage."""
    return [
        column.model_copy(update={"target_column_name": column.input or column.name}) for column in columns
    ]


def require_base(engine: Engine, load: Load) -> None:
    """P10; raises Refused if there is no base to take as it stands."""
    names = (load.dataset.name, *load.dataset.former_names)
    if all(engine.introspect_table(load.schema, name) is None for name in names):
        told = f"There is no table {load.schema}.{load.dataset.name}."
        raise Refused("BASE_NOT_LOADED", told, "Load the base first.")


def refuse_empty_stage(engine: Engine, load: Load, values: Mapping[str, str]) -> None:
    """Raises Refused for a stage without rows that would empty the base."""
    if load.dataset.historization.allow_empty_snapshot or load.delete_scope or not load.deletes_base:
        return
    empty = not engine.query(f"SELECT 1 FROM {load.stage} AS i LIMIT 1", values)
    if empty and engine.query(f"SELECT 1 FROM {load.base_table} AS b LIMIT 1", values):
        raise preflight.rejection("EMPTY_SNAPSHOT", f"The stage of {load.dataset.name} is empty.")


def synchronised(
    engine: Engine, load: Load, table: str, columns: Sequence[Column], former: Sequence[str]
) -> list[str]:
    """Bring a table to its columns, and tell what changed."""
    dialect = load.dialect
    stored, told = engine.introspect_table(load.schema, table), []
    if stored is None:
        old = next((name for name in former if engine.introspect_table(load.schema, name) is not None), None)
        if old is None:
            engine.execute(dialect.render_create_schema_if_not_exists(load.schema))
            name = dialect.render_table_identifier(load.schema, table)
            live = [column for column in columns if column.active]
            engine.execute(dialect.render_create_table_if_not_exists_from_columns(name, live))
            return [f"CREATE_TABLE {table}"]
        engine.execute(dialect.render_rename_table(load.schema, old, table))
        told.append(f"RENAME_DATASET {old} to {table}")
        stored = engine.introspect_table(load.schema, table)
    plan = ddl.plan(table, columns, stored or {}, dialect)
    if table == load.dataset.hist_name:
        preflight.require_hist_columns(load, plan.added)
        if plan.told and _views(engine, load):
            # PostgreSQL changes no column that a view shows.
            _run(engine, drop_views(_history(engine, load)))
    _run(engine, plan.statements(dialect, load.schema, table))
    return [*told, *(f"{change} ({table})" for change in plan.told)]


def refresh_views(engine: Engine, load: Load) -> None:
    """Make the history's views that the model asks for and that are not there."""
    missing = [view for view in _wanted(engine, load) if view not in _views(engine, load)]
    if missing:
        history = _history(engine, load)
        _run(engine, [*drop_views(history), *create_views(history, load.dataset.historization)])


def _wanted(engine: Engine, load: Load) -> list[str]:
    rules, name = load.dataset.historization, load.dataset.hist_name
    wanted = [f"{name}{ALL}"] if engine.introspect_table(load.schema, f"{name}{ARCHIVE}") else []
    if rules.state_labels and rules.state_labels.mode == "view":
        wanted.append(f"{name}{LABELED}")
    return [*wanted, f"{name}{EFFECTIVE}"] if rules.effective_dating else wanted


def _views(engine: Engine, load: Load) -> list[str]:
    """The views of the history that are there."""
    names = [f"{load.dataset.hist_name}{suffix}" for suffix in SUFFIXES]
    return [name for name in names if engine.introspect_table(load.schema, name) is not None]


def _history(engine: Engine, load: Load) -> History:
    stored = engine.introspect_table(load.schema, load.dataset.hist_name) or {}
    archive = engine.introspect_table(load.schema, f"{load.dataset.hist_name}{ARCHIVE}")
    columns = tuple(column for column in load.hist.target_columns if column.name in stored)
    hist = load.hist.model_copy(update={"target_columns": columns})
    return History(load.dialect, load.schema, hist, frozenset(archive or ()))


def _run(engine: Engine, statements: Sequence[Statement]) -> None:
    for statement in statements:
        engine.execute(statement.sql)
