"""Where a table has its files, and who else has some there: nothing is deleted outside its own folder."""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from backstory.errors import Refused
from backstory.stores.iceberg.jvm import texts_of
from backstory.stores.iceberg.scripts import Neighbour, neighbours_of
from backstory.stores.iceberg.store import Store, StoredTable

BLIND, FOLDER = "BLIND", "FOLDER"
# Storages whose address names a server that a location may leave out, and schemes of one storage.
_SERVED: Final = re.compile(r"^(?:hdfs|viewfs)://[^/]*")
_ONE: Final = {"s3a": "s3", "s3n": "s3"}
SHOWN: Final = 10


def bare_location(location: str) -> str:
    """A location as it compares with others: a path of this machine whole and without a scheme."""
    if location.startswith("file:"):
        return os.path.normpath("/" + location.removeprefix("file:").lstrip("/"))
    scheme, mark, rest = _SERVED.sub("", location).partition("://")
    if mark:
        return f"{_ONE.get(scheme, scheme)}://{rest.rstrip('/')}"
    return os.path.abspath(scheme)  # noqa: PTH100 - a location, which need not be a path


def is_inside(location: str, folder: str) -> bool:
    """Whether a location is a folder or lies somewhere below it."""
    one, other = bare_location(location), bare_location(folder)
    return one == other or one.startswith(f"{other.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class Places:
    """The folder of a table, those that its properties have it write to, and those where it once was.

    Files below `location` alone are the table's to delete. A copy of the table in another folder has the same
    `written` folders, and those in `former` may be another's by now.
    """

    location: str
    written: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    def owns(self, file: str) -> bool:
        """Whether a file that the table's metadata names is its own to delete."""
        return is_inside(file, self.location)


def places_of(iceberg: Any) -> Places:
    """The places of a table, as Iceberg's object for it tells them."""
    location, metadata = str(iceberg.location()), iceberg.operations().current()
    told = [text for name, text in texts_of(iceberg.properties()).items() if _is_place(name)]
    written = {bare_location(each): each for each in told if not is_inside(each, location)}
    files = [str(metadata.metadataFileLocation()), *(str(each.file()) for each in metadata.previousFiles())]
    folders = (each.rpartition("/")[0].removesuffix("/metadata") for each in files)
    used = (location, *written.values())
    former = {bare_location(each): each for each in folders if not any(is_inside(each, one) for one in used)}
    return Places(location, tuple(written.values()), tuple(former.values()))


def _is_place(name: str) -> bool:
    return name.startswith("write.") and name.endswith(".path")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else has files where a table has its own: whether all could be looked at, and shared places."""

    blind: bool
    shared: Collection[str]


def surroundings(store: Store, table: StoredTable, files: Collection[str]) -> Surroundings:
    """What the other tables and views of the catalog have where this one has files.

    Raises Refused where another lies in or over its folder, or names one of its `files`.
    """
    places = places_of(table.iceberg)
    own = [each for each in files if places.owns(each)]
    found = neighbours_of(store.jvm, store.iceberg(), store.identifier(table.shape.table), own)
    near = sorted({each.name for each in _neighbours_inside(found, [places.location], set(own))})
    if near:
        raise Refused(
            "shared-folder",
            f"Other tables or views of the catalog have files in or over the folder of {table.shape.table}, "
            f"or read its files: {', '.join(near[:SHOWN])}.",
            "Nothing was written; give each a folder of its own (copy its rows to a new table elsewhere, and "
            "drop the old one), then run it again.",
            near,
        )
    elsewhere = (*places.written, *places.former)
    shared = [each for each in elsewhere if any(True for _ in _neighbours_inside(found, [each], ()))]
    return Surroundings(any(each.kind == BLIND for each in found), shared)


def _neighbours_inside(
    found: Iterable[Neighbour], folders: Collection[str], files: Collection[str]
) -> Iterator[Neighbour]:
    real = [_resolve_links(each) for each in folders]
    for each in found:
        if each.kind == BLIND:
            continue
        place, over = _resolve_links(each.place), each.kind == FOLDER
        within = (is_inside(place, one) or (over and is_inside(one, place)) for one in real)
        if each.place in files or any(within):
            yield each


def _resolve_links(location: str) -> str:
    """A folder of this machine without links."""
    told = bare_location(location)
    return told if "://" in told else os.path.realpath(told)
