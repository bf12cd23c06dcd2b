"""The relocation of a table: its metadata for the folder in which its warehouse is now.

New files of metadata, manifests and deletes are written next to the old ones. These do not change, and hold
until the catalog names the new metadata. A new file has the old one's name and a mark. A second attempt uses
the same mark, and so overwrites the files of the first. Iceberg's procedure `rewrite_table_path` is of no use
here: it reads files at the paths in the metadata, in the former folder.
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

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.errors import Failed, UsageError
from backstory.model.table import TableName
from backstory.stores.embedded_catalog import LOCATION_PROPERTIES, WarehouseFolders, bare_path
from backstory.stores.iceberg.data_files import FILE_PATH, POSITION_IN_FILE
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import script
from backstory.stores.refusals import file_garbled, file_lost

_AVRO: Final = "org.apache.avro"
_FILE_PATH: Final = 2147483546  # the field of delete files whose bounds are paths
_READER: Final = f"""
{_AVRO}.file.DataFileReader reader = new {_AVRO}.file.DataFileReader(
  new java.io.File(path), new {_AVRO}.generic.GenericDatumReader());
"""
# Returns a line for each file: kind, status, content, format, whether it is encrypted, and its path.
_PATHS: Final = f"""
StringBuilder text = new StringBuilder();
{_READER}
try {{
  while (reader.hasNext()) {{
    {_AVRO}.generic.GenericRecord entry = ({_AVRO}.generic.GenericRecord) reader.next();
    if (entry.getSchema().getField("manifest_path") != null) {{
      text.append("manifest\\t\\t\\t\\t").append(
          entry.getSchema().getField("key_metadata") != null && entry.get("key_metadata") != null)
        .append('\\t').append(entry.get("manifest_path")).append('\\n');
      continue;
    }}
    {_AVRO}.generic.GenericRecord file = ({_AVRO}.generic.GenericRecord) entry.get("data_file");
    Object content = file.getSchema().getField("content") == null ? null : file.get("content");
    Object hidden = file.getSchema().getField("referenced_data_file") == null
      ? null : file.get("referenced_data_file");
    text.append("file\\t").append(entry.get("status")).append('\\t').append(content == null ? "0" : content)
      .append('\\t').append(file.get("file_format")).append('\\t')
      .append(file.get("key_metadata") != null).append('\\t').append(file.get("file_path")).append('\\n');
    if (hidden != null) text.append("hidden\\t\\t\\t\\tfalse\\t").append(hidden).append('\\n');
  }}
}} finally {{ reader.close(); }}
return text.toString();
"""
_REWRITE: Final = f"""
java.util.Map moves = new java.util.HashMap();
String[] lines = text.split("\\n");
for (int place = 0; place < lines.length; place++) {{
  String[] parts = lines[place].split("\\t", 3);
  if (parts.length == 3) moves.put(parts[0], parts);
}}
{_READER}
{_AVRO}.Schema schema = reader.getSchema();
{_AVRO}.file.DataFileWriter writer = new {_AVRO}.file.DataFileWriter(
  new {_AVRO}.generic.GenericDatumWriter(schema));
for (java.util.Iterator keys = reader.getMetaKeys().iterator(); keys.hasNext();) {{
  String key = (String) keys.next();
  if (!key.startsWith("avro.")) writer.setMeta(key, reader.getMeta(key));
}}
String codec = reader.getMetaString("avro.codec");
writer.setCodec({_AVRO}.file.CodecFactory.fromString(codec == null ? "null" : codec));
writer.create(schema, new java.io.File(target));
try {{
  while (reader.hasNext()) {{
    {_AVRO}.generic.GenericRecord entry = ({_AVRO}.generic.GenericRecord) reader.next();
    boolean list = entry.getSchema().getField("manifest_path") != null;
    {_AVRO}.generic.GenericRecord file =
      list ? entry : ({_AVRO}.generic.GenericRecord) entry.get("data_file");
    String[] names = list ? new String[] {{ "manifest_path" }}
      : new String[] {{ "file_path", "referenced_data_file" }};
    for (int place = 0; place < names.length; place++) {{
      if (file.getSchema().getField(names[place]) == null || file.get(names[place]) == null) continue;
      String[] move = (String[]) moves.get(file.get(names[place]).toString());
      if (move == null) continue;
      file.put(names[place], new {_AVRO}.util.Utf8(move[1]));
      if (place == 0 && !move[2].isEmpty())
        file.put(list ? "manifest_length" : "file_size_in_bytes", Long.valueOf(move[2]));
    }}
    boolean hides = !list && file.getSchema().getField("content") != null
      && Integer.valueOf(1).equals(file.get("content"));
    String[] bounds = hides ? new String[] {{ "lower_bounds", "upper_bounds" }} : new String[0];
    for (int place = 0; place < bounds.length; place++) {{
      java.util.List all = (java.util.List) file.get(bounds[place]);
      if (all == null) continue;
      for (java.util.Iterator each = all.iterator(); each.hasNext();) {{
        {_AVRO}.generic.GenericRecord bound = ({_AVRO}.generic.GenericRecord) each.next();
        if (!Integer.valueOf({_FILE_PATH}).equals(bound.get("key"))) continue;
        java.nio.ByteBuffer value =
          (java.nio.ByteBuffer) ((java.nio.ByteBuffer) bound.get("value")).duplicate();
        byte[] bytes = new byte[value.remaining()];
        value.get(bytes);
        String[] move = (String[]) moves.get(new String(bytes, "UTF-8"));
        if (move == null) each.remove();
        else bound.put("value", java.nio.ByteBuffer.wrap(move[1].getBytes("UTF-8")));
      }}
    }}
    writer.append(entry);
  }}
}} finally {{ writer.close(); reader.close(); }}
return null;
"""
_JAVA_TEXT: Final = "java.lang.String"


@dataclass(frozen=True, slots=True)
class AvroEntry:
    """A file that a manifest or a manifest list names; of kind `hidden` one whose rows a vector hides."""

    kind: str
    live: bool
    content: int
    format: str
    encrypted: bool
    location: str


def read_entries(jvm: Any, file: Path) -> list[AvroEntry]:
    """The files that a manifest, or a manifest list, names."""
    lines: str = script(jvm, _PATHS, _JAVA_TEXT, path=_JAVA_TEXT)(str(file))
    entries = []
    for line in lines.split("\n")[:-1]:
        kind, status, content, format_, encrypted, location = line.split("\t", 5)
        entries.append(
            AvroEntry(kind, status != "2", int(content or 0), format_, encrypted == "true", location)
        )
    return entries


def rewrite_avro(jvm: Any, file: Path, target: Path, moves: Mapping[str, tuple[str, int | None]]) -> None:
    """Write a manifest or manifest list with new locations and sizes of its files, from `moves`.

    A bound that is the path of any other file is left out: it would no longer be a bound.
    """
    lines = (f"{old}\t{new}\t{'' if size is None else size}" for old, (new, size) in moves.items())
    types = {"path": _JAVA_TEXT, "target": _JAVA_TEXT, "text": _JAVA_TEXT}
    script(jvm, _REWRITE, "java.lang.Object", **types)(str(file), str(target), "\n".join(lines))


REFERENCED: Final = "referenced-data-file"
_MAGIC: Final = b"PFA1"
_TAIL: Final = 12  # the bytes after the payload: its length, flags, and the magic
Move = Callable[[str], str]


def rewrite_vectors(file: Path, target: Path, move: Move) -> None:
    """Rewrite a Puffin file of deletion vectors: only its footer contains paths, so offsets do not change."""
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
    """Rewrite a Parquet file of positions, sorted by the new paths; returns new paths by old ones."""
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


def paths_in(file: Path) -> list[str]:
    """The data files whose rows a Parquet file of positions hides."""
    return list(dict.fromkeys(pq.read_table(file, columns=[FILE_PATH])[FILE_PATH].to_pylist()))


def not_relocatable(file: Path) -> Failed:
    """The error for a file that cannot be rewritten."""
    return Failed(
        "not-relocatable",
        f"The file {file.name} cannot be rewritten for another folder.",
        "Nothing was changed; run `backstory maintain` in the former folder, then copy that again.",
    )


ENDINGS: Final = (".gz.metadata.json", ".metadata.json.gz", ".metadata.json")
POSITIONS: Final = 1  # the content of position delete files and deletion vectors
# With backstory's own property that is a path: the folder of a dataset's manifest.
PATH_PROPERTIES: Final = (*LOCATION_PROPERTIES, "backstory.odf.folder")
_MARK: Final = re.compile(r"-r[0-9a-f]{8}$")
_STATISTICS: Final = {"statistics": "statistics-path", "partition-statistics": "statistics-path"}


@dataclass(frozen=True, slots=True)
class TableRelocation:
    """The relocation of one table or view, with its progress.

    `java` returns the JVM that reads and writes Avro. A `dry_run` checks everything and writes nothing.
    `moves` are new locations by old ones, with the new size if it differs. `written` are the new files, and
    `replaced` the files in this folder that they replace. `present` are checked locations. `outside` are the
    table's files in other folders, which stay there.
    """

    table: TableName
    folders: WarehouseFolders
    mark: str
    java: Callable[[], Any]
    dry_run: bool = False
    moves: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    replaced: set[Path] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)

    def relocate(self, location: str) -> str:
        """Write new metadata for the table or view with metadata at `location`; returns its new location."""
        metadata = self._read_json(location)
        for snapshot in metadata.get("snapshots") or []:
            self._relocate_snapshot(snapshot)
        for entry in metadata.get("metadata-log") or []:
            former = entry["metadata-file"]
            if self.folders.former_of(former) is not None and self._present_file(former).exists():
                self._write_metadata(former, self._read_json(former), former=True)
        return self._write_metadata(location, metadata)

    def _write_metadata(self, location: str, metadata: dict[str, Any], *, former: bool = False) -> str:
        """Write new metadata; files that only `former` metadata names may be missing.

        The metadata log leaves out files outside of the folder: Iceberg deletes those in it, one by one.
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
        manifests = self._read_entries(location)
        for manifest in manifests:
            if manifest.location not in self.moves:
                self._relocate_manifest(manifest.location)
        self._write_avro(location, manifests)

    def _relocate_manifest(self, location: str) -> None:
        files, moves = self._read_entries(location), dict[str, tuple[str, int | None]]()
        for file in files:
            if file.encrypted:
                raise not_relocatable(Path(file.location))
            if file.kind == "file" and file.content == POSITIONS and file.live:
                moves |= {old: (new, None) for old, new in self._relocate_deletes(file).items()}
            elif file.kind == "file" and file.live:
                self._check_location(file.location)
        self._write_avro(location, files, moves)

    def _relocate_deletes(self, file: AvroEntry) -> dict[str, str]:
        """Relocate a delete file; returns new paths by old ones of the data files that it names."""
        vectors, inside = file.format.upper() == "PUFFIN", dict[str, str]()
        if not vectors and file.format.upper() != "PARQUET":
            raise not_relocatable(Path(file.location))

        def write(old: Path, new: Path) -> None:
            if vectors:
                rewrite_vectors(old, new, self._new_location)
            else:
                inside.update(rewrite_positions(old, new, self._new_location))

        if self.folders.former_of(file.location) is not None:
            if not vectors or file.location not in self.moves:
                self._choose_name(file.location)
                self._write(file.location, write)
        elif not vectors:  # its owner put it elsewhere, with its data files
            inside.update({path: path for path in paths_in(Path(bare_path(file.location)))})
            if any(self.folders.former_of(path) for path in inside):
                raise not_relocatable(Path(file.location))
        return inside

    def _write_avro(
        self,
        location: str,
        files: Iterable[AvroEntry],
        more: Mapping[str, tuple[str, int | None]] | None = None,
    ) -> None:
        moves = dict(more or {})
        for file in files:
            moves[file.location] = self.moves.get(file.location, (self._new_location(file.location), None))
        self._choose_name(location)
        self._write(location, lambda old, new: rewrite_avro(self.java(), old, new, moves))

    def _read_entries(self, location: str) -> list[AvroEntry]:
        file = self._require(location)
        with translate_faults(self.table):
            entries = read_entries(self.java(), file)
        self._note_outside(entry.location for entry in entries if entry.live)
        return entries

    def _note_outside(self, locations: Iterable[str]) -> None:
        self.outside.update(location for location in locations if not self._is_within(location))

    def _is_within(self, location: str) -> bool:
        return self.folders.former_of(location) is not None or self.folders.is_here(location)

    def _read_json(self, location: str) -> dict[str, Any]:
        file = self._require(location)
        try:
            metadata = read_metadata(file)
        except (OSError, ValueError, EOFError):
            raise file_garbled(self.table, str(file)) from None
        if metadata.get("encryption-keys"):
            raise not_relocatable(file)
        return metadata

    def _check_location(self, location: str) -> str:
        """The new location of a file that keeps its name; raises an error if it does not exist here."""
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
        """Choose the new name of a file that is rewritten."""
        if location not in self.moves:
            place = self.folders.present_location(location)
            folder, _, name = place.rpartition("/")
            stem, ending = _split_ending(name)
            self.moves[location] = (f"{folder}/{_MARK.sub('', stem)}-r{self.mark}{ending}", None)

    def _write(self, location: str, write: Callable[[Path, Path], object]) -> str:
        """Rewrite a file in its folder under its new name; returns its new location."""
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
    """The content of a metadata file; ValueError if it is not one."""
    content = file.read_bytes()
    metadata = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    if not isinstance(metadata, dict) or "location" not in metadata:
        raise ValueError(file.name)
    return metadata


def name_mark(folder: Path, location: str) -> str:
    """The ending of new files' names, which is the same for a second attempt."""
    return hashlib.sha256(f"{folder}\n{location}".encode()).hexdigest()[:8]


def _split_ending(name: str) -> tuple[str, str]:
    """The stem and the ending of a file's name."""
    ending = next((suffix for suffix in ENDINGS if name.endswith(suffix)), Path(name).suffix)
    return name[: len(name) - len(ending)], ending


def _require_inside(folder: Path, place: Path) -> None:
    """Raise UsageError if a file of the warehouse is outside of it, for example because of a link."""
    root = os.path.realpath(folder)
    if not os.path.realpath(place).startswith(root.rstrip("/") + "/"):
        raise UsageError(
            "linked-folder",
            f"{place} is outside of the warehouse {folder}, or a link that leads there.",
            "Nothing was changed; replace links with copies, then run it again.",
        )


def _sync_to_disk(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
