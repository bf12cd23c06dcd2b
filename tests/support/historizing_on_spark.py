"""Historization on Spark on a small scale, with the same places as on databases (see `historizing`)."""

from dataclasses import replace
from typing import Any

from committing import commit, make
from historizing import Place

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.model import base_columns
from backstory.doors.historize.spark_tables import base_shape, hist_shape
from backstory.doors.historize.spark_target import SparkTarget
from backstory.formats.delivered import rows_as
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.change import Change
from backstory.model.table import TableName
from backstory.stores.iceberg.create import drop, ensure_schema
from backstory.stores.iceberg.store import existing, tables

SCHEMAS = {"rawcore", "rawcore_us", "meta", "stage"}


class SparkPlace(Place):
    """A warehouse. Tables of earlier tests are dropped."""

    def __init__(self, store: Any, folder: Any) -> None:
        self.store = store
        for schema in SCHEMAS:
            for table in tables(store, schema):
                # Their files stay, because finding them all takes longer than a load.
                store.iceberg().dropTable(store.identifier(table), False)
            ensure_schema(store, schema)
        store.spark.catalog.setCurrentCatalog("backstory")
        super().__init__("spark", "", folder)

    def connected(self) -> SparkTarget:
        return SparkTarget(self.store, self.pepper)

    def in_tasks(self, *, always: bool) -> None:
        """Make Spark's tasks plan every load from now on, or only the loads that are too large for the driver."""
        self.with_memory(0 if always else None)

    def with_memory(self, most: int | None) -> None:
        """Limit the driver to this many bytes of plain rows from now on. None is no limit."""
        memory = self.store.memory if most is None else Memory(most * CLEAR_TEXT_SHARE)
        self.target = SparkTarget(replace(self.store, memory=memory), self.pepper)

    def close(self) -> None:
        self.store.spark.catalog.setCurrentCatalog("spark_catalog")

    def sql(self, text: str) -> int:
        self.store.spark.sql(text)
        return 0

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.store.spark.sql(text).toArrow().to_pylist()]

    def literal(self, value: object) -> str:
        return f"X'{value.hex()}'" if isinstance(value, bytes) else self.dialect.render_literal(value)

    def create(self, schema: str, table: str, columns: Any) -> None:
        load = prepare_load(self.model, self.dataset, sync_hist(self.dataset, None, None), self.dialect)
        shapes = {self.dataset.name: base_shape, self.dataset.hist_name: hist_shape}
        if table in shapes:
            make(self.store, shapes[table](load))
        else:
            super().create(schema, table, columns)

    def insert(self, table: str, rows: Any) -> None:
        """Insert rows, given as dicts, in one commit without Spark."""
        self._commit(table, list(rows), whole=False)

    def base(self, text: str) -> "SparkPlace":
        if not self.has("rawcore", self.dataset.name):
            self.create("rawcore", self.dataset.name, base_columns(self.dataset))
        rows = [self._base_row(word) for word in text.split()]
        self._commit(f"rawcore.{self.dataset.name}", rows, whole=True)
        return self

    def _commit(self, name: str, rows: list[dict[str, Any]], *, whole: bool) -> None:
        table = existing(self.store, TableName(*name.split(".")))
        if rows or (whole and table.rows):
            come = rows_as(table.shape.columns, rows)
            commit(self.store, table, Change(added=come, whole=whole and table.rows > 0))

    def snapshots(self, table: str) -> int:
        """The number of commits of rows to a table."""
        return len(self.rows(f"SELECT snapshot_id FROM rawcore.{table}.snapshots"))

    def drop(self, table: str) -> None:
        schema, _, name = table.partition(".")
        drop(self.store, TableName(schema, name))
