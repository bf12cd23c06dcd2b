"""Historization on Spark at a small scale: the same places as on databases (see `historizing`)."""

from dataclasses import replace
from typing import Any

from committing import make
from historizing import Place

from backstory.doors.historize.preparing import prepare_load
from backstory.doors.historize.spark_tables import base_shape, hist_shape
from backstory.doors.historize.spark_target import SparkTarget
from backstory.doors.historize.sync import sync_hist
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.stores.iceberg.create import drop, ensure_schema
from backstory.stores.iceberg.store import tables

SCHEMAS = {"rawcore", "rawcore_us", "meta", "stage"}


class SparkPlace(Place):
    """A warehouse; its tables of earlier tests are dropped."""

    def __init__(self, store: Any, folder: Any) -> None:
        self.store = store
        for schema in SCHEMAS:
            for table in tables(store, schema):
                drop(store, table)
            ensure_schema(store, schema)
        store.spark.catalog.setCurrentCatalog("backstory")
        super().__init__("spark", "", folder)

    def connected(self) -> SparkTarget:
        return SparkTarget(self.store, self.pepper)

    def by_frames(self, *, always: bool) -> None:
        """From now on every load is planned by frames, as one is that is too large for the driver; or only those."""
        memory = Memory(0) if always else self.store.memory
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

    def snapshots(self, table: str) -> int:
        """How many commits of rows a table has had."""
        return len(self.rows(f"SELECT snapshot_id FROM rawcore.{table}.snapshots"))

    def drop(self, table: str) -> None:
        schema, _, name = table.partition(".")
        drop(self.store, TableName(schema, name))
