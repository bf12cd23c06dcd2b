"""Relocate a warehouse whose folder was copied or moved: all of its tables, or none.

The metadata of each table is rewritten beside the old. Then one transaction switches the catalog to the new
files and forgets the former folder; the old files are removed last. A kill before that transaction has
changed nothing that anybody reads, and a second run writes the same files again; after it everything is done,
except that unused files may remain. The catalog is locked for writers throughout; readers do not wait.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
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
    """What was relocated, or would be in a dry run; `files` is how many files of metadata are written.

    `warnings` name each table that has files outside of the folder: these are in no copy of the folder.
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
    verbose: bool = False,
) -> Relocated:
    """Relocate an embedded warehouse whose folder was copied or moved: all of its tables, or none.

    Until then its tables are refused. `from_` is the former folder; by default what the warehouse remembers.
    Raises UsageError if there is no embedded warehouse, or no table in `from_`; Failed, with nothing changed,
    if a file of a table is missing here.
    """
    settings, former = load(warehouse, config), from_
    folder = _folder(settings)
    stands = _whereabouts_of(folder, read_catalog(folder), former)
    if not _moved_entries(stands, read_catalog(folder)):
        if former is not None:
            raise UsageError(
                "nothing-moved",
                f"No table of the warehouse {folder} is below {former}.",
                "Name the folder that the error `warehouse-moved` names, or no folder.",
            )
        return Relocated(str(folder), applied=not dry_run)
    java = cache(lambda: _java(settings, verbose=verbose))
    java()  # which takes long: no writer need wait for it
    with _lock_catalog(folder / CATALOG_FILE, dry_run=dry_run) as connection:
        catalog = catalog_contents(connection)
        stands = _whereabouts_of(folder, catalog, former)
        _refuse_split(stands, catalog)
        files = {
            each: _files_of(each, stands, java, dry_run=dry_run) for each in _moved_entries(stands, catalog)
        }
        with _remove_on_failure(files.values()):
            places = {each: rewriting.relocate(each.location) for each, rewriting in files.items()}
            if not dry_run:
                _switch(connection, stands, catalog, places)
    if not dry_run:
        _remove(files.values())
    return Relocated(
        str(folder),
        sorted({stands.former_of(each.location) or "" for each in files}),
        [str(each.table) for each in files if each.kind == TABLE],
        [str(each.table) for each in files if each.kind != TABLE],
        sum(len(each.written) for each in files.values()),
        applied=not dry_run,
        warnings=sorted(_warnings(stands, catalog, files)),
    )


def _warnings(
    stands: WarehouseFolders, catalog: CatalogFile, files: Mapping[CatalogEntry, TableRelocation]
) -> Iterator[str]:
    """What is not in this folder, by table: original and copy share it."""
    where = f"are outside of {stands.folder}"
    shared = "they are not in a copy of the folder, and the original's table uses them too"
    for entry in catalog.entries:
        if entry.kind == TABLE and entry not in files and not stands.is_here(entry.location):
            yield f"All files of {entry.table} {where}: {shared}."
    for entry, each in files.items():
        if each.outside:
            yield f"{len(each.outside)} files or folders of {entry.table} {where}: {shared}."


def _folder(settings: Settings) -> Path:
    """The folder of the warehouse; UsageError if its catalog is not a file in it, or is linked elsewhere."""
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


def _whereabouts_of(folder: Path, catalog: CatalogFile, former: str | Path | None) -> WarehouseFolders:
    """Where the warehouse is and was; `former`, if given, is the only former folder."""
    stands = warehouse_folders(folder, catalog)
    if former is None:
        return stands
    return replace(stands, former=frozenset({str(Path(former).absolute())} - stands.spellings))


def _moved_entries(stands: WarehouseFolders, catalog: CatalogFile) -> list[CatalogEntry]:
    return [each for each in catalog.entries if stands.former_of(each.location) is not None]


def _refuse_split(stands: WarehouseFolders, catalog: CatalogFile) -> None:
    """Raise UsageError for a table with files in a former folder, and its metadata elsewhere."""
    for each in catalog.entries:
        if each.kind == TABLE and stands.former_of(each.location) is None:
            with suppress(OSError, ValueError):  # unreadable where it is: not because of the move
                metadata = read_metadata(Path(bare_path(each.location)))
                properties = metadata.get("properties") or {}
                places = (
                    str(metadata.get("location")),
                    *(properties.get(name, "") for name in LOCATION_PROPERTIES),
                )
                if any(stands.former_of(place) for place in places):
                    raise UsageError(
                        "linked-folder",
                        f"The metadata of {each.table} is outside of the warehouse, and its files are in it.",
                        "Nothing was changed; keep them together in the former folder, then copy that again.",
                    )


def _java(settings: Settings, *, verbose: bool) -> Any:
    from backstory.spark.late_session import LateSpark
    from backstory.stores.iceberg.jvm import gateway

    return gateway(LateSpark(settings, verbose=verbose))


@contextmanager
def _lock_catalog(file: Path, *, dry_run: bool) -> Iterator[sqlite3.Connection]:
    """The catalog, locked for other writers."""
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


def _files_of(entry: CatalogEntry, stands: WarehouseFolders, java: Any, *, dry_run: bool) -> TableRelocation:
    return TableRelocation(entry.table, stands, name_mark(stands.folder, entry.location), java, dry_run)


@contextmanager
def _remove_on_failure(files: Iterable[TableRelocation]) -> Iterator[None]:
    """A refusal leaves no file behind."""
    try:
        yield
    except BaseException:
        _unlink(path for each in files if not each.dry_run for path in each.written)
        raise


def _switch(
    connection: sqlite3.Connection,
    stands: WarehouseFolders,
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
            connection.execute(statement, [stands.present_location(place or ""), row])
    folders = {*catalog.folders} or {*warehouse_folders(stands.folder, catalog).former}
    replace_folders(connection, (folders - stands.former) | stands.spellings)


def _remove(files: Iterable[TableRelocation]) -> None:
    """Remove the files that were replaced; one that cannot be removed harms nobody."""
    written = {path for each in files for path in each.written}
    _unlink({path for each in files for path in each.replaced} - written)


def _unlink(paths: Iterable[Path]) -> None:
    for each in paths:
        with suppress(OSError):
            each.unlink()
