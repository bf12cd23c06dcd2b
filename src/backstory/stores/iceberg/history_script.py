"""What names the files of a table, and of others in its catalog, in Java: every manifest is read once."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from backstory.stores.iceberg.jvm import ICEBERG, script

# The metadata of now, what its snapshots removed, and what is still there of the metadata before.
_NAMED: Final = f"""
StringBuilder told = new StringBuilder();
{ICEBERG}.TableMetadata now = (({ICEBERG}.HasTableOperations) table).operations().current();
{ICEBERG}.io.FileIO io = table.io();
java.util.Set seen = new java.util.HashSet();
java.util.List all = new java.util.ArrayList();
all.add(now);
told.append("METADATA\\t\\t\\t\\t0\\t").append(now.metadataFileLocation()).append('\\n');
for (java.util.Iterator each = now.previousFiles().iterator(); former.booleanValue() && each.hasNext();) {{
  String place = (({ICEBERG}.TableMetadata.MetadataLogEntry) each.next()).file();
  told.append("METADATA\\t\\t\\tpast\\t0\\t").append(place).append('\\n');
  if (!io.newInputFile(place).exists()) continue;
  try {{
    {ICEBERG}.TableMetadata then = {ICEBERG}.TableMetadataParser.read(io, place);
    if (then.uuid() != null && then.uuid().equals(now.uuid())) all.add(then);
  }} catch (RuntimeException unreadable) {{ }}
}}
for (java.util.Iterator times = all.iterator(); times.hasNext();) {{
  {ICEBERG}.TableMetadata metadata = ({ICEBERG}.TableMetadata) times.next();
  boolean past = metadata != now;
  String when = past ? "past\\t0\\t" : "\\t0\\t";
  for (java.util.Iterator each = metadata.statisticsFiles().iterator(); each.hasNext();)
    told.append("STATISTICS\\t\\t\\t").append(when)
      .append((({ICEBERG}.StatisticsFile) each.next()).path()).append('\\n');
  for (java.util.Iterator each = metadata.partitionStatisticsFiles().iterator(); each.hasNext();)
    told.append("STATISTICS\\t\\t\\t").append(when)
      .append((({ICEBERG}.PartitionStatisticsFile) each.next()).path()).append('\\n');
  for (java.util.Iterator each = metadata.snapshots().iterator(); each.hasNext();) {{
    {ICEBERG}.Snapshot snapshot = ({ICEBERG}.Snapshot) each.next();
    String list = snapshot.manifestListLocation();
    if (list != null) {{
      if (!seen.add(list)) continue;
      told.append("METADATA\\t\\t\\t").append(when).append(list).append('\\n');
      if (past && !io.newInputFile(list).exists()) continue;
    }}
    for (java.util.Iterator more = snapshot.allManifests(io).iterator(); more.hasNext();) {{
      {ICEBERG}.ManifestFile manifest = ({ICEBERG}.ManifestFile) more.next();
      if (!seen.add(manifest.path())) continue;
      told.append("METADATA\\t\\t\\t").append(when).append(manifest.path()).append('\\n');
      if (past && !io.newInputFile(manifest.path()).exists()) continue;
      {ICEBERG}.io.CloseableIterable rows = manifest.content() == {ICEBERG}.ManifestContent.DATA
        ? ({ICEBERG}.io.CloseableIterable) {ICEBERG}.ManifestFiles.read(manifest, io, metadata.specsById())
        : ({ICEBERG}.io.CloseableIterable) {ICEBERG}.ManifestFiles.readDeleteManifest(
            manifest, io, metadata.specsById());
      try {{
        for (java.util.Iterator entries = rows.iterator(); entries.hasNext();) {{
          {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) entries.next();
          if (!seen.add(file.location())) continue;
          told.append(file.content()).append('\\t').append(file.format()).append('\\t')
            .append(file.keyMetadata() == null ? "" : "secret").append('\\t')
            .append(past ? "past" : "").append('\\t').append(file.fileSizeInBytes()).append('\\t')
            .append(file.location()).append('\\n');
          if (file.content() == {ICEBERG}.FileContent.DATA)
            files.put(file.location(), file.copyWithoutStats());
        }}
      }} finally {{ rows.close(); }}
    }}
  }}
  if (past) continue;
  for (java.util.Iterator each = metadata.snapshots().iterator(); each.hasNext();) {{
    {ICEBERG}.Snapshot snapshot = ({ICEBERG}.Snapshot) each.next();
    Iterable[] removed = new Iterable[] {{ snapshot.removedDataFiles(io), snapshot.removedDeleteFiles(io) }};
    for (int kind = 0; kind < 2; kind++)
      for (java.util.Iterator entries = removed[kind].iterator(); entries.hasNext();) {{
        {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) entries.next();
        if (!seen.add(file.location())) continue;
        told.append(file.content()).append('\\t').append(file.format()).append('\\t')
          .append(file.keyMetadata() == null ? "" : "secret").append("\\tpast\\t")
          .append(file.fileSizeInBytes()).append('\\t').append(file.location()).append('\\n');
        if (kind == 0) files.put(file.location(), file.copyWithoutStats());
      }}
  }}
}}
return told.toString();
"""
# A line for each place of another table or view.
_NEIGHBOURS: Final = f"""
StringBuilder told = new StringBuilder();
java.util.LinkedList waiting = new java.util.LinkedList();
if (catalog instanceof {ICEBERG}.catalog.SupportsNamespaces)
  waiting.addAll((({ICEBERG}.catalog.SupportsNamespaces) catalog).listNamespaces());
else told.append("BLIND\\t\\t\\n");
while (!waiting.isEmpty()) {{
  {ICEBERG}.catalog.Namespace schema = ({ICEBERG}.catalog.Namespace) waiting.removeFirst();
  try {{ waiting.addAll((({ICEBERG}.catalog.SupportsNamespaces) catalog).listNamespaces(schema)); }}
  catch (RuntimeException closed) {{ told.append("BLIND\\t").append(schema).append("\\t\\n"); }}
  java.util.List names = new java.util.ArrayList();
  try {{ names.addAll((({ICEBERG}.catalog.Catalog) catalog).listTables(schema)); }}
  catch (RuntimeException closed) {{ told.append("BLIND\\t").append(schema).append("\\t\\n"); }}
  for (java.util.Iterator each = names.iterator(); each.hasNext();) {{
    {ICEBERG}.catalog.TableIdentifier name = ({ICEBERG}.catalog.TableIdentifier) each.next();
    if (name.equals(own)) continue;
    java.util.Set places = new java.util.LinkedHashSet();
    java.util.Set within = new java.util.LinkedHashSet();
    try {{
      {ICEBERG}.Table table = (({ICEBERG}.catalog.Catalog) catalog).loadTable(name);
      {ICEBERG}.TableMetadata metadata = (({ICEBERG}.HasTableOperations) table).operations().current();
      places.add(table.location());
      for (java.util.Iterator more = table.properties().keySet().iterator(); more.hasNext();) {{
        String property = (String) more.next();
        if (property.startsWith("write.") && property.endsWith(".path"))
          places.add(table.properties().get(property));
      }}
      if (metadata.metadataFileLocation() != null) within.add(metadata.metadataFileLocation());
      for (java.util.Iterator more = metadata.previousFiles().iterator(); more.hasNext();)
        within.add((({ICEBERG}.TableMetadata.MetadataLogEntry) more.next()).file());
      java.util.Set seen = new java.util.HashSet();
      for (java.util.Iterator times = metadata.snapshots().iterator(); times.hasNext();) {{
        {ICEBERG}.Snapshot snapshot = ({ICEBERG}.Snapshot) times.next();
        for (java.util.Iterator more = snapshot.allManifests(table.io()).iterator(); more.hasNext();) {{
          {ICEBERG}.ManifestFile manifest = ({ICEBERG}.ManifestFile) more.next();
          if (!seen.add(manifest.path())) continue;
          {ICEBERG}.io.CloseableIterable paths = manifest.content() == {ICEBERG}.ManifestContent.DATA
            ? ({ICEBERG}.io.CloseableIterable) {ICEBERG}.ManifestFiles.read(
                manifest, table.io(), metadata.specsById())
            : ({ICEBERG}.io.CloseableIterable) {ICEBERG}.ManifestFiles.readDeleteManifest(
                manifest, table.io(), metadata.specsById());
          try {{
            for (java.util.Iterator entries = paths.iterator(); entries.hasNext();) {{
              String file = (({ICEBERG}.ContentFile) entries.next()).location();
              within.add(files.contains(file) ? file : file.substring(0, file.lastIndexOf('/') + 1));
            }}
          }} finally {{ paths.close(); }}
        }}
      }}
    }} catch (RuntimeException unreadable) {{
      told.append("BLIND\\t").append(name).append("\\t\\n");
    }}
    for (java.util.Iterator more = places.iterator(); more.hasNext();)
      told.append("FOLDER\\t").append(name).append('\\t').append(more.next()).append('\\n');
    for (java.util.Iterator more = within.iterator(); more.hasNext();)
      told.append("FILES\\t").append(name).append('\\t').append(more.next()).append('\\n');
  }}
  if (!(catalog instanceof {ICEBERG}.catalog.ViewCatalog)) continue;
  try {{
    for (java.util.Iterator each = (({ICEBERG}.catalog.ViewCatalog) catalog).listViews(schema).iterator();
        each.hasNext();) {{
      {ICEBERG}.catalog.TableIdentifier name = ({ICEBERG}.catalog.TableIdentifier) each.next();
      told.append("FOLDER\\t").append(name).append('\\t')
        .append((({ICEBERG}.catalog.ViewCatalog) catalog).loadView(name).location()).append('\\n');
    }}
  }} catch (RuntimeException closed) {{ told.append("BLIND\\t").append(schema).append("\\t\\n"); }}
}}
return told.toString();
"""
# What Iceberg would delete, wherever it lies: it deletes nothing.
_EXPIRE: Final = """
final java.util.List gone = java.util.Collections.synchronizedList(new java.util.ArrayList());
expiring.deleteWith(new java.util.function.Consumer() {
  public void accept(Object each) { gone.add(each); }
}).commit();
return gone;
"""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that metadata names: what it is, and of one with rows its format, and whether it is encrypted.

    That which only `past` metadata names is no more of the table.
    """

    kind: str
    format: str
    secret: bool
    past: bool
    size: int
    location: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A place of another table or view: a folder of its own, or one that has some of its files.

    What cannot be looked at has none.
    """

    kind: str
    name: str
    place: str


def files_of_history(jvm: Any, table: Any, files: Any, *, former: bool = False) -> list[NamedFile]:
    """The files that any snapshot names, or also `former` metadata does; `files` gets those of rows."""
    types = {"table": f"{ICEBERG}.Table", "files": "java.util.Map", "former": "java.lang.Boolean"}
    told: str = script(jvm, _NAMED, "java.lang.String", **types)(table, files, former)
    parts = (line.split("\t", 5) for line in told.split("\n")[:-1])
    return [
        NamedFile(kind, format_, bool(secret), bool(past), int(size), place)
        for kind, format_, secret, past, size, place in parts
    ]


def neighbours_of(jvm: Any, catalog: Any, own: Any, files: Collection[str]) -> list[Neighbour]:
    """Every place of the other tables and views of a catalog; of `files` those that they name by name."""
    types = {
        "catalog": "java.lang.Object",
        "own": f"{ICEBERG}.catalog.TableIdentifier",
        "files": "java.util.Set",
    }
    named = jvm.java.util.HashSet()
    for each in files:
        named.add(each)
    told: str = script(jvm, _NEIGHBOURS, "java.lang.String", **types)(catalog, own, named)
    return [Neighbour(*line.split("\t", 2)) for line in told.split("\n")[:-1]]


def expired_files(jvm: Any, expiring: Any) -> list[str]:
    """Commit an expiry of snapshots, and tell which files it would delete."""
    types = {"expiring": f"{ICEBERG}.ExpireSnapshots"}
    return list(script(jvm, _EXPIRE, "java.util.List", **types)(expiring))
