"""The registry of runs and the logs of loads in a database (section 6.3)."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from backstory.doors.historize.dialects.dialect import Dialect
from backstory.doors.historize.engines.engine import Engine
from backstory.doors.historize.model import Dataset
from backstory.doors.historize.runs import META, TABLES, Known, dataset_key
from backstory.doors.historize.work import Run, run_row


class Registry:
    """The tables of the schema `meta`; what is written belongs to the transaction that is open."""

    def __init__(self, dialect: Dialect, engine: Engine) -> None:
        self.dialect = dialect
        self._engine = engine

    def leased(self, key: str, run_id: str) -> str | None:
        """Another run that loads the dataset now."""
        if self._engine.introspect_table(META, "hist_run") is None:
            return None
        text = self.dialect.string_literal
        found = self._engine.fetch_all(
            f"SELECT load_run_id FROM {self._meta('hist_run')} WHERE dataset_key = {text(key)} "
            f"AND status = 'running' AND load_run_id <> {text(run_id)} "
            f"AND lease_until > {self.dialect.timestamp_literal(datetime.now(UTC))}"
        )
        return found[0][0] if found else None

    def known(self, dataset: Dataset, run_id: str) -> Known | None:
        """What is registered of a run."""
        stored = self._engine.introspect_table(META, "hist_run")
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

    def write(self, run: Run, status: str, more: Mapping[str, Any]) -> None:
        """Register a run, in the place of what was registered of it."""
        row = run_row(run, self.dialect.DIALECT_NAME, status, more)
        text = self.dialect.string_literal
        self._engine.execute(
            f"DELETE FROM {self._meta('hist_run')} WHERE dataset_key = {text(row['dataset_key'])} "
            f"AND load_run_id = {text(run.run_id)}"
        )
        self.add("hist_run", row)

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row to a table."""
        names = ", ".join(self.dialect.render_identifier(name) for name in row)
        values = ", ".join(self.dialect.render_literal(value) for value in row.values())
        self._engine.execute(f"INSERT INTO {self._meta(table)} ({names}) VALUES ({values})")
