"""Loads on a database: one transaction for each dataset, with its registry row (sections 3.8 and 6.3)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from backstory.doors.historize import preflight, runs, sql_load
from backstory.doors.historize.load import Load, with_archive
from backstory.doors.historize.model import ColumnRole, ModelDataset
from backstory.doors.historize.preflight import collisions_query, text_differences, warn_of_collisions
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep, status_of
from backstory.errors import BackstoryError, TryAgain
from backstory.model.table import ARCHIVE_SUFFIX
from backstory.reading.history_queries import in_utc
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import Engine


class _TakenBack(Exception):
    """The exception that ends a dry run and rolls its transaction back."""


class SqlTarget(runs.Target):
    """A database as a target, reached through an engine.

    The registry of runs and the logs are tables of the schema `meta`, written in the open transaction.
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
            "load_run_id",
            f"{self._is_dataset(schema, dataset)} "
            f"AND status = 'running' AND load_run_id <> {self.dialect.string_literal(run_id)} "
            f"AND lease_until > {self.dialect.timestamp_literal(datetime.now(UTC))}",
        )
        return rows[0][0] if rows else None

    def _registry_rows(self, columns: str, condition: str) -> Sequence[Any]:
        """Columns of the registered runs that meet the condition. Before the first run, there are none."""
        if self.columns(runs.META, runs.RUNS) is None:
            return []
        return self._engine.fetch_all(f"SELECT {columns} FROM {self._meta(runs.RUNS)} WHERE {condition}")

    def _is_dataset(self, schema: str, dataset: ModelDataset) -> str:
        """SQL that tests whether a row belongs to a dataset."""
        return f"dataset_key = {self.dialect.string_literal(runs.dataset_key(schema, dataset))}"

    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> runs.RegisteredRun | None:
        rows = self._registry_rows(
            "load_timestamp, attempt_no, status, receipt",
            f"{self._is_dataset(schema, dataset)} AND load_run_id = {self.dialect.string_literal(run_id)}",
        )
        if not rows:
            return None
        instant, attempt, status, receipt = rows[0]
        if status != "success" or not receipt:
            return runs.RegisteredRun(in_utc(instant), attempt)
        known = runs.RegisteredRun(in_utc(instant), attempt, json.loads(receipt))
        # A run whose versions are not in the tables counts as not loaded.
        return known if self._is_in_tables(schema, dataset, known) else None

    def _is_in_tables(self, schema: str, dataset: ModelDataset, known: runs.RegisteredRun) -> bool:
        """Whether the versions that a run began or ended are in the history or its archive.

        If the run wrote no versions, the versions of the last earlier run that wrote some are checked.
        """
        histories = [name for name in runs.hist_names(dataset) if self.columns(schema, name) is not None]
        if not histories or all(self.columns(schema, name) is None for name in runs.base_names(dataset)):
            return False
        instant: datetime | None = known.load_timestamp
        if not runs.wrote_versions(known.receipt or {}):
            instant = self._last_that_wrote(schema, dataset, known.load_timestamp)
        started, moment = ColumnRole.STARTED, self.dialect.timestamp_literal(instant or known.load_timestamp)
        # If no earlier run wrote versions, the history must not be younger than the run.
        condition = (
            f"{started} = {moment} OR {ColumnRole.ENDED} = {moment}" if instant else f"{started} <= {moment}"
        )
        tables = [histories[0], f"{histories[0]}{ARCHIVE_SUFFIX}"]
        there = [table for table in tables if self.columns(schema, table) is not None]
        return self._any(schema, there, condition) or not (instant or self._any(schema, there, "1 = 1"))

    def _last_that_wrote(self, schema: str, dataset: ModelDataset, until: datetime) -> datetime | None:
        """The instant of the last run, at or before `until`, that began or ended versions."""
        (latest,) = self._engine.fetch_all(
            f"SELECT MAX(load_timestamp) FROM {self._meta(runs.RUNS)} "
            f"WHERE {self._is_dataset(schema, dataset)} AND status = 'success' "
            f"AND {' + '.join(runs.COUNTS)} > 0 "
            f"AND load_timestamp <= {self.dialect.timestamp_literal(until)}"
        )
        return latest[0] and in_utc(latest[0])

    def _any(self, schema: str, tables: Sequence[str], condition: str) -> bool:
        """Whether one of the tables has a row that meets the condition."""
        names = (self.dialect.render_table_identifier(schema, table) for table in tables)
        return any(
            self._engine.fetch_all(f"SELECT 1 FROM {name} WHERE {condition} LIMIT 1") for name in names
        )

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

    def register(self, run: runs.LoadRun) -> None:
        """Write the registry's row of a running load, in a separate transaction."""
        lease_until = datetime.now(UTC) + timedelta(minutes=runs.LEASE_MINUTES)
        with self._engine.transaction():
            self._ensure(runs.RUNS)
            self._register(run, "running", {"lease_until": lease_until})

    def register_failure(self, run: runs.LoadRun, error: BackstoryError) -> None:
        failure = {"error_code": error.code, "error_message": runs.error_text(error.message)}
        with self._engine.transaction():
            self._ensure(runs.RUNS)
            self._register(run, status_of(error), failure)

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

    def load(
        self, load: Load, run: runs.LoadRun, make_receipt: Callable[[LoadOutcome], HistoryReceipt]
    ) -> LoadOutcome:
        outcome = LoadOutcome()
        with suppress(_TakenBack), self._engine.transaction():
            outcome = self._load(load, run)
            if run.dry_run:
                raise _TakenBack
            receipt = json.dumps(make_receipt(outcome).to_dict())
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
            sql_load.require_base(engine, load)
        else:
            load = sql_load.with_stage(engine, load, run.stage)
        changes = sql_load.apply_shape(engine, load, dataset.name, load.base_columns, dataset.former_names)
        if not run.skip_base:
            preflight.run_checks(engine, load, preflight.stage_checks(load), values)
            preflight.run_checks(engine, load, preflight.base_checks(load), values)
            sql_load.refuse_empty_stage(engine, load, values)
            sql_load.run_statements(engine, list(sql_load.base_maintenance(load, run)), values)
            if query := collisions_query(load):
                (counts,) = engine.query(query, values)
                warn_of_collisions(load, dict(zip(text_differences(load, "s", "b"), counts, strict=True)))
            steps += sql_load.run_statements(engine, sql_load.base_steps(load), values)
        hist = load.hist
        changes += sql_load.apply_shape(
            engine, load, dataset.hist_name, hist.target_columns, hist.former_names
        )
        load = with_archive(load, self.columns)
        sql_load.run_statements(engine, list(sql_load.maintenance(load, run)), values)
        sql_load.refresh_views(engine, load)
        outcome = sql_load.load_history(engine, load, values, dry_run=run.dry_run)
        written = sum(step.rows for step in steps)
        return replace(outcome, schema_changes=changes, steps=[*steps, *outcome.steps], changed_base=written)
