"""Manifests and lists of manifests with other paths in them, by Avro's own reader and writer.

Iceberg's procedure `rewrite_table_path` reads each file where the metadata says that it lies: in the former
folder, where the original's are, or none. These are read where they lie now. All else in them stays: the
schema is the file's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backstory.stores.iceberg.jvm import script

_AVRO: Final = "org.apache.avro"
_FILE_PATH: Final = 2147483546  # the field of delete files whose bounds are paths
_READER: Final = f"""
{_AVRO}.file.DataFileReader reader = new {_AVRO}.file.DataFileReader(
  new java.io.File(path), new {_AVRO}.generic.GenericDatumReader());
"""
# A line for each file that is named: kind, status, content, format, whether it is encrypted, and its path.
_PATHS: Final = f"""
StringBuilder told = new StringBuilder();
{_READER}
try {{
  while (reader.hasNext()) {{
    {_AVRO}.generic.GenericRecord entry = ({_AVRO}.generic.GenericRecord) reader.next();
    if (entry.getSchema().getField("manifest_path") != null) {{
      told.append("manifest\\t\\t\\t\\t").append(
          entry.getSchema().getField("key_metadata") != null && entry.get("key_metadata") != null)
        .append('\\t').append(entry.get("manifest_path")).append('\\n');
      continue;
    }}
    {_AVRO}.generic.GenericRecord file = ({_AVRO}.generic.GenericRecord) entry.get("data_file");
    Object content = file.getSchema().getField("content") == null ? null : file.get("content");
    Object hidden = file.getSchema().getField("referenced_data_file") == null
      ? null : file.get("referenced_data_file");
    told.append("file\\t").append(entry.get("status")).append('\\t').append(content == null ? "0" : content)
      .append('\\t').append(file.get("file_format")).append('\\t')
      .append(file.get("key_metadata") != null).append('\\t').append(file.get("file_path")).append('\\n');
    if (hidden != null) told.append("hidden\\t\\t\\t\\tfalse\\t").append(hidden).append('\\n');
  }}
}} finally {{ reader.close(); }}
return told.toString();
"""
_REWRITE: Final = f"""
java.util.Map moves = new java.util.HashMap();
String[] lines = told.split("\\n");
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
_TEXT: Final = "java.lang.String"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a manifest or a list of them names; `hidden` is one whose rows a vector hides."""

    kind: str
    live: bool
    content: int
    format: str
    encrypted: bool
    location: str


def named_files(jvm: Any, file: Path) -> list[NamedFile]:
    """What a manifest, or a list of manifests, names."""
    told: str = script(jvm, _PATHS, _TEXT, path=_TEXT)(str(file))
    found = []
    for line in told.split("\n")[:-1]:
        kind, status, content, format_, encrypted, location = line.split("\t", 5)
        found.append(
            NamedFile(kind, status != "2", int(content or 0), format_, encrypted == "true", location)
        )
    return found


def rewrite(jvm: Any, file: Path, target: Path, moves: Mapping[str, tuple[str, int | None]]) -> None:
    """Write a manifest or a list anew; `moves` are the new places and sizes of what it names.

    A bound that is the path of no such file goes: it would no longer be one.
    """
    lines = (f"{old}\t{new}\t{'' if size is None else size}" for old, (new, size) in moves.items())
    types = {"path": _TEXT, "target": _TEXT, "told": _TEXT}
    script(jvm, _REWRITE, "java.lang.Object", **types)(str(file), str(target), "\n".join(lines))
