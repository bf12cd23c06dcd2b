"""The catalog of an embedded warehouse, read without Spark: a SQLite file, and files of this machine."""

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.model.table import TableName
from backstory.settings import CATALOG
from backstory.stores.embedded_catalog import TABLE, CatalogEntry, read_catalog, warehouse_folders
from backstory.stores.metadata.described import Counts, Described, described
from backstory.stores.metadata.manifests import counted
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

    def describe(self, table: TableName) -> Described | None:
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
        return described(table, told, location)

    def count(self, table: Described) -> Counts:
        """The rows, from manifests where these tell."""
        found = counted(table, TableFiles())
        if found is None:
            from backstory.stores.metadata.scans import open_table, read_counts

            return read_counts(table, open_table(table.location))
        return found

    def opener(self, table: Described) -> TableFiles:
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
