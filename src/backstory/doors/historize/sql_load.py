"""The load of a dataset on a database: stage, schema changes, views, and history (sections 3 and 4.3)."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from backstory.doors.historize import preflight
from backstory.doors.historize.load import Load, stored_history
from backstory.doors.historize.model import ColumnRole, ModelColumn, business_keys, user_columns
from backstory.doors.historize.receipts import LoadOutcome, LoadStep
from backstory.doors.historize.stage import Stage, read_stage
from backstory.errors import Failed, Refused
from backstory.model.history import ARCHIVE_SUFFIX, Archive
from backstory.model.values import key_text
from backstory.reading.databases.stored_history import StoredHistory
from backstory.stores.sql import ddl
from backstory.stores.sql.engine import Engine
from backstory.stores.sql.statements import Statement
from backstory.strategies.scd2.statements import (
    actions,
    closing_conditions,
    count_cases,
    has_no_open,
    hist_merge,
    hist_steps,
)
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS, TRANSITIONS, Past, State, Tally
from backstory.upkeep.views import create_marked_views, defined_view_marks, drop_views, stored_view_marks

LOAD_COLUMNS = frozenset({ColumnRole.LOAD_RUN_ID.value, ColumnRole.LOADED_AT.value})


def with_stage(engine: Engine, load: Load, stage: Stage | None) -> Load:
    """The load with the relation of the stage's rows, its column names, and the stage's load columns.

    Raises Refused for a stage that is missing, lacks a column, or has a column whose values do not fit.
    """
    if stage is None:
        raise Refused(
            "BASE_NOT_LOADED",
            f"{load.dataset.name} has no stage input.",
            "Set its input, or use `skip_base=True` to keep the base as it is.",
        )
    columns = user_columns(load.dataset)
    if stage.path:
        name = f"backstory_stage_{load.dataset.name}"
        relation = engine.bring(name, read_stage(stage, columns), columns)
        spelled = {column.input or column.name: column.name for column in columns}
        return replace(load, stage=relation, spellings=spelled)
    stored = engine.introspect_table(*stage.table)
    if stored is None:
        raise Refused(
            "no-stage", f"There is no table {stage.name}.", "Load the stage first, or fix the model."
        )
    spelled = {}
    for column in columns:
        wanted = column.input or column.name
        source = spelled[wanted] = _spelling(stage, stored, wanted)
        if not ddl.fits(stored[source], column, load.dialect):
            raise Refused(
                "STAGE_TYPE",
                f"{stage.name}.{source} is {stored[source]}, and {column.name} "
                f"{load.dialect.type_of(column)} cannot hold all of its values.",
                "Cast it in the stage, or widen the column.",
                [column.name],
            )
    lower = {name.lower() for name in stored}
    load_columns = LOAD_COLUMNS & lower
    spelled |= {name: _spelling(stage, stored, name) for name in load_columns}
    table = load.dialect.render_table_identifier(*stage.table)
    staged = replace(load, stage=table, stage_load_columns=load_columns, spellings=spelled)
    _refuse_null_load_columns(engine, staged)
    return staged


def _spelling(stage: Stage, stored: Collection[str], wanted: str) -> str:
    """The name of a column as it is written in the stage.

    If several names differ only in case, it is the exact name.
    """
    spellings = [name for name in stored if name.lower() == wanted.lower()]
    if wanted in spellings:
        return wanted
    if not spellings:
        raise Refused("missing-column", f"{stage.name} has no column {wanted}.", "Fix the model.", [wanted])
    if len(spellings) > 1:
        ambiguous = f"{stage.name} has {', '.join(spellings)}, but no column spelled {wanted}."
        raise Refused("repeated-column", ambiguous, "Spell the column as the stage does.", [wanted])
    return spellings[0]


def _refuse_null_load_columns(engine: Engine, load: Load) -> None:
    """Raise Refused for stage rows without a run id or a load time, if the stage has these columns."""
    keys = [load.in_stage(key.input or key.name) for key in business_keys(load.dataset)]
    for name in sorted(load.stage_load_columns):
        nothing = f"{load.of('i', load.in_stage(name))} IS NULL"
        rows = engine.fetch_all(preflight.keys_query(load, keys, load.stage, "i", nothing))
        if rows:
            offenders = [key_text(keys, row) for row in rows]
            raise preflight.rejection("NULL_VALUE", f"{name} is NULL in the stage.", offenders)


def require_base(engine: Engine, load: Load) -> None:
    """P10: raise Refused if a load that keeps the base has no base."""
    names = (load.dataset.name, *load.dataset.former_names)
    if all(engine.introspect_table(load.schema, name) is None for name in names):
        missing = f"There is no table {load.schema}.{load.dataset.name}."
        raise Refused("BASE_NOT_LOADED", missing, "Load the base first.")


def refuse_empty_stage(engine: Engine, load: Load, values: Mapping[str, str]) -> None:
    """Raise Refused if a stage without rows would empty the base."""
    if load.dataset.historization.allow_empty_snapshot or load.delete_scope or not load.deletes_base:
        return
    empty = not engine.query(f"SELECT 1 FROM {load.stage} AS i LIMIT 1", values)
    if empty and engine.query(f"SELECT 1 FROM {load.base_table} AS b LIMIT 1", values):
        raise preflight.rejection("EMPTY_SNAPSHOT", f"The stage of {load.dataset.name} is empty.")


def apply_shape(
    engine: Engine, load: Load, table: str, columns: Sequence[ModelColumn], former: Sequence[str]
) -> list[str]:
    """Give a table its columns. Returns descriptions of the changes."""
    dialect = load.dialect
    stored = engine.introspect_table(load.schema, table)
    changes: list[str] = []
    if stored is None:
        old = next((name for name in former if engine.introspect_table(load.schema, name) is not None), None)
        if old is None:
            engine.execute(dialect.render_create_schema_if_not_exists(load.schema))
            name = dialect.render_table_identifier(load.schema, table)
            live = [column for column in columns if column.active]
            engine.execute(dialect.render_create_table_if_not_exists_from_columns(name, live))
            return [f"CREATE_TABLE {table}"]
        changes = _rename_table(engine, load, old, table)
        stored = engine.introspect_table(load.schema, table)
    plan = ddl.plan_changes(table, columns, stored or {}, dialect)
    if table == load.dataset.hist_name:
        preflight.require_hist_columns(load, plan.added)
        if plan.changes_in_words:
            # PostgreSQL cannot change a column that a view shows.
            _drop_views(engine, _history(engine, load))
    _run(engine, plan.statements(dialect, load.schema, table))
    return [*changes, *(f"{change} ({table})" for change in plan.changes_in_words)]


def _rename_table(engine: Engine, load: Load, old: str, table: str) -> list[str]:
    """Rename a table.

    A history is renamed with its archive, and its old views are dropped. Returns descriptions of the changes.
    """
    names = {old: table}
    if table == load.dataset.hist_name:
        hist = load.hist.model_copy(update={"target_dataset_name": old})
        _drop_views(engine, stored_history(load.dialect, load.schema, hist))
        archives = (f"{old}{ARCHIVE_SUFFIX}", f"{table}{ARCHIVE_SUFFIX}")
        there = [engine.introspect_table(load.schema, name) is not None for name in archives]
        names |= dict([archives]) if there == [True, False] else {}
    for before, after in names.items():
        engine.execute(load.dialect.render_rename_table(load.schema, before, after))
    return [f"RENAME_DATASET {before} to {after}" for before, after in names.items()]


def refresh_views(engine: Engine, load: Load) -> None:
    """Make the history's views that the model defines, unless they are up to date."""
    history = _history(engine, load)
    in_force = stored_view_marks(engine, history)
    if in_force != defined_view_marks(history):
        dropped = drop_views(history) if in_force else []
        _run(engine, [*dropped, *create_marked_views(history)])


def _history(engine: Engine, load: Load) -> StoredHistory:
    stored = engine.introspect_table(load.schema, load.dataset.hist_name) or {}
    name = f"{load.dataset.hist_name}{ARCHIVE_SUFFIX}"
    archive = engine.introspect_table(load.schema, name)
    columns = tuple(column for column in load.hist.target_columns if column.name in stored)
    hist = load.hist.model_copy(update={"target_columns": columns})
    known = Archive(name, frozenset(archive)) if archive else None
    return stored_history(load.dialect, load.schema, hist, load.dataset.historization, known)


def _drop_views(engine: Engine, history: StoredHistory) -> None:
    if stored_view_marks(engine, history):
        _run(engine, drop_views(history))


def _run(engine: Engine, statements: Sequence[str]) -> None:
    for statement in statements:
        engine.execute(statement)


def load_history(engine: Engine, load: Load, values: Mapping[str, str], *, dry_run: bool) -> LoadOutcome:
    """Load the base's state into the history, within the open transaction.

    Returns the outcome. Raises Refused with the codes of section 3.6. Raises Failed if the counts of the
    steps do not add up.
    """
    started, pair = time.monotonic(), load.pair
    preflight.run_checks(engine, load, preflight.hist_checks(load), values)
    tally = count_cases(pair, lambda sql: engine.query(sql, values))
    _guard(load, tally)
    keys = _sample(engine, load, values) if dry_run else {}
    steps = [LoadStep("preflight", 0, _milliseconds(started))]
    steps += (
        _merge(engine, load, tally, values)
        if load.merges
        else run_statements(engine, hist_steps(pair), values)
    )
    after = engine.query(f"SELECT COUNT(*) FROM {pair.table} AS h WHERE {pair.is_open('h')}", values)
    _require_sum(load, tally, {step.name: step.rows for step in steps}, int(after[0][0]))
    return LoadOutcome(tally.counts, steps=steps, base=tally.base_records, keys=keys)


def _guard(load: Load, tally: Tally) -> None:
    """The checks P6 and P7 on the counts of a load."""
    rules, deleted = load.dataset.historization, tally.counts[State.DELETED]
    if not tally.base_records and tally.open_records and not rules.allow_empty_snapshot:
        raise preflight.rejection("EMPTY_SNAPSHOT", f"The base {load.dataset.name} is empty.")
    if message := preflight.mass_delete(rules, deleted, tally.open_records):
        raise preflight.rejection("MASS_DELETE", message)


def _merge(engine: Engine, load: Load, tally: Tally, values: Mapping[str, str]) -> list[LoadStep]:
    """Run the MERGE. The result has the four steps, and the MERGE itself as one more step."""
    actions_table = engine.keep("backstory_actions", actions(load.pair), values)
    merged = run_statements(engine, [hist_merge(load.pair, actions_table)], values)
    return [*(LoadStep(name, count) for name, count in tally.rows.items()), *merged]


def _require_sum(load: Load, tally: Tally, rows: Mapping[str, int], after: int) -> None:
    """Raise Failed unless each statement changed as many rows as were counted before (section 6.3)."""
    expected = tally.rows
    opened = (
        tally.open_records
        - sum(expected[name] for name in CLOSINGS)
        + sum(expected[name] for name in BEGINNINGS)
    )
    if after != opened or any(rows.get(name, 0) != count for name, count in expected.items()):
        raise Failed("COUNTS", f"The counts of {load.dataset.name} do not add up; nothing was written.")


def _sample(engine: Engine, load: Load, values: Mapping[str, str]) -> dict[str, Sequence[object]]:
    """Up to ten business keys of each outcome, for a dry run."""
    pair = load.pair
    names = [column.name for column in load.mirrored_columns if column.system_role is ColumnRole.BUSINESS_KEY]
    wheres = {str(State.NEW): (pair.base, "r", f"{has_no_open(pair)}{pair.live('r')}")}
    for now, condition in closing_conditions(pair).items():
        counted = TRANSITIONS[Past.OPEN, now].counted
        wheres[str(counted)] = (pair.table, "h", f"{pair.is_open('h')} AND {condition}")
    samples: dict[str, Sequence[object]] = dict.fromkeys((State.NEW, State.CHANGED, State.DELETED), ())
    for outcome, (source, alias, where) in wheres.items():
        sql = preflight.keys_query(load, names, source, alias, where)
        samples[outcome] = [key_text(names, row) for row in engine.query(sql, values)]
    return samples


def run_statements(
    engine: Engine, statements: Sequence[Statement], values: Mapping[str, str]
) -> list[LoadStep]:
    """Run statements one after the other. Returns one step for each."""
    steps = []
    for statement in statements:
        started = time.monotonic()
        rows = engine.run(statement.sql, values)
        steps.append(LoadStep(statement.step, rows, _milliseconds(started)))
    return steps


def _milliseconds(since: float) -> int:
    return round((time.monotonic() - since) * 1000)
