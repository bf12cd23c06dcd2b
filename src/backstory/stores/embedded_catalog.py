"""The database of an embedded warehouse's catalog, read as SQLite: what Iceberg and backstory keep in it.

Where an embedded warehouse stands, and where it stood when its tables were put there.

Iceberg writes whole paths: the tables of a folder that was copied or moved still name the files of the former
one, and who reads or deletes them does so to the original's. So the catalog remembers every folder that
tables were put below, as it was spelled. A table below one of these which is not this folder is
neither read nor written; any other table is where its owner put it.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from backstory.errors import TryAgain, UsageError
from backstory.formats.wrapping.room import no_room_by
from backstory.model.table import TableName
from backstory.settings import CATALOG_FILE

PATIENCE: Final = 60  # seconds, while another program writes
TABLE: Final = "TABLE"
FOLDERS: Final = "backstory_folders"  # backstory's own, beside Iceberg's


class CatalogEntry(NamedTuple):
    """A table or a view of a catalog, and the location of its metadata."""

    catalog: str
    table: TableName
    kind: str
    location: str


class CatalogFile(NamedTuple):
    """What the database holds: every table and view, and the folders that were remembered."""

    entries: list[CatalogEntry]
    folders: list[str]


def read_catalog(folder: Path) -> CatalogFile:
    """What the catalog of the warehouse in a folder holds; nothing where there is no catalog yet."""
    file = folder / CATALOG_FILE
    if not file.exists() or not file.stat().st_size:
        return CatalogFile([], [])
    with open_to_read(file) as connection:
        return catalog_contents(connection)


def catalog_contents(connection: sqlite3.Connection) -> CatalogFile:
    """The same of an open database."""
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
    remembers = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [FOLDERS]).fetchone()
    folders = connection.execute(f"SELECT folder FROM {FOLDERS}") if remembers else ()  # noqa: S608
    return CatalogFile(entries, [folder for (folder,) in folders])


@contextmanager
def open_to_read(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, neither the file nor those beside it."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        yield connection


@contextmanager
def begin_change(file: Path) -> Iterator[sqlite3.Connection]:
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


WAREHOUSE_MOVED: Final = "warehouse-moved"
METADATA_FILES: Final = "*.metadata.json"
# What in a table's properties is a place for its files.
LOCATION_PROPERTIES: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_AT_LEAST: Final = 3  # a table's folder, `metadata` and a file


@dataclass(frozen=True, slots=True)
class WarehouseFolders:
    """The folder of a warehouse, all spellings of it, and the folders in which it stood before."""

    folder: Path
    spellings: frozenset[str]
    former: frozenset[str]

    def former_of(self, location: str) -> str | None:
        """The former folder that a location is below; None for one here, or anywhere else."""
        ways = path_spellings(location)
        here = max(map(len, enclosing_folders(ways, self.spellings)), default=0)
        there = max(enclosing_folders(ways, self.former), key=len, default="")
        return there if len(there) > here else None

    def is_here(self, location: str) -> bool:
        """Whether a location is below this folder."""
        return self.former_of(location) is None and any(
            enclosing_folders(path_spellings(location), self.spellings)
        )

    def present_location(self, location: str) -> str:
        """Where a location below a former folder is in this one, in its own spelling; any other as it is."""
        former = self.former_of(location)
        if former is None:
            return location
        way = next(each for each in sorted(path_spellings(location)) if _is_below(each, former))
        scheme = next((each for each in ("file://", "file:") if location.startswith(each)), "")
        return f"{scheme}{str(self.folder).rstrip('/')}{way[len(former.rstrip('/')) :]}"

    def require(self, table: TableName, *locations: str) -> None:
        """Raise UsageError if one of a table's places is where the warehouse stood before."""
        for location in locations:
            if (former := self.former_of(location)) is not None:
                raise warehouse_moved(self.folder, former, table)

    def require_table(self, table: TableName, location: str, properties: Mapping[str, str]) -> None:
        """The same of a table by its metadata: of its location, and where its properties put files."""
        self.require(table, location, *(properties.get(each) or "" for each in LOCATION_PROPERTIES))


def home_of(folder: Path | None, address: str) -> Path | None:
    """The folder of a warehouse whose catalog, at an address of JDBC, is a file in it; None for any other."""
    file = address.partition("?")[0].removeprefix("jdbc:sqlite:").removeprefix("file:")
    return folder if folder is not None and file == f"{folder}/{CATALOG_FILE}" else None


def warehouse_folders(folder: Path, catalog: CatalogFile | None = None) -> WarehouseFolders:
    """Where the warehouse in a folder stands, by what its catalog holds."""
    catalog = read_catalog(folder) if catalog is None else catalog
    folders = {*catalog.folders} if catalog.folders else _infer_former_folders(folder, catalog.entries)
    same = {each for each in folders if _is_same_folder(each, folder)}
    spellings = frozenset({*same, str(folder), os.path.realpath(folder)})
    return WarehouseFolders(folder, spellings, frozenset(folders - spellings))


def require_here(folder: Path, table: TableName) -> WarehouseFolders:
    """Where a warehouse stands; UsageError if this table or view is in a former folder."""
    catalog = read_catalog(folder)
    stands = warehouse_folders(folder, catalog)
    stands.require(table, *(each.location for each in catalog.entries if each.table == table))
    return stands


def remember(folder: Path, table: TableName | None = None) -> None:
    """Store that tables are put below a folder; TryAgain if its catalog cannot be written now."""
    try:
        catalog, ways = read_catalog(folder), {str(folder), os.path.realpath(folder)}
        if ways <= {*catalog.folders}:
            return
        with begin_change(folder / CATALOG_FILE) as connection:
            catalog = catalog_contents(connection)
            folders = (
                {*catalog.folders} if catalog.folders else _infer_former_folders(folder, catalog.entries)
            )
            replace_folders(connection, folders | ways)
    except sqlite3.Error as stop:
        what = f"the catalog of the warehouse {folder}" + (f", for {table}" if table else "")
        raise no_room_by(getattr(stop, "sqlite_errorname", ""), what) or TryAgain(
            "catalog-busy",
            f"Cannot write to {what}: {stop}.",
            "Nothing was written; send it again.",
        ) from None


def remember_if_writable(folder: Path | None) -> None:
    """The same of an embedded warehouse that can be written; reading one needs no right to write."""
    with suppress(TryAgain, OSError):
        if folder is not None and (folder / CATALOG_FILE).exists():
            remember(folder)


def replace_folders(connection: sqlite3.Connection, folders: set[str]) -> None:
    """Let a catalog remember these folders and no others."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {FOLDERS} (folder VARCHAR(1000) NOT NULL PRIMARY KEY)")
    connection.execute(f"DELETE FROM {FOLDERS}")  # noqa: S608
    rows = [[each] for each in sorted(folders)]
    connection.executemany(f"INSERT INTO {FOLDERS} (folder) VALUES (?)", rows)  # noqa: S608


def warehouse_moved(folder: Path, former: str, table: TableName) -> UsageError:
    """The error for a table in the folder where its warehouse was before."""
    return UsageError(
        WAREHOUSE_MOVED,
        f"The warehouse {folder} was copied or moved from {former}, and {table} still names its files there.",
        "Nothing was read or written; run `backstory relocate` once, so that this folder uses its own files, "
        f"or open {former} instead.",
    )


def path_spellings(location: str) -> set[str]:
    """The ways in which a path may be written: as it is, without detours, and without links."""
    bare = bare_path(location)
    if not bare.startswith("/"):  # no file of this machine
        return {bare}
    return {bare.rstrip("/") or "/", os.path.normpath(bare), os.path.realpath(bare)}


def bare_path(location: str) -> str:
    """The path of a location of this machine, without its scheme; nothing in it is encoded."""
    if not location.startswith("file:"):
        return location
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/") if path.startswith("//") else path


def enclosing_folders(ways: set[str], folders: frozenset[str]) -> Iterator[str]:
    """Those of the folders that a path, in one of its spellings, is below."""
    for folder in folders:
        if any(_is_below(way, folder) for way in ways):
            yield folder


def _is_below(way: str, folder: str) -> bool:
    return way == folder or way.startswith(folder.rstrip("/") + "/")


def _is_same_folder(one: str, other: Path) -> bool:
    """Whether two paths are one folder, under whatever name or mount."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def _infer_former_folders(folder: Path, entries: list[CatalogEntry]) -> set[str]:
    """The former folders of a warehouse whose catalog remembers none, by its tables' locations.

    A location elsewhere is in a former folder if the same file, or metadata that names the table's former
    place, is here at the same place; otherwise its owner put the table there.
    """
    here = frozenset({str(folder), os.path.realpath(folder)})
    former: set[str] = set()
    for entry in entries:
        ways = path_spellings(entry.location)
        if not any(enclosing_folders(ways, here)) and not any(enclosing_folders(ways, frozenset(former))):
            former |= set(filter(None, [_former_folder_of(folder, entry.location)]))
    return former


def _former_folder_of(folder: Path, location: str) -> str | None:
    parts = Path(bare_path(location)).parts
    if parts[:1] != ("/",):
        return None
    for start in range(2, len(parts) - _AT_LEAST + 1):
        former, file = Path(*parts[:start]), Path(folder, *parts[start:])
        if file.is_file() or any(
            _names_place(each, former.joinpath(*parts[start:-2])) for each in _metadata_files(file)
        ):
            return str(former)
    return None


def _metadata_files(file: Path) -> list[Path]:
    return sorted(file.parent.glob(METADATA_FILES)) if file.parent.is_dir() else []


def _names_place(metadata: Path, place: Path) -> bool:
    """Whether a metadata file says that its table is in a place."""
    with suppress(OSError, ValueError):
        document = json.loads(metadata.read_text("utf-8"))
        return isinstance(document, dict) and bare_path(str(document.get("location"))).rstrip("/") == str(
            place
        )
    return False
