"""The files that a table's metadata names, and those where it has its files that no metadata names."""

import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from backstory.errors import TryAgain
from backstory.stores.iceberg.data_files import download
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.places import Surroundings, bare_location, is_inside, places_of
from backstory.stores.iceberg.scripts import NamedFile, files_of_history
from backstory.stores.iceberg.store import Store, StoredTable

# Who writes to a table names its files in the end. A file that is older has lost its writer.
WRITING: Final = timedelta(days=1)
SHOWN: Final = 10
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Names as the writers of Iceberg and of backstory give them.
_ROWS: Final = re.compile(rf"(?:\d{{5,}}-\d+-)?{_UUID}(?:-\d+)*\.parquet")
_HIDING: Final = re.compile(rf"(?:\d{{5,}}-\d+-)?{_UUID}(?:-\d+)*-deletes\.(?:parquet|puffin)")
_LISTS: Final = re.compile(rf"(?:snap-\d+-\d+-{_UUID}|{_UUID}-m\d+)\.avro")
_STATISTICS: Final = re.compile(rf"(?:partition-stats-)?(?:\d+-)?{_UUID}\.(?:stats|puffin|parquet)")
_METADATA: Final = re.compile(r"[^/]+(?:\.gz)?\.metadata\.json(?:\.gz)?")
# What catalogs and programs leave beside files of rows, and which holds none.
_NOTHING: Final = re.compile(r"version-hint\.text|_SUCCESS|\..*\.crc")


class ListedFile(NamedTuple):
    """A file of a storage: its location there, its bytes, and when it was written."""

    location: str
    bytes: int
    written: datetime


@dataclass(frozen=True, slots=True)
class ReachableFiles:
    """Locations: rows of `data`, `deletes` that hide some, `statistics`, and `metadata` that names them."""

    data: frozenset[str]
    deletes: frozenset[str]
    statistics: frozenset[str]
    metadata: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Every one of them."""
        return self.data | self.deletes | self.statistics | self.metadata

    def only(self, locations: Collection[str]) -> "ReachableFiles":
        """Those of them that are among these."""
        kept = frozenset(locations)
        return ReachableFiles(
            self.data & kept, self.deletes & kept, self.statistics & kept, self.metadata & kept
        )


@dataclass(frozen=True, slots=True)
class Strays:
    """Listed files that the table's history does not name: those that are proven its own, and all others.

    Its own have a name as writers give it, in the table's folder, where nothing shows that another table
    wrote there, too; its metadata has the table's uuid. Metadata in `following` was written after what the
    table has now, so that a catalog may be about to name it; all other came too late for that.
    """

    own: ReachableFiles
    others: frozenset[str]
    following: frozenset[str]


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """What the snapshots of a table name `now`, and what only its `past` metadata did.

    `rows` are Iceberg's objects for the files of rows by their locations.
    """

    now: ReachableFiles
    past: ReachableFiles
    files: Mapping[str, NamedFile]
    rows: Any


def named_files(store: Store, table: StoredTable, *, former: bool = False) -> NamedFiles:
    """The files that any snapshot of the table names, and with `former` those of the metadata before, too."""
    objects = store.jvm.java.util.HashMap()
    with translate_faults(table.shape.table):
        told = files_of_history(store.jvm, table.iceberg, objects, former=former)
    now, past = (_files_by_kind([each for each in told if each.past is then]) for then in (False, True))
    return NamedFiles(now, past, {each.location: each for each in told}, objects)


def _files_by_kind(files: Iterable[NamedFile]) -> ReachableFiles:
    kinds: dict[str, set[str]] = {}
    for each in files:
        kinds.setdefault("DELETES" if each.kind in HIDING else each.kind, set()).add(each.location)
    return ReachableFiles(*(frozenset(kinds.get(kind, ())) for kind in _KINDS))


HIDING: Final = ("POSITION_DELETES", "EQUALITY_DELETES")
_KINDS: Final = ("DATA", "DELETES", "STATISTICS", "METADATA")


def listed_files(table: StoredTable, shared: Collection[str] = ()) -> dict[str, ListedFile] | None:
    """The files where the table has or had its own, but for `shared` places; None where storage lists none.

    They are known by their bare locations.
    """
    places = places_of(table.iceberg)
    found = _list_folder(table, places.location)
    metadata = str(table.iceberg.operations().current().metadataFileLocation())
    if found is None or (is_inside(metadata, places.location) and bare_location(metadata) not in found):
        return None  # a storage that spells locations in another way than metadata does
    for each in (*places.written, *places.former):
        if each not in shared:
            found |= _list_folder(table, each) or {}
    return found


def _list_folder(table: StoredTable, folder: str) -> dict[str, ListedFile] | None:
    from py4j.protocol import Py4JError

    found = {}
    try:
        listed = table.iceberg.io().listPrefix(f"{folder.rstrip('/')}/").iterator()
        while listed.hasNext():
            each = listed.next()
            written = datetime.fromtimestamp(int(each.createdAtMillis()) / 1000, UTC)
            location = str(each.location())
            found[bare_location(location)] = ListedFile(location, int(each.size()), written)
    except Py4JError:
        return None
    return found


def strays(
    table: StoredTable, listed: Mapping[str, ListedFile], around: Surroundings, *named: ReachableFiles
) -> Strays:
    """The listed files that none of these name."""
    known = {bare_location(location) for each in named for location in each.all}
    unknown = {each for each in listed if each not in known and not _NOTHING.fullmatch(_name(each))}
    current = table.iceberg.operations().current()
    folder, uuid = bare_location(str(table.iceberg.location())), str(current.uuid())
    metadata = {each: _origin(table, listed[each]) for each in unknown if is_metadata(each)}
    alone = not around.blind and all(each.uuid in {uuid, TORN} for each in metadata.values())
    data = {each for each in unknown if is_inside(each, f"{folder}/data")}
    beside = {each for each in unknown if each.rpartition("/")[0] == f"{folder}/metadata"}
    own = ReachableFiles(
        _with_names_like(_ROWS, data),
        _with_names_like(_HIDING, data),
        _with_names_like(_STATISTICS, beside),
        _with_names_like(_LISTS, beside) | frozenset(beside & metadata.keys()),
    )
    if not alone:
        own = own.only({name for name, each in metadata.items() if each.uuid == uuid})
    now = bare_location(str(current.metadataFileLocation()))
    following = frozenset(name for name, each in metadata.items() if now == each.former or each.uuid == TORN)
    return Strays(own, frozenset(unknown - own.all), following)


def _with_names_like(pattern: "re.Pattern[str]", files: Iterable[str]) -> frozenset[str]:
    return frozenset(each for each in files if pattern.fullmatch(_name(each)))


def is_metadata(location: str) -> bool:
    """Whether a file tells of a table, by its name."""
    return _METADATA.fullmatch(_name(location)) is not None


def _name(location: str) -> str:
    return location.rpartition("/")[2]


class _Origin(NamedTuple):
    """The table of which a file of metadata tells, and the metadata before it.

    Instead of a table it is TORN where its writer has not come to the end, or was killed before it.
    """

    uuid: str
    former: str = ""


TORN: Final = "torn"
_BEGINS: Final = (b"", b"{", b"\x1f")


def _origin(table: StoredTable, file: ListedFile) -> _Origin:
    """What a file of metadata says of itself; of no table where it cannot be read."""
    content = download(table, file.location, 0, file.bytes)
    try:
        text = zlib.decompress(content, 31) if content[:2] == b"\x1f\x8b" else content
        told = json.loads(text)
        log = told.get("metadata-log") or [{}]
        return _Origin(str(told.get("table-uuid")), bare_location(str(log[-1].get("metadata-file"))))
    except (ValueError, AttributeError, zlib.error):
        return _Origin(TORN if content[:1] in _BEGINS else "")


def refuse_writers(table: StoredTable, listed: Mapping[str, ListedFile], own: Iterable[str]) -> None:
    """Raises TryAgain where stray files would go that a writer at work may be about to name."""
    now = datetime.now(UTC)
    young = sorted(each for each in own if now - listed[each].written < WRITING)
    if young:
        ends = max(listed[each].written for each in young) + WRITING
        raise TryAgain(
            "writer-at-work",
            f"{table.shape.table} has {len(young)} new files that no metadata names: a program is writing to "
            "it, or was killed.",
            f"Nothing was written; stop it, and try again after {ends:%Y-%m-%dT%H:%M:%SZ}, or without "
            "those files.",
            [_name(each) for each in young[:SHOWN]],
        )


def file_digests(store: Store, table: StoredTable, locations: Iterable[str]) -> list[dict[str, Any]]:
    """Path, bytes and SHA-256 of each file that is there."""
    io, found = table.iceberg.io(), []
    digest = store.jvm.org.apache.commons.codec.digest.DigestUtils
    for location in sorted(locations):
        file = io.newInputFile(location)
        if file.exists():
            stream = file.newStream()
            told = {"path": bare_location(location), "bytes": int(file.getLength())}
            found.append({**told, "sha256": digest.sha256Hex(stream)})
            stream.close()
    return found
