"""The catalog of an embedded warehouse, read without Spark: a SQLite file, and files of this machine."""

import gzip
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from backstory.model.table import TableName
from backstory.settings import CATALOG, CATALOG_FILE
from backstory.stores.metadata.described import Counts, Described, described
from backstory.stores.metadata.manifests import Opener, counted
from backstory.stores.refusals import file_garbled, file_lost

PATIENCE = 60  # seconds, while another program writes
_IS_TABLE = "catalog_name = ? AND coalesce(iceberg_type, 'TABLE') = 'TABLE'"


@dataclass(frozen=True, slots=True)
class EmbeddedCatalog:
    """The tables of the warehouse in a folder; a folder without a catalog has none."""

    folder: Path

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        return sorted(TableName(schema, name) for schema, name, _ in self._rows())

    def describe(self, table: TableName) -> Described | None:
        """The table as it stands now, or None if there is none; Failed if its metadata cannot be read."""
        location = self._location(table)
        if location is None:
            return None
        try:
            return described(table, _metadata(table, location), location)
        except FileNotFoundError:
            if self._location(table) == location:
                raise file_lost(table, local(location).name) from None
            raise  # a writer came meanwhile

    def count(self, table: Described) -> Counts:
        """The rows, from manifests where these tell."""
        found = counted(table, open_local)
        if found is None:
            from backstory.stores.metadata.scans import read_counts, standing

            return read_counts(table, standing(table.location))
        return found

    def opener(self, table: Described) -> Opener:
        """How the files of a table are opened."""
        del table
        return open_local

    def _location(self, table: TableName) -> str | None:
        found = {TableName(schema, name): location for schema, name, location in self._rows()}
        return found.get(table)

    def _rows(self) -> list[tuple[str, str, str]]:
        file = self.folder / CATALOG_FILE
        if not file.exists() or not file.stat().st_size:
            return []
        with _reading(file) as connection:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
            if not columns:
                return []
            asked = "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE "
            is_table = _IS_TABLE if "iceberg_type" in columns else "catalog_name = ?"
            return list(connection.execute(asked + is_table, [CATALOG]))


def open_local(location: str) -> IO[bytes]:
    """A file of this machine."""
    return local(location).open("rb")


def local(location: str) -> Path:
    """The path of a location as Iceberg writes it."""
    return Path(location.removeprefix("file://").removeprefix("file:"))


def _metadata(table: TableName, location: str) -> dict[str, Any]:
    """What a file of metadata tells; Java asks one that is garbled again, for a minute and a half."""
    read = gzip.open if ".gz.metadata" in location or location.endswith(".gz") else open
    with read(local(location), "rt", encoding="utf-8") as file:
        try:
            found = json.load(file)
        except (ValueError, gzip.BadGzipFile, EOFError, zlib.error):
            found = None
    if not isinstance(found, dict) or not {"schema", "schemas"} & set(found):
        raise file_garbled(table, local(location).name)
    return found


@contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, neither the file nor those beside it."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        yield connection
