"""Loads on a database: one transaction for each dataset, with its registry row (sections 3, 4.3 and 6.3).

A load reads the stage, changes the schema, loads base and history, and refreshes the views.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from backstory.doors.historize import preflight, runs
from backstory.doors.historize.hist_state import stored_history
from backstory.doors.historize.load import Load, new_label, with_archive
from backstory.doors.historize.model import (
    LOAD_COLUMNS,
    ColumnRole,
    ModelColumn,
    ModelDataset,
    StateLabels,
    base_columns,
    business_keys,
    label_changes,
    user_columns,
)
from backstory.doors.historize.receipts import LoadOutcome, LoadStep, milliseconds_since, status_of
from backstory.doors.historize.stage import (
    Stage,
    no_stage,
    no_stage_column,
    no_stage_table,
    read_stage,
    refuse_stage_type,
)
from backstory.errors import BackstoryError, Failed, Refused, TryAgain
from backstory.model.table import ARCHIVE_SUFFIX
from backstory.model.values import key_text
from backstory.reading.history_queries import StoredHistory, in_utc
from backstory.stores.sql import ddl
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import Engine, Statement
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
    create_views,
    defined_view_marks,
    drop_views,
    stored_view_marks,
)


class _TakenBack(Exception):
    """The exception that ends a dry run and rolls its transaction back."""


class SqlTarget(runs.Target):
    """A database as a target, reached through an engine.

    The registry of runs and the logs are tables of the schema `meta`. The success of a load is registered in
    the transaction of the load.
    """

    def __init__(self, dialect: Dialect, engine: Engine, pepper: str) -> None:
        self.dialect = dialect
        self._engine = engine
        if dialect.secret_reference("pepper"):
            engine.bind_secret("pepper", pepper)
        self._pepper = dialect.secret_reference("pepper") or dialect.string_literal(pepper)

    @property
    def place(self) -> str:
        return runs.place_name(self._engine.address or self.dialect.DIALECT_NAME)

    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        return self._engine.introspect_table(schema, table)

    @contextmanager
    def hold(self, schema: str, dataset: ModelDataset, run_id: str) -> Iterator[None]:
        with self._engine.lock(f"backstory {runs.dataset_key(schema, dataset)}") as taken:
            other = self._find_other_run(schema, dataset, run_id) if taken else None
            if not taken or other:
                raise TryAgain(
                    "CONCURRENT_RUN",
                    f"Another run{f' ({other})' if other else ''} is loading {dataset.name}.",
                    "Wait until it ends; a killed run can be continued at once under its own run id.",
                )
            yield

    def _find_other_run(self, schema: str, dataset: ModelDataset, run_id: str) -> str | None:
        """The id of another run that is loading the dataset, or None."""
        rows = self._registry_rows(
            schema,
            dataset,
            "load_run_id",
            f"status = 'running' AND load_run_id <> {self.dialect.string_literal(run_id)} "
            f"AND lease_until > {self.dialect.timestamp_literal(datetime.now(UTC))}",
        )
        return rows[0][0] if rows else None

    def _registry_rows(
        self, schema: str, dataset: ModelDataset, columns: str, condition: str
    ) -> Sequence[Any]:
        """Columns of the dataset's registered runs for which the condition is true, if there are any."""
        if self.columns(runs.META, runs.RUNS) is None:
            return []
        key = self.dialect.string_literal(runs.dataset_key(schema, dataset))
        runs_of_dataset = f"{self._meta(runs.RUNS)} WHERE dataset_key = {key}"
        return self._engine.fetch_all(f"SELECT {columns} FROM {runs_of_dataset} AND {condition}")

    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> runs.RegisteredRun | None:
        columns = "load_timestamp, attempt_no, status, receipt"
        is_run = f"load_run_id = {self.dialect.string_literal(run_id)}"
        rows = self._registry_rows(schema, dataset, columns, is_run)
        if not rows:
            return None
        instant, attempt, status, receipt = rows[0]
        if status != "success" or not receipt:
            return runs.RegisteredRun(in_utc(instant), attempt)
        known = runs.RegisteredRun(in_utc(instant), attempt, json.loads(receipt))
        # A run whose versions are not in the tables counts as not loaded.
        return known if self._is_in_tables(schema, dataset, known) else None

    def _is_in_tables(self, schema: str, dataset: ModelDataset, known: runs.RegisteredRun) -> bool:
        """Whether the base exists, and the history or its archive has the versions that a run wrote."""
        histories = [name for name in dataset.hist_names if self.columns(schema, name) is not None]
        if not histories or all(self.columns(schema, name) is None for name in dataset.names):
            return False
        tables = [histories[0], f"{histories[0]}{ARCHIVE_SUFFIX}"]
        there = [
            self.dialect.render_table_identifier(schema, table)
            for table in tables
            if self.columns(schema, table) is not None
        ]

        def has_version(condition: str) -> bool:
            found = (f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1" for table in there)
            return any(map(self._engine.fetch_all, found))

        def last_that_wrote(until: datetime) -> datetime | None:
            condition = (
                f"status = 'success' AND {' + '.join(runs.COUNTS)} > 0 "
                f"AND load_timestamp <= {self.dialect.timestamp_literal(until)}"
            )
            ((latest,),) = self._registry_rows(schema, dataset, "MAX(load_timestamp)", condition)
            return latest and in_utc(latest)

        return runs.versions_remain(known, last_that_wrote, has_version, self.dialect)

    def newest_instant(self, schema: str, tables: Sequence[str]) -> datetime | None:
        for table in tables:
            columns = self.columns(schema, table)
            if columns and {ColumnRole.STARTED, ColumnRole.ENDED} <= set(columns):
                name = self.dialect.render_table_identifier(schema, table)
                rows = self._engine.fetch_all(
                    f"SELECT MAX({ColumnRole.STARTED}), MAX({ColumnRole.ENDED}) FROM {name}"
                )
                return max((in_utc(instant) for instant in rows[0] if instant is not None), default=None)
        return None

    def register(self, run: runs.LoadRun, error: BackstoryError | None = None) -> None:
        """Write the registry's row of a running or failed load, in a separate transaction."""
        status, lease_until = "running", datetime.now(UTC) + timedelta(minutes=runs.LEASE_MINUTES)
        more: Mapping[str, Any] = {"lease_until": lease_until}
        if error is not None:
            status = status_of(error)
            more = {"error_code": error.code, "error_message": runs.error_text(error.message)}
        with self._engine.transaction():
            self._ensure(runs.RUNS)
            self._register(run, status, more)

    def _register(self, run: runs.LoadRun, status: str, more: Mapping[str, Any]) -> None:
        """Register a run, replacing its earlier row if there is one."""
        text = self.dialect.string_literal
        self._engine.execute(
            f"DELETE FROM {self._meta(runs.RUNS)} WHERE dataset_key = {text(run.key)} "
            f"AND load_run_id = {text(run.run_id)}"
        )
        row = {
            "dataset_key": run.key,
            "load_run_id": run.run_id,
            "load_timestamp": run.instant,
            "engine": self.dialect.DIALECT_NAME,
            "status": status,
            "attempt_no": run.attempt,
            "started_at": run.began,
            "finished_at": None if status == "running" else datetime.now(UTC),
            **more,
        }
        self._add(runs.RUNS, row)

    def load(self, load: Load, run: runs.LoadRun) -> LoadOutcome:
        outcome = LoadOutcome()
        with suppress(_TakenBack), self._engine.transaction():
            outcome = self._load(load, run)
            if run.dry_run:
                raise _TakenBack
            receipt = json.dumps(run.receipt(outcome).to_dict())
            self._register(run, "success", {"receipt": receipt, **runs.registered_counts(outcome)})
        return outcome

    def log_rows(self, loads: Sequence[runs.LoadEntry]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        steps = []
        for load in loads:
            ids = {name: load.row[name] for name in ("load_run_id", "attempt_no")}
            steps += [{"dataset_key": load.run["dataset_key"], **ids, **step} for step in load.steps]
        return {runs.LOADS: [load.row for load in loads], runs.STEPS: steps}

    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._engine.transaction():
            self._ensure(table)
            for row in rows:
                self._add(table, row)

    def _meta(self, table: str) -> str:
        return self.dialect.render_table_identifier(runs.META, table)

    def _ensure(self, table: str) -> None:
        """Create a table of the registry or of the logs if it does not exist."""
        make = self.dialect.render_create_table_if_not_exists_from_columns
        self._engine.execute(self.dialect.render_create_schema_if_not_exists(runs.META))
        self._engine.execute(make(self._meta(table), runs.TABLES[table]))

    def _add(self, table: str, row: Mapping[str, Any]) -> None:
        names = ", ".join(self.dialect.render_identifier(name) for name in row)
        values = ", ".join(self.dialect.render_literal(value) for value in row.values())
        self._engine.execute(f"INSERT INTO {self._meta(table)} ({names}) VALUES ({values})")

    # One load, in its transaction

    def _load(self, load: Load, run: runs.LoadRun) -> LoadOutcome:
        engine, values = self._engine, run.values(self.dialect, self._pepper)
        steps: list[LoadStep] = []
        dataset = load.dataset
        if run.skip_base:
            require_base(engine, load)
        else:
            load = with_stage(engine, load, run.stage)
        changes = apply_shape(engine, load, dataset.names, load.base_columns)
        if not run.skip_base:
            preflight.run_checks(engine, load, preflight.stage_checks(load), values)
            refuse_empty_stage(engine, load, values)
            if run.rehash_base:  # a delta contains only some of the base's rows
                every = f"{load.of('h', dataset.key)} IS NOT NULL"
                run_statements(engine, [_rehash("rehash_base", load, load.base_table, every)], values)
            preflight.warn_of_collisions(load, preflight.count_collisions(engine, load, values))
            steps += run_statements(engine, base_steps(load), values)
        hist = load.hist
        changes += apply_shape(engine, load, hist.names, hist.target_columns)
        load = with_archive(load, self.columns)
        run_statements(engine, maintenance(load, run), values)
        refresh_views(engine, load)
        outcome = load_history(engine, load, values, dry_run=run.dry_run)
        written = sum(step.rows for step in steps)
        return replace(outcome, schema_changes=changes, steps=[*steps, *outcome.steps], changed_base=written)


def base_steps(load: Load) -> list[Statement]:
    """The statements that load a base: delete vanished and changed rows, then insert (section 3.7)."""
    columns = [load.name(column.name) for column in base_columns(load.dataset)]
    stage_key = f"SELECT 1 FROM {load.unique_stage_rows} AS s WHERE {load.pair.same_key('s', 'b')}"
    steps = []
    if load.deletes_base:
        scope = f"({load.delete_scope}) AND " if load.delete_scope else ""
        steps.append(Statement("base_delete", _deletion(load, f"{scope}NOT EXISTS ({stage_key})")))
    changed = f"EXISTS ({stage_key} AND ({load.differs('s', 'b')}))"
    delete = load.dialect.render_delete_detection_statement(load.base_table, "b", changed)
    absent = f"NOT EXISTS (SELECT 1 FROM {load.base_table} AS b WHERE {load.pair.same_key('b', 's')})"
    insert = load.dialect.render_insert_select_guarded(
        load.base_table, columns, [f"s.{name}" for name in columns], load.unique_stage_rows, "s", absent
    )
    return [*steps, Statement("base_replace", delete), Statement("base_insert", insert)]


def _deletion(load: Load, condition: str) -> str:
    if not load.flag_values:
        return load.dialect.render_delete_detection_statement(load.base_table, "b", condition)
    flags = {load.name(column): value for column, value in load.flag_values.items()}
    return load.dialect.render_update_exists(load.base_table, "b", flags, condition + load.live("b"))


def maintenance(load: Load, run: runs.LoadRun) -> Iterator[Statement]:
    """The statements that recompute hashes of open versions and relabel states (sections 7.2 and 7.6)."""
    if run.rehash:
        yield _rehash("rehash", load, load.hist_table, load.pair.is_open("h"))
    if run.relabel is not None:
        yield _relabel(load, run.relabel)


def _rehash(step: str, load: Load, table: str, condition: str) -> Statement:
    values = {load.name(ColumnRole.ROW_HASH): load.row_hash("h")}
    return Statement(step, load.dialect.render_update_exists(table, "h", values, condition))


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
    earlier = f"SELECT 1 FROM {load.hist_table} AS p WHERE {load.pair.same_key('p', 'h')}"
    continued = f"{load.of('p', ColumnRole.ENDED)} = {started} AND {load.of('p', ColumnRole.STATE)} = "
    return (
        f"{load.pair.is_open('h')} AND {state} IN ({load.text(before.new)}, {load.text(before.reappeared)})"
        f" AND (EXISTS ({earlier} AND {load.of('p', ColumnRole.STARTED)} < {started})"
        f"{or_in_archive(load.pair, 'h')})"
        f" AND NOT EXISTS ({earlier} AND {continued}{load.text(before.changed)})"
    )


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
    load_columns = frozenset(name.value for name in LOAD_COLUMNS if name in lower)
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
    """P10: raise Refused if the base does not exist, because the load would keep it as it is."""
    if all(engine.introspect_table(load.schema, name) is None for name in load.dataset.names):
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
    engine: Engine, load: Load, names: Sequence[str], columns: Sequence[ModelColumn]
) -> list[str]:
    """Create, rename or alter a table so that it has these columns. Returns descriptions of the changes.

    `names` has the table's current name, and its former names, the latest first.
    """
    dialect, table = load.dialect, names[0]
    stored = engine.introspect_table(load.schema, table)
    changes: list[str] = []
    if stored is None:
        former = (name for name in names[1:] if engine.introspect_table(load.schema, name) is not None)
        old = next(former, None)
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
    engine.execute_all(plan.statements(dialect, load.schema, table))
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
        engine.execute_all([*dropped, *create_views(history)])


def _history(engine: Engine, load: Load) -> StoredHistory:
    rules = load.dataset.historization
    # The archive is renamed with the history. An archive under a former name belongs to another history.
    hist = load.hist.model_copy(update={"former_names": ()})
    return stored_history(load.dialect, load.schema, hist, rules, engine.introspect_table)


def _drop_views(engine: Engine, history: StoredHistory) -> None:
    if stored_view_marks(engine, history):
        engine.execute_all(drop_views(history))


def load_history(engine: Engine, load: Load, values: Mapping[str, str], *, dry_run: bool) -> LoadOutcome:
    """Load the base's state into the history, within the open transaction.

    Returns the outcome. Raises Refused with the codes of section 3.6. Raises Failed if the counts of the
    steps do not add up.
    """
    started, pair = time.monotonic(), load.pair
    preflight.run_checks(engine, load, preflight.hist_checks(load), values)
    tally = count_cases(pair, lambda sql: engine.query(sql, values))
    deleted = tally.counts[State.DELETED]
    preflight.refuse_losses(load, delivered=tally.base_records, open_=tally.open_records, deleted=deleted)
    keys = _sample(engine, load, values) if dry_run else {}
    steps = [LoadStep("preflight", 0, milliseconds_since(started))]
    if load.merges:  # its steps are the four steps, and a fifth one for the MERGE itself
        actions_table = engine.keep("backstory_actions", actions(pair), values)
        steps += (LoadStep(name, count) for name, count in tally.rows.items())
        steps += run_statements(engine, [hist_merge(pair, actions_table)], values)
    else:
        steps += run_statements(engine, hist_steps(pair), values)
    after = engine.query(f"SELECT COUNT(*) FROM {pair.table} AS h WHERE {pair.is_open('h')}", values)
    _require_sum(load, tally, {step.name: step.rows for step in steps}, int(after[0][0]))
    return LoadOutcome(tally.counts, steps=steps, base=tally.base_records, keys=keys)


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
    names = load.mirrored_keys
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
    engine: Engine, statements: Iterable[Statement], values: Mapping[str, str]
) -> list[LoadStep]:
    """Run statements one after the other. Returns one step for each."""
    steps = []
    for statement in statements:
        started = time.monotonic()
        rows = engine.run(statement.sql, values)
        steps.append(LoadStep(statement.step, rows, milliseconds_since(started)))
    return steps
