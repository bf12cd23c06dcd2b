"""The relocation of a table: new metadata for the current folder of its warehouse.

New metadata, manifest and delete files are written next to the old files. The old files do not change, and
are valid until the catalog names the new metadata. A new file has the old one's name and a mark. A second
attempt uses the same mark, and so overwrites the first attempt's files. Iceberg's procedure
`rewrite_table_path` cannot be used here, because it reads files at the paths in the metadata, in the former
folder.
"""

import gzip
import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.exceptions import ResolveError

from backstory.errors import Failed, UsageError
from backstory.model.table import TableName
from backstory.stores.embedded_catalog import LOCATION_PROPERTIES, WarehouseFolders, bare_path
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.metadata.table_metadata import (
    DELETED,
    FILE_PATH,
    PATH_FIELD,
    POSITION_IN_FILE,
    POSITIONS,
    VECTOR,
    IncompleteFile,
    PyicebergFile,
    entries_of,
    file_fields,
    manifests_of,
    parse_metadata,
)
from backstory.stores.port import file_garbled, file_lost
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.io import InputFile
    from pyiceberg.manifest import ManifestFile

# New locations by old ones, with the new size if it differs.
Moves = Mapping[str, tuple[str, int | None]]
# The errors of decoders for damaged content.
_DAMAGED: Final = (EOFError, KeyError, SystemError, ValueError, struct.error, zlib.error)


def _open_avro(file: Path) -> AvroFile[Any]:
    """The records of a manifest or manifest list, with all fields of its writer's schema."""
    return AvroFile[Any](cast("InputFile", PyicebergFile(TableFiles(), str(file))))


def _names(struct: Any) -> list[str]:
    return [field.name for field in struct.fields]


def rewrite_avro(file: Path, target: Path, moves: Moves) -> None:
    """Write a manifest or manifest list with the new locations and sizes of its files.

    Its header, with the schema of its writer, does not change. A bound of position deletes is kept only if it
    is the path of a moved file. Any other bound may not hold for the new paths.
    """
    with _open_avro(file) as records, target.open("wb") as sink:
        names, encoder = _names(records.schema), BinaryEncoder(sink)
        is_list, writer = "manifest_path" in names, construct_writer(records.schema)
        construct_writer(META_SCHEMA).write(encoder, records.header)
        content, count = BytesIO(), 0
        for record in records:
            if is_list:
                _move(record, names, "manifest_path", "manifest_length", moves)
            else:
                fields = _names(records.schema.find_type("data_file"))
                named = record[names.index("data_file")]
                _move(named, fields, "file_path", "file_size_in_bytes", moves)
                _move(named, fields, "referenced_data_file", None, moves)
                _move_bounds(named, fields, moves)
            writer.write(BinaryEncoder(content), record)
            count += 1
        packed, codec = content.getvalue(), records.header.compression_codec()
        if codec is not None:
            packed, _ = codec.compress(packed)
        if count:
            encoder.write_int(count)
            encoder.write_bytes(packed)
            encoder.write(records.header.sync)


def _move(record: Any, names: Sequence[str], path: str, size: str | None, moves: Moves) -> None:
    """Give a record the new location in the field `path`, and the new size if it differs."""
    place = names.index(path) if path in names else None
    if place is None or record[place] not in moves:
        return
    record[place], moved_size = moves[record[place]]
    if size is not None and moved_size is not None:
        record[names.index(size)] = moved_size


def _move_bounds(named: Any, names: Sequence[str], moves: Moves) -> None:
    """Give position deletes new bounds for the paths that they contain."""
    if "content" not in names or named[names.index("content")] != POSITIONS:
        return
    for name in ("lower_bounds", "upper_bounds"):
        bounds = named[names.index(name)] or {}
        if (path := bounds.pop(PATH_FIELD, b"").decode()) in moves:
            bounds[PATH_FIELD] = moves[path][0].encode()


REFERENCED: Final = "referenced-data-file"
_MAGIC: Final = b"PFA1"
_TAIL: Final = 12  # the bytes after the payload: its length, flags, and the magic
Move = Callable[[str], str]


def rewrite_vectors(file: Path, target: Path, move: Move) -> None:
    """Rewrite a Puffin file of deletion vectors. Only its footer contains paths, so offsets do not change."""
    content = file.read_bytes()
    (length,) = struct.unpack("<i", content[-_TAIL:-8])
    flags, start = content[-8:-4], len(content) - _TAIL - length
    if content[:4] != _MAGIC or content[-4:] != _MAGIC or content[start - 4 : start] != _MAGIC:
        raise not_relocatable(file)
    if flags != bytes(4):
        raise not_relocatable(file)  # a compressed footer, which no known writer of vectors makes
    footer = json.loads(content[start : start + length])
    for blob in footer["blobs"]:
        properties = blob.get("properties") or {}
        if REFERENCED in properties:
            properties[REFERENCED] = move(properties[REFERENCED])
    payload = json.dumps(footer, ensure_ascii=False, separators=(",", ":")).encode()
    target.write_bytes(content[:start] + payload + struct.pack("<i", len(payload)) + flags + _MAGIC)


def rewrite_positions(file: Path, target: Path, move: Move) -> dict[str, str]:
    """Rewrite a Parquet file of position deletes with new paths, by which its rows are then sorted.

    Returns new paths by old paths.
    """
    with pq.ParquetFile(file) as parquet:
        groups = parquet.metadata.num_row_groups
        rows = parquet.read()
        compression = parquet.metadata.row_group(0).column(0).compression if groups else "ZSTD"
    paths = rows[FILE_PATH].to_pylist()
    moves = {path: move(path) for path in dict.fromkeys(paths)}
    index, path_field = rows.schema.get_field_index(FILE_PATH), rows.schema.field(FILE_PATH)
    rows = rows.set_column(index, path_field, pa.array([moves[path] for path in paths], path_field.type))
    rows = rows.sort_by([(FILE_PATH, "ascending"), (POSITION_IN_FILE, "ascending")])
    pq.write_table(rows, target, compression=compression, store_schema=False)
    return moves


def not_relocatable(file: Path) -> Failed:
    """The error for a file that cannot be rewritten."""
    return Failed(
        "not-relocatable",
        f"The file {file.name} cannot be rewritten for another folder.",
        "Nothing was changed; run `backstory maintain` in the former folder, then copy that again.",
    )


ENDINGS: Final = (".gz.metadata.json", ".metadata.json.gz", ".metadata.json")
# The properties that are paths, including backstory's own: the folder of a dataset's manifest.
PATH_PROPERTIES: Final = (*LOCATION_PROPERTIES, "backstory.odf.folder")
_MARK: Final = re.compile(r"-r[0-9a-f]{8}$")
_STATISTICS: Final = {"statistics": "statistics-path", "partition-statistics": "statistics-path"}


@dataclass(frozen=True, slots=True)
class TableRelocation:
    """The relocation of a table or view, with its progress.

    A `dry_run` checks everything and writes nothing. `moves` maps old locations to new locations, with the
    new size if it differs. `written` are the new files, and `replaced` are the files in this folder that they
    replace. `present` are checked locations. `outside` are the table's files in other folders, which stay
    there.
    """

    table: TableName
    folders: WarehouseFolders
    mark: str
    dry_run: bool = False
    moves: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    replaced: set[Path] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)

    def relocate(self, location: str) -> str:
        """Write new metadata for the table or view with metadata at `location`. Returns the new location."""
        metadata = self._read_json(location)
        for snapshot in metadata.get("snapshots") or []:
            self._relocate_snapshot(snapshot)
        for entry in metadata.get("metadata-log") or []:
            former = entry["metadata-file"]
            if self.folders.former_of(former) is not None and self._present_file(former).exists():
                self._write_metadata(former, self._read_json(former), former=True)
        return self._write_metadata(location, metadata)

    def _write_metadata(self, location: str, metadata: dict[str, Any], *, former: bool = False) -> str:
        """Write new metadata. Files that only `former` metadata names may be missing.

        The metadata log omits files outside of the folder, because Iceberg later deletes the files in the log
        one by one.
        """
        relocated = self._new_location if former else self._check_location
        self._choose_name(location)
        log = [
            {**entry, "metadata-file": self._new_location(entry["metadata-file"])}
            for entry in metadata.get("metadata-log") or []
            if self._is_within(entry["metadata-file"]) and self._present_file(entry["metadata-file"]).exists()
        ]
        changed = {
            **metadata,
            "location": self._new_location(str(metadata["location"])),
            **({"metadata-log": log} if "metadata-log" in metadata else {}),
        }
        if metadata.get("snapshots"):
            changed["snapshots"] = [
                {**snapshot, "manifest-list": self._new_location(snapshot["manifest-list"])}
                for snapshot in metadata["snapshots"]
            ]
        for name, path in _STATISTICS.items():
            if metadata.get(name):
                changed[name] = [
                    {**statistics, path: relocated(statistics[path])} for statistics in metadata[name]
                ]
        if metadata.get("properties"):
            properties = metadata["properties"].items()
            folders = (value for name, value in properties if name in LOCATION_PROPERTIES)
            self._note_outside(() if former else folders)
            changed["properties"] = {
                name: self._new_location(value) if name in PATH_PROPERTIES else value
                for name, value in properties
            }
        content = json.dumps(changed, ensure_ascii=False).encode()
        zipped = ".gz" in Path(bare_path(location)).name
        return self._write(
            location, lambda _, to: to.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
        )

    def _relocate_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        location = snapshot.get("manifest-list")
        if location is None:
            raise not_relocatable(Path(str(self.table)))  # an early Iceberg's snapshot, without a list
        if location in self.moves:
            return
        manifests = self._read_avro(location, lambda: manifests_of(snapshot, self._open))
        self._note_outside(manifest.manifest_path for manifest in manifests)
        for manifest in manifests:
            if manifest.manifest_path not in self.moves:
                self._relocate_manifest(manifest)
        self._write_avro(location, [manifest.manifest_path for manifest in manifests])

    def _relocate_manifest(self, manifest: "ManifestFile") -> None:
        location, moves = manifest.manifest_path, dict[str, tuple[str, int | None]]()
        entries = self._read_avro(location, lambda: entries_of(manifest, self._open))
        files = [(status != DELETED, file_fields(file)) for status, file in entries]
        hidden = [path for _, file in files if (path := file["referenced_data_file"]) is not None]
        self._note_outside([*hidden, *(file["file_path"] for live, file in files if live)])
        for live, file in files:
            path = file["file_path"]
            if file["key_metadata"] is not None:
                raise not_relocatable(Path(path))
            if live and file["content"].value == POSITIONS:
                deletes = self._relocate_deletes(path, file["file_format"].value)
                moves |= {old: (new, None) for old, new in deletes.items()}
            elif live:
                self._check_location(path)
        self._write_avro(location, [*hidden, *(file["file_path"] for _, file in files)], moves)

    def _relocate_deletes(self, location: str, format_: str) -> dict[str, str]:
        """Relocate a delete file. Returns new paths by old paths for the data files that it names."""
        vectors, inside = format_ == VECTOR, dict[str, str]()
        if not vectors and format_ != "PARQUET":
            raise not_relocatable(Path(location))

        def write(old: Path, new: Path) -> None:
            if vectors:
                rewrite_vectors(old, new, self._new_location)
            else:
                inside.update(rewrite_positions(old, new, self._new_location))

        if self.folders.former_of(location) is not None:
            if not vectors or location not in self.moves:
                self._choose_name(location)
                self._write(location, write)
        elif not vectors:  # its owner put it elsewhere, with its data files
            rows = pq.read_table(bare_path(location), columns=[FILE_PATH])
            inside.update({path: path for path in rows[FILE_PATH].unique().to_pylist()})
            if any(self.folders.former_of(path) for path in inside):
                raise not_relocatable(Path(location))
        return inside

    def _write_avro(self, location: str, files: Iterable[str], more: Moves | None = None) -> None:
        moves = dict(more or {})
        for file in files:
            moves[file] = self.moves.get(file, (self._new_location(file), None))
        self._choose_name(location)
        self._write(location, lambda old, new: rewrite_avro(old, new, moves))

    def _open(self, location: str) -> IO[bytes]:
        return self._present_file(location).open("rb")

    def _read_avro(self, location: str, read: Callable[[], Iterable[Any]]) -> list[Any]:
        """The entries of a manifest or manifest list. The errors of `read` do not name the table."""
        file = self._require(location)
        try:
            return list(read())
        except (Failed, IncompleteFile, ResolveError, *_DAMAGED):
            raise file_garbled(self.table, str(file)) from None
        except OSError:
            with translate_faults(self.table):
                raise

    def _note_outside(self, locations: Iterable[str]) -> None:
        self.outside.update(location for location in locations if not self._is_within(location))

    def _is_within(self, location: str) -> bool:
        return self.folders.former_of(location) is not None or self.folders.is_here(location)

    def _read_json(self, location: str) -> dict[str, Any]:
        file = self._require(location)
        try:
            metadata = read_metadata(file)
        except (OSError, ValueError):
            raise file_garbled(self.table, str(file)) from None
        if metadata.get("encryption-keys"):
            raise not_relocatable(file)
        return metadata

    def _check_location(self, location: str) -> str:
        """The new location of a file that keeps its name. Raises Failed if the file is missing here."""
        if location not in self.present and self.folders.former_of(location) is not None:
            self._require(location)
            self.present.add(location)
        self._note_outside([location])
        return self._new_location(location)

    def _require(self, location: str) -> Path:
        file = self._present_file(location)
        if not file.is_file():
            raise file_lost(self.table, str(file))
        if self.folders.former_of(location) is not None:
            _require_inside(self.folders.folder, file)
        return file

    def _present_file(self, location: str) -> Path:
        return Path(bare_path(self.folders.present_location(location)))

    def _new_location(self, location: str) -> str:
        """The location in this folder, with the file's new name if it has one."""
        return self.moves[location][0] if location in self.moves else self.folders.present_location(location)

    def _choose_name(self, location: str) -> None:
        """Choose the new name of a rewritten file."""
        if location not in self.moves:
            place = self.folders.present_location(location)
            folder, _, name = place.rpartition("/")
            ending = next((suffix for suffix in ENDINGS if name.endswith(suffix)), Path(name).suffix)
            stem = _MARK.sub("", name[: len(name) - len(ending)])
            self.moves[location] = (f"{folder}/{stem}-r{self.mark}{ending}", None)

    def _write(self, location: str, write: Callable[[Path, Path], object]) -> str:
        """Rewrite a file in its folder under its new name. Returns its new location."""
        old, (new, _) = self._require(location), self.moves[location]
        target = Path(bare_path(new))
        _require_inside(self.folders.folder, target)
        self.written.add(target)
        if self.dry_run:
            return new
        try:
            with translate_faults(self.table):
                write(old, target)
                _sync_to_disk(target)
        except (ValueError, KeyError, struct.error):
            raise not_relocatable(old) from None
        self.moves[location] = (new, target.stat().st_size)
        self.replaced.add(old)
        return new


def read_metadata(file: Path) -> dict[str, Any]:
    """The content of a metadata file. Raises ValueError for any other file."""
    metadata = parse_metadata(file.read_bytes())
    if "location" not in metadata:
        raise ValueError(file.name)
    return metadata


def name_mark(folder: Path, location: str) -> str:
    """The suffix of the names of new files, which is the same for a second attempt."""
    return hashlib.sha256(f"{folder}\n{location}".encode()).hexdigest()[:8]


def _require_inside(folder: Path, place: Path) -> None:
    """Raise UsageError if a file of the warehouse is outside of it, for example because of a link."""
    root = os.path.realpath(folder)
    if not os.path.realpath(place).startswith(root.rstrip("/") + "/"):
        raise UsageError(
            "linked-folder",
            f"{place} is outside the warehouse {folder}, or is a link that leads outside it.",
            "Nothing was changed; replace links with copies, then run it again.",
        )


def _sync_to_disk(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
