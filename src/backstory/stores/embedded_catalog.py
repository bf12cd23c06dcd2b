"""The SQLite catalog of an embedded warehouse, and the warehouse's current and former folders.

Iceberg writes absolute paths. After a folder is copied or moved, its tables still name files in the former
folder. A reader or writer of the copy would use the original's files. The catalog therefore records each
folder below which tables were created. A table below a recorded folder other than the current one is neither
read nor written. Any other table is in a place that its owner chose.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from backstory.errors import TryAgain, UsageError, option
from backstory.formats.memory import no_room
from backstory.model.table import TableName
from backstory.settings import CATALOG_FILE

PATIENCE: Final = 60  # seconds, while another program writes
TABLE: Final = "TABLE"
FOLDERS: Final = "backstory_folders"  # backstory's own table in Iceberg's database


class CatalogEntry(NamedTuple):
    """A table or a view of a catalog, and the location of its metadata."""

    catalog: str
    table: TableName
    kind: str
    location: str


class CatalogFile(NamedTuple):
    """The content of the database: every table and view, and the recorded folders."""

    entries: list[CatalogEntry]
    folders: list[str]


def read_catalog(folder: Path) -> CatalogFile:
    """The catalog of the warehouse in a folder, or an empty one if the file does not exist yet."""
    file = folder / CATALOG_FILE
    if not file.exists() or not file.stat().st_size:
        return CatalogFile([], [])
    with open_to_read(file) as connection:
        return catalog_contents(connection)


def catalog_contents(connection: sqlite3.Connection) -> CatalogFile:
    """The catalog in an open database."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
    rows: list[tuple[str, str, str, str, str]] = []
    if columns:
        kind = "coalesce(iceberg_type, 'TABLE')" if "iceberg_type" in columns else "'TABLE'"
        names = f"catalog_name, table_namespace, table_name, {kind}, metadata_location"
        query = f"SELECT {names} FROM iceberg_tables WHERE metadata_location IS NOT NULL"  # noqa: S608
        rows = list(connection.execute(query))
    entries = [
        CatalogEntry(catalog, TableName(schema, name), kind, place)
        for catalog, schema, name, kind, place in rows
    ]
    has_folders = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [FOLDERS]).fetchone()
    folders = connection.execute(f"SELECT folder FROM {FOLDERS}") if has_folders else ()  # noqa: S608
    return CatalogFile(entries, [folder for (folder,) in folders])


@contextmanager
def open_to_read(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that neither changes the file nor creates other files next to it."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        yield connection


@contextmanager
def begin_change(file: Path) -> Iterator[sqlite3.Connection]:
    """A transaction that excludes other writers, and rolls back on an exception. It creates no file."""
    address = f"{file.as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


WAREHOUSE_MOVED: Final = "warehouse-moved"
METADATA_FILES: Final = "*.metadata.json"
# Properties of a table that are folders for its files.
LOCATION_PROPERTIES: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_AT_LEAST: Final = 3  # a table's folder, `metadata` and a file


@dataclass(frozen=True, slots=True)
class WarehouseFolders:
    """The folder of a warehouse, every spelling of its path, and its former folders."""

    folder: Path
    spellings: frozenset[str]
    former: frozenset[str]

    def former_of(self, location: str) -> str | None:
        """The former folder that contains a location, or None for any other location."""
        spellings = path_spellings(location)
        present = max(map(len, enclosing_folders(spellings, self.spellings)), default=0)
        former = max(enclosing_folders(spellings, self.former), key=len, default="")
        return former if len(former) > present else None

    def is_here(self, location: str) -> bool:
        """Whether a location is below this folder."""
        return self.former_of(location) is None and any(
            enclosing_folders(path_spellings(location), self.spellings)
        )

    def present_location(self, location: str) -> str:
        """The location with a former folder replaced by this folder. Any other location is unchanged."""
        former = self.former_of(location)
        if former is None:
            return location
        path = next(spelling for spelling in sorted(path_spellings(location)) if _is_below(spelling, former))
        scheme = next((prefix for prefix in ("file://", "file:") if location.startswith(prefix)), "")
        return f"{scheme}{str(self.folder).rstrip('/')}{path[len(former.rstrip('/')) :]}"

    def require(self, table: TableName, *locations: str) -> None:
        """Raise UsageError if one of a table's locations is in a former folder."""
        for location in locations:
            if (former := self.former_of(location)) is not None:
                raise warehouse_moved(self.folder, former, table)

    def require_table(self, table: TableName, location: str, properties: Mapping[str, str]) -> None:
        """Raise UsageError if a table's location, or a folder in its properties, is in a former folder."""
        self.require(table, location, *(properties.get(name) or "" for name in LOCATION_PROPERTIES))


def home_of(folder: Path | None, address: str) -> Path | None:
    """The folder of a warehouse whose JDBC catalog is a file in that folder, or None for any other one."""
    file = address.partition("?")[0].removeprefix("jdbc:sqlite:").removeprefix("file:")
    return folder if folder is not None and file == f"{folder}/{CATALOG_FILE}" else None


def warehouse_folders(folder: Path, catalog: CatalogFile | None = None) -> WarehouseFolders:
    """The current and former folders of the warehouse in a folder, according to its catalog."""
    catalog = read_catalog(folder) if catalog is None else catalog
    folders = {*catalog.folders} if catalog.folders else _infer_former_folders(folder, catalog.entries)
    same = {path for path in folders if _is_same_folder(path, folder)}
    spellings = frozenset({*same, str(folder), os.path.realpath(folder)})
    return WarehouseFolders(folder, spellings, frozenset(folders - spellings))


def require_here(folder: Path, table: TableName) -> WarehouseFolders:
    """The folders of a warehouse. Raises UsageError if this table or view is in a former folder."""
    catalog = read_catalog(folder)
    folders = warehouse_folders(folder, catalog)
    folders.require(table, *(entry.location for entry in catalog.entries if entry.table == table))
    return folders


def remember(folder: Path, table: TableName | None = None) -> None:
    """Record that tables are being created below a folder.

    Raises TryAgain if the catalog cannot be written now.
    """
    try:
        catalog, spellings = read_catalog(folder), {str(folder), os.path.realpath(folder)}
        if spellings <= {*catalog.folders}:
            return
        with begin_change(folder / CATALOG_FILE) as connection:
            catalog = catalog_contents(connection)
            folders = (
                {*catalog.folders} if catalog.folders else _infer_former_folders(folder, catalog.entries)
            )
            replace_folders(connection, folders | spellings)
    except sqlite3.Error as stop:
        what = f"the catalog of the warehouse {folder}" + (f", for {table}" if table else "")
        raise no_room(getattr(stop, "sqlite_errorname", ""), what) or TryAgain(
            "catalog-busy", f"Cannot write to {what}: {stop}.", "Nothing was written; send it again."
        ) from None


def remember_if_writable(folder: Path | None) -> None:
    """Record the folder of an embedded warehouse, if its catalog is writable. Readers may lack permission."""
    with suppress(TryAgain, OSError):
        if folder is not None and (folder / CATALOG_FILE).exists():
            remember(folder)


def replace_folders(connection: sqlite3.Connection, folders: set[str]) -> None:
    """Replace the recorded folders of a catalog with these folders."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {FOLDERS} (folder VARCHAR(1000) NOT NULL PRIMARY KEY)")
    connection.execute(f"DELETE FROM {FOLDERS}")  # noqa: S608
    rows = [[path] for path in sorted(folders)]
    connection.executemany(f"INSERT INTO {FOLDERS} (folder) VALUES (?)", rows)  # noqa: S608


def warehouse_moved(folder: Path, former: str, table: TableName) -> UsageError:
    """The error for a table whose files are in a former folder of its warehouse."""
    return UsageError(
        WAREHOUSE_MOVED,
        f"The warehouse {folder} was copied or moved from {former}, and {table} still names its files there.",
        "Nothing was read or written; run `backstory relocate` with "
        f"{option('warehouse', str(folder))} once, so that this folder uses its own files, "
        f"or open {former} instead.",
    )


def path_spellings(location: str) -> set[str]:
    """The spellings of a path: as given, normalized, and with links resolved."""
    bare = bare_path(location)
    if not bare.startswith("/"):  # no file of this machine
        return {bare}
    return {bare.rstrip("/") or "/", os.path.normpath(bare), os.path.realpath(bare)}


def bare_path(location: str) -> str:
    """The path of a location on this machine, without the scheme. Iceberg encodes no characters in it."""
    if not location.startswith("file:"):
        return location
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/") if path.startswith("//") else path


def enclosing_folders(spellings: set[str], folders: frozenset[str]) -> Iterator[str]:
    """The given folders that contain the path with these spellings."""
    for folder in folders:
        if any(_is_below(path, folder) for path in spellings):
            yield folder


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_same_folder(one: str, other: Path) -> bool:
    """Whether two paths lead to the same folder, judged by device and inode."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def _infer_former_folders(folder: Path, entries: list[CatalogEntry]) -> set[str]:
    """Infer a warehouse's former folders from its tables' locations, if its catalog records none.

    A location elsewhere is in a former folder in two cases. Either this folder has the same file at the same
    relative path, or metadata there names the former location. Otherwise the table's owner chose the
    location.
    """
    here = frozenset({str(folder), os.path.realpath(folder)})
    former: set[str] = set()
    for entry in entries:
        spellings = path_spellings(entry.location)
        if not any(enclosing_folders(spellings, here | former)):
            former |= set(filter(None, [_former_folder_of(folder, entry.location)]))
    return former


def _former_folder_of(folder: Path, location: str) -> str | None:
    parts = Path(bare_path(location)).parts
    if parts[:1] != ("/",):
        return None
    for start in range(2, len(parts) - _AT_LEAST + 1):
        former, file = Path(*parts[:start]), Path(folder, *parts[start:])
        place, files = former.joinpath(*parts[start:-2]), sorted(file.parent.glob(METADATA_FILES))
        if file.is_file() or any(_names_place(metadata, place) for metadata in files):
            return str(former)
    return None


def _names_place(metadata: Path, place: Path) -> bool:
    """Whether a metadata file names this place as the location of its table."""
    with suppress(OSError, ValueError):
        document = json.loads(metadata.read_text("utf-8"))
        return isinstance(document, dict) and bare_path(str(document.get("location"))).rstrip("/") == str(
            place
        )
    return False
