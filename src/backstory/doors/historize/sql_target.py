"""Loads on a database: one transaction for a dataset, its registry row in it (sections 3.8 and 6.3)."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from backstory.doors.historize import ddl, preflight
from backstory.doors.historize.columns import user_columns
from backstory.doors.historize.dialects.base import Dialect
from backstory.doors.historize.engines.base import Engine
from backstory.doors.historize.expressions import PEPPER
from backstory.doors.historize.hashing import instant_text
from backstory.doors.historize.maintenance import maintenance
from backstory.doors.historize.model import Column, Dataset, Role
from backstory.doors.historize.placeholders import PLACEHOLDER
from backstory.doors.historize.receipts import HistoryReceipt, Outcome, Step
from backstory.doors.historize.runs import (
    LEASE_MINUTES,
    META,
    TABLES,
    Known,
    counted,
    dataset_key,
    error_text,
)
from backstory.doors.historize.stage import Stage
from backstory.doors.historize.stage_files import read_stage
from backstory.doors.historize.statements import Load, Statement
from backstory.doors.historize.work import Run, Target
from backstory.errors import BackstoryError, Failed, Refused, TryAgain

LOAD_COLUMNS = ("load_run_id", "loaded_at")


class _TakenBack(Exception):
    """A dry run is over: the transaction goes."""


class SqlTarget(Target):
    """A database that an engine reaches."""

    def __init__(self, dialect: Dialect, engine: Engine, pepper: str) -> None:
        self.dialect = dialect
        self._engine = engine
        if dialect.secret_reference("pepper"):
            engine.bind_secret("pepper", pepper)
        self._pepper = dialect.secret_reference("pepper") or dialect.string_literal(pepper)

    def close(self) -> None:
        self._engine.close()

    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        return self._engine.introspect_table(schema, table)

    @contextmanager
    def holding(self, dataset: Dataset, run_id: str) -> Iterator[None]:
        key = dataset_key(dataset)
        with self._engine.lock(f"backstory {key}") as taken:
            other = None if not taken else self._leased(key, run_id)
            if not taken or other:
                raise TryAgain(
                    "CONCURRENT_RUN",
                    f"Another run{f' ({other})' if other else ''} is loading {dataset.name}.",
                    "Wait for its end; a run that was killed goes on under its own run id at once.",
                )
            yield

    def _leased(self, key: str, run_id: str) -> str | None:
        if self.columns(META, "hist_run") is None:
            return None
        text = self.dialect.string_literal
        found = self._engine.fetch_all(
            f"SELECT load_run_id FROM {self._meta('hist_run')} WHERE dataset_key = {text(key)} "
            f"AND status = 'running' AND load_run_id <> {text(run_id)} "
            f"AND lease_until > {self.dialect.timestamp_literal(datetime.now(UTC))}"
        )
        return found[0][0] if found else None

    def known(self, schema: str, dataset: Dataset, run_id: str) -> Known | None:
        del schema  # the registry is one for all
        stored = self.columns(META, "hist_run")
        if stored is None:
            return None
        text = self.dialect.string_literal
        told = "receipt" if "receipt" in stored else "NULL"
        found = self._engine.fetch_all(
            f"SELECT load_timestamp, attempt_no, status, {told} FROM {self._meta('hist_run')} "
            f"WHERE dataset_key = {text(dataset_key(dataset))} AND load_run_id = {text(run_id)}"
        )
        if not found:
            return None
        instant, attempt, status, receipt = found[0]
        instant = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
        return Known(instant, attempt, json.loads(receipt) if status == "success" and receipt else None)

    def newest(self, schema: str, tables: Sequence[str]) -> datetime | None:
        for table in tables:
            columns = self.columns(schema, table)
            if columns and {Role.STARTED, Role.ENDED} <= set(columns):
                name = self.dialect.render_table_identifier(schema, table)
                found = self._engine.fetch_all(f"SELECT MAX({Role.STARTED}), MAX({Role.ENDED}) FROM {name}")
                times = [each for each in found[0] if each is not None]
                aware = [each.replace(tzinfo=UTC) if each.tzinfo is None else each for each in times]
                return max(aware, default=None)
        return None

    def register(self, run: Run) -> None:
        """The registry row of a running load, in a transaction of its own: without it no load starts."""
        with self._engine.transaction():
            self._ensure_meta("hist_run")
            self._write_run(
                run, "running", {"lease_until": datetime.now(UTC) + timedelta(minutes=LEASE_MINUTES)}
            )

    def load(self, load: Load, run: Run, finished: Callable[[Outcome], HistoryReceipt]) -> Outcome:
        outcome = Outcome()
        with suppress(_TakenBack), self._engine.transaction():
            outcome = self._load(load, run)
            if run.dry_run:
                raise _TakenBack
            told = finished(outcome).to_dict()
            self._write_run(run, "success", {"receipt": json.dumps(told), **counted(outcome)})
        return outcome

    def refused(self, run: Run, error: BackstoryError) -> None:
        status = "failed" if isinstance(error, Failed) else "rejected"
        with self._engine.transaction():
            self._ensure_meta("hist_run")
            told = {"error_code": error.code, "error_message": error_text(error.message)}
            self._write_run(run, status, told)

    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._engine.transaction():
            self._ensure_meta(table)
            for row in rows:
                self._insert(table, row)

    # One load, in its transaction

    def _load(self, load: Load, run: Run) -> Outcome:
        values = self._values(run)
        steps: list[Step] = []
        changes: list[str] = []
        changed_base = 0
        if not run.skip_base:
            load = replace(load, **self._staged(load, run))
        changes += self._synchronised(load, load.dataset.name, load.base_columns, load.dataset.former_names)
        if not run.skip_base:
            preflight.run_checks(self._engine, load, preflight.stage_checks(load), values)
            preflight.run_checks(self._engine, load, preflight.base_checks(load), values)
            self._refuse_empty_stage(load, values)
            base_steps = self._run(load.base_steps(), values)
            changed_base = sum(step.rows for step in base_steps)
            steps += base_steps
        changes += self._synchronised(
            load, load.dataset.hist_name, load.hist.target_columns, load.hist.former_names
        )
        self._maintained(load, run, values)
        counts, hist_steps, base_rows, keys = self._history(load, run, values)
        return Outcome(counts, changes, [*steps, *hist_steps], base_rows, changed_base, None, keys)

    def _values(self, run: Run) -> dict[str, str]:
        text = self.dialect.string_literal
        values = {
            "load_timestamp": self.dialect.timestamp_literal(run.instant),
            "load_timestamp_text": text(instant_text(run.instant)),
            "load_run_id": text(run.run_id),
            PLACEHOLDER.fullmatch(PEPPER)[1]: self._pepper,  # type: ignore[index]
        }
        if run.cutoff:
            values["DELTA_CUTOFF"] = self.dialect.timestamp_literal(run.cutoff)
        return values

    def _staged(self, load: Load, run: Run) -> dict[str, Any]:
        """The relation of the stage's rows, and which load columns it brings."""
        stage: Stage | None = run.stage
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
            return {"stage": self._engine.bring(name, rows, _as_staged(columns))}
        stored = self.columns(*stage.table)
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
            if not ddl.fits(stored[source], column, self.dialect):
                raise Refused(
                    "STAGE_TYPE",
                    f"{stage.name}.{source} is {stored[source]}, and {column.name} "
                    f"{self.dialect.type_of(column)} does not hold all of its values.",
                    "Cast it in the stage, or widen the column.",
                    [column.name],
                )
        table = self.dialect.render_table_identifier(*stage.table)
        return {"stage": table, "brought": frozenset(names) & frozenset(LOAD_COLUMNS)}

    def _refuse_empty_stage(self, load: Load, values: Mapping[str, str]) -> None:
        if load.dataset.historization.allow_empty_snapshot or load.delete_scope or not load.deletes_base:
            return
        empty = not self._engine.query(f"SELECT 1 FROM {load.stage} AS i LIMIT 1", values)
        if empty and self._engine.query(f"SELECT 1 FROM {load.base_table} AS b LIMIT 1", values):
            raise preflight.rejection("EMPTY_SNAPSHOT", f"The stage of {load.dataset.name} is empty.")

    def _synchronised(
        self, load: Load, table: str, columns: Sequence[Column], former: Sequence[str]
    ) -> list[str]:
        """Bring a table to its columns, and tell what changed."""
        engine, dialect = self._engine, self.dialect
        stored, told = self.columns(load.schema, table), []
        if stored is None:
            old = next((name for name in former if self.columns(load.schema, name) is not None), None)
            if old is None:
                engine.execute(dialect.render_create_schema_if_not_exists(load.schema))
                name = dialect.render_table_identifier(load.schema, table)
                live = [column for column in columns if column.active]
                engine.execute(dialect.render_create_table_if_not_exists_from_columns(name, live))
                return [f"CREATE_TABLE {table}"]
            engine.execute(dialect.render_rename_table(load.schema, old, table))
            told.append(f"RENAME_DATASET {old} to {table}")
            stored = self.columns(load.schema, table)
        plan = ddl.plan(table, columns, stored or {}, dialect)
        if table == load.dataset.hist_name:
            preflight.require_hist_columns(load, plan.added)
        for statement in plan.statements(dialect, load.schema, table):
            engine.execute(statement.sql)
        return [*told, *(f"{change} ({table})" for change in plan.told)]

    def _history(
        self, load: Load, run: Run, values: Mapping[str, str]
    ) -> tuple[dict[str, int], list[Step], int, dict[str, Sequence[object]]]:
        started = time.monotonic()
        preflight.run_checks(self._engine, load, preflight.hist_checks(load), values)
        count = self._count
        live = load.live("r").removeprefix(" AND ") or "1 = 1"
        base = count(f"{load.base} AS r WHERE {live}", values)
        open_ = count(f"{load.hist_table} AS h WHERE {load.open('h')}", values)
        rules = load.dataset.historization
        if not base and open_ and not rules.allow_empty_snapshot:
            raise preflight.rejection("EMPTY_SNAPSHOT", f"The base {load.dataset.name} is empty.")
        gone = count(f"{load.hist_table} AS h WHERE {load.open('h')} AND {load.gone()}", values)
        gone = gone if load.closes_deleted else 0
        if rules.max_delete_ratio is not None and gone > rules.max_delete_ratio * open_:
            raise preflight.rejection(
                "MASS_DELETE", f"{gone} of {open_} open versions would be closed as deleted."
            )
        again = count(
            f"{load.base} AS r WHERE {load.no_open()} AND {load.seen_before()}{load.live('r')}", values
        )
        healed = count(
            f"{load.base} AS r WHERE {load.no_open()} AND {load.closed_now()}{load.live('r')}", values
        )
        keys = self._sample(load, values) if run.dry_run else {}
        steps = [Step("preflight", 0, _milliseconds(started))]
        if load.merges:
            changed = count(f"{load.hist_table} AS h WHERE {load.open('h')} AND {load.changed()}", values)
            new = count(f"{load.base} AS r WHERE {load.no_open()}{load.live('r')}", values) - healed
            kept = self._engine.keep("backstory_actions", load.actions(), values)
            merged = self._run([load.hist_merge(kept)], values)
            closed = {"close_changed": changed, "close_deleted": gone, "insert_changed": changed + healed}
            rows = {**closed, "insert_new": new}
            steps += [*(Step(name, count) for name, count in rows.items()), *merged]
        else:
            steps += self._run(load.hist_steps(), values)
            rows = {"close_deleted": 0} | {step.name: step.rows for step in steps}
        after = count(f"{load.hist_table} AS h WHERE {load.open('h')}", values)
        expected = (
            open_
            - rows["close_changed"]
            - rows["close_deleted"]
            + rows["insert_changed"]
            + rows["insert_new"]
        )
        if after != expected or rows["insert_changed"] != rows["close_changed"] + healed:
            raise Failed("COUNTS", f"The counts of {load.dataset.name} do not add up; nothing was written.")
        counts = {
            "new": rows["insert_new"] - (again - healed),
            "changed": rows["insert_changed"],
            "deleted": rows["close_deleted"],
            "reappeared": again - healed,
            "unchanged": base - rows["insert_changed"] - rows["insert_new"],
        }
        return counts, steps, base, keys

    def _sample(self, load: Load, values: Mapping[str, str]) -> dict[str, Sequence[object]]:
        """Up to ten business keys of each outcome, for a dry run."""
        names = [column.name for column in load.mirrored if column.system_role is Role.BUSINESS_KEY]
        wheres = {
            "new": (load.base, "r", f"{load.no_open()}{load.live('r')}"),
            "changed": (load.hist_table, "h", f"{load.open('h')} AND {load.changed()}"),
            "deleted": (load.hist_table, "h", f"{load.open('h')} AND {load.gone()}"),
        }
        found: dict[str, Sequence[object]] = {}
        for outcome, (source, alias, where) in wheres.items():
            sql = preflight.keys_query(load, names, source, alias, where)
            found[outcome] = [preflight.told_key(names, row) for row in self._engine.query(sql, values)]
        return found

    def _count(self, of: str, values: Mapping[str, str]) -> int:
        return int(self._engine.query(f"SELECT COUNT(*) FROM {of}", values)[0][0])

    def _run(self, statements: Sequence[Statement], values: Mapping[str, str]) -> list[Step]:
        done = []
        for statement in statements:
            started = time.monotonic()
            rows = self._engine.run(statement.sql, values)
            done.append(Step(statement.step, rows, _milliseconds(started)))
        return done

    def _maintained(self, load: Load, run: Run, values: Mapping[str, str]) -> None:
        """Rehash open versions or give states other labels, where the run asks for it (7.2, 7.6)."""
        for statement in maintenance(load, run):
            self._engine.run(statement.sql, values)

    # The registry

    def _meta(self, table: str) -> str:
        return self.dialect.render_table_identifier(META, table)

    def _ensure_meta(self, table: str) -> None:
        self._engine.execute(self.dialect.render_create_schema_if_not_exists(META))
        stored = self.columns(META, table)
        if stored is None:
            sql = self.dialect.render_create_table_if_not_exists_from_columns(
                self._meta(table), TABLES[table]
            )
            self._engine.execute(sql)
            return
        for column in TABLES[table]:
            if column.name not in stored:
                self._engine.execute(self.dialect.render_add_column(self._meta(table), column))

    def _write_run(self, run: Run, status: str, more: Mapping[str, Any]) -> None:
        row = {
            "dataset_key": dataset_key(run.dataset),
            "load_run_id": run.run_id,
            "load_timestamp": run.instant,
            "engine": self.dialect.DIALECT_NAME,
            "status": status,
            "attempt_no": run.attempt,
            "started_at": run.began,
            "finished_at": None if status == "running" else datetime.now(UTC),
            **more,
        }
        text = self.dialect.string_literal
        self._engine.execute(
            f"DELETE FROM {self._meta('hist_run')} WHERE dataset_key = {text(row['dataset_key'])} "
            f"AND load_run_id = {text(run.run_id)}"
        )
        self._insert("hist_run", row)

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        names = ", ".join(self.dialect.render_identifier(name) for name in row)
        values = ", ".join(self.dialect.render_literal(value) for value in row.values())
        self._engine.execute(f"INSERT INTO {self._meta(table)} ({names}) VALUES ({values})")


def _as_staged(columns: Sequence[Column]) -> list[Column]:
    """The columns under their names in the stage."""
    return [
        column.model_copy(update={"target_column_name": column.input or column.name}) for column in columns
    ]


def _milliseconds(since: float) -> int:
    return round((time.monotonic() - since) * 1000)
