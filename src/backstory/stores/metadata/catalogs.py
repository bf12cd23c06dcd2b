"""The catalog of an embedded warehouse, read without Spark: a SQLite file, and files of this machine.

The catalog of a Spark session, which knows every catalog that Iceberg knows.

Whichever catalog the settings name, read without Spark where that can be.
"""

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.settings import CATALOG, Settings
from backstory.stores.embedded_catalog import TABLE, CatalogEntry, read_catalog, warehouse_folders
from backstory.stores.iceberg import store as iceberg
from backstory.stores.iceberg.jvm import metadata_json
from backstory.stores.metadata.table_metadata import (
    Counts,
    ReadableCatalog,
    TableMetadata,
    counts_of_manifests,
    table_of_metadata,
)
from backstory.stores.refusals import file_garbled, file_lost
from backstory.stores.table_files import TableFiles, local_path


@dataclass(frozen=True, slots=True)
class EmbeddedCatalog:
    """The tables of the warehouse in a folder; a folder without a catalog has none."""

    folder: Path
    origin: str = ""

    @property
    def searched(self) -> str:
        """The warehouse and who named it."""
        return f"the warehouse {self.folder}" + (f" ({self.origin})" if self.origin else "")

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        return sorted(each.table for each in self._entries())

    def describe(self, table: TableName) -> TableMetadata | None:
        """The table as it stands now, or None if there is none.

        Raises UsageError for one that lies where the warehouse stood before, Failed if its metadata cannot be
        read.
        """
        held = read_catalog(self.folder)
        location = _location(table, held.entries)
        if location is None:
            return None
        stands = warehouse_folders(self.folder, held)
        stands.require(table, location)
        try:
            told = _metadata(table, location)
        except FileNotFoundError:
            if _location(table, self._entries()) == location:
                raise file_lost(table, local_path(location).name) from None
            raise  # a writer came meanwhile
        stands.require_table(table, str(told.get("location")), told.get("properties") or {})
        return table_of_metadata(table, told, location)

    def count(self, table: TableMetadata) -> Counts:
        """The rows, from manifests where these tell."""
        found = counts_of_manifests(table, TableFiles())
        if found is None:
            from backstory.stores.metadata.pyiceberg_catalog import open_table, read_counts

            return read_counts(table, open_table(table.location))
        return found

    def opener(self, table: TableMetadata) -> TableFiles:
        """How the files of a table are opened."""
        del table
        return TableFiles()

    def _entries(self) -> list[CatalogEntry]:
        return [
            each
            for each in read_catalog(self.folder).entries
            if (each.catalog, each.kind) == (CATALOG, TABLE)
        ]


def _location(table: TableName, entries: list[CatalogEntry]) -> str | None:
    wanted = (CATALOG, table, TABLE)
    return next((each.location for each in entries if (each.catalog, each.table, each.kind) == wanted), None)


def _metadata(table: TableName, location: str) -> dict[str, Any]:
    """What a file of metadata tells; Java asks one that is garbled again, for a minute and a half."""
    read = gzip.open if ".gz.metadata" in location or location.endswith(".gz") else open
    with read(local_path(location), "rt", encoding="utf-8") as file:
        try:
            found = json.load(file)
        except (ValueError, gzip.BadGzipFile, EOFError, zlib.error):
            found = None
    if not isinstance(found, dict) or not {"schema", "schemas"} & set(found):
        raise file_garbled(table, local_path(location).name)
    return found


@dataclass(frozen=True, slots=True)
class SessionCatalog:
    """The tables that a session's catalog has."""

    store: iceberg.Store

    @property
    def searched(self) -> str:
        """The warehouse and who named it."""
        return self.store.searched

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        return iceberg.tables(self.store)

    def describe(self, table: TableName) -> TableMetadata | None:
        """The table as it stands now, or None if there is none."""
        found = iceberg.load(self.store, table)
        if found is None:
            return None
        return table_of_metadata(
            table, json.loads(metadata_json(self.store.jvm, found.iceberg)), found.metadata or ""
        )

    def count(self, table: TableMetadata) -> Counts:
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

    def opener(self, table: TableMetadata) -> TableFiles:
        """How the files of a table are opened: by what its FileIO in the session is told."""
        return iceberg.existing(self.store, table.shape.table).files


_OF_CATALOG = f"spark.sql.catalog.{CATALOG}"


def open_without_spark(settings: Settings) -> ReadableCatalog | None:
    """The catalog `backstory` of the settings; None where Spark alone knows how to read it."""
    if any(name.split(".")[:4] == _OF_CATALOG.split(".") for name in settings.spark):
        return None
    properties = settings.catalogs[CATALOG]
    if not properties:
        return EmbeddedCatalog(settings.warehouse, settings.origin)
    from backstory.stores.metadata.pyiceberg_catalog import open_catalog

    return open_catalog(properties, settings.location)
