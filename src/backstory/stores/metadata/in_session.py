"""The catalog of a Spark session, which knows every catalog that Iceberg knows."""

import json
from dataclasses import dataclass

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores.iceberg import store as iceberg
from backstory.stores.iceberg.jvm import metadata_json
from backstory.stores.metadata.described import Counts, Described, described
from backstory.stores.table_files import TableFiles


@dataclass(frozen=True, slots=True)
class InSession:
    """The tables that a session's catalog has."""

    store: iceberg.Store

    @property
    def searched(self) -> str:
        """The warehouse and who named it."""
        return self.store.searched

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        return iceberg.tables(self.store)

    def describe(self, table: TableName) -> Described | None:
        """The table as it stands now, or None if there is none."""
        found = iceberg.load(self.store, table)
        if found is None:
            return None
        return described(
            table, json.loads(metadata_json(self.store.jvm, found.iceberg)), found.metadata or ""
        )

    def count(self, table: Described) -> Counts:
        """The rows, from the commit alone where it tells them.

        Those of a table that Spark cannot read are None: a file is gone, a column is of another tool's type.
        """
        layout, newest = table.shape.layout, table.newest
        span = layout.span
        if newest is None:
            return Counts(0, 0 if span else None)
        told = newest.properties
        if span is None and told.get("total-delete-files") == "0" and told.get("total-records"):
            return Counts(int(told["total-records"]), None)
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        remembered = f"{span.start} = {span.end}" if span and layout is Layout.VERSIONS else "false"
        open_ = span.open if span else "NULL"
        asked = ["count(*) AS rows", f"count_if({open_}) AS open", f"count_if({remembered}) AS memory"]
        try:
            rows = self.store.spark.table(self.store.sql_name(table.shape.table))
            (counts,) = rows.selectExpr(*asked).collect()
        except (PySparkException, Py4JJavaError):
            return Counts(None, None)
        memory = counts["memory"]
        return Counts(counts["rows"] - memory, counts["open"] if span else None, memory)

    def opener(self, table: Described) -> TableFiles:
        """How the files of a table are opened: by what its FileIO in the session is told."""
        return iceberg.existing(self.store, table.shape.table).files
