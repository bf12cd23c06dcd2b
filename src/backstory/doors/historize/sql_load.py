"""The load of a dataset on a database: stage, schema changes, views, and history (sections 3 and 4.3)."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from backstory.doors.historize import preflight
from backstory.doors.historize.load import Load, stored_history, words_of
from backstory.doors.historize.model import (
    ColumnRole,
    ModelColumn,
    StateLabels,
    base_columns,
    business_keys,
    user_columns,
)
from backstory.doors.historize.receipts import LoadOutcome, LoadStep
from backstory.doors.historize.runs import LoadRun
from backstory.doors.historize.stage import (
    Stage,
    no_stage,
    no_stage_column,
    no_stage_table,
    read_stage,
    refuse_stage_type,
)
from backstory.errors import Failed, Refused
from backstory.model.table import ARCHIVE_SUFFIX, Archive
from backstory.model.values import key_text
from backstory.reading.history_queries import StoredHistory
from backstory.stores.sql import ddl
from backstory.stores.sql.engine import LOAD_TIMESTAMP, Engine, Statement
from backstory.strategies.scd2.statements import (
    actions,
    closing_conditions,
    count_cases,
    has_no_open,
    hist_merge,
    hist_steps,
    or_in_archive,
)
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS, TRANSITIONS, Past, State, Tally
from backstory.upkeep.model_histories import (
    create_marked_views,
    defined_view_marks,
    drop_views,
    stored_view_marks,
)


def base_steps(load: Load) -> list[Statement]:
    """The statements that load a base: delete vanished and changed rows, then insert (section 3.7)."""
    columns = [load.name(column.name) for column in base_columns(load.dataset)]
    stage_key = f"SELECT 1 FROM {load.unique_stage_rows} AS s WHERE {load.same_key('s', 'b')}"
    steps = []
    if load.deletes_base:
        scope = f"({load.delete_scope}) AND " if load.delete_scope else ""
        steps.append(Statement("base_delete", _deletion(load, f"{scope}NOT EXISTS ({stage_key})")))
    changed = f"EXISTS ({stage_key} AND ({load.differs('s', 'b')}))"
    delete = load.dialect.render_delete_detection_statement(load.base_table, "b", changed)
    absent = f"NOT EXISTS (SELECT 1 FROM {load.base_table} AS b WHERE {load.same_key('b', 's')})"
    insert = load.dialect.render_insert_select_guarded(
        load.base_table, columns, [f"s.{name}" for name in columns], load.unique_stage_rows, "s", absent
    )
    return [*steps, Statement("base_replace", delete), Statement("base_insert", insert)]


def _deletion(load: Load, condition: str) -> str:
    soft = load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return load.dialect.render_delete_detection_statement(load.base_table, "b", condition)
    flags = {load.name(soft.column): load.deleted_value}
    if soft.deleted_at:
        flags[load.name(soft.deleted_at)] = LOAD_TIMESTAMP
    return load.dialect.render_update_exists(load.base_table, "b", flags, condition + load.live("b"))


def maintenance(load: Load, run: LoadRun) -> Iterator[Statement]:
    """The statements that recompute hashes of open versions and relabel states (sections 7.2 and 7.6)."""
    if run.rehash:
        values = {load.name(ColumnRole.ROW_HASH): load.expressions.row_hash(load.dataset, "h")}
        is_open = load.pair.is_open("h")
        yield Statement("rehash", load.dialect.render_update_exists(load.hist_table, "h", values, is_open))
    if run.relabel is not None:
        yield _relabel(load, run.relabel)


def base_maintenance(load: Load, run: LoadRun) -> Iterator[Statement]:
    """The statement that recomputes the base's hashes, because a delta contains only some of its rows."""
    if run.rehash_base:
        values = {load.name(ColumnRole.ROW_HASH): load.expressions.row_hash(load.dataset, "b")}
        every = f"{load.of('b', load.dataset.key)} IS NOT NULL"
        yield Statement("rehash_base", load.dialect.render_update_exists(load.base_table, "b", values, every))


def label_changes(before: StateLabels, after: StateLabels) -> dict[str, str]:
    """A mapping of changed labels to their new labels.

    If several states had the same label, the first state in the order of `State` determines the new label.
    """
    old, new = words_of(before), words_of(after)
    pairs = {old[state]: new[state] for state in reversed(State)}
    return {old: new for old, new in pairs.items() if old != new}


def _relabel(load: Load, before: StateLabels) -> Statement:
    pairs, state = label_changes(before, load.labels), load.of("h", ColumnRole.STATE)
    value, old = new_label(load, pairs), dict.fromkeys(pairs)
    if load.labels.new != load.labels.reappeared:
        old |= dict.fromkeys((before.new, before.reappeared))
        again = load.text(load.labels.reappeared)
        value = f"CASE WHEN {_is_return(load, before)} THEN {again} ELSE {value} END"
    listed = ", ".join(load.text(each) for each in old) or "NULL"
    values = {load.name(ColumnRole.STATE): value}
    sql = load.dialect.render_update_exists(load.hist_table, "h", values, f"{state} IN ({listed})")
    return Statement("relabel", sql)


def _is_return(load: Load, before: StateLabels) -> str:
    """SQL that tests whether a version (alias `h`) is open and began when its record returned."""
    state, started = load.of("h", ColumnRole.STATE), load.of("h", ColumnRole.STARTED)
    earlier = f"SELECT 1 FROM {load.hist_table} AS p WHERE {load.same_key('p', 'h')}"
    continued = f"{load.of('p', ColumnRole.ENDED)} = {started} AND {load.of('p', ColumnRole.STATE)} = "
    return (
        f"{load.pair.is_open('h')} AND {state} IN ({load.text(before.new)}, {load.text(before.reappeared)})"
        f" AND (EXISTS ({earlier} AND {load.of('p', ColumnRole.STARTED)} < {started})"
        f"{or_in_archive(load.pair, 'h')})"
        f" AND NOT EXISTS ({earlier} AND {continued}{load.text(before.changed)})"
    )


def new_label(load: Load, pairs: Mapping[str, str]) -> str:
    """SQL for the state of a version (alias `h`) under its new label."""
    state = load.of("h", ColumnRole.STATE)
    cases = " ".join(f"WHEN {load.text(old)} THEN {load.text(new)}" for old, new in pairs.items())
    return f"CASE {state} {cases} ELSE {state} END" if cases else state


LOAD_COLUMNS = frozenset({ColumnRole.LOAD_RUN_ID.value, ColumnRole.LOADED_AT.value})


def with_stage(engine: Engine, load: Load, stage: Stage | None) -> Load:
    """The load with the relation of the stage's rows, its column names, and the stage's load columns.

    Raises Refused for a stage that is missing, lacks a column, or has a column whose values do not fit.
    """
    if stage is None:
        raise no_stage(load.dataset)
    columns = user_columns(load.dataset)
    if stage.path:
        name = f"backstory_stage_{load.dataset.name}"
        relation = engine.bring(name, read_stage(stage, columns), columns)
        spelled = {column.source: column.name for column in columns}
        return replace(load, stage=relation, spellings=spelled)
    stored = engine.introspect_table(*stage.table)
    if stored is None:
        raise no_stage_table(stage)
    spelled = {}
    for column in columns:
        wanted = column.source
        source = spelled[wanted] = _spelling(stage, stored, wanted)
        refuse_stage_type(stage, source, stored[source], column, load.dialect)
    lower = {name.lower() for name in stored}
    load_columns = LOAD_COLUMNS & lower
    spelled |= {name: _spelling(stage, stored, name) for name in load_columns}
    table = load.dialect.render_table_identifier(*stage.table)
    staged = replace(load, stage=table, stage_load_columns=load_columns, spellings=spelled)
    _refuse_null_load_columns(engine, staged)
    return staged


def _spelling(stage: Stage, stored: Collection[str], wanted: str) -> str:
    """The name of a column as it is written in the stage.

    If several names differ only in case, the exact name is returned.
    """
    spellings = [name for name in stored if name.lower() == wanted.lower()]
    if wanted in spellings:
        return wanted
    if not spellings:
        raise no_stage_column(stage, wanted)
    if len(spellings) > 1:
        ambiguous = f"{stage.name} has {', '.join(spellings)}, but no column spelled {wanted}."
        raise Refused("repeated-column", ambiguous, "Spell the column as the stage does.", [wanted])
    return spellings[0]


def _refuse_null_load_columns(engine: Engine, load: Load) -> None:
    """Raise Refused for stage rows without a run id or a load time, if the stage has these columns."""
    keys = [load.in_stage(key.source) for key in business_keys(load.dataset)]
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
    """Create the history's views that the model defines, unless they are up to date."""
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
    """Run the MERGE. The result has the four steps, and a fifth step for the MERGE itself."""
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
    """Up to ten business keys for each outcome, in a dry run."""
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
