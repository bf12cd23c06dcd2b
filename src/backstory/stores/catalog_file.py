"""The database of an embedded warehouse's catalog, read as SQLite: what Iceberg and backstory keep in it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from backstory.model.table import TableName
from backstory.settings import CATALOG_FILE

PATIENCE: Final = 60  # seconds, while another program writes
TABLE: Final = "TABLE"
FOLDERS: Final = "backstory_folders"  # backstory's own, beside Iceberg's


class Entry(NamedTuple):
    """A table or a view of a catalog, and the location of its metadata."""

    catalog: str
    table: TableName
    kind: str
    location: str


class CatalogFile(NamedTuple):
    """What the database holds: every table and view, and the folders that were remembered."""

    entries: list[Entry]
    folders: list[str]


def read(folder: Path) -> CatalogFile:
    """What the catalog of the warehouse in a folder holds; nothing where there is no catalog yet."""
    file = folder / CATALOG_FILE
    if not file.exists() or not file.stat().st_size:
        return CatalogFile([], [])
    with reading(file) as connection:
        return contents(connection)


def contents(connection: sqlite3.Connection) -> CatalogFile:
    """The same of an open database."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
    rows: list[tuple[str, str, str, str, str]] = []
    if columns:
        kind = "coalesce(iceberg_type, 'TABLE')" if "iceberg_type" in columns else "'TABLE'"
        names = f"catalog_name, table_namespace, table_name, {kind}, metadata_location"
        query = f"SELECT {names} FROM iceberg_tables WHERE metadata_location IS NOT NULL"  # noqa: S608
        rows = list(connection.execute(query))
    entries = [
        Entry(catalog, TableName(schema, name), kind, place) for catalog, schema, name, kind, place in rows
    ]
    remembers = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [FOLDERS]).fetchone()
    folders = connection.execute(f"SELECT folder FROM {FOLDERS}") if remembers else ()  # noqa: S608
    return CatalogFile(entries, [folder for (folder,) in folders])


@contextmanager
def reading(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, neither the file nor those beside it."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        yield connection


@contextmanager
def changing(file: Path) -> Iterator[sqlite3.Connection]:
    """A transaction that no other writer comes between; what raises undoes it. No file is made."""
    address = f"{file.as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
