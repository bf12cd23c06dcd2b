"""Relocation of a warehouse whose folder was copied or moved: all of its tables, or none.

New metadata files are written next to the old files. Then one transaction switches the catalog to them, and
the old files are removed. A kill before the transaction changes nothing that is read, and a second run writes
the same files again. After the transaction, only unused files may remain. The catalog is locked for writers
throughout, but readers do not wait.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from backstory.errors import Failed, TryAgain, UsageError
from backstory.settings import CATALOG, CATALOG_FILE, Settings, load
from backstory.stores.embedded_catalog import (
    LOCATION_PROPERTIES,
    PATIENCE,
    TABLE,
    CatalogEntry,
    CatalogFile,
    WarehouseFolders,
    bare_path,
    begin_change,
    catalog_contents,
    home_of,
    open_to_read,
    read_catalog,
    replace_folders,
    warehouse_folders,
)
from backstory.stores.relocation import TableRelocation, name_mark, read_metadata

_NAMESPACES: Final = "iceberg_namespace_properties"


@dataclass(frozen=True, slots=True)
class Relocated:
    """The result of a relocation, or its plan in a dry run. `files` is the number of metadata files written.

    `warnings` name each table with files outside of the folder, which a copy of the folder does not contain.
    """

    warehouse: str
    former: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)
    files: int = 0
    applied: bool = True
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        return {name: getattr(self, name) for name in self.__slots__}


def relocate(
    warehouse: str | Path | None = None,
    *,
    from_: str | Path | None = None,
    config: str | Path | None = None,
    dry_run: bool = False,
) -> Relocated:
    """Relocate an embedded warehouse whose folder was copied or moved: all of its tables, or none.

    The tables cannot be used before the relocation. `from_` is the former folder, by default the one that the
    catalog records. Raises UsageError if there is no embedded warehouse, or no table in `from_`. Raises
    Failed, with nothing changed, if a file of a table is missing.
    """
    settings, former = load(warehouse, config), from_
    folder = _folder(settings)
    folders = _warehouse_folders_of(folder, read_catalog(folder), former)
    if not _moved_entries(folders, read_catalog(folder)):
        if former is not None:
            raise UsageError(
                "nothing-moved",
                f"No table of the warehouse {folder} is below {former}.",
                "Name the folder that the error `warehouse-moved` names, or no folder.",
            )
        return Relocated(str(folder), applied=not dry_run)
    with _lock_catalog(folder / CATALOG_FILE, dry_run=dry_run) as connection:
        catalog = catalog_contents(connection)
        folders = _warehouse_folders_of(folder, catalog, former)
        _refuse_split(folders, catalog)
        files = {
            entry: TableRelocation(entry.table, folders, name_mark(folders.folder, entry.location), dry_run)
            for entry in _moved_entries(folders, catalog)
        }
        try:
            places = {entry: rewriting.relocate(entry.location) for entry, rewriting in files.items()}
            if not dry_run:
                _switch(connection, folders, catalog, places)
        except BaseException:
            _unlink(path for file in files.values() if not dry_run for path in file.written)
            raise
    if not dry_run:
        _remove(files.values())
    return Relocated(
        str(folder),
        sorted({folders.former_of(file.location) or "" for file in files}),
        [str(file.table) for file in files if file.kind == TABLE],
        [str(file.table) for file in files if file.kind != TABLE],
        sum(len(file.written) for file in files.values()),
        applied=not dry_run,
        warnings=sorted(_warnings(folders, catalog, files)),
    )


def _warnings(
    folders: WarehouseFolders, catalog: CatalogFile, files: Mapping[CatalogEntry, TableRelocation]
) -> Iterator[str]:
    """A warning for each table with files outside of the folder, which the original and the copy share."""
    where = f"are outside of {folders.folder}"
    shared = "they are not in a copy of the folder, and the original's table uses them too"
    for entry in catalog.entries:
        if entry.kind == TABLE and entry not in files and not folders.is_here(entry.location):
            yield f"All files of {entry.table} {where}: {shared}."
    for entry, relocation in files.items():
        if relocation.outside:
            yield f"{len(relocation.outside)} files or folders of {entry.table} {where}: {shared}."


def _folder(settings: Settings) -> Path:
    """The warehouse's folder. Raises UsageError if the catalog is not a file in this folder, or is a link."""
    folder, properties = settings.warehouse, settings.catalogs[CATALOG]
    if properties:
        folder = home_of(Path(properties.get("warehouse", "")), properties.get("uri", "")) or Path()
    if folder == Path() or not (folder / CATALOG_FILE).is_file():
        raise UsageError(
            "no-warehouse",
            f"There is no embedded warehouse to relocate: {settings.location}.",
            "Name the folder that was copied or moved with `warehouse=FOLDER`.",
        )
    file = folder / CATALOG_FILE
    inside = Path(os.path.realpath(file)).parent == Path(os.path.realpath(folder))
    if not inside or file.stat().st_nlink > 1:
        raise UsageError(
            "linked-folder",
            f"{file} is a link, so it is also the catalog of another warehouse.",
            "Nothing was changed; replace the link with a copy of the file, then run it again.",
        )
    return folder


def _warehouse_folders_of(folder: Path, catalog: CatalogFile, former: str | Path | None) -> WarehouseFolders:
    """The folder of the warehouse and its former folders. `former` replaces the recorded former folders."""
    folders = warehouse_folders(folder, catalog)
    if former is None:
        return folders
    return replace(folders, former=frozenset({str(Path(former).absolute())} - folders.spellings))


def _moved_entries(folders: WarehouseFolders, catalog: CatalogFile) -> list[CatalogEntry]:
    return [entry for entry in catalog.entries if folders.former_of(entry.location) is not None]


def _refuse_split(folders: WarehouseFolders, catalog: CatalogFile) -> None:
    """Raise UsageError for a table whose files are in a former folder but whose metadata is elsewhere."""
    for entry in catalog.entries:
        if entry.kind == TABLE and folders.former_of(entry.location) is None:
            with suppress(OSError, ValueError):  # it was unreadable before the move, too
                metadata = read_metadata(Path(bare_path(entry.location)))
                properties = metadata.get("properties") or {}
                places = (
                    str(metadata.get("location")),
                    *(properties.get(name, "") for name in LOCATION_PROPERTIES),
                )
                if any(folders.former_of(place) for place in places):
                    table = entry.table
                    raise UsageError(
                        "linked-folder",
                        f"The metadata of {table} is outside of the warehouse, and its files are in it.",
                        "Nothing was changed; keep them together in the former folder, then copy that again.",
                    )


@contextmanager
def _lock_catalog(file: Path, *, dry_run: bool) -> Iterator[sqlite3.Connection]:
    """A connection to the catalog, which is locked for other writers unless this is a dry run."""
    try:
        with open_to_read(file) if dry_run else begin_change(file) as connection:
            yield connection
    except sqlite3.OperationalError as stop:
        if "locked" in str(stop):
            raise TryAgain(
                "catalog-busy",
                f"Another program has been writing to {file} for {PATIENCE} s.",
                "Nothing was changed; run it again when that program is done.",
            ) from None
        raise Failed(
            "store-failed",
            f"{file} cannot be written: {stop}.",
            "Nothing was changed; make the folder writable, then run it again.",
        ) from None


def _switch(
    connection: sqlite3.Connection,
    folders: WarehouseFolders,
    catalog: CatalogFile,
    places: Mapping[CatalogEntry, str],
) -> None:
    name = "catalog_name = ? AND table_namespace = ? AND table_name = ?"
    for entry, place in places.items():
        changes = "metadata_location = ?, previous_metadata_location = NULL"
        statement = f"UPDATE iceberg_tables SET {changes} WHERE {name}"
        connection.execute(statement, [place, entry.catalog, entry.table.schema, entry.table.name])
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [_NAMESPACES]).fetchone():
        query = f"SELECT rowid, property_value FROM {_NAMESPACES} WHERE property_key = 'location'"
        for row, place in connection.execute(query).fetchall():
            statement = f"UPDATE {_NAMESPACES} SET property_value = ? WHERE rowid = ?"
            connection.execute(statement, [folders.present_location(place or ""), row])
    recorded = {*catalog.folders} or {*warehouse_folders(folders.folder, catalog).former}
    replace_folders(connection, (recorded - folders.former) | folders.spellings)


def _remove(files: Iterable[TableRelocation]) -> None:
    """Remove the replaced files. A file that cannot be removed does no harm."""
    written = {path for file in files for path in file.written}
    _unlink({path for file in files for path in file.replaced} - written)


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
