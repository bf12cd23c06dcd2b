"""Make the folder of a warehouse whole that was copied or moved: all of its tables, or none.

The metadata of each table are written anew, beside the old. Then one transaction lets the catalog name the
new ones and forget the former folder; the old go last. Killed before that transaction, nothing has changed
that anybody reads, and a second run writes the same files again; killed after it, all is done, but for files
that nobody names. The catalog is held throughout, so that nobody writes meanwhile; readers do not wait.
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
from backstory.stores.catalog_file import (
    PATIENCE,
    TABLE,
    CatalogFile,
    Entry,
    changing,
    contents,
    read,
    reading,
)
from backstory.stores.relocation.table_files import TableFiles, mark_of, metadata_of
from backstory.stores.whereabouts import PLACES, Whereabouts, bare_path, home_of, replace_folders, whereabouts

_NAMESPACES: Final = "iceberg_namespace_properties"


@dataclass(frozen=True, slots=True)
class Relocated:
    """What was made whole, or in a dry run would be; `files` is how many are written anew."""

    warehouse: str
    former: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)
    files: int = 0
    applied: bool = True

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
    """Make an embedded warehouse whole whose folder was copied or moved: all of its tables, or none.

    Until then its tables are refused. `from_` is the folder where it stood before, if that is not known.
    Raises UsageError if there is no embedded warehouse, or no table in `from_`; Failed, with nothing changed,
    if a file of a table is missing here.
    """
    settings, former = load(warehouse, config), from_
    folder = _folder(settings)
    stands = _standing(folder, read(folder), former)
    if not _moved(stands, read(folder)):
        if former is not None:
            raise UsageError(
                "nothing-moved",
                f"No table of the warehouse {folder} lies below {former}.",
                "`backstory tables` says where they lie.",
            )
        return Relocated(str(folder), applied=not dry_run)
    java = cache(lambda: _java(settings, verbose=verbose))
    java()  # which takes long, and nobody shall wait for it
    with _held(folder / CATALOG_FILE, dry_run=dry_run) as connection:
        held = contents(connection)
        stands = _standing(folder, held, former)
        _refuse_split(stands, held)
        files = {each: _files_of(each, stands, java, dry_run=dry_run) for each in _moved(stands, held)}
        with _undone_unless_whole(files.values()):
            places = {each: found.relocate(each.location) for each, found in files.items()}
            if not dry_run:
                _switch(connection, stands, held, places)
    if not dry_run:
        _remove(files.values())
    return Relocated(
        str(folder),
        sorted({found for each in files if (found := stands.former_of(each.location))}),
        [str(each.table) for each in files if each.kind == TABLE],
        [str(each.table) for each in files if each.kind != TABLE],
        sum(len(each.written) for each in files.values()),
        applied=not dry_run,
    )


def _folder(settings: Settings) -> Path:
    """The folder of the warehouse; UsageError if its catalog is no file in it, or another's too."""
    told = settings.catalogs[CATALOG]
    folder = home_of(Path(told.get("warehouse", "")), told.get("uri", "")) if told else settings.warehouse
    if folder is None or not (folder / CATALOG_FILE).is_file():
        raise UsageError(
            "no-warehouse",
            f"There is no embedded warehouse to make whole in {settings.searched}.",
            "Name the folder that was copied or moved with `warehouse=FOLDER`.",
        )
    file = folder / CATALOG_FILE
    inside = Path(os.path.realpath(file)).parent == Path(os.path.realpath(folder))
    if not inside or file.stat().st_nlink > 1:
        raise UsageError(
            "linked-folder",
            f"{file} is a link: it is the catalog of another warehouse, too.",
            "Nothing was changed; put a copy of the file in its place, then run it again.",
        )
    return folder


def _standing(folder: Path, held: CatalogFile, former: str | Path | None) -> Whereabouts:
    found = whereabouts(folder, held)
    if former is None:
        return found
    return replace(found, former=frozenset({str(Path(former).absolute())} - found.spellings))


def _moved(stands: Whereabouts, held: CatalogFile) -> list[Entry]:
    return [each for each in held.entries if stands.former_of(each.location) is not None]


def _refuse_split(stands: Whereabouts, held: CatalogFile) -> None:
    """Raise UsageError for a table of which a part lies in a former folder, and its metadata elsewhere."""
    for each in held.entries:
        if each.kind == TABLE and stands.former_of(each.location) is None:
            with suppress(OSError, ValueError):  # it cannot be read where it is: not for the move
                told = metadata_of(Path(bare_path(each.location)))
                properties = told.get("properties") or {}
                places = (str(told.get("location")), *(properties.get(name, "") for name in PLACES))
                if any(stands.former_of(place) for place in places):
                    raise UsageError(
                        "linked-folder",
                        f"The metadata of {each.table} lie outside of the warehouse, and its files in it.",
                        "Nothing was changed; move its files out of it, in the former folder, and copy anew.",
                    )


def _java(settings: Settings, *, verbose: bool) -> Any:
    from backstory.spark.late import LateSpark
    from backstory.stores.iceberg.jvm import gateway

    return gateway(LateSpark(settings, verbose=verbose))


@contextmanager
def _held(file: Path, *, dry_run: bool) -> Iterator[sqlite3.Connection]:
    """The catalog, which nobody else writes meanwhile."""
    try:
        with reading(file) if dry_run else changing(file) as connection:
            yield connection
    except sqlite3.OperationalError as stop:
        if "locked" in str(stop):
            raise TryAgain(
                "catalog-busy",
                f"Another program has written to {file} for {PATIENCE} s.",
                "Nothing was changed; run it again when that has ended.",
            ) from None
        raise Failed(
            "store-failed",
            f"{file} cannot be written: {stop}.",
            "Nothing was changed; give yourself the right to write the folder.",
        ) from None


def _files_of(entry: Entry, stands: Whereabouts, java: Any, *, dry_run: bool) -> TableFiles:
    return TableFiles(entry.table, stands, mark_of(stands.folder, entry.location), java, dry_run)


@contextmanager
def _undone_unless_whole(files: Iterable[TableFiles]) -> Iterator[None]:
    """What is refused leaves no file behind."""
    try:
        yield
    except BaseException:
        _unlink(path for each in files if not each.dry_run for path in each.written)
        raise


def _switch(
    connection: sqlite3.Connection, stands: Whereabouts, held: CatalogFile, places: Mapping[Entry, str]
) -> None:
    named = "catalog_name = ? AND table_namespace = ? AND table_name = ?"
    for entry, place in places.items():
        changed = "metadata_location = ?, previous_metadata_location = NULL"
        told = f"UPDATE iceberg_tables SET {changed} WHERE {named}"
        connection.execute(told, [place, entry.catalog, entry.table.schema, entry.table.name])
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [_NAMESPACES]).fetchone():
        asked = f"SELECT rowid, property_value FROM {_NAMESPACES} WHERE property_key = 'location'"
        for row, place in connection.execute(asked).fetchall():
            told = f"UPDATE {_NAMESPACES} SET property_value = ? WHERE rowid = ?"
            connection.execute(told, [stands.moved_to(place or ""), row])
    known = {*held.folders} or {*whereabouts(stands.folder, held).former}
    replace_folders(connection, (known - stands.former) | stands.spellings)


def _remove(files: Iterable[TableFiles]) -> None:
    """Remove what nobody names any more; what stays harms nobody."""
    written = {path for each in files for path in each.written}
    _unlink({path for each in files for path in each.replaced} - written)


def _unlink(paths: Iterable[Path]) -> None:
    for each in paths:
        with suppress(OSError):
            each.unlink()
