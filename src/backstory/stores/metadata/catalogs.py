"""The catalogs that contain tables, from an embedded warehouse or the settings.

An embedded warehouse consists of a SQLite catalog and data files on this machine, which are read without
Spark. A session's store is a catalog too, and supports every catalog that Iceberg supports.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.model.table import TableName
from backstory.settings import CATALOG, Settings
from backstory.stores.embedded_catalog import TABLE, CatalogEntry, read_catalog, warehouse_folders
from backstory.stores.metadata.table_metadata import (
    Catalog,
    Counts,
    TableMetadata,
    counts_of_manifests,
    parse_metadata,
    table_of_metadata,
)
from backstory.stores.port import file_garbled, file_lost
from backstory.stores.table_files import local_path


@dataclass(frozen=True, slots=True)
class EmbeddedCatalog:
    """The tables of the warehouse in a folder, or their branches. Without a catalog, it has no tables."""

    folder: Path
    origin: str = ""
    branch: str | None = None

    @property
    def description(self) -> str:
        """The warehouse, and the origin of its name."""
        return f"the warehouse {self.folder}" + (f" ({self.origin})" if self.origin else "")

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        entries = read_catalog(self.folder).entries
        return sorted(entry.table for entry in entries if (entry.catalog, entry.kind) == (CATALOG, TABLE))

    def describe(self, table: TableName) -> TableMetadata | None:
        """The current metadata of a table, or None if it does not exist.

        Raises UsageError for a table in a former folder of the warehouse or without the branch, and Failed if
        its metadata cannot be read.
        """
        catalog = read_catalog(self.folder)
        location = _location(table, catalog.entries)
        if location is None:
            return None
        place = warehouse_folders(self.folder, catalog)
        place.require(table, location)
        try:
            metadata = _metadata(table, location)
        except FileNotFoundError:
            if _location(table, read_catalog(self.folder).entries) == location:
                raise file_lost(table, local_path(location).name) from None
            raise  # a writer has changed the table meanwhile
        place.require_table(table, str(metadata.get("location")), metadata.get("properties") or {})
        return table_of_metadata(table, metadata, location, self.branch)

    def count(self, table: TableMetadata) -> Counts:
        """The number of rows, from manifests if they suffice."""
        counts = counts_of_manifests(table)
        if counts is None:
            from backstory.stores.metadata.pyiceberg_catalog import open_table, read_counts

            return read_counts(table, open_table(table.location))
        return counts


def _location(table: TableName, entries: list[CatalogEntry]) -> str | None:
    wanted = (CATALOG, table, TABLE)
    locations = (entry.location for entry in entries if (entry.catalog, entry.table, entry.kind) == wanted)
    return next(locations, None)


def _metadata(table: TableName, location: str) -> dict[str, Any]:
    """The content of a metadata file. Java would retry a damaged file for a minute and a half."""
    file = local_path(location)
    try:
        metadata = parse_metadata(file.read_bytes())
    except ValueError:
        metadata = {}
    if not {"schema", "schemas"} & set(metadata):
        raise file_garbled(table, file.name)
    return metadata


_OF_CATALOG = f"spark.sql.catalog.{CATALOG}"


def open_without_spark(settings: Settings, branch: str | None = None) -> Catalog | None:
    """The catalog `backstory` in the settings, or None if only Spark can read it.

    With `branch`, its tables appear as if this branch were their current state.
    """
    if any(name.split(".")[:4] == _OF_CATALOG.split(".") for name in settings.spark):
        return None
    properties = settings.catalogs[CATALOG]
    if not properties:
        return EmbeddedCatalog(settings.warehouse, settings.origin, branch)
    from backstory.stores.metadata.pyiceberg_catalog import open_catalog

    return open_catalog(properties, settings.location, branch)
