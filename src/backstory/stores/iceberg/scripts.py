"""Loops, in Java, over the files of a table. A call from Python for each file would take too long.

Each script is called once for many files and returns text.
"""

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from backstory.spark.versions import rewrites_by_options
from backstory.stores.iceberg.jvm import ICEBERG, iceberg, script
from backstory.stores.metadata.moves import FileLine, ScannedFile, with_deletes

# The option by which Iceberg's reader finds staged tasks.
TASKS_OPTION: Final = "scan-task-set-id"
_SCAN: Final = {"scan": f"{ICEBERG}.TableScan", "locations": "java.util.Set"}
_PLAN: Final = f"""
java.util.Map byLocation = new java.util.HashMap();
{ICEBERG}.io.CloseableIterable tasks = scan.planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext() && byLocation.size() < locations.size();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    String location = (({ICEBERG}.DataFile) task.file()).location();
    if (locations.contains(location)) byLocation.put(location, task);
  }}
}} finally {{ tasks.close(); }}
return byLocation;
"""
# Appends the record of a file: `sign` records whether it was added or removed. `FileLine` has the fields.
_FILE_LINE: Final = f"""
  boolean rows = file.content() == {ICEBERG}.FileContent.DATA;
  {ICEBERG}.DeleteFile deletes = rows ? null : ({ICEBERG}.DeleteFile) (Object) file;
  text.append(sign).append('\\000').append(file.content()).append('\\000').append(file.format()).append('\\000')
    .append(file.recordCount()).append('\\000').append(file.fileSizeInBytes()).append('\\000')
    .append(rows || deletes.contentOffset() == null ? "0" : deletes.contentOffset().toString())
    .append('\\000')
    .append(rows || deletes.contentSizeInBytes() == null ? "0" : deletes.contentSizeInBytes().toString())
    .append('\\000').append(rows || deletes.referencedDataFile() == null ? "" : deletes.referencedDataFile())
    .append('\\000').append(file.location()).append('\\000');
  if (rows) files.put(file.location(), file);
"""
_COMMIT: Final = f"""
StringBuilder text = new StringBuilder();
Iterable[] kinds = new Iterable[] {{
  snapshot.addedDataFiles(io), snapshot.removedDataFiles(io),
  snapshot.addedDeleteFiles(io), snapshot.removedDeleteFiles(io)
}};
for (int kind = 0; kind < 4; kind++) {{
  String sign = kind % 2 == 0 ? "+" : "-";
  for (java.util.Iterator each = kinds[kind].iterator(); each.hasNext();) {{
    {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) each.next();
    {_FILE_LINE}
  }}
}}
return text.toString();
"""
_PLANNED_FILES: Final = f"""
StringBuilder text = new StringBuilder();
{ICEBERG}.io.CloseableIterable tasks = scan.planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    String sign = "=";
    {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) (Object) task.file();
    {{ {_FILE_LINE} }}
    for (java.util.Iterator more = task.deletes().iterator(); more.hasNext();) {{
      file = ({ICEBERG}.ContentFile) more.next();
      {_FILE_LINE}
    }}
  }}
}} finally {{ tasks.close(); }}
return text.toString();
"""
# Spark splits a task before it plans, so a task with chosen row groups returns only their splits.
_TASKS: Final = f"""
java.util.List tasks = new java.util.ArrayList();
{ICEBERG}.expressions.ResidualEvaluator all = {ICEBERG}.expressions.ResidualEvaluator.unpartitioned(
  {ICEBERG}.expressions.Expressions.alwaysTrue());
String schema = {ICEBERG}.SchemaParser.toJson(table.schema());
for (java.util.Iterator each = groups.keySet().iterator(); each.hasNext();) {{
  String location = (String) each.next();
  {ICEBERG}.DataFile file = ({ICEBERG}.DataFile) files.get(location);
  {ICEBERG}.PartitionSpec spec = ({ICEBERG}.PartitionSpec) table.specs().get(Integer.valueOf(file.specId()));
  {ICEBERG}.BaseFileScanTask task = new {ICEBERG}.BaseFileScanTask(
    file, new {ICEBERG}.DeleteFile[0], schema, {ICEBERG}.PartitionSpecParser.toJson(spec), all);
  java.util.Set wanted = (java.util.Set) groups.get(location);
  if (wanted == null || file.splitOffsets() == null) {{ tasks.add(task); continue; }}
  final java.util.List pieces = new java.util.ArrayList();
  for (java.util.Iterator more = task.split(1L).iterator(); more.hasNext();) {{
    {ICEBERG}.FileScanTask piece = ({ICEBERG}.FileScanTask) more.next();
    if (wanted.contains(String.valueOf(piece.start()))) pieces.add(piece);
  }}
  if (pieces.size() < wanted.size()) {{ tasks.add(task); continue; }}
  final Object whole = task;
  java.lang.reflect.InvocationHandler handler = new java.lang.reflect.InvocationHandler() {{
    public Object invoke(Object self, java.lang.reflect.Method method, Object[] arguments) throws Throwable {{
      return method.getName().equals("split") ? pieces : method.invoke(whole, arguments);
    }}
  }};
  tasks.add(java.lang.reflect.Proxy.newProxyInstance(
    {ICEBERG}.FileScanTask.class.getClassLoader(), new Class[] {{ {ICEBERG}.FileScanTask.class }}, handler));
}}
return tasks;
"""
# Guava's own constant function does not implement Java's interface in Spark 3.5.
_CONSTANT: Final = """
return new java.util.function.Function() {
  public Object apply(Object any) { return "all"; }
};
"""


def scan_tasks_of(jvm: Any, table: Any, locations: Iterable[str]) -> dict[str, Any]:
    """Iceberg's scan tasks for the data files at these locations, without files that no longer exist."""
    ask = script(jvm, _PLAN, "java.util.Map", **_SCAN)
    return dict(ask(table.newScan(), _java_set(jvm, locations)))


def files_of_commit(jvm: Any, table: Any, snapshot: int, files: Any) -> list[FileLine]:
    """The files that a commit added and removed, from its manifests. Data files are put into `files`."""
    types = {"snapshot": f"{ICEBERG}.Snapshot", "io": f"{ICEBERG}.io.FileIO", "files": "java.util.Map"}
    text = script(jvm, _COMMIT, "java.lang.String", **types)(table.snapshot(snapshot), table.io(), files)
    return _file_lines(text)


def files_of_scan(jvm: Any, scan: Any, files: Any) -> list[ScannedFile]:
    """The data files of a scan, each with its delete files. Data files are put into `files`."""
    types = {"scan": f"{ICEBERG}.TableScan", "files": "java.util.Map"}
    return with_deletes(_file_lines(script(jvm, _PLANNED_FILES, "java.lang.String", **types)(scan, files)))


def files_between(jvm: Any, table: Any, before: int, after: int, files: Any) -> list[FileLine]:
    """The files added and removed between two snapshots, with any commits in between."""
    scans = (table.newScan().useSnapshot(snapshot) for snapshot in (before, after))
    old, new = ({file[0].location: file for file in files_of_scan(jvm, scan, files)} for scan in scans)
    lines = [replace(line, sign="-") for location, (line, _) in old.items() if location not in new]
    for location, (line, deletes) in new.items():
        former = old[location][1] if location in old else []
        lines += [] if location in old else [replace(line, sign="+")]
        lines += [replace(each, sign="+") for each in deletes if each not in former]
        lines += [replace(each, sign="-") for each in former if each not in deletes]
    return lines


def tasks_of(jvm: Any, table: Any, files: Any, groups: Mapping[str, Sequence[int] | None]) -> Any:
    """Scan tasks for all row groups of files, or for the groups at these offsets, including deleted rows."""
    types = {"table": f"{ICEBERG}.Table", "files": "java.util.Map", "groups": "java.util.Map"}
    wanted = jvm.java.util.HashMap()
    for location, chosen in groups.items():
        wanted.put(location, None if chosen is None else _java_set(jvm, map(str, chosen)))
    return script(jvm, _TASKS, "java.util.List", **types)(table, files, wanted)


def stage_tasks(jvm: Any, table: Any, group: str, tasks: Any) -> tuple[Any, Any]:
    """Register scan tasks under a name for Iceberg's reader, until `forget_tasks`.

    Returns Spark's table, and the table that Spark uses to read only these tasks. The latter is None if the
    first table reads them with the option `TASKS_OPTION`.
    """
    iceberg(jvm, "spark.ScanTaskSetManager").get().stageTasks(table, group, tasks)
    ordinary = iceberg(jvm, "spark.source.SparkTable")
    if rewrites_by_options():
        return ordinary(table, False), None
    return ordinary(table), iceberg(jvm, "spark.source.SparkRewriteTable")(table, group)


def one_manifest(jvm: Any) -> Any:
    """A Java function that assigns every file to the same manifest."""
    return script(jvm, _CONSTANT, "java.util.function.Function")()


def forget_tasks(jvm: Any, table: Any, group: str) -> None:
    """Unregister staged scan tasks."""
    iceberg(jvm, "spark.ScanTaskSetManager").get().removeTasks(table, group)


def _java_set(jvm: Any, values: Iterable[object]) -> Any:
    java_set = jvm.java.util.HashSet()
    for value in values:
        java_set.add(value)
    return java_set


def _records(text: str, width: int) -> Iterator[tuple[str, ...]]:
    """The records of a script's text. Each of their fields ends with NUL, which no name or path contains."""
    fields = iter(text.split("\0")[:-1])
    return zip(*[fields] * width, strict=True)


def _file_lines(text: str) -> list[FileLine]:
    files = []
    for sign, content, format_, *numbers, hidden, location in _records(text, 9):
        count, size, offset, length = map(int, numbers)
        files.append(FileLine(sign, content, format_, count, size, offset, length, hidden, location))
    return files


# The files that the current metadata names, the files that its snapshots removed, and the files of former
# metadata.
_REFERENCED_FILES: Final = f"""
StringBuilder text = new StringBuilder();
{ICEBERG}.TableMetadata now = (({ICEBERG}.HasTableOperations) table).operations().current();
{ICEBERG}.io.FileIO io = table.io();
java.util.Set seen = new java.util.HashSet();
java.util.List all = new java.util.ArrayList();
all.add(now);
text.append("METADATA\\000\\000\\000\\0000\\000").append(now.metadataFileLocation()).append('\\000');
for (java.util.Iterator each = now.previousFiles().iterator(); former.booleanValue() && each.hasNext();) {{
  String place = (({ICEBERG}.TableMetadata.MetadataLogEntry) each.next()).file();
  text.append("METADATA\\000\\000\\000past\\0000\\000").append(place).append('\\000');
  if (!io.newInputFile(place).exists()) continue;
  try {{
    {ICEBERG}.TableMetadata then = {ICEBERG}.TableMetadataParser.read(io, place);
    if (then.uuid() != null && then.uuid().equals(now.uuid())) all.add(then);
  }} catch (RuntimeException unreadable) {{ }}
}}
for (java.util.Iterator times = all.iterator(); times.hasNext();) {{
  {ICEBERG}.TableMetadata metadata = ({ICEBERG}.TableMetadata) times.next();
  boolean past = metadata != now;
  String when = past ? "past\\0000\\000" : "\\0000\\000";
  for (java.util.Iterator each = metadata.statisticsFiles().iterator(); each.hasNext();)
    text.append("STATISTICS\\000\\000\\000").append(when)
      .append((({ICEBERG}.StatisticsFile) each.next()).path()).append('\\000');
  for (java.util.Iterator each = metadata.partitionStatisticsFiles().iterator(); each.hasNext();)
    text.append("STATISTICS\\000\\000\\000").append(when)
      .append((({ICEBERG}.PartitionStatisticsFile) each.next()).path()).append('\\000');
  for (java.util.Iterator each = metadata.snapshots().iterator(); each.hasNext();) {{
    {ICEBERG}.Snapshot snapshot = ({ICEBERG}.Snapshot) each.next();
    String list = snapshot.manifestListLocation();
    if (list != null) {{
      if (!seen.add(list)) continue;
      text.append("METADATA\\000\\000\\000").append(when).append(list).append('\\000');
      if (past && !io.newInputFile(list).exists()) continue;
    }}
    for (java.util.Iterator more = snapshot.allManifests(io).iterator(); more.hasNext();) {{
      {ICEBERG}.ManifestFile manifest = ({ICEBERG}.ManifestFile) more.next();
      if (!seen.add(manifest.path())) continue;
      text.append("METADATA\\000\\000\\000").append(when).append(manifest.path()).append('\\000');
      if (past && !io.newInputFile(manifest.path()).exists()) continue;
      {ICEBERG}.io.CloseableIterable rows = manifest.content() == {ICEBERG}.ManifestContent.DATA
        ? ({ICEBERG}.io.CloseableIterable) {ICEBERG}.ManifestFiles.read(manifest, io, metadata.specsById())
        : ({ICEBERG}.io.CloseableIterable) {ICEBERG}.ManifestFiles.readDeleteManifest(
            manifest, io, metadata.specsById());
      try {{
        for (java.util.Iterator entries = rows.iterator(); entries.hasNext();) {{
          {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) entries.next();
          if (!seen.add(file.location())) continue;
          text.append(file.content()).append('\\000').append(file.format()).append('\\000')
            .append(file.keyMetadata() == null ? "" : "secret").append('\\000')
            .append(past ? "past" : "").append('\\000').append(file.fileSizeInBytes()).append('\\000')
            .append(file.location()).append('\\000');
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
        text.append(file.content()).append('\\000').append(file.format()).append('\\000')
          .append(file.keyMetadata() == null ? "" : "secret").append("\\000past\\000")
          .append(file.fileSizeInBytes()).append('\\000').append(file.location()).append('\\000');
        if (kind == 0) files.put(file.location(), file.copyWithoutStats());
      }}
  }}
}}
return text.toString();
"""
# Returns a record for each folder or file of another table or view.
_NEIGHBOURS: Final = f"""
StringBuilder text = new StringBuilder();
java.util.LinkedList waiting = new java.util.LinkedList();
if (catalog instanceof {ICEBERG}.catalog.SupportsNamespaces)
  waiting.addAll((({ICEBERG}.catalog.SupportsNamespaces) catalog).listNamespaces());
else text.append("BLIND\\000\\000\\000");
while (!waiting.isEmpty()) {{
  {ICEBERG}.catalog.Namespace schema = ({ICEBERG}.catalog.Namespace) waiting.removeFirst();
  try {{ waiting.addAll((({ICEBERG}.catalog.SupportsNamespaces) catalog).listNamespaces(schema)); }}
  catch (RuntimeException closed) {{ text.append("BLIND\\000").append(schema).append("\\000\\000"); }}
  java.util.List names = new java.util.ArrayList();
  try {{ names.addAll((({ICEBERG}.catalog.Catalog) catalog).listTables(schema)); }}
  catch (RuntimeException closed) {{ text.append("BLIND\\000").append(schema).append("\\000\\000"); }}
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
      text.append("BLIND\\000").append(name).append("\\000\\000");
    }}
    for (java.util.Iterator more = places.iterator(); more.hasNext();)
      text.append("FOLDER\\000").append(name).append('\\000').append(more.next()).append('\\000');
    for (java.util.Iterator more = within.iterator(); more.hasNext();)
      text.append("FILES\\000").append(name).append('\\000').append(more.next()).append('\\000');
  }}
  if (!(catalog instanceof {ICEBERG}.catalog.ViewCatalog)) continue;
  try {{
    for (java.util.Iterator each = (({ICEBERG}.catalog.ViewCatalog) catalog).listViews(schema).iterator();
        each.hasNext();) {{
      {ICEBERG}.catalog.TableIdentifier name = ({ICEBERG}.catalog.TableIdentifier) each.next();
      text.append("FOLDER\\000").append(name).append('\\000')
        .append((({ICEBERG}.catalog.ViewCatalog) catalog).loadView(name).location()).append('\\000');
    }}
  }} catch (RuntimeException closed) {{ text.append("BLIND\\000").append(schema).append("\\000\\000"); }}
}}
return text.toString();
"""
# Returns the files that Iceberg would delete, in any folder, but deletes none of them.
_EXPIRE: Final = """
final java.util.List removed = java.util.Collections.synchronizedList(new java.util.ArrayList());
expiring.deleteWith(new java.util.function.Consumer() {
  public void accept(Object each) { removed.add(each); }
}).commit();
return removed;
"""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that metadata names. A file that only `past` metadata names is no longer part of the table.

    Data files and delete files have a format. A `secret` file is encrypted.
    """

    kind: str
    format: str
    secret: bool
    past: bool
    size: int
    location: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A location of another table or view: its own folder, or a folder or file that it uses.

    A table, view or schema that cannot be read is BLIND and has no location.
    """

    kind: str
    name: str
    place: str


def files_of_history(jvm: Any, table: Any, files: Any, *, former: bool = False) -> list[NamedFile]:
    """The files that any snapshot names, and if `former` is true, the files that former metadata names.

    Iceberg's objects for data files are put into `files`, a Java map, under their locations.
    """
    types = {"table": f"{ICEBERG}.Table", "files": "java.util.Map", "former": "java.lang.Boolean"}
    text: str = script(jvm, _REFERENCED_FILES, "java.lang.String", **types)(table, files, former)
    return [
        NamedFile(kind, format_, bool(secret), bool(past), int(size), place)
        for kind, format_, secret, past, size, place in _records(text, 6)
    ]


def neighbours_of(jvm: Any, catalog: Any, own: Any, files: Collection[str]) -> list[Neighbour]:
    """The locations of a catalog's other tables and views, and the `files` that they name."""
    types = {
        "catalog": "java.lang.Object",
        "own": f"{ICEBERG}.catalog.TableIdentifier",
        "files": "java.util.Set",
    }
    text: str = script(jvm, _NEIGHBOURS, "java.lang.String", **types)(catalog, own, _java_set(jvm, files))
    return [Neighbour(*fields) for fields in _records(text, 3)]


def commit_expiry(jvm: Any, expiring: Any) -> list[str]:
    """Commit an expiry of snapshots, and return the files to delete after it."""
    types = {"expiring": f"{ICEBERG}.ExpireSnapshots"}
    return list(script(jvm, _EXPIRE, "java.util.List", **types)(expiring))


# A new vector includes the positions of a file's older vectors and position deletes. Equality deletes remain:
# they hide rows of all older files.
_VECTORS: Final = f"""
java.util.Map marked = new java.util.HashMap();
String[] fields = text.split("\\000");
for (int place = 0; place < fields.length; place += 3)
  marked.put(fields[place + 2], new String[] {{ fields[place], fields[place + 1] }});
final java.util.Map previous = new java.util.HashMap();
final {ICEBERG}.io.FileIO io = table.io();
java.util.function.Function opened = new java.util.function.Function() {{
  public Object apply(Object each) {{ return io.newInputFile((({ICEBERG}.DeleteFile) each).location()); }}
}};
{ICEBERG}.data.BaseDeleteLoader loader = new {ICEBERG}.data.BaseDeleteLoader(opened);
{ICEBERG}.deletes.BaseDVFileWriter writer = new {ICEBERG}.deletes.BaseDVFileWriter(
  {ICEBERG}.io.OutputFileFactory.builderFor(table, 0, 0L).format({ICEBERG}.FileFormat.PUFFIN).build(),
  new java.util.function.Function() {{ public Object apply(Object each) {{ return previous.get(each); }} }});
// The compiler knows no static methods of interfaces.
java.lang.reflect.Method deserialize = {ICEBERG}.deletes.PositionDeleteIndex.class.getMethod(
  "deserialize", new Class[] {{ byte[].class, {ICEBERG}.DeleteFile.class }});
int count = 0;
{ICEBERG}.io.CloseableIterable tasks = table.newScan().planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext() && count < marked.size();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    {ICEBERG}.DataFile file = ({ICEBERG}.DataFile) (Object) task.file();
    String[] parts = (String[]) marked.get(file.location());
    if (parts == null) continue;
    count++;
    java.util.List older = new java.util.ArrayList();
    for (java.util.Iterator more = task.deletes().iterator(); more.hasNext();) {{
      {ICEBERG}.DeleteFile hiding = ({ICEBERG}.DeleteFile) more.next();
      if (hiding.content() == {ICEBERG}.FileContent.POSITION_DELETES) older.add(hiding);
    }}
    if (!older.isEmpty()) previous.put(file.location(), loader.loadPositionDeletes(older, file.location()));
    byte[] bytes = java.util.Base64.getDecoder().decode(parts[1]);
    {ICEBERG}.DeleteFile about = {ICEBERG}.FileMetadata.deleteFileBuilder(task.spec()).ofPositionDeletes()
      .withFormat("puffin").withPath(file.location()).withFileSizeInBytes((long) bytes.length)
      .withPartition(file.partition()).withRecordCount(Long.parseLong(parts[0]))
      .withReferencedDataFile(file.location()).withContentOffset(0L)
      .withContentSizeInBytes((long) bytes.length).build();
    {ICEBERG}.deletes.PositionDeleteIndex index =
      ({ICEBERG}.deletes.PositionDeleteIndex) deserialize.invoke(null, new Object[] {{ bytes, about }});
    writer.delete(file.location(), index, task.spec(), file.partition());
  }}
}} finally {{ tasks.close(); }}
if (count < marked.size()) return null;
writer.close();
return new Object[] {{
  writer.result().deleteFiles().toArray(), writer.result().rewrittenDeleteFiles().toArray()
}};
"""


def write_vectors(jvm: Any, table: Any, vectors: Mapping[str, tuple[int, bytes]]) -> Any:
    """Write deletion vectors. Returns the new delete files and the delete files that they replace.

    `vectors` has the number of positions and the vector's bytes for each data file. Returns None if a data
    file no longer exists.
    """
    fields = (f"{count}\0{b64encode(content).decode()}\0{file}" for file, (count, content) in vectors.items())
    types = {"table": f"{ICEBERG}.Table", "text": "java.lang.String"}
    return script(jvm, _VECTORS, "java.lang.Object", **types)(table, "\0".join(fields))
