"""A table's metadata for the folder where its warehouse is now: new files beside the old ones.

Nothing that is there is changed: until the catalog names the new metadata, the old stand as they stood. New
files have the old one's name and a mark, the same in a second attempt, which so writes over what the first
left.
"""

import gzip
import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.refusals import file_garbled, file_lost
from backstory.stores.relocation import avro_files
from backstory.stores.relocation.delete_files import paths_in, rewrite_positions, rewrite_vectors, unreadable
from backstory.stores.whereabouts import PLACES, Whereabouts, bare_path

ENDINGS: Final = (".gz.metadata.json", ".metadata.json.gz", ".metadata.json")
POSITIONS: Final = 1  # the content of files that hide rows by position
# backstory's own properties that are paths: the folder of a dataset's manifest.
PATHS: Final = (*PLACES, "backstory.odf.folder")
_MARK: Final = re.compile(r"-r[0-9a-f]{8}$")
_FILES: Final = {"statistics": "statistics-path", "partition-statistics": "statistics-path"}


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table or view: `moves` are new locations, and sizes where these are other ones.

    `java` gives the Java that reads and writes Avro. With `dry_run` all is checked, and nothing written.
    `written` are the new files, `replaced` those of this folder that nobody will name any more; `outside` are
    files of the table that lie elsewhere, and stay there.
    """

    table: TableName
    stands: Whereabouts
    mark: str
    java: Callable[[], Any]
    dry_run: bool = False
    moves: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    replaced: set[Path] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)

    def relocate(self, location: str) -> str:
        """The location of the new metadata of a table or view, by that of its present metadata."""
        metadata = self._json(location)
        for snapshot in metadata.get("snapshots") or []:
            self._snapshot(snapshot)
        for each in metadata.get("metadata-log") or []:
            former = each["metadata-file"]
            if self.stands.former_of(former) is not None and self._here(former).exists():
                self._metadata(former, self._json(former), former=True)
        return self._metadata(location, metadata)

    def _metadata(self, location: str, metadata: dict[str, Any], *, former: bool = False) -> str:
        """Write new metadata; what `former` ones name may be gone.

        Former metadata outside of the folder is no more named: Iceberg deletes what it names, one by one.
        """
        place = self._moved if former else self._checked
        self._name(location)
        logged = [
            {**each, "metadata-file": self._moved(each["metadata-file"])}
            for each in metadata.get("metadata-log") or []
            if self._is_within(each["metadata-file"]) and self._here(each["metadata-file"]).exists()
        ]
        changed = {
            **metadata,
            "location": self._moved(str(metadata["location"])),
            **({"metadata-log": logged} if "metadata-log" in metadata else {}),
        }
        if metadata.get("snapshots"):
            changed["snapshots"] = [
                {**each, "manifest-list": self._moved(each["manifest-list"])}
                for each in metadata["snapshots"]
            ]
        for name, path in _FILES.items():
            if metadata.get(name):
                changed[name] = [{**each, path: place(each[path])} for each in metadata[name]]
        if metadata.get("properties"):
            told = (value for name, value in metadata["properties"].items() if name in PLACES)
            self._name_outside(() if former else told)
            changed["properties"] = {
                name: self._moved(value) if name in PATHS else value
                for name, value in metadata["properties"].items()
            }
        content = json.dumps(changed, ensure_ascii=False).encode()
        zipped = ".gz" in Path(bare_path(location)).name
        return self._write(
            location, lambda _, to: to.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
        )

    def _snapshot(self, snapshot: Mapping[str, Any]) -> None:
        location = snapshot.get("manifest-list")
        if location is None:
            raise unreadable(Path(str(self.table)))  # of Iceberg's first days: without lists
        if location in self.moves:
            return
        manifests = self._named(location)
        for each in manifests:
            if each.location not in self.moves:
                self._manifest(each.location)
        self._avro(location, manifests)

    def _manifest(self, location: str) -> None:
        files, moves = self._named(location), dict[str, tuple[str, int | None]]()
        for each in files:
            if each.encrypted:
                raise unreadable(Path(each.location))
            if each.kind == "file" and each.content == POSITIONS and each.live:
                moves |= {old: (new, None) for old, new in self._deletes(each).items()}
            elif each.kind == "file" and each.live:
                self._checked(each.location)
        self._avro(location, files, moves)

    def _deletes(self, file: avro_files.NamedFile) -> dict[str, str]:
        """Move a file that hides rows; gives the paths that it has inside."""
        vectors, inside = file.format.upper() == "PUFFIN", dict[str, str]()
        if not vectors and file.format.upper() != "PARQUET":
            raise unreadable(Path(file.location))

        def write(old: Path, new: Path) -> None:
            if vectors:
                rewrite_vectors(old, new, self._moved)
            else:
                inside.update(rewrite_positions(old, new, self._moved))

        if self.stands.former_of(file.location) is not None:
            if not vectors or file.location not in self.moves:
                self._name(file.location)
                self._write(file.location, write)
        elif not vectors:  # its owner put it elsewhere, with the files that it is of
            inside.update({each: each for each in paths_in(Path(bare_path(file.location)))})
            if any(self.stands.former_of(each) for each in inside):
                raise unreadable(Path(file.location))
        return inside

    def _avro(
        self,
        location: str,
        files: Iterable[avro_files.NamedFile],
        more: Mapping[str, tuple[str, int | None]] | None = None,
    ) -> None:
        moves = dict(more or {})
        for each in files:
            moves[each.location] = self.moves.get(each.location, (self._moved(each.location), None))
        self._name(location)
        self._write(location, lambda old, new: avro_files.rewrite(self.java(), old, new, moves))

    def _named(self, location: str) -> list[avro_files.NamedFile]:
        file = self._require(location)
        with translate_faults(self.table):
            named = avro_files.named_files(self.java(), file)
        self._name_outside(each.location for each in named if each.live)
        return named

    def _name_outside(self, locations: Iterable[str]) -> None:
        self.outside.update(each for each in locations if not self._is_within(each))

    def _is_within(self, location: str) -> bool:
        return self.stands.former_of(location) is not None or self.stands.is_here(location)

    def _json(self, location: str) -> dict[str, Any]:
        file = self._require(location)
        try:
            metadata = metadata_of(file)
        except (OSError, ValueError, EOFError):
            raise file_garbled(self.table, str(file)) from None
        if metadata.get("encryption-keys"):
            raise unreadable(file)
        return metadata

    def _checked(self, location: str) -> str:
        """The present location of a file that must exist and keeps its name."""
        if location not in self.checked and self.stands.former_of(location) is not None:
            self._require(location)
            self.checked.add(location)
        self._name_outside([location])
        return self._moved(location)

    def _require(self, location: str) -> Path:
        file = self._here(location)
        if not file.is_file():
            raise file_lost(self.table, str(file))
        if self.stands.former_of(location) is not None:
            _require_inside(self.stands.folder, file)
        return file

    def _here(self, location: str) -> Path:
        return Path(bare_path(self.stands.moved_to(location)))

    def _moved(self, location: str) -> str:
        """Where a location is now, under its new name if it has one."""
        return self.moves[location][0] if location in self.moves else self.stands.moved_to(location)

    def _name(self, location: str) -> None:
        """Choose the new name of a file that is rewritten."""
        if location not in self.moves:
            place = self.stands.moved_to(location)
            folder, _, name = place.rpartition("/")
            stem, ending = _parted(name)
            self.moves[location] = (f"{folder}/{_MARK.sub('', stem)}-r{self.mark}{ending}", None)

    def _write(self, location: str, write: Callable[[Path, Path], object]) -> str:
        """Rewrite a file in its folder under its new name; gives its new location."""
        old, (new, _) = self._require(location), self.moves[location]
        target = Path(bare_path(new))
        _require_inside(self.stands.folder, target)
        self.written.add(target)
        if self.dry_run:
            return new
        try:
            with translate_faults(self.table):
                write(old, target)
                _to_disk(target)
        except (ValueError, KeyError, struct.error):
            raise unreadable(old) from None
        self.moves[location] = (new, target.stat().st_size)
        self.replaced.add(old)
        return new


def metadata_of(file: Path) -> dict[str, Any]:
    """The content of a metadata file; ValueError if it is not one."""
    content = file.read_bytes()
    metadata = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    if not isinstance(metadata, dict) or "location" not in metadata:
        raise ValueError(file.name)
    return metadata


def mark_of(folder: Path, location: str) -> str:
    """What the names of new files end with: a second attempt of the same names the same."""
    return hashlib.sha256(f"{folder}\n{location}".encode()).hexdigest()[:8]


def _parted(name: str) -> tuple[str, str]:
    """The stem and the ending of a file's name."""
    ending = next((each for each in ENDINGS if name.endswith(each)), Path(name).suffix)
    return name[: len(name) - len(ending)], ending


def _require_inside(folder: Path, place: Path) -> None:
    """Raise UsageError if a file of the warehouse is outside of it, for example by a link."""
    root = os.path.realpath(folder)
    if not os.path.realpath(place).startswith(root.rstrip("/") + "/"):
        raise UsageError(
            "linked-folder",
            f"{place} is outside of the warehouse {folder}, or a link that leads there.",
            "Nothing was changed; replace links with copies, then run it again.",
        )


def _to_disk(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
