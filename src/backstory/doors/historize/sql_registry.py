"""The registry of runs and the logs of loads in a database (section 6.3)."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from backstory.doors.historize.model import ModelDataset
from backstory.doors.historize.runs import META, TABLES, RegisteredRun, dataset_key, earlier_key, hist_names
from backstory.doors.historize.work import LoadRun
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.engines.engine import Engine
from backstory.upkeep.pruning import in_utc


class Registry:
    """The tables of the schema `meta`; what is written belongs to the transaction that is open."""

    def __init__(self, dialect: Dialect, engine: Engine) -> None:
        self.dialect = dialect
        self._engine = engine

    def leased(self, schema: str, dataset: ModelDataset, run_id: str) -> str | None:
        """Another run that loads the dataset now; one of an earlier version may be of another schema."""
        if self._engine.introspect_table(META, "hist_run") is None:
            return None
        text = self.dialect.string_literal
        found = self._engine.fetch_all(
            f"SELECT load_run_id FROM {self._meta('hist_run')} WHERE {self._of(schema, dataset)} "
            f"AND status = 'running' AND load_run_id <> {text(run_id)} "
            f"AND lease_until > {self.dialect.timestamp_literal(datetime.now(UTC))}"
        )
        return found[0][0] if found else None

    def _of(self, schema: str, dataset: ModelDataset) -> str:
        """The rows of a dataset, those of earlier versions among them."""
        keys = (dataset_key(schema, dataset), earlier_key(dataset))
        return f"dataset_key IN ({', '.join(map(self.dialect.string_literal, keys))})"

    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> RegisteredRun | None:
        """What is registered of a run, whether or not it still stands."""
        stored = self._engine.introspect_table(META, "hist_run")
        if stored is None:
            return None
        text = self.dialect.string_literal
        told = "receipt" if "receipt" in stored else "NULL"
        found = self._engine.fetch_all(
            f"SELECT load_timestamp, attempt_no, status, {told}, dataset_key FROM {self._meta('hist_run')} "
            f"WHERE {self._of(schema, dataset)} AND load_run_id = {text(run_id)}"
        )
        own = [row for row in found if row[-1] == dataset_key(schema, dataset)]
        if not own and found and self._logged(schema, dataset, run_id):
            own = found
        if not own:
            return None
        instant, attempt, status, receipt, _ = own[0]
        ended_well = status == "success" and receipt
        return RegisteredRun(in_utc(instant), attempt, json.loads(receipt) if ended_well else None)

    def _logged(self, schema: str, dataset: ModelDataset, run_id: str) -> bool:
        """Whether the log of loads has the run for this schema: the registry's earlier rows do not tell."""
        if self._engine.introspect_table(META, "load_run_log") is None:
            return False
        text = self.dialect.string_literal
        sql = (
            f"SELECT 1 FROM {self._meta('load_run_log')} WHERE target_schema = {text(schema)} "
            f"AND target_dataset IN ({', '.join(map(text, hist_names(dataset)))}) "
            f"AND load_run_id = {text(run_id)} LIMIT 1"
        )
        return bool(self._engine.fetch_all(sql))

    def last_that_wrote(self, schema: str, dataset: ModelDataset, until: datetime) -> datetime | None:
        """The instant of the last run up to then that began or ended versions."""
        key = self.dialect.string_literal(dataset_key(schema, dataset))
        counts = "closed_changed + closed_deleted + inserted_changed + inserted_new"
        (found,) = self._engine.fetch_all(
            f"SELECT MAX(load_timestamp) FROM {self._meta('hist_run')} WHERE dataset_key = {key} "
            f"AND status = 'success' AND {counts} > 0 "
            f"AND load_timestamp <= {self.dialect.timestamp_literal(until)}"
        )
        return found[0] and in_utc(found[0])

    def _meta(self, table: str) -> str:
        return self.dialect.render_table_identifier(META, table)

    def ensure(self, table: str) -> None:
        """Make a table, or add the columns that it lacks."""
        self._engine.execute(self.dialect.render_create_schema_if_not_exists(META))
        stored = self._engine.introspect_table(META, table)
        if stored is None:
            sql = self.dialect.render_create_table_if_not_exists_from_columns(
                self._meta(table), TABLES[table]
            )
            self._engine.execute(sql)
            return
        for column in TABLES[table]:
            if column.name not in stored:
                self._engine.execute(self.dialect.render_add_column(self._meta(table), column))

    def write(self, run: LoadRun, status: str, more: Mapping[str, Any]) -> None:
        """Register a run, in the place of what was registered of it."""
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
        text = self.dialect.string_literal
        self._engine.execute(
            f"DELETE FROM {self._meta('hist_run')} WHERE dataset_key = {text(run.key)} "
            f"AND load_run_id = {text(run.run_id)}"
        )
        self.add("hist_run", row)

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row to a table."""
        names = ", ".join(self.dialect.render_identifier(name) for name in row)
        values = ", ".join(self.dialect.render_literal(value) for value in row.values())
        self._engine.execute(f"INSERT INTO {self._meta(table)} ({names}) VALUES ({values})")
