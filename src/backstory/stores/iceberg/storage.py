"""The files of a table in its storage: their locations, the files that metadata names, and strays.

Only files in the table's own folder are ever deleted. Another table may use any other file.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from backstory.errors import Refused, TryAgain
from backstory.spark.connect import Py4JError
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.scripts import NamedFile, Neighbour, files_of_history, neighbours_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.table_metadata import parse_metadata

BLIND, FOLDER = "BLIND", "FOLDER"
# Storages whose locations may omit the server, and schemes that mean the same storage.
_HDFS: Final = re.compile(r"^(?:hdfs|viewfs)://[^/]*")
_ONE: Final = {"s3a": "s3", "s3n": "s3"}
SHOWN: Final = 10


def bare_location(location: str) -> str:
    """A location in comparable form. A path on this machine is absolute and has no scheme."""
    if location.startswith("file:"):
        return os.path.normpath("/" + location.removeprefix("file:").lstrip("/"))
    scheme, mark, rest = _HDFS.sub("", location).partition("://")
    if mark:
        return f"{_ONE.get(scheme, scheme)}://{rest.rstrip('/')}"
    return os.path.abspath(scheme)  # noqa: PTH100 - a location, which need not be a path


def is_inside(location: str, folder: str) -> bool:
    """Whether a location is the folder, or below it at any depth."""
    path, root = bare_location(location), bare_location(folder)
    return path == root or path.startswith(f"{root.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of a table: its location, the `written` folders in its properties, and `former` folders.

    The table may only delete files below `location`. A copy of the table in another folder has the same
    `written` folders, and `former` folders may be another table's by now.
    """

    location: str
    written: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    def owns(self, file: str) -> bool:
        """Whether the table may delete a file that its metadata names."""
        return is_inside(file, self.location)


def places_of(table: IcebergTable) -> Places:
    """The folders of a table."""
    location, properties = table.metadata["location"], table.properties.items()
    folders = [text for name, text in properties if name.startswith("write.") and name.endswith(".path")]
    written = {bare_location(folder): folder for folder in folders if not is_inside(folder, location)}
    log = table.metadata.get("metadata-log") or ()
    files = [table.location, *(entry["metadata-file"] for entry in log)]
    past = (file.rpartition("/")[0].removesuffix("/metadata") for file in files)
    used = (location, *written.values())
    former = {
        bare_location(folder): folder for folder in past if not any(is_inside(folder, one) for one in used)
    }
    return Places(location, tuple(written.values()), tuple(former.values()))


@dataclass(frozen=True, slots=True)
class SharedFolders:
    """The folders of a table that others share. `blind` is true if another table could not be read."""

    blind: bool
    shared: Collection[str]


def shared_folders(store: IcebergStore, table: IcebergTable, files: Collection[str]) -> SharedFolders:
    """The folders that the table shares with other tables and views of the catalog.

    Raises Refused if another table or view is in or above the table's own folder, or names one of `files`.
    """
    places = places_of(table)
    own = [file for file in files if places.owns(file)]
    neighbours = neighbours_of(store.jvm, store.iceberg(), store.identifier(table.shape.table), own)
    near = sorted(
        {neighbour.name for neighbour in _neighbours_inside(neighbours, [places.location], set(own))}
    )
    if near:
        raise Refused(
            "shared-folder",
            f"Other tables or views of the catalog have files in or above the folder of {table.shape.table}, "
            f"or read its files: {', '.join(near[:SHOWN])}.",
            "Nothing was written; give each a folder of its own (copy its rows to a new table elsewhere, and "
            "drop the old one), then run it again.",
            near,
        )
    elsewhere = (*places.written, *places.former)
    shared = [
        folder for folder in elsewhere if any(True for _ in _neighbours_inside(neighbours, [folder], ()))
    ]
    return SharedFolders(any(neighbour.kind == BLIND for neighbour in neighbours), shared)


def _neighbours_inside(
    neighbours: Iterable[Neighbour], folders: Collection[str], files: Collection[str]
) -> Iterator[Neighbour]:
    """The neighbours that are in or above these folders, or that use one of these files."""
    real = [_resolve_links(folder) for folder in folders]
    for neighbour in neighbours:
        if neighbour.kind == BLIND:
            continue
        place, over = _resolve_links(neighbour.place), neighbour.kind == FOLDER
        within = (is_inside(place, one) or (over and is_inside(one, place)) for one in real)
        if neighbour.place in files or any(within):
            yield neighbour


def _resolve_links(location: str) -> str:
    """A location with its links on this machine resolved."""
    path = bare_location(location)
    return path if "://" in path else os.path.realpath(path)


# A writer names its files within this time. No writer will name an older file.
WRITING: Final = timedelta(days=1)
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Names of files as Iceberg's and backstory's writers choose them.
_ROWS: Final = re.compile(rf"(?:\d{{5,}}-\d+-)?{_UUID}(?:-\d+)*\.parquet")
_DELETE_FILES: Final = re.compile(rf"(?:\d{{5,}}-\d+-)?{_UUID}(?:-\d+)*-deletes\.(?:parquet|puffin)")
_LISTS: Final = re.compile(rf"(?:snap-\d+-\d+-{_UUID}|{_UUID}-m\d+)\.avro")
_STATISTICS: Final = re.compile(rf"(?:partition-stats-)?(?:\d+-)?{_UUID}\.(?:stats|puffin|parquet)")
_METADATA: Final = re.compile(r"[^/]+(?:\.gz)?\.metadata\.json(?:\.gz)?")
# Files of catalogs and programs, which contain no rows.
_NOTHING: Final = re.compile(r"version-hint\.text|_SUCCESS|\..*\.crc")


class ListedFile(NamedTuple):
    """A file in a storage: its location, its size in bytes, and its modification time."""

    location: str
    bytes: int
    written: datetime


class ReachableFiles(NamedTuple):
    """Locations of files by kind: `data`, `deletes`, `statistics`, and `metadata` (including manifests)."""

    data: frozenset[str] = frozenset()
    deletes: frozenset[str] = frozenset()
    statistics: frozenset[str] = frozenset()
    metadata: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """The locations of every kind."""
        return frozenset().union(*self)

    def only(self, locations: Collection[str]) -> "ReachableFiles":
        """The reachable files, restricted to these locations."""
        return ReachableFiles(*(part & frozenset(locations) for part in self))


@dataclass(frozen=True, slots=True)
class UnnamedFiles:
    """Listed files that the table's history does not name: files proven to be its `own`, and `others`.

    The table's own files are in the table's folder and have names that Iceberg's or backstory's writers
    choose. No file in that folder shows that another table wrote to it. Its own metadata has the table's
    uuid. Metadata in `following` was written after the table's current metadata, so a catalog may be about to
    name it.
    """

    own: ReachableFiles
    others: frozenset[str]
    following: frozenset[str]


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that a table's snapshots name `now`, and the files that only its `past` metadata names.

    `files` has all of these files by location, and `rows` has Iceberg's objects for data files by location.
    """

    now: ReachableFiles
    past: ReachableFiles
    files: Mapping[str, NamedFile]
    rows: Any


def named_files(store: IcebergStore, table: IcebergTable, *, former: bool = False) -> NamedFiles:
    """The files that any snapshot names, and if `former` is true, the files that former metadata names."""
    objects = store.jvm.java.util.HashMap()
    with translate_faults(table.shape.table):
        files = files_of_history(store.jvm, table.iceberg, objects, former=former)
    now, past = (_files_by_kind([file for file in files if file.past is then]) for then in (False, True))
    return NamedFiles(now, past, {file.location: file for file in files}, objects)


def _files_by_kind(files: Iterable[NamedFile]) -> ReachableFiles:
    kinds: dict[str, set[str]] = {}
    for file in files:
        kinds.setdefault("DELETES" if file.kind in HIDING else file.kind, set()).add(file.location)
    return ReachableFiles(*(frozenset(kinds.get(kind, ())) for kind in _KINDS))


HIDING: Final = ("POSITION_DELETES", "EQUALITY_DELETES")
_KINDS: Final = ("DATA", "DELETES", "STATISTICS", "METADATA")


def listed_files(table: IcebergTable, shared: Collection[str] = ()) -> dict[str, ListedFile] | None:
    """The files in the table's current and former folders, except `shared` folders, by bare location.

    Returns None if the storage cannot list files.
    """
    places = places_of(table)
    listed = _list_folder(table, places.location)
    at = table.location
    if listed is None or (is_inside(at, places.location) and bare_location(at) not in listed):
        return None  # a storage that spells locations in another way than metadata does
    for folder in (*places.written, *places.former):
        if folder not in shared:
            listed |= _list_folder(table, folder) or {}
    return listed


def _list_folder(table: IcebergTable, folder: str) -> dict[str, ListedFile] | None:
    files = {}
    try:
        listed = table.iceberg.io().listPrefix(f"{folder.rstrip('/')}/").iterator()
        while listed.hasNext():
            file = listed.next()
            written = datetime.fromtimestamp(int(file.createdAtMillis()) / 1000, UTC)
            location = str(file.location())
            files[bare_location(location)] = ListedFile(location, int(file.size()), written)
    except Py4JError:
        return None
    return files


def strays(
    table: IcebergTable, listed: Mapping[str, ListedFile], around: SharedFolders, *named: ReachableFiles
) -> UnnamedFiles:
    """The listed files that are not among the `named` files."""
    known = {bare_location(location) for reachable in named for location in reachable.all}
    unknown = {file for file in listed if file not in known and not _NOTHING.fullmatch(_name(file))}
    folder, uuid = bare_location(table.metadata["location"]), table.metadata.get("table-uuid")
    metadata = {file: _origin(table, listed[file]) for file in unknown if is_metadata(file)}
    is_alone = not around.blind and all(origin.uuid in {uuid, TORN} for origin in metadata.values())
    data = {file for file in unknown if is_inside(file, f"{folder}/data")}
    in_metadata = {file for file in unknown if file.rpartition("/")[0] == f"{folder}/metadata"}
    own = ReachableFiles(
        _with_names_like(_ROWS, data),
        _with_names_like(_DELETE_FILES, data),
        _with_names_like(_STATISTICS, in_metadata),
        _with_names_like(_LISTS, in_metadata) | frozenset(in_metadata & metadata.keys()),
    )
    if not is_alone:
        own = own.only({name for name, origin in metadata.items() if origin.uuid == uuid})
    now = bare_location(table.location)
    following = frozenset(
        name for name, origin in metadata.items() if now == origin.former or origin.uuid == TORN
    )
    return UnnamedFiles(own, frozenset(unknown - own.all), following)


def _with_names_like(pattern: "re.Pattern[str]", files: Iterable[str]) -> frozenset[str]:
    return frozenset(file for file in files if pattern.fullmatch(_name(file)))


def is_metadata(location: str) -> bool:
    """Whether a location has the name of a metadata file."""
    return _METADATA.fullmatch(_name(location)) is not None


def _name(location: str) -> str:
    return location.rpartition("/")[2]


class _Origin(NamedTuple):
    """The table's uuid in a metadata file, and the location of the metadata before it.

    The uuid is TORN if the file is incomplete, because its writer is still writing it or was killed.
    """

    uuid: str
    former: str = ""


TORN: Final = "torn"
_BEGINS: Final = (b"", b"{", b"\x1f")


def _origin(table: IcebergTable, file: ListedFile) -> _Origin:
    """The origin of a metadata file. It has no uuid if the file cannot be read."""
    content = table.read_file(file.location, 0, file.bytes)
    try:
        metadata = parse_metadata(content)
        log = metadata.get("metadata-log") or [{}]
        return _Origin(str(metadata.get("table-uuid")), bare_location(str(log[-1].get("metadata-file"))))
    except (ValueError, AttributeError):
        return _Origin(TORN if content[:1] in _BEGINS else "")


def refuse_writers(table: IcebergTable, listed: Mapping[str, ListedFile], own: Iterable[str]) -> None:
    """Raise TryAgain if some of these stray files are so new that their writer may still name them."""
    now = datetime.now(UTC)
    young = sorted(file for file in own if now - listed[file].written < WRITING)
    if young:
        ends = max(listed[file].written for file in young) + WRITING
        raise TryAgain(
            "writer-at-work",
            f"{table.shape.table} has {len(young)} new files that no metadata names: a program is writing to "
            "it, or was killed.",
            f"Nothing was written; stop it, and try again after {ends:%Y-%m-%dT%H:%M:%SZ}, or without "
            "those files.",
            [_name(file) for file in young[:SHOWN]],
        )


def file_digests(store: IcebergStore, table: IcebergTable, locations: Iterable[str]) -> list[dict[str, Any]]:
    """The path, size and SHA-256 of each file that exists."""
    io, digests = table.iceberg.io(), []
    digest = store.jvm.org.apache.commons.codec.digest.DigestUtils
    for location in sorted(locations):
        file = io.newInputFile(location)
        if file.exists():
            known = {"path": bare_location(location), "bytes": int(file.getLength())}
            with closing(file.newStream()) as stream:
                digests.append({**known, "sha256": digest.sha256Hex(stream)})
    return digests
